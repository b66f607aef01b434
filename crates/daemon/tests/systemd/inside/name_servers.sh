# DNS with the real systemd-resolved and polkit.

name_servers_go_to_the_real_resolved_and_stay_through_a_restart() {
    [ -x /usr/lib/systemd/systemd-resolved ] || { echo "not run: no systemd-resolved"; return 0; }
    local in_force process
    systemctl start systemd-resolved polkit
    install -D -m 644 /opt/weft-test/full-tunnel.conf /etc/systemd/system/weft@dns.service.d/full-tunnel.conf
    private /etc/wireguard/dns.conf <<CONF
[Interface]
PrivateKey = $(cat /tmp/s/third.key)
Address = 10.11.0.1/24
DNS = 10.11.0.53, corp.example
CONF
    # What is in force without the interface: before each start.
    drop_in /etc weft@dns between <<'UNIT'
[Service]
ExecStartPre=-+/bin/bash -c '{ resolvectl dns dns; resolvectl domain dns; } >/out/dns 2>&1'
UNIT
    systemctl start weft@dns
    resolvectl status dns >&2
    in_force=$(resolvectl dns dns; resolvectl domain dns)
    grep -q 10.11.0.53 <<<"$in_force"
    grep -q corp.example <<<"$in_force"
    process=$(pid weft@dns)
    systemctl restart weft@dns
    [ "$(pid weft@dns)" != "$process" ]
    is "$(cat /out/dns)" "$in_force" "between two processes"
    is "$(resolvectl dns dns; resolvectl domain dns)" "$in_force" "after the restart"
    systemctl stop weft@dns
    is "$(show Result weft@dns)" success
    resolvectl dns | absent 10.11.0.53 "a name server"
    resolvectl domain | absent corp.example "a domain"
}
