# What the scripts that run inside the copy of the system have in common. They say on standard error what is wrong.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive SYSTEMD_PAGER=

say() { printf '%s\n' "$*" >&2; }
is() { [ "$1" = "$2" ] || { say "is '$1', and not '$2' ${3:-}"; return 1; }; }
there() { for path in "$@"; do [ -e "$path" ] || { say "$path is not there"; return 1; }; done; }
gone() { for path in "$@"; do if [ -e "$path" ] || [ -L "$path" ]; then say "$path is there"; return 1; fi; done; }
refuse() { if "$@" >&2; then say "this should have failed: $*"; return 1; fi; }
# wait_for COMMAND…: until it succeeds.
wait_for() {
    local tries
    for tries in {1..500}; do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.02
    done
    say "waited in vain for: $*"
    return 1
}
mode() { stat -c '%A %U:%G' "$1"; }
enabled() { find /etc/systemd -name '*weft*'; }

# One line a scenario goes to the file $results: `ok`, `failed` or `not run: why`, and its name.
scenario() {
    local how=ok
    say "== $1"
    set +e
    (set -eE; trap 'say "line $LINENO ended with $?: $BASH_COMMAND"' ERR; "$1")
    [ $? -eq 0 ] || how=failed
    printf '%s\t%s\n' $how "$1" >>"$results"
    [ $how = ok ]
}
not_run() { printf 'not run: %s\t%s\n' "$2" "$1" >>"$results"; }

# Nobody answers the questions of dpkg.
dpkg() { command dpkg "$@" </dev/null >&2; }
# Debian's has its database in the home of whoever calls it, and knows of no package that provides what one needs.
rpm() { command rpm --dbpath=/var/lib/rpm "$@"; }
rpm_install() { rpm --nodeps "$@" >&2; }
