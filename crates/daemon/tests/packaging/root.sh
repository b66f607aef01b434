#!/bin/bash
# Runs the scenarios on a copy in memory of this machine's system, which goes with this process and its mount namespace.
# Arguments: a directory for the results, inside.sh, and the package in two versions. Ends with 77 where that cannot be.
set -eu
out=$1 inside=$2 first=$3 second=$4
memory=$out/memory
mkdir "$memory"
mount -t tmpfs -o size=1g,mode=755 tmpfs "$memory" || { echo "no tmpfs can be mounted here"; exit 77; }
mkdir "$memory/upper" "$memory/work" "$memory/root"
mount -t overlay -o "lowerdir=/,upperdir=$memory/upper,workdir=$memory/work" overlay "$memory/root" \
    || { echo "no overlay can be mounted here"; exit 77; }
root=$memory/root
for directory in run tmp; do mount -t tmpfs -o mode=755 tmpfs "$root/$directory"; done
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc" 2>/dev/null || mount --rbind /proc "$root/proc"

# As on a fresh system: without weft, and with documentation, which images for containers leave out.
rm -rf "$root/etc/wireguard" "$root/etc/weft" "$root/etc/dpkg/dpkg.cfg.d"
rm -f "$root/usr/sbin/policy-rc.d"
sed -i '/^weft:/d' "$root/etc/passwd" "$root/etc/group" "$root/etc/shadow" "$root/etc/gshadow"
install -D -t "$root/tmp/packages" "$first" "$second"
install -m 755 "$inside" "$root/tmp/inside.sh"
mkdir "$root/tmp/results"
chroot "$root" /bin/bash /tmp/inside.sh "$(basename "$first")" "$(basename "$second")" || true
cp "$root/tmp/results/results" "$out/results"

# What exists now, and did not before. dpkg and the user database keep books.
left=$(cd "$memory/upper" && find . -mindepth 1 | while read -r path; do
    [ -e "/$path" ] || [ -L "/$path" ] || echo "${path#.}"
done | grep -vE '^/var/lib/dpkg/|^/var/(log|cache)/|^/etc/(passwd|group|shadow|gshadow)-$|^/etc/\.pwd\.lock$' || true)
if [ -z "$left" ]; then
    printf 'ok\tnothing_is_left_of_it\n' >>"$out/results"
else
    printf 'failed\tnothing_is_left_of_it\n' >>"$out/results"
    printf 'left:\n%s\n' "$left"
fi

# The same, booted, where that is possible.
booted=(every_command_of_the_gateway_guide_works an_upgrade_restarts_what_runs_and_a_removal_stops_it)
not_run() { for scenario in "${booted[@]}"; do printf 'not run: %s\t%s\n' "$1" "$scenario" >>"$out/results"; done; }
command -v systemd-nspawn >/dev/null || { not_run "systemd-nspawn is not installed"; exit 0; }
mkdir "$root/opt/packages" "$out/out"
cp "$root/tmp/packages/"* "$root/opt/packages/"
install -m 755 "$(dirname "$inside")/booted.sh" "$root/opt/booted.sh"
cp "$(dirname "$inside")/../../../../docs/GATEWAY.md" "$root/opt/"
umount -R "$root/run" "$root/tmp" "$root/dev" "$root/proc"
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
ExecStart=/bin/bash /opt/booted.sh $(basename "$first") $(basename "$second")
StandardOutput=append:/out/log
StandardError=append:/out/log
ExecStopPost=/bin/systemctl --force --force poweroff
UNIT
groups=$(findmnt --noheadings --first-only --types cgroup2 --output TARGET || true)
if [ -n "$groups" ] && mkdir "$groups/weft-package-$$" 2>/dev/null; then
    echo $$ >"$groups/weft-package-$$/cgroup.procs"
fi
export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
timeout 150 systemd-nspawn -q -D "$root" --machine="weft-package-$$" --boot --register=no --keep-unit --private-network \
    --link-journal=no --resolv-conf=off --timezone=off --system-call-filter=bpf --capability=CAP_BPF,CAP_PERFMON \
    --bind=/dev/net/tun --bind="$out/out:/out" --console=pipe -- systemd.unit=ci.target >"$out/console" 2>&1 </dev/null || true
[ -z "$groups" ] || echo $$ >"$groups/cgroup.procs" || true
# systemd-nspawn makes the same groups in the hierarchy of an older systemd.
for group in "$groups/weft-package-$$" "/sys/fs/cgroup/systemd/weft-package-$$"; do
    [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} \; || true
done
cat "$out/out/log" 2>/dev/null || true
if [ -e "$out/out/booted" ]; then
    cat "$out/out/booted" >>"$out/results"
elif [ ! -e "$out/out/log" ] && grep -qE 'ermission denied|not permitted|Read-only file system|unknown filesystem' "$out/console"; then
    not_run "a container cannot be booted here: $(tail -1 "$out/console")"
else
    cat "$out/console"
fi
