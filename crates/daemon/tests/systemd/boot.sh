#!/bin/bash
# Boots the system of this machine a second time, in a container on a copy in memory, which goes with this process.
# Arguments: a directory for the results, the program weft, the directory of the unit files, this directory, and the
# scenarios to run.
set -eu
out=$1 weft=$2 units=$3 here=$4
shift 4
. "$here/../container.sh"
copy_system "$out/memory"

install -D -m 644 -t "$root/usr/lib/systemd/system" "$units/"weft{,-client}@.service
install -D -m 644 "$units/sysusers.d/weft.conf" "$root/usr/lib/sysusers.d/weft.conf"
install -D -m 644 "$units/tmpfiles.d/weft.conf" "$root/usr/lib/tmpfiles.d/weft.conf"
install -D -m 644 -t "$root/opt/weft-test" "$units/full-tunnel.conf" "$units/as-root.conf"
install -D -m 644 -t "$root/usr/share/polkit-1/rules.d" "$units/polkit/50-weft-resolved.rules"
install -D -m 755 -t "$root/opt/weft-test" "$here/inside.sh" "$here/probe.sh"
install -D -m 644 -t "$root/opt/weft-test/inside" "$here/inside/"*.sh
# None of the machine's own interfaces.
rm -rf "$root/etc/wireguard"
if [ -n "${WEFT_TEST_RESOLVED:-}" ]; then
    dpkg-deb --fsys-tarfile "$WEFT_TEST_RESOLVED" | tar --extract --keep-directory-symlink --directory="$root"
    ln -sf ../run/systemd/resolve/stub-resolv.conf "$root/etc/resolv.conf"
fi
touch "$root/usr/bin/weft"

name=weft-test-$$
mkdir "$out/out"
boots_into "/bin/bash /opt/weft-test/inside.sh $*"
# For the test, which removes it.
echo "$name" >"$out/group"
join_group "$name"
container_of "$name" "$out/out"
exec "${container[@]}" --bind-ro="$weft:/usr/bin/weft" -- systemd.unit=ci.target
