# The other end of the tunnel, and traffic to it.
#
#   the container                              namespace `far`
#   weft@wg0.service                           weft up far0, as a process
#   192.0.2.1  up0 ──────── veth ──────── up0  192.0.2.2
#   10.9.0.1   wg0 ═══════ tunnel ═══════ far0 10.9.0.2

keys() { weft genkey | tee "/tmp/s/$1.key" | weft pubkey >"/tmp/s/$1.pub"; }
on_far() { nsenter --net=/run/netns/far "$@"; }
# One packet there and back. It waits for less than a lost one would cost the next one.
through() { ping -q -c 1 -W 0.2 10.9.0.2; }
# The same, which has time for a handshake.
reach_far() { ping -q -c 1 -W 10 10.9.0.2; }

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

far_config() {
    cat <<CONF
[Interface]
PrivateKey = $(cat /tmp/s/far.key)
Address = 10.9.0.2/24, fd09::2/64
ListenPort = 51821
[Peer]
PublicKey = $(cat /tmp/s/near.pub)
AllowedIPs = 10.9.0.1/32, fd09::1/128
Endpoint = 192.0.2.1:51820
CONF
}

prepare() {
    (umask 077; for name in near far third; do keys $name; done)
    install -d -m 700 /etc/wireguard
    config | private /etc/wireguard/wg0.conf
    ip netns add far
    ip link add up0 type veth peer name up0 netns far
    ip addr add 192.0.2.1/24 dev up0
    ip link set up0 up
    ip link set lo up
    ip -n far addr add 192.0.2.2/24 dev up0
    ip -n far link set up0 up
    ip -n far link set lo up
    far_config | private /tmp/s/far0.conf
    WEFT_RUNTIME_DIR=/run/weft-far on_far weft up /tmp/s/far0.conf 2>/tmp/s/far.log &
    wait_for 20 ip -n far link show far0
}

# begin_stream OPTION…: a TCP connection to the far end with these options of iperf3; a megabyte has gone when it returns.
begin_stream() {
    local sent
    on_far iperf3 -s -1 -B 10.9.0.2 >/dev/null 2>&1 &
    wait_for 20 on_far bash -c 'ss -Hltn | grep -q 5201'
    sent=$(sent_to_far)
    iperf3 -c 10.9.0.2 "$@" -J >/tmp/s/stream.json 2>&2 &
    stream=$!
    wait_for 20 has_sent_more_than $((sent + 1000000))
}
sent_to_far() { wg show wg0 transfer | awk -v far="$(cat /tmp/s/far.pub)" '$1 == far {print $3}'; }
has_sent_more_than() { [ "$(sent_to_far)" -gt "$1" ]; }

# end_stream WHAT: fails if the connection was over before that, or does not end well.
end_stream() {
    kill -0 "$stream" || { say "the connection was over before the $1 was"; return 1; }
    wait "$stream"
    jq -e '.end.sum_received.bytes > 1000000' /tmp/s/stream.json >/dev/null
}
