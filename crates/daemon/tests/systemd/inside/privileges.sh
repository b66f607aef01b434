# What the daemon may do, and may not.

the_sandbox_holds() {
    drop_in /run weft@probe probe <<'UNIT'
[Service]
Type=oneshot
ExecStart=
ExecStart=/bin/bash /opt/weft-test/probe.sh
ExecStopPost=
LoadCredential=
Restart=no
WatchdogSec=0
TimeoutStartSec=60
StandardOutput=truncate:/out/probe
StandardError=truncate:/out/probe.errors
UNIT
    # A device that nothing but DevicePolicy= keeps from being opened: fuse, or the loop devices.
    for minor in 229 237 144; do
        rm -f /opt/weft-test/device
        mknod -m 666 /opt/weft-test/device c 10 $minor
        if : <>/opt/weft-test/device; then break; fi
    done 2>/dev/null
    : <>/opt/weft-test/device
    systemctl start weft@probe >&2
    cat /out/probe >&2
    local expected
    expected="make a tun device
open a UDP socket
run a program
see itself
set it up
write to the runtime directory"
    is "$(sed -n 's/: done$//p' /out/probe | sort)" "$expected"
    # The same without the sandbox, as root: what is refused then as well is the container's doing, and proves little.
    unshare --mount --uts /bin/bash /opt/weft-test/probe.sh >/tmp/s/control 2>/dev/null
    local kept own
    kept=$(grep -c ': refused$' /out/probe)
    own=$(comm -12 <(sed -n 's/: refused$//p' /out/probe | sort) <(sed -n 's/: done$//p' /tmp/s/control | sort) | wc -l)
    say "refused in any case: $(sed -n 's/: refused$//p' /tmp/s/control | tr '\n' ';')"
    echo "$kept attempts refused, $own of them by the sandbox alone"
    is "$kept" "$(($(grep -c : /out/probe) - 6))"
    [ "$own" -ge 20 ] || { say "too few of them prove something"; return 1; }
    rm -r /run/systemd/system/weft@probe.service.d
    systemctl daemon-reload
}

a_full_tunnel_has_a_profile_of_its_own() {
    install -D -m 644 /opt/weft-test/full-tunnel.conf /etc/systemd/system/weft@full.service.d/full-tunnel.conf
    systemctl daemon-reload
    is "$(systemd-analyze verify --man=no 'weft@full.service' 2>&1 | grep -F weft || true)" ""
    systemd-analyze security --no-pager 'weft@full.service' | tail -1
    private /etc/wireguard/full.conf <<CONF
[Interface]
PrivateKey = $(cat /tmp/s/near.key)
Address = 10.9.0.1/24
PostUp = sysctl -w net.ipv4.conf.%i.forwarding=1
PostUp = nft add table inet hook_of_%i
PostDown = nft delete table inet hook_of_%i
[Peer]
PublicKey = $(cat /tmp/s/far.pub)
AllowedIPs = 0.0.0.0/0
Endpoint = 192.0.2.2:51821
CONF
    local valid_mark rules
    sysctl -qw net.ipv4.conf.all.src_valid_mark=0
    rules=$(ip rule)
    systemctl stop weft@wg0
    systemctl start weft@full
    is "$(sysctl -n net.ipv4.conf.all.src_valid_mark)" 1
    is "$(sysctl -n net.ipv4.conf.full.forwarding)" 1
    nft list tables | grep -q "inet hook_of_full"
    ip route get 198.51.100.1 | grep -q "dev full"
    reach_far >&2
    systemctl stop weft@full
    is "$(sysctl -n net.ipv4.conf.all.src_valid_mark)" 0
    is "$(ip rule)" "$rules"
    is "$(nft list tables)" ""
    systemctl start weft@wg0
}

