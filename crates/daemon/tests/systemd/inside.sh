#!/bin/bash
# Runs inside the container, started by its systemd. Arguments: the scenarios, functions of the files in inside/, in this
# order. One line each goes to /out/results: `ok` or `failed`, its name, what it measured or why it failed.
set -u
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C SYSTEMD_PAGER='' SYSTEMD_COLORS=0
mkdir -p /tmp/s
for file in "$(dirname "$0")"/inside/*.sh; do
    # shellcheck source=/dev/null
    . "$file"
done

prepare || { printf 'failed\tprepare\tthe network of the test could not be made\n' >>/out/results; exit 1; }
for name in "$@"; do
    scenario "$name"
done
echo end >>/out/results
