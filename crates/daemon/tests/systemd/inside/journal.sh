# The log, as an operator finds it.

what_concerns_an_interface_or_a_peer_is_found_in_the_journal() {
    local far
    far=$(cat /tmp/s/far.pub)
    # The peer goes to another port, which is worth an entry, and comes back.
    move_far_to 51830
    move_far_to 51821
    wait_for 10 is_logged_at 192.0.2.2:51830
    # Everything that concerns the peer, and nothing else.
    entries INTERFACE=wg0 "PEER=$far" | tee /tmp/s/of_peer >&2
    jq -se --arg far "$far" 'all(.[]; .INTERFACE == "wg0" and .PEER == $far and ._SYSTEMD_UNIT == "weft@wg0.service"
        and (.PRIORITY | tonumber) <= 5 and (.TARGET | startswith("weft")) and has("CODE_FILE") and has("CODE_LINE"))' \
        /tmp/s/of_peer >/dev/null
    is "$(entries INTERFACE=wg0 "PEER=$(cat /tmp/s/third.pub)")" "" "of another peer"
    is "$(entries INTERFACE=wg1)" "" "of another interface"
    # All that weft logs in the unit is found by the interface. What `weft reload` prints is no log.
    entries INTERFACE=wg0 | jq -r .__CURSOR | sort >/tmp/s/of_interface
    entries _SYSTEMD_UNIT=weft@wg0.service _TRANSPORT=journal | jq -r .__CURSOR | sort >/tmp/s/of_unit
    is "$(comm -13 /tmp/s/of_interface /tmp/s/of_unit)" "" "without INTERFACE="
    echo "$(wc -l </tmp/s/of_interface) entries, $(wc -l </tmp/s/of_peer) of the peer"
    entries _SYSTEMD_UNIT=weft@wg0.service | absent "$(cat /tmp/s/near.key)" "a key in a field"
}
move_far_to() {
    wg set far0 listen-port "$1"
    on_far ping -q -c 1 -W 10 10.9.0.1 >&2
}
# entries MATCH…: as JSON, one a line.
entries() { journalctl --no-pager --output=json "$@"; }
is_logged_at() { entries INTERFACE=wg0 "PEER=$(cat /tmp/s/far.pub)" | jq -se --arg at "$1" 'any(.[]; .ENDPOINT == $at)'; }
