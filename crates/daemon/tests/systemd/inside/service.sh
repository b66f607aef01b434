# The life of a service: what it is, how it starts, what it tells, how it ends.

units_are_right() {
    # Their manual pages need not be installed here.
    local told score number
    told=$(systemd-analyze verify --man=no 'weft@wg0.service' 2>&1 | grep -F weft || true)
    is "$told" "" "from systemd-analyze verify"
    score=$(systemd-analyze security --no-pager 'weft@wg0.service' | tail -1)
    echo "$score"
    number=$(grep -oE '[0-9]+\.[0-9]+' <<<"$score")
    awk -v n="$number" 'BEGIN {exit !(n <= 1.5)}' || { say "the score is above 1.5"; return 1; }
}

start_is_ready_and_carries_traffic() {
    local before started
    before=$(now)
    systemctl enable --now weft@wg0
    started=$(ms_since "$before")
    # Ready means ready: no waiting.
    is "$(show ActiveState weft@wg0)" active
    ip -4 addr show dev wg0 | grep -q 10.9.0.1
    ip route get 10.9.0.2 | grep -q "dev wg0"
    reach_far >&2
    echo "start $started, first answer after $(ms_since "$before")"
    is "$(ps -o user= -p "$(pid weft@wg0)" | tr -d ' ')" weft
    is "$(awk '/^CapEff/ {print $2}' "/proc/$(pid weft@wg0)/status")" 0000000000001000 "(CAP_NET_ADMIN alone)"
    # The threads that parse what others sent have filters beyond those of the unit.
    local of_unit
    of_unit=$(thread_has weft@wg0 weft Seccomp_filters)
    for thread in weft-packets weft-uapi weft-control weft-network; do
        [ "$(thread_has weft@wg0 $thread Seccomp_filters)" -gt "$of_unit" ] || { say "$thread is not confined"; return 1; }
    done
    # wg(8) finds it.
    wg show wg0 latest-handshakes | grep -q "$(cat /tmp/s/far.pub)"
    grep -q "^root:weft" <<<"$(stat -c %U:%G /run/wireguard)"
}

# A field of what the kernel says of a thread of an instance.
thread_has() {
    local task
    for task in "/proc/$(pid "$1")"/task/*; do
        [ "$(cat "$task/comm")" != "$2" ] || awk -v field="$3:" '$1 == field {print $2}' "$task/status"
    done
}

the_operator_reads_how_it_goes() {
    wait_for 15 status_has "the peer had a handshake within 3 min"
    show StatusText weft@wg0
}
status_has() { grep -qF "$1" <<<"$(show StatusText weft@wg0)"; }

a_file_that_is_missing_or_wrong_is_told_and_not_tried_for_ever() {
    refuse systemctl start weft@nothere
    is "$(show ActiveState weft@nothere)" failed
    is "$(show NRestarts weft@nothere)" 0
    printf '[Interface]\nPrivateKey = %s\nAdress = 10.0.0.1\n' "$(cat /tmp/s/third.key)" | private /etc/wireguard/wrong.conf
    refuse systemctl start weft@wrong
    is "$(show ExecMainStatus weft@wrong)" 78
    is "$(show NRestarts weft@wrong)" 0
    # The file by the name that people know, not by that of a copy which is gone.
    journal_has weft@wrong "/etc/wireguard/wrong.conf:3: Adress"
    systemctl reset-failed weft@nothere weft@wrong
}

a_clean_stop_leaves_nothing_behind() {
    systemctl stop weft@wg0
    is "$(show Result weft@wg0)" success
    refuse ip link show wg0
    is "$(find /run/wireguard -mindepth 1 ! -name '*far0*')" "" "in /run/wireguard"
    is "$(find /run/weft ! -type d)" "" "in /run/weft"
    is "$(ip rule | wc -l)" 3 "rules"
    is "$(nft list tables)" ""
    ip route | absent 10.9.0 "a route"
    systemctl disable weft@wg0
    systemctl list-units --all --no-legend 'weft@*' | absent failed "a unit that failed"
}
