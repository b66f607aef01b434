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

# What other programs and people do to systemd-resolved and /etc/resolv.conf beside a tunnel. Names are
# looked up at the tunnel's servers soon again, or it is told.
name_servers_survive_what_happens_to_the_real_resolved() {
    [ -x /usr/lib/systemd/systemd-resolved ] || { echo "not run: no systemd-resolved"; return 0; }
    local resolved=/run/systemd/resolve
    systemctl start systemd-resolved polkit
    ip link add lan type veth peer name lan1
    ip link set lan up
    ip link set lan1 up
    install -D -m 644 -t /etc/systemd/system/weft@dns.service.d /opt/weft-test/{full-tunnel,as-root}.conf
    systemctl daemon-reload
    systemctl start weft@dns
    wait_for 10 in_resolved
    systemctl restart systemd-resolved
    wait_for 20 in_resolved
    resolvectl revert dns
    wait_for 20 in_resolved
    resolvectl dns lan 192.0.2.1
    resolvectl domain lan '~.'
    wait_for 20 is_told "systemd-resolved asks the servers of lan too"
    resolvectl domain lan ''
    wait_for 20 is_told_no_more "systemd-resolved asks the servers of lan too"
    # Programs ask the servers of all links themselves then.
    ln -sfn $resolved/resolv.conf /etc/resolv.conf
    wait_for 20 in_file
    resolvectl dns dns | absent 10.11.0.53 "servers in systemd-resolved beside those in the file"
    systemctl stop weft@dns
    is "$(readlink /etc/resolv.conf)" $resolved/resolv.conf
    # A start knows it as well. NetworkManager, cloud-init and dhclient write a plain file.
    systemctl start weft@dns
    wait_for 10 in_file
    systemctl stop weft@dns
    ln -sfn $resolved/stub-resolv.conf /etc/resolv.conf
    systemctl start weft@dns
    wait_for 10 in_resolved
    rm /etc/resolv.conf
    echo "nameserver 192.0.2.1" >/etc/resolv.conf
    wait_for 20 in_file
    systemctl stop weft@dns
    is "$(cat /etc/resolv.conf)" "nameserver 192.0.2.1"
    is "$(show Result weft@dns)" success
    ln -sfn $resolved/stub-resolv.conf /etc/resolv.conf
    # It ends for good while the tunnel is up.
    systemctl start weft@dns
    wait_for 10 in_resolved
    systemctl mask --now --runtime systemd-resolved
    weft down dns
    systemctl unmask --runtime systemd-resolved
    ip link del lan
    rm /etc/systemd/system/weft@dns.service.d/as-root.conf
}
in_resolved() { resolvectl dns dns | grep -q 10.11.0.53 && resolvectl domain dns | grep -qF '~.'; }
in_file() { [ "$(grep ^nameserver /etc/resolv.conf)" = "nameserver 10.11.0.53" ]; }
is_told() { weft status dns 2>/dev/null | grep -qF "$1"; }
is_told_no_more() { ! is_told "$1"; }
