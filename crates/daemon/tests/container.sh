# Sourced by packaging/root.sh and systemd/boot.sh: a copy in memory of this machine's system, and a container that
# boots it. Both go with the process and its mount namespace.

# copy_system DIRECTORY: the copy is $root, and $root/../upper holds its changes. Ends with 77 where that is impossible.
copy_system() {
    mkdir "$1"
    mount -t tmpfs -o size=1g,mode=755 tmpfs "$1" || { echo "no tmpfs can be mounted here"; exit 77; }
    mkdir "$1/upper" "$1/work" "$1/root"
    mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$1/root" \
        || { echo "no overlay can be mounted here"; exit 77; }
    root=$1/root
}

# boots_into COMMAND: all that the copy does once it is booted. What that says is in /out/log.
boots_into() {
    # Nothing that is enabled on the machine itself.
    rm -rf "$root/etc/systemd/system/"*.wants "$root/var/log/journal"
    cat >"$root/etc/systemd/system/ci.target" <<'UNIT'
[Unit]
Requires=ci.service
AllowIsolate=yes
UNIT
    cat >"$root/etc/systemd/system/ci.service" <<UNIT
[Unit]
Requires=basic.target dbus.socket
After=basic.target dbus.socket
[Service]
Type=exec
ExecStart=$1
StandardOutput=append:/out/log
StandardError=append:/out/log
ExecStopPost=/bin/systemctl --force --force poweroff
UNIT
}

# join_group NAME: a new control group below $groups, if that is not empty, so that several containers can run
# at once. It is left for others to remove, with those of the same name that systemd-nspawn makes in other hierarchies.
join_group() {
    groups=$(findmnt --noheadings --first-only --types cgroup2 --output TARGET || true)
    if [ -n "$groups" ] && mkdir "$groups/$1" 2>/dev/null; then
        echo $$ >"$groups/$1/cgroup.procs"
    fi
}

# container_of NAME OUT: $container is the command that boots the copy, with the directory OUT as its /out. Options of
# systemd-nspawn may follow it.
container_of() {
    # Open to all, as udev makes it. A machine without udev may keep it for root.
    local tun=$root/../tun
    mknod --mode=666 "$tun" c 10 200 || tun=/dev/net/tun
    # Without the unified hierarchy and the right to load its programs, DevicePolicy= would silently allow everything.
    export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
    container=(systemd-nspawn -q -D "$root" --machine="$1" --boot --register=no --keep-unit --private-network
        --link-journal=no --resolv-conf=off --timezone=off --system-call-filter=bpf '--capability=CAP_BPF,CAP_PERFMON'
        --bind="$tun:/dev/net/tun" --bind="$2:/out" --console=pipe)
}