the_daemon_may_be_root_where_it_has_to() {
    local drop_ins=/etc/systemd/system/weft@root.service.d before
    install -D -m 644 -t $drop_ins /opt/weft-test/full-tunnel.conf /opt/weft-test/as-root.conf
    private /etc/wireguard/root.conf <<CONF
[Interface]
PrivateKey = $(cat /tmp/s/third.key)
Address = 10.13.0.1/24
DNS = 10.13.0.53
PostUp = install -o root -m 600 /dev/null /etc/wireguard/made-by-%i
PostDown = rm /etc/wireguard/made-by-%i
CONF
    systemctl daemon-reload
    systemd-analyze security --no-pager 'weft@root.service' | tail -1
    mv /etc/resolv.conf /tmp/s/resolv.conf
    echo "nameserver 192.0.2.53" >/etc/resolv.conf
    before=$(cat /etc/resolv.conf)
    # What the instance left when it ran without root stays that user's, and the directory becomes root's.
    install -d -o weft -g weft -m 700 /run/weft/root
    install -o weft -g weft -m 600 /dev/null /run/weft/root/planted
    systemctl start weft@root
    grep -q 10.13.0.53 /etc/resolv.conf
    test -e /etc/wireguard/made-by-root
    is "$(stat -c %U /run/weft/root/planted)" weft "the owner of what another user made"
    rm /run/weft/root/planted
    is "$(thread_has weft@root weft-packets CapPrm)" 0000000000001000 "(CAP_NET_ADMIN alone)"
    is "$(thread_has weft@root weft-uapi CapPrm)" 0000000000000000
    root_tells_a_stranger_nothing
    shared_with_root
    # What root has done is taken back after a crash, on its own word.
    local process
    process=$(pid weft@root)
    rm /etc/wireguard/made-by-root
    touch /etc/wireguard/made-by-root
    kill -KILL "$process"
    wait_for 30 has_come_back weft@root "$process"
    is "$(stat -c %a /etc/wireguard/made-by-root)" 600 "removed and made again"
    journal weft@root | absent "another user's" "a record that is not believed"
    systemctl stop weft@root
    is "$(show Result weft@root)" success
    is "$(cat /etc/resolv.conf)" "$before"
    refuse test -e /etc/wireguard/made-by-root
    rm /etc/resolv.conf
    mv /tmp/s/resolv.conf /etc/resolv.conf
    # The other way round: root is the first to need the directory.
    systemctl stop weft@wg0
    is "$(show Result weft@wg0)" success
    is "$(find /run/weft ! -type d)" "" "in /run/weft"
    rm -r /run/weft
    systemctl start weft@root
    is "$(stat -c '%U:%G %a' /run/weft)" "root:root 755" "although weft@root has another umask"
    systemctl start weft@wg0
    shared_with_root
    systemctl stop weft@root
    refuse test -e /run/weft/root
    wait_for 20 through
}

# The user of the services cannot take the place of a daemon that is root: what root hands to it would have its key.
root_tells_a_stranger_nothing() {
    local as_weft="setpriv --reuid=weft --regid=weft --clear-groups"
    refuse $as_weft mkdir /run/weft/stranger
    refuse $as_weft mv /run/weft/root/control.sock /run/weft/root/control
    # Where wg(8) looks for sockets that user may add one.
    $as_weft perl -MIO::Socket::UNIX -e '
        my $listener = IO::Socket::UNIX->new(Local => "/run/wireguard/stranger.sock", Listen => 8) or exit 1;
        while (my $client = $listener->accept) { while (sysread($client, my $heard, 4096)) { syswrite(STDOUT, $heard) } }
    ' >/tmp/s/heard &
    local stranger=$!
    wait_for 10 grep -q /run/wireguard/stranger.sock /proc/net/unix
    local status=0
    weft set stranger private-key /tmp/s/third.key 2>/tmp/s/told || status=$?
    kill $stranger
    rm -f /run/wireguard/stranger.sock
    is "$status" 77
    grep -q "user $(id -u weft) listens at /var/run/wireguard/stranger.sock, and not root" /tmp/s/told
    is "$(cat /tmp/s/heard)" "" "heard"
}

# weft@root runs beside weft@wg0: each keeps what is its own, and is managed as if it was alone.
shared_with_root() {
    local instance
    each_has_its_own
    for instance in wg0 root; do
        systemctl reload weft@$instance
        systemctl restart weft@$instance
        weft status $instance >&2
        each_has_its_own
    done
}
each_has_its_own() {
    local file
    is "$(stat -c %U /run/weft)" root
    is "$(stat -c '%U:%G %a' /run/weft/root)" "root:root 700"
    is "$(stat -c '%U:%G %a' /run/weft/wg0)" "weft:weft 700"
    for file in record.json lock control.sock; do
        is "$(stat -c %U "/run/weft/root/$file")" root "the owner of root/$file"
        is "$(stat -c %U "/run/weft/wg0/$file")" weft "the owner of wg0/$file"
    done
}
has_come_back() { [ "$(pid "$1")" != "$2" ] && [ "$(show ActiveState "$1")" = active ]; }

ports_below_1024_need_one_capability_more() {
    printf '[Interface]\nPrivateKey = %s\nListenPort = 500\n' "$(cat /tmp/s/third.key)" | private /etc/wireguard/low.conf
    refuse systemctl start weft@low
    systemctl stop weft@low
    systemctl reset-failed weft@low
    drop_in /etc weft@low port <<'UNIT'
[Service]
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_BIND_SERVICE
AmbientCapabilities=CAP_NET_ADMIN CAP_NET_BIND_SERVICE
UNIT
    systemctl start weft@low
    is "$(wg show low listen-port)" 500
    systemctl stop weft@low
}
