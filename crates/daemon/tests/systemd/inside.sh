#!/bin/bash
# Runs inside the container, started by its systemd. One line a scenario goes to /out/results: `ok` or `failed`, its
# name, what it measured or why it failed.
#
#   the container                              namespace `far`
#   weft@wg0.service                           weft up far0, as a process
#   192.0.2.1  up0 ──────── veth ──────── up0  192.0.2.2
#   10.9.0.1   wg0 ═══════ tunnel ═══════ far0 10.9.0.2
set -u
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C SYSTEMD_PAGER= SYSTEMD_COLORS=0
mkdir -p /tmp/s

now() { date +%s%N; }
ms_since() { echo "$((($(now) - $1) / 1000000)) ms"; }
say() { printf '%s\n' "$*" >&2; }
# wait_for SECONDS COMMAND…
wait_for() {
    local end=$(($(now) + $1 * 1000000000))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$(now)" -lt "$end" ] || { say "waited in vain for: $*"; return 1; }
        sleep 0.03
    done
}
# A scenario prints a line about what it measured, and says on standard error what is wrong.
scenario() {
    local name=$1 detail
    say "== $name"
    # What stands behind && or || runs without errexit.
    set +e
    detail=$(set -eE; trap 'say "line $LINENO ended with $?: $BASH_COMMAND"' ERR; "$name")
    local status=$?
    detail=${detail//$'\n'/; }
    if [ $status -eq 0 ]; then
        printf 'ok\t%s\t%s\n' "$name" "$detail" >>/out/results
    else
        printf 'failed\t%s\t%s\n' "$name" "$detail" >>/out/results
        systemctl status --no-pager --full --lines=30 'weft@*' >&2
    fi
}
is() { [ "$1" = "$2" ] || { say "is '$1', and not '$2' ${3:-}"; return 1; }; }
# absent TEXT WHERE: fails if standard input has the text, which may be a secret.
absent() { if grep -qF -- "$1"; then say "what should not be there is there: $2"; return 1; fi; }
# refuse COMMAND…: fails if the command does not.
refuse() { if "$@" >&2; then say "this should have failed: $*"; return 1; fi; }
show() { systemctl show --value -p "$1" "$2"; }
pid() { show MainPID "$1"; }
ping_far() { ping -q -c 1 -W 1 10.9.0.2; }
through() { ping -q -c 1 -W 0.2 10.9.0.2; }
keys() { weft genkey | tee "/tmp/s/$1.key" | weft pubkey >"/tmp/s/$1.pub"; }

config() {
    cat <<CONF
[Interface]
PrivateKey = $(cat /tmp/s/near.key)
Address = 10.9.0.1/24, fd09::1/64
ListenPort = 51820

[Peer]
PublicKey = $(cat /tmp/s/far.pub)
AllowedIPs = 10.9.0.2/32, fd09::2/128
Endpoint = 192.0.2.2:51821
CONF
}

prepare() {
    (umask 077; for name in near far third; do keys $name; done)
    install -d -m 700 /etc/wireguard
    (umask 077; config >/etc/wireguard/wg0.conf)
    ip netns add far
    ip link add up0 type veth peer name up0 netns far
    ip addr add 192.0.2.1/24 dev up0
    ip link set up0 up
    ip link set lo up
    ip -n far addr add 192.0.2.2/24 dev up0
    ip -n far link set up0 up
    ip -n far link set lo up
    (umask 077; cat >/tmp/s/far0.conf <<CONF
[Interface]
PrivateKey = $(cat /tmp/s/far.key)
Address = 10.9.0.2/24, fd09::2/64
ListenPort = 51821
[Peer]
PublicKey = $(cat /tmp/s/near.pub)
AllowedIPs = 10.9.0.1/32, fd09::1/128
Endpoint = 192.0.2.1:51820
CONF
    )
    WEFT_RUNTIME_DIR=/run/weft-far nsenter --net=/run/netns/far weft up /tmp/s/far0.conf 2>/tmp/s/far.log &
    wait_for 20 ip -n far link show far0
}

units_are_right() {
    # Their manual pages need not be installed here.
    local told
    told=$(systemd-analyze verify --man=no 'weft@wg0.service' 2>&1 | grep -F weft || true)
    is "$told" "" "from systemd-analyze verify"
    local score
    score=$(systemd-analyze security --no-pager 'weft@wg0.service' | tail -1)
    echo "$score"
    local number
    number=$(grep -oE '[0-9]+\.[0-9]+' <<<"$score")
    awk -v n="$number" 'BEGIN {exit !(n <= 1.5)}' || { say "the score is above 1.5"; return 1; }
}

start_is_ready_and_carries_traffic() {
    local before
    before=$(now)
    systemctl enable --now weft@wg0
    local started
    started=$(ms_since "$before")
    # Ready means ready: no waiting.
    is "$(show ActiveState weft@wg0)" active
    ip -4 addr show dev wg0 | grep -q 10.9.0.1
    ip route get 10.9.0.2 | grep -q "dev wg0"
    ping -q -c 1 -W 10 10.9.0.2 >&2
    echo "start $started, first answer after $(ms_since "$before")"
    is "$(ps -o user= -p "$(pid weft@wg0)" | tr -d ' ')" weft
    is "$(awk '/^CapEff/ {print $2}' "/proc/$(pid weft@wg0)/status")" 0000000000001000 "(CAP_NET_ADMIN alone)"
    # wg(8) finds it.
    wg show wg0 latest-handshakes | grep -q "$(cat /tmp/s/far.pub)"
    grep -q "^root:weft" <<<"$(stat -c %U:%G /run/wireguard)"
}

the_operator_reads_how_it_goes() {
    wait_for 15 status_has "the peer had a handshake within 3 min"
    show StatusText weft@wg0
}
status_has() { grep -qF "$1" <<<"$(show StatusText weft@wg0)"; }

nothing_secret_is_seen() {
    local process
    process=$(pid weft@wg0)
    for key in near far; do
        local text
        text=$(cat /tmp/s/$key.key)
        tr '\0' '\n' <"/proc/$process/environ" | absent "$text" "a key in the environment"
        tr '\0' ' ' <"/proc/$process/cmdline" | absent "$text" "a key in the process list"
        systemctl show weft@wg0 | absent "$text" "a key in the unit"
        journalctl --no-pager -u weft@wg0 | absent "$text" "a key in the journal"
    done
}

a_reload_under_load_ends_no_connection() {
    local before process
    process=$(pid weft@wg0)
    nsenter --net=/run/netns/far iperf3 -s -1 -B 10.9.0.2 >/dev/null 2>&1 &
    wait_for 5 nsenter --net=/run/netns/far bash -c 'ss -Hltn | grep -q 5201'
    iperf3 -c 10.9.0.2 -t 2 -J >/tmp/s/iperf.json 2>&2 &
    local stream=$! sent
    sent=$(wg show wg0 transfer | awk '{print $3}')
    wait_for 5 has_sent_more_than $((sent + 1000000))
    printf '\n[Peer]\nPublicKey = %s\nAllowedIPs = 10.12.0.0/24\n' "$(cat /tmp/s/third.pub)" >>/etc/wireguard/wg0.conf
    before=$(now)
    systemctl reload weft@wg0
    echo "reload $(ms_since "$before")"
    is "$(wg show wg0 peers | wc -l)" 2 peers
    ip route show 10.12.0.0/24 | grep -q wg0
    kill -0 $stream || { say "the connection was over before the reload was"; return 1; }
    wait $stream
    jq -e '.end.sum_received.bytes > 1000000' /tmp/s/iperf.json >/dev/null
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
has_sent_more_than() { [ "$(wg show wg0 transfer | awk '{print $3}')" -gt "$1" ]; }

a_restart_under_load_ends_no_connection() {
    local before process device stream
    process=$(pid weft@wg0)
    device=$(ip -o link show wg0 | cut -d: -f1)
    # Changed while it runs, and not in the file.
    wg set wg0 peer "$(cat /tmp/s/third.pub)" allowed-ips 10.12.0.0/24
    nsenter --net=/run/netns/far iperf3 -s -1 -B 10.9.0.2 >/dev/null 2>&1 &
    wait_for 5 nsenter --net=/run/netns/far bash -c 'ss -Hltn | grep -q 5201'
    local sent
    sent=$(wg show wg0 transfer | awk 'NR == 1 {print $3}')
    iperf3 -c 10.9.0.2 -t 4 -i 0.1 -J >/tmp/s/restart.json 2>&2 &
    stream=$!
    wait_for 5 first_has_sent_more_than $((sent + 1000000))
    before=$(now)
    systemctl restart weft@wg0
    local took
    took=$(ms_since "$before")
    [ "$(pid weft@wg0)" != "$process" ]
    is "$(ip -o link show wg0 | cut -d: -f1)" "$device" "the same device"
    is "$(wg show wg0 listen-port)" 51820
    is "$(wg show wg0 peers | wc -l)" 2 peers
    is "$(show NFileDescriptorStore weft@wg0)" 4
    kill -0 $stream || { say "the connection was over before the restart was"; return 1; }
    wait $stream
    jq -e '.end.sum_received.bytes > 1000000' /tmp/s/restart.json >/dev/null
    # Something was sent after the restart, and not for the first time after 15 s.
    jq -e '.intervals[-1].sum.bytes + .intervals[-2].sum.bytes > 0' /tmp/s/restart.json >/dev/null
    journalctl --no-pager -u weft@wg0 | grep -q "going on with the interface"
    echo "restart $took, of 4 s $(jq '[.intervals[] | select(.sum.bytes == 0)] | length' /tmp/s/restart.json) tenths of a second without a byte"
    wg set wg0 peer "$(cat /tmp/s/third.pub)" remove
}
first_has_sent_more_than() { [ "$(wg show wg0 transfer | awk 'NR == 1 {print $3}')" -gt "$1" ]; }

a_killed_daemon_comes_back() {
    local before process
    process=$(pid weft@wg0)
    before=$(now)
    kill -KILL "$process"
    wait_for 20 is_another_process "$process"
    wait_for 20 through
    echo "traffic after $(ms_since "$before")"
    is "$(show ActiveState weft@wg0)" active
}
is_another_process() {
    local is
    is=$(pid weft@wg0)
    [ "$is" != 0 ] && [ "$is" != "$1" ] && [ "$(show SubState weft@wg0)" = running ]
}

the_watchdog_restarts_a_daemon_that_stands_still_and_no_other() {
    with_a_short_watchdog
    local before process restarts
    process=$(pid weft@wg0)
    restarts=$(show NRestarts weft@wg0)
    # Two of its times, in which an idle daemon has to be heard of.
    local told
    told=$(show WatchdogTimestampMonotonic weft@wg0)
    wait_for 10 watchdog_was_fed_since "$told"
    told=$(show WatchdogTimestampMonotonic weft@wg0)
    wait_for 10 watchdog_was_fed_since "$told"
    is "$(pid weft@wg0)" "$process" "the same process"
    before=$(now)
    kill -STOP "$process"
    wait_for 30 is_another_process "$process"
    wait_for 20 through
    echo "traffic after $(ms_since "$before") with WatchdogSec=2"
    journalctl --no-pager -u weft@wg0 | grep -qi "watchdog timeout"
}
# Two queues with threads of their own, also where the machine has too few cores for them.
with_a_short_watchdog() {
    install -d /run/systemd/system/weft@wg0.service.d
    cat >/run/systemd/system/weft@wg0.service.d/watchdog.conf <<'UNIT'
[Service]
WatchdogSec=2
ExecStart=
ExecStart=/usr/bin/weft up --tun-threads 2 %i
UNIT
    systemctl daemon-reload
    systemctl restart weft@wg0
}

one_thread_that_is_stuck_is_named_and_restarts_the_daemon() {
    local thread before process
    for thread in "weft-tun-w1" "weft-packets"; do
        process=$(pid weft@wg0)
        through >&2
        before=$(now)
        hold_still "$process" "$thread" &
        wait_for 30 is_another_process "$process"
        wait_for 20 through
        echo -n "$thread: traffic after $(ms_since "$before"); "
    done
    journalctl --no-pager -u weft@wg0 | grep -q "no answer from weft-tun-w1:"
    journalctl --no-pager -u weft@wg0 | grep -q "no answer from the event loop:"
    rm /run/systemd/system/weft@wg0.service.d/watchdog.conf
    systemctl daemon-reload
    systemctl restart weft@wg0
}
# Stops one thread of a process (ptrace(2): PTRACE_ATTACH), and nothing else of it, until it dies (waitpid(2): __WALL).
hold_still() {
    local task
    task=$(grep -lx "$2" /proc/"$1"/task/*/comm | cut -d/ -f5)
    perl -e 'alarm 30; syscall(101, 16, $ARGV[0] + 0, 0, 0) == 0 or die "ptrace: $!"; 1 while waitpid(-1, 0x40000000) > 0' \
        "$task" >/dev/null
}
watchdog_was_fed_since() { [ "$(show WatchdogTimestampMonotonic weft@wg0)" != "$1" ]; }

keys_come_as_credentials() {
    install -d /etc/systemd/system/weft@wg1.service.d
    systemd-creds setup >&2
    (umask 077; weft genkey >/etc/wireguard/wg1.key)
    weft genpsk | systemd-creds encrypt --with-key=host --name=wg1.psk - /etc/wireguard/wg1.psk.cred >&2
    cat >/etc/systemd/system/weft@wg1.service.d/keys.conf <<'UNIT'
[Service]
LoadCredential=wg1.key:/etc/wireguard/wg1.key
LoadCredentialEncrypted=wg1.psk:/etc/wireguard/wg1.psk.cred
UNIT
    wg1_config >/etc/wireguard/wg1.conf
    systemctl daemon-reload
    systemctl start weft@wg1
    is "$(wg show wg1 public-key)" "$(weft pubkey </etc/wireguard/wg1.key)"
    local psk
    psk=$(systemd-creds decrypt --name=wg1.psk /etc/wireguard/wg1.psk.cred -)
    is "$(wg show wg1 preshared-keys | awk '{print $2}')" "$psk"
    for key in "$psk" "$(cat /etc/wireguard/wg1.key)"; do
        tr '\0' '\n' <"/proc/$(pid weft@wg1)/environ" | absent "$key" "a key in the environment"
        tr '\0' ' ' <"/proc/$(pid weft@wg1)/cmdline" | absent "$key" "a key in the process list"
    done
    journalctl --no-pager -u weft@wg1 | absent "others can read" "a warning of permissions that are right"
    # Another key is taken by a reload, although the credential is the one of the start; what is encrypted stays.
    (umask 077; weft genkey >/etc/wireguard/wg1.key)
    systemctl reload weft@wg1
    is "$(wg show wg1 public-key)" "$(weft pubkey </etc/wireguard/wg1.key)"
    is "$(wg show wg1 preshared-keys | awk '{print $2}')" "$psk"
    systemctl stop weft@wg1
}
wg1_config() {
    cat <<CONF
[Interface]
PrivateKeyFile = wg1.key
Address = 10.10.0.1/24
[Peer]
PublicKey = $(cat /tmp/s/third.pub)
PresharedKeyFile = wg1.psk
AllowedIPs = 10.10.0.2/32
CONF
}

a_file_that_is_missing_or_wrong_is_told_and_not_tried_for_ever() {
    refuse systemctl start weft@nothere
    is "$(show ActiveState weft@nothere)" failed
    is "$(show NRestarts weft@nothere)" 0
    (umask 077; printf '[Interface]\nPrivateKey = %s\nAdress = 10.0.0.1\n' "$(cat /tmp/s/third.key)" >/etc/wireguard/wrong.conf)
    refuse systemctl start weft@wrong
    is "$(show ExecMainStatus weft@wrong)" 78
    is "$(show NRestarts weft@wrong)" 0
    # The file by the name that people know, not by that of a copy which is gone.
    journalctl --no-pager -u weft@wrong | grep -F "/etc/wireguard/wrong.conf:3: Adress" >&2
    systemctl reset-failed weft@nothere weft@wrong
}

the_sandbox_holds() {
    install -d /run/systemd/system/weft@probe.service.d
    cat >/run/systemd/system/weft@probe.service.d/probe.conf <<'UNIT'
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
    systemctl daemon-reload
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
    (umask 077; cat >/etc/wireguard/full.conf <<CONF
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
    )
    local valid_mark rules
    sysctl -qw net.ipv4.conf.all.src_valid_mark=0
    rules=$(ip rule)
    systemctl stop weft@wg0
    systemctl start weft@full
    is "$(sysctl -n net.ipv4.conf.all.src_valid_mark)" 1
    is "$(sysctl -n net.ipv4.conf.full.forwarding)" 1
    nft list tables | grep -q "inet hook_of_full"
    ip route get 198.51.100.1 | grep -q "dev full"
    ping -q -c 1 -W 10 10.9.0.2 >&2
    systemctl stop weft@full
    is "$(sysctl -n net.ipv4.conf.all.src_valid_mark)" 0
    is "$(ip rule)" "$rules"
    is "$(nft list tables)" ""
    systemctl start weft@wg0
}

the_daemon_may_be_root_where_it_has_to() {
    local drop_ins=/etc/systemd/system/weft@root.service.d before
    install -D -m 644 -t $drop_ins /opt/weft-test/full-tunnel.conf /opt/weft-test/as-root.conf
    (umask 077; cat >/etc/wireguard/root.conf <<CONF
[Interface]
PrivateKey = $(cat /tmp/s/third.key)
Address = 10.13.0.1/24
DNS = 10.13.0.53
PostUp = install -o root -m 600 /dev/null /etc/wireguard/made-by-%i
PostDown = rm /etc/wireguard/made-by-%i
CONF
    )
    systemctl daemon-reload
    systemd-analyze security --no-pager 'weft@root.service' | tail -1
    mv /etc/resolv.conf /tmp/s/resolv.conf
    echo "nameserver 192.0.2.53" >/etc/resolv.conf
    before=$(cat /etc/resolv.conf)
    systemctl start weft@root
    grep -q 10.13.0.53 /etc/resolv.conf
    test -e /etc/wireguard/made-by-root
    systemctl stop weft@root
    is "$(show Result weft@root)" success
    is "$(cat /etc/resolv.conf)" "$before"
    refuse test -e /etc/wireguard/made-by-root
    rm /etc/resolv.conf
    mv /tmp/s/resolv.conf /etc/resolv.conf
    # The directory is the user's again as soon as that runs an interface.
    systemctl restart weft@wg0
}

ports_below_1024_need_one_capability_more() {
    (umask 077; printf '[Interface]\nPrivateKey = %s\nListenPort = 500\n' "$(cat /tmp/s/third.key)" >/etc/wireguard/low.conf)
    refuse systemctl start weft@low
    systemctl stop weft@low
    systemctl reset-failed weft@low
    install -d /etc/systemd/system/weft@low.service.d
    cat >/etc/systemd/system/weft@low.service.d/port.conf <<'UNIT'
[Service]
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_BIND_SERVICE
AmbientCapabilities=CAP_NET_ADMIN CAP_NET_BIND_SERVICE
UNIT
    systemctl daemon-reload
    systemctl start weft@low
    is "$(wg show low listen-port)" 500
    systemctl stop weft@low
}

a_configuration_may_be_longer_than_a_credential() {
    (umask 077; perl -MMIME::Base64 -e '
        print "[Interface]\nPrivateKey = $ARGV[0]\n";
        for my $n (0 .. 11999) {
            my $key = encode_base64(join("", map { chr(rand(256)) } 1 .. 32), "");
            printf "[Peer]\nPublicKey = %s\nAllowedIPs = 10.%d.%d.%d/32\n", $key, 128 + $n / 65536, $n / 256 % 256, $n % 256;
        }' "$(cat /tmp/s/third.key)" >/etc/wireguard/long.conf)
    # Routes of so many peers are not what is tried here.
    sed -i '2a Table = off' /etc/wireguard/long.conf
    chgrp weft /etc/wireguard /etc/wireguard/long.conf
    chmod 750 /etc/wireguard
    chmod 640 /etc/wireguard/long.conf
    install -d /etc/systemd/system/weft@long.service.d
    printf '[Service]\nLoadCredential=\n' >/etc/systemd/system/weft@long.service.d/long.conf
    systemctl daemon-reload
    local before
    before=$(now)
    systemctl start weft@long
    echo "$(stat -c %s /etc/wireguard/long.conf) bytes, started in $(ms_since "$before")"
    is "$(wg show long peers | wc -l)" 12000
    is "$(show StatusText weft@long)" "0 of 12000 peers had a handshake within 3 min"
    systemctl stop weft@long
    chgrp root /etc/wireguard
    chmod 700 /etc/wireguard
}

name_servers_go_to_the_real_resolved() {
    [ -x /usr/lib/systemd/systemd-resolved ] || { echo "not run: no systemd-resolved"; return 0; }
    systemctl start systemd-resolved polkit
    install -D -m 644 /opt/weft-test/full-tunnel.conf /etc/systemd/system/weft@dns.service.d/full-tunnel.conf
    (umask 077; cat >/etc/wireguard/dns.conf <<CONF
[Interface]
PrivateKey = $(cat /tmp/s/third.key)
Address = 10.11.0.1/24
DNS = 10.11.0.53, corp.example
CONF
    )
    systemctl daemon-reload
    systemctl start weft@dns
    resolvectl status dns >&2
    resolvectl dns dns | grep -q 10.11.0.53
    resolvectl domain dns | grep -q corp.example
    systemctl stop weft@dns
    is "$(show Result weft@dns)" success
}

a_clean_stop_leaves_nothing_behind() {
    systemctl stop weft@wg0
    is "$(show Result weft@wg0)" success
    refuse ip link show wg0
    is "$(ls -A /run/wireguard | grep -v far0 || true)" "" "in /run/wireguard"
    is "$(ls -A /run/weft | grep -v '^.lock$' || true)" "" "in /run/weft"
    is "$(ip rule | wc -l)" 3 "rules"
    is "$(nft list tables)" ""
    ip route | absent 10.9.0 "a route"
    systemctl disable weft@wg0
    systemctl list-units --all --no-legend 'weft@*' | absent failed "a unit that failed"
}

prepare || { echo "failed	prepare	the network of the test could not be made" >>/out/results; exit 1; }
scenario units_are_right
scenario start_is_ready_and_carries_traffic
scenario nothing_secret_is_seen
scenario a_reload_under_load_ends_no_connection
scenario the_operator_reads_how_it_goes
scenario a_restart_under_load_ends_no_connection
scenario a_killed_daemon_comes_back
scenario the_watchdog_restarts_a_daemon_that_stands_still_and_no_other
scenario one_thread_that_is_stuck_is_named_and_restarts_the_daemon
scenario keys_come_as_credentials
scenario a_file_that_is_missing_or_wrong_is_told_and_not_tried_for_ever
scenario the_sandbox_holds
scenario a_full_tunnel_has_a_profile_of_its_own
scenario the_daemon_may_be_root_where_it_has_to
scenario ports_below_1024_need_one_capability_more
scenario a_configuration_may_be_longer_than_a_credential
scenario name_servers_go_to_the_real_resolved
scenario a_clean_stop_leaves_nothing_behind
echo end >>/out/results
