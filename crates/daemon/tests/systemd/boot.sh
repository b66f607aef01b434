#!/bin/bash
# Boots the system of this machine a second time, in a container on a copy in memory, which goes with this process.
# Arguments: a directory for the results, the program weft, the directory of the unit files, this directory, and the
# scenarios to run.
set -eu
out=$1 weft=$2 units=$3 here=$4
shift 4
work=$out/memory
mkdir "$work"
mount -t tmpfs -o size=1g,mode=700 tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" overlay "$work/root"
root=$work/root

install -D -m 644 -t "$root/usr/lib/systemd/system" "$units/weft@.service"
install -D -m 644 "$units/sysusers.d/weft.conf" "$root/usr/lib/sysusers.d/weft.conf"
install -D -m 644 "$units/tmpfiles.d/weft.conf" "$root/usr/lib/tmpfiles.d/weft.conf"
install -D -m 644 -t "$root/opt/weft-test" "$units/full-tunnel.conf" "$units/as-root.conf"
install -D -m 644 -t "$root/usr/share/polkit-1/rules.d" "$units/polkit/50-weft-resolved.rules"
install -D -m 755 -t "$root/opt/weft-test" "$here/inside.sh" "$here/probe.sh"
install -D -m 644 -t "$root/opt/weft-test/inside" "$here/inside/"*.sh
# Nothing of the machine's own configuration.
rm -rf "$root/etc/wireguard" "$root/etc/systemd/system/"*.wants "$root/var/log/journal"
if [ -n "${WEFT_TEST_RESOLVED:-}" ]; then
    dpkg-deb --fsys-tarfile "$WEFT_TEST_RESOLVED" | tar --extract --keep-directory-symlink --directory="$root"
    ln -sf ../run/systemd/resolve/stub-resolv.conf "$root/etc/resolv.conf"
fi
touch "$root/usr/bin/weft"

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
ExecStart=/bin/bash /opt/weft-test/inside.sh $*
StandardOutput=append:/out/log
StandardError=append:/out/log
ExecStopPost=/bin/systemctl --force --force poweroff
UNIT
mkdir "$out/out"

# A control group of its own, so that several can run at once; whoever started this removes it, and those of the same
# name that systemd-nspawn makes in other hierarchies.
groups=$(findmnt --noheadings --first-only --types cgroup2 --output TARGET || true)
if [ -n "$groups" ] && mkdir "$groups/weft-test-$$" 2>/dev/null; then
    echo "weft-test-$$" >"$out/group"
    echo $$ >"$groups/weft-test-$$/cgroup.procs"
fi

# Without the unified hierarchy and the right to load its programs, DevicePolicy= would silently allow everything.
export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
exec systemd-nspawn -q -D "$root" --machine="weft-test-$$" --boot --register=no --keep-unit --private-network --link-journal=no \
    --resolv-conf=off --timezone=off --system-call-filter=bpf --capability=CAP_BPF,CAP_PERFMON --bind=/dev/net/tun \
    --bind="$out/out:/out" --bind-ro="$weft:/usr/bin/weft" --console=pipe -- systemd.unit=ci.target
