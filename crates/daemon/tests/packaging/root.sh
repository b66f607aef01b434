#!/bin/bash
# Runs the scenarios on a copy in memory of this machine's system, which goes with this process and its mount namespace.
# Arguments: a directory for the results, with the packages in two versions. Ends with 77 where that cannot be.
set -eu
out=$1 scripts=$(dirname "$0")
. "$scripts/../container.sh"
memory=$out/memory
copy_system "$memory"
for directory in run tmp; do mount -t tmpfs -o mode=755 tmpfs "$root/$directory"; done
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc" 2>/dev/null || mount --rbind /proc "$root/proc"

# As on a fresh system: without weft, and with documentation, which images for containers leave out.
fresh() {
    rm -rf "$root/etc/wireguard" "$root/etc/weft" "$root/etc/dpkg/dpkg.cfg.d"
    rm -f "$root/usr/sbin/policy-rc.d"
    # Debian's rpm has its database in the home of its user.
    mkdir -p "$root/etc/rpm"
    echo '%_dbpath /var/lib/rpm' >"$root/etc/rpm/macros"
    sed -i '/^weft:/d' "$root/etc/passwd" "$root/etc/group" "$root/etc/shadow" "$root/etc/gshadow"
}
mkdir "$root/tmp/results"
cp -r "$out/packages" "$scripts"/*.sh "$root/tmp/"

# scenarios SCRIPT NOTHING-LEFT [DIRECTORY…]: runs them without these directories, and adds a scenario that
# looks for what exists afterwards and did not before.
scenarios() {
    local script=$1 name=$2 how=ok left
    shift 2
    fresh
    (cd "$root" && rm -rf "$@")
    chroot "$root" /bin/bash "/tmp/$script" || true
    # dpkg, rpm and the user database keep records. On systems of rpm the packages filesystem and polkit own
    # the last directories.
    left=$(cd "$memory/upper" && {
        find . -mindepth 1 | while read -r path; do
            [ -e "/$path" ] || [ -L "/$path" ] || echo "${path#.}"
        done
        for path; do [ ! -e "$root/$path" ] || echo "/$path"; done
    } | grep -vE '^/var/lib/(dpkg|rpm)(/|$)|^/etc/rpm(/|$)|^/var/(log|cache)/|^/etc/(passwd|group|shadow|gshadow)-$|^/etc/\.pwd\.lock$' \
        | grep -vxE '/usr/share/(licenses|polkit-1|polkit-1/rules\.d)' || true)
    if [ -n "$left" ]; then
        how=failed
        printf 'left:\n%s\n' "$left"
    fi
    printf '%s\t%s\n' $how "$name" >>"$root/tmp/results/results"
}
scenarios deb.sh nothing_is_left_of_the_deb
# As on a system without these shells, whatever this one has.
! compgen -G "$out/packages/*.rpm" >/dev/null ||
    scenarios rpm.sh nothing_is_left_of_the_rpm usr/share/bash-completion usr/share/fish usr/share/zsh
cp "$root/tmp/results/results" "$out/results"

# The same, booted, where that is possible.
booted=(every_command_of_the_gateway_guide_works the_readme_takes_a_gateway_to_a_phone
    an_upgrade_restarts_what_runs_and_a_removal_stops_it
    an_rpm_upgrade_restarts_what_runs_and_an_erasure_stops_it)
not_run() { for scenario in "${booted[@]}"; do printf 'not run: %s\t%s\n' "$1" "$scenario" >>"$out/results"; done; }
command -v systemd-nspawn >/dev/null || { not_run "systemd-nspawn is not installed"; exit 0; }
mkdir "$out/out"
cp -r "$out/packages" "$scripts"/*.sh "$scripts/../../../../docs/GATEWAY.md" "$root/opt/"
umount -R "$root/run" "$root/tmp" "$root/dev" "$root/proc"
name=weft-package-$$
boots_into "/bin/bash /opt/booted.sh"
join_group "$name"
container_of "$name" "$out/out"
timeout 400 "${container[@]}" -- systemd.unit=ci.target >"$out/console" 2>&1 </dev/null || true
[ -z "$groups" ] || echo $$ >"$groups/cgroup.procs" || true
# systemd-nspawn makes the same groups in the hierarchy of an older systemd.
for group in "$groups/$name" "/sys/fs/cgroup/systemd/$name"; do
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
