# weft-client@.service: the file of a VPN provider as it is, where /etc/resolv.conf is a plain file.

a_providers_file_runs_as_it_is() {
    local unit=weft-client@mullvad before rules score process
    is "$(systemd-analyze verify --man=no $unit.service 2>&1 | grep -F weft || true)" "" "from systemd-analyze verify"
    score=$(systemd-analyze security --no-pager $unit.service | tail -1)
    awk -v n="$(grep -oE '[0-9]+\.[0-9]+' <<<"$score")" 'BEGIN {exit !(n <= 2.7)}' || { say "the score is above 2.7"; return 1; }
    # As it was moved from a download, where another user saved it.
    providers_file | private /etc/wireguard/mullvad.conf
    chown nobody /etc/wireguard/mullvad.conf
    mv /etc/resolv.conf /tmp/s/resolv.conf
    printf '# by hand\nnameserver 192.0.2.53\n' >/etc/resolv.conf
    sysctl -qw net.ipv4.conf.all.src_valid_mark=0
    before=$(cat /etc/resolv.conf; stat -c '%U:%G %a' /etc/resolv.conf)
    rules=$(ip rule; ip -6 rule; nft list tables)
    systemctl stop weft@wg0
    systemctl enable --now $unit
    carries_everything
    # The threads that parse what others sent are not root's.
    is "$(thread_has $unit weft-packets CapPrm)" 0000000000001000 "(CAP_NET_ADMIN alone)"
    systemctl reload $unit
    systemctl restart $unit
    carries_everything
    process=$(pid $unit)
    kill -KILL "$process"
    wait_for 30 has_come_back $unit "$process"
    carries_everything
    systemctl disable --now $unit
    is "$(show Result $unit)" success
    is "$(cat /etc/resolv.conf; stat -c '%U:%G %a' /etc/resolv.conf)" "$before"
    is "$(ip rule; ip -6 rule; nft list tables)" "$rules"
    is "$(sysctl -n net.ipv4.conf.all.src_valid_mark)" 0
    # Neither unit of an interface ends the other: a full tunnel that ended for a start that fails would leak.
    config | private /etc/wireguard/wg0.conf
    systemctl start weft-client@wg0
    process=$(pid weft-client@wg0)
    refuse systemctl start weft@wg0
    is "$(pid weft-client@wg0)" "$process"
    systemctl stop weft-client@wg0
    systemctl start weft@wg0
    process=$(pid weft@wg0)
    refuse systemctl start weft-client@wg0
    systemctl stop weft-client@wg0
    is "$(pid weft@wg0)" "$process"
    wait_for 20 through
    rm /etc/resolv.conf
    mv /tmp/s/resolv.conf /etc/resolv.conf
    echo "$score"
}
providers_file() {
    cat <<CONF
[Interface]
PrivateKey = $(cat /tmp/s/near.key)
Address = 10.9.0.1/32,fd09::1/128
DNS = 10.9.0.2,fd09::2

[Peer]
PublicKey = $(cat /tmp/s/far.pub)
AllowedIPs = 0.0.0.0/0,::0/0
Endpoint = 192.0.2.2:51821
CONF
}
carries_everything() {
    is "$(show ActiveState weft-client@mullvad)" active
    is "$(sed -n 's/^nameserver //p' /etc/resolv.conf | paste -sd ,)" 10.9.0.2,fd09::2 "in resolv.conf"
    ip route get 198.51.100.1 | grep -q "dev mullvad"
    ip -6 route get 2001:db8::1 | grep -q "dev mullvad"
    reach_far >&2
    ping -q -c 1 -W 10 fd09::2 >&2
}

a_providers_file_that_is_missing_or_wrong_is_one_line() {
    printf '[Interface]\nPrivateKey = %s\nDsn = 10.0.0.1\n' "$(cat /tmp/s/third.key)" | private /etc/wireguard/wrong.conf
    printf '[Interface]\nPrivateKey = %s\n' "$(cat /tmp/s/third.key)" | private /etc/wireguard/provider-city-001.conf
    local name
    for name in nothere wrong provider-city-001; do
        refuse systemctl start weft-client@$name
        # Not `activating`, as before another try.
        is "$(show ActiveState weft-client@$name)" failed
        is "$(show ExecMainStatus weft-client@$name)" 78
        is "$(show NRestarts weft-client@$name)" 0
        journal_has weft-client@$name "/etc/wireguard/$name.conf"
        is "$(journal weft-client@$name | grep -cF "$name.conf")" 1 "lines that name it"
        journal weft-client@$name | absent "credentials" "what has nothing to do with it"
        systemctl reset-failed weft-client@$name
    done
    rm /etc/wireguard/provider-city-001.conf
}
