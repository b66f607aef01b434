# Reloads, restarts and crashes, with a connection through the tunnel.

a_reload_under_load_ends_no_connection() {
    local before process
    process=$(pid weft@wg0)
    begin_stream -t 5
    printf '\n[Peer]\nPublicKey = %s\nAllowedIPs = 10.12.0.0/24\n' "$(cat /tmp/s/third.pub)" >>/etc/wireguard/wg0.conf
    before=$(now)
    systemctl reload weft@wg0
    echo "reload $(ms_since "$before")"
    is "$(wg show wg0 peers | wc -l)" 2 peers
    ip route show 10.12.0.0/24 | grep -q wg0
    end_stream reload
    is "$(pid weft@wg0)" "$process" "the same process"
    is "$(show SubState weft@wg0)" running
    # What is wrong is refused, and changes nothing.
    echo "Nonsense = 1" >>/etc/wireguard/wg0.conf
    refuse systemctl reload weft@wg0
    is "$(show ActiveState weft@wg0)" active
    is "$(wg show wg0 peers | wc -l)" 2 peers
    config >/etc/wireguard/wg0.conf
    systemctl reload weft@wg0
    is "$(wg show wg0 peers | wc -l)" 1 peers
    is "$(show SubState weft@wg0)" running
}

a_restart_under_load_ends_no_connection() {
    local before process device took silent
    process=$(pid weft@wg0)
    device=$(ip -o link show wg0 | cut -d: -f1)
    # Changed while it runs, and not in the file.
    wg set wg0 peer "$(cat /tmp/s/third.pub)" allowed-ips 10.12.0.0/24
    begin_stream -t 20 -i 0.1
    before=$(now)
    systemctl restart weft@wg0
    took=$(ms_since "$before")
    [ "$(pid weft@wg0)" != "$process" ]
    is "$(ip -o link show wg0 | cut -d: -f1)" "$device" "the same device"
    is "$(wg show wg0 listen-port)" 51820
    is "$(wg show wg0 peers | wc -l)" 2 peers
    # The queues, four sockets of each address family, and the state.
    local queues=(/sys/class/net/wg0/queues/tx-*)
    is "$(show NFileDescriptorStore weft@wg0)" $((${#queues[@]} + 9))
    end_stream restart
    # Something was sent after the restart, and not for the first time after 15 s.
    jq -e '[.intervals[-10:][].sum.bytes] | add > 0' /tmp/s/stream.json >/dev/null
    journal_has weft@wg0 "continuing with the interface"
    silent=$(jq '[.intervals[] | select(.sum.bytes == 0)] | length' /tmp/s/stream.json)
    echo "restart $took, of 20 s $silent tenths of a second without a byte"
    wg set wg0 peer "$(cat /tmp/s/third.pub)" remove
}

a_killed_daemon_comes_back() {
    local before process
    process=$(pid weft@wg0)
    before=$(now)
    kill -KILL "$process"
    wait_for_another_process "$process"
    echo "traffic after $(ms_since "$before")"
    is "$(show ActiveState weft@wg0)" active
}
