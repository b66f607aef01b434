#!/bin/bash
# The image for containers, without an engine: its root file system, which crun runs with the capabilities, the
# filter of system calls and the mounts that Docker gives. Arguments: a directory for the results, and the program.
#
#   this network                                        the container's
#   wg1 10.9.0.1 ── weft ── out 10.78.0.2 ── veth ── in 10.78.0.1 ── weft ── wg0 10.9.0.2, its default route
set -u
out=$1 program=$2 here=$(dirname "$(realpath "$0")")
# shellcheck source=/dev/null
. "$here/helpers.sh"
container=$here/../../../../packaging/container
export results=$out/results

# Docker's, of https://docs.docker.com/engine/security/#linux-kernel-capabilities.
docker='["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
    "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE"]'
compose='["CAP_NET_ADMIN"]'
# Podman's filter, which is made as Docker's, less what Docker refuses in addition:
# https://docs.docker.com/engine/security/seccomp/#significant-syscalls-blocked-by-the-default-profile.
filter=/usr/share/containers/seccomp.json

crun() { command crun --root "$out/crun" --cgroup-manager=disabled "$@" </dev/null; }

# create NAME CAPABILITIES USER ARGUMENTS…: a container that is ready to start, in a network that is still alone. For
# another user than 0 its root is that user of the machine.
create() {
    local name=$1 capabilities=$2 user=$3 bundle=$out/$1
    shift 3
    mkdir -p "$bundle/run"
    echo "nameserver 127.0.0.11" >"$bundle/resolv.conf"
    chown -R "$user:$user" "$bundle"
    (cd "$bundle" && command crun spec && mv config.json spec.json)
    jq --argjson capabilities "$capabilities" --argjson user "$user" --arg here "$bundle" --slurpfile filter $filter \
        --arg machine "$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')" '
        .process.args = ["/usr/bin/weft", $ARGS.positional[]]
        | .process.terminal = false | .process.noNewPrivileges = true
        | .process.capabilities |= (map_values($capabilities) | del(.ambient, .inheritable))
        | .root = {path: "\($here)/../image", readonly: true}
        | .linux.sysctl = {"net.ipv4.conf.all.src_valid_mark": "1"}
        | .linux.devices = [{path: "/dev/net/tun", type: "c", major: 10, minor: 200, fileMode: 438, uid: 0, gid: 0}]
        | .mounts |= map(select(.type != "cgroup")) + [
            {destination: "/run", type: "tmpfs", source: "tmpfs", options: ["nosuid", "nodev", "mode=755"]},
            {destination: "/etc/resolv.conf", type: "bind", source: "\($here)/resolv.conf", options: ["rbind"]},
            {destination: "/etc/wireguard", type: "bind", source: "\($here)/wireguard", options: ["rbind", "ro"]}]
        | if $user != 0 then
            .linux.namespaces += [{type: "user"}]
            | .linux.uidMappings = [{containerID: 0, hostID: $user, size: 1}] | .linux.gidMappings = .linux.uidMappings
            | .mounts |= map(if .type == "devpts" then .options -= ["gid=5"] else . end)
          else . end
        | .linux.seccomp = ($filter[0] | {defaultAction, defaultErrnoRet, syscalls: [.syscalls[]
            | select((.includes.arches // [$machine] | index($machine)) and (.includes.caps // []) - $capabilities == []
                and ((.excludes.caps // []) - $capabilities) == (.excludes.caps // []))
            | {action, args: (.args // []), names: (.names - ["mount", "mount_setattr", "move_mount", "fsopen", "fsmount",
                "umount", "umount2", "unshare", "setns", "pivot_root", "keyctl", "add_key", "request_key", "bpf"])}
                + (if .errnoRet then {errnoRet} else {} end)
            | select(.names != [])]})' "$bundle/spec.json" --args "$@" >"$bundle/config.json"
    crun create --bundle "$bundle" "$name" >"$bundle/log" 2>&1 || { cat "$bundle/log" >&2; return 1; }
    # Held, as the other container of network_mode holds it.
    touch "$bundle/net"
    mount --bind "/proc/$(crun state "$name" | jq .pid)/ns/net" "$bundle/net"
}
in_network() { nsenter --net="$out/$1/net" "${@:2}"; }
reaches() { in_network "$1" ping -n -c 1 -W 1 "$2" >/dev/null; }
is_gone() { ! crun state "$1" 2>/dev/null | jq --exit-status '.status != "stopped"' >/dev/null; }

# tunnel NAME USER [CAPABILITIES]: what the Compose file starts, and its end: by a crash, or not.
tunnel() {
    local name=$1 user=$2 capabilities=${3:-$compose} key
    mkdir -p "$out/$name/wireguard"
    key=$("$program" genkey)
    (umask 077; cat >"$out/$name/wireguard/wg0.conf" <<CONF
[Interface]
PrivateKey = $key
Address = 10.9.0.2/32
DNS = 10.9.0.1
# weft: KillSwitch = on
[Peer]
PublicKey = $("$program" pubkey <"$out/gateway.key")
AllowedIPs = 0.0.0.0/0, ::/0
Endpoint = 10.78.0.2:51820
CONF
    )
    create "$name" "$capabilities" "$user" up wg0
    "$program" set wg1 peer "$(echo "$key" | "$program" pubkey)" allowed-ips 10.9.0.2/32
    ip link add out type veth peer name in
    nsenter --net=/proc/self/ns/net ip link set in netns "$(crun state "$name" | jq .pid)"
    ip addr add 10.78.0.2/24 dev out && ip link set out up
    in_network "$name" ip addr add 10.78.0.1/24 dev in
    in_network "$name" ip link set in up
    # As it would without the tunnel.
    wait_for reaches "$name" 10.78.0.2

    crun start "$name"
    # The kill switch comes after the routes.
    wait_for grep -q 'wg0 is up' "$out/$name/log"
    wait_for reaches "$name" 10.9.0.1
    refuse reaches "$name" 10.78.0.2
    is "$(grep -v '^#' "$out/$name/resolv.conf")" "nameserver 10.9.0.1"
    is "$(crun exec "$name" /usr/bin/weft status --json wg0 | jq -c '[.. | .findings? // empty] | flatten | map(select(.level != "note"))')" "[]" findings
}
# What a container leaves here, also when the scenario failed.
clean() {
    crun delete --force "$1" 2>/dev/null || true
    umount "$out/$1/net" 2>/dev/null || true
    ip link delete out 2>/dev/null || true
}

the_image_has_weft_and_nft_and_no_shell() {
    "$container/root-filesystem" "$out/image" "$program"
    is "$(find "$out/image/usr" -path '*bin/*' -printf '%P\n' | sort | xargs)" "bin/weft sbin/nft"
    is "$(chroot "$out/image" /usr/bin/weft --version)" "$("$program" --version)"
    chroot "$out/image" /usr/sbin/nft --version >&2
    refuse chroot "$out/image" /bin/sh -c true
}
a_container_of_docker_has_its_tunnel_and_leaves_nothing() {
    trap 'clean docker' EXIT
    tunnel docker 0 "$(jq --null-input -c "$docker + $compose")"
    crun kill docker TERM
    wait_for is_gone docker
    refuse in_network docker ip link show wg0
    is "$(in_network docker nft list ruleset)" ""
    is "$(cat "$out/docker/resolv.conf")" "nameserver 127.0.0.11"
    wait_for reaches docker 10.78.0.2
}
a_crash_in_a_container_lets_nothing_past_the_tunnel() {
    trap 'clean crash' EXIT
    tunnel crash 0
    crun kill crash KILL
    wait_for is_gone crash
    # The kernel removes the device with the last descriptor, a moment after the end.
    wait_for refuse in_network crash ip link show wg0
    refuse reaches crash 10.78.0.2
}
a_container_of_an_ordinary_user_has_its_tunnel() {
    trap 'clean rootless' EXIT
    tunnel rootless 65534
    crun kill rootless TERM
    wait_for is_gone rootless
    is "$(in_network rootless nft list ruleset)" ""
}
a_container_without_net_admin_says_so() {
    trap 'clean refused' EXIT
    mkdir -p "$out/refused/wireguard"
    (umask 077; printf '[Interface]\nPrivateKey = %s\nAddress = 10.9.0.2/32\n' "$("$program" genkey)" >"$out/refused/wireguard/wg0.conf")
    create refused "$docker" 0 up wg0
    crun start refused
    wait_for is_gone refused
    cat "$out/refused/log" >&2
    grep -q CAP_NET_ADMIN "$out/refused/log"
}

scenario the_image_has_weft_and_nft_and_no_shell
not_run an_engine_builds_the_image "scripts/test-image does that, where docker or podman runs"

# Nothing of this is the machine's.
mount -t tmpfs tmpfs /run
missing=''
command -v crun >/dev/null || missing="crun is not installed"
[ -e $filter ] || missing="$filter (golang-github-containers-common) is not there"
# crun wants one hierarchy of control groups, and makes none here.
mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null || missing="no cgroup2 can be mounted here"
if [ -z "$missing" ]; then
    ip link set lo up
    (umask 077; "$program" genkey >"$out/gateway.key"
        printf '[Interface]\nPrivateKey = %s\nAddress = 10.9.0.1/24\nListenPort = 51820\n' "$(cat "$out/gateway.key")" >"$out/wg1.conf")
    "$program" up "$out/wg1.conf" >"$out/gateway.log" 2>&1 &
    gateway=$!
    wait_for "$program" status wg1
fi
for name in a_container_of_docker_has_its_tunnel_and_leaves_nothing a_crash_in_a_container_lets_nothing_past_the_tunnel \
    a_container_of_an_ordinary_user_has_its_tunnel a_container_without_net_admin_says_so; do
    if [ -z "$missing" ]; then scenario $name; else not_run $name "$missing"; fi
done
[ -n "$missing" ] || kill "$gateway"
