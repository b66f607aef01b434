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
