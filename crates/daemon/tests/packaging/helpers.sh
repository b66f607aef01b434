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

# by_hand NAME COMMAND…: with an interface that `weft up` runs by hand, and the rules of the gateway in force, a
# removal by the command leaves both, and says so.
by_hand() {
    local name=$1 id
    shift
    (umask 077; printf '[Interface]\nPrivateKey = %s\nAddress = 10.9.8.1/24\n' "$(weft genkey)" >/tmp/$name.conf)
    weft up -d /tmp/$name.conf >/tmp/$name.log 2>&1
    read -r id _ </run/weft/$name/lock
    # Nothing else ends it when a step fails.
    trap 'kill "$id"' EXIT
    rules load
    "$@" >/tmp/removal.log 2>&1 </dev/null
    cat /tmp/removal.log >&2
    rules are_there
    is "$(grep -c "^weft: still running: $name; /run/weft stays" /tmp/removal.log)" 1 "line about it"
    there /run/weft/$name/control.sock /run/weft/$name/record.json
    kill "$id"
    trap - EXIT
    wait_for is_over $name
    ! has_nft || nft delete table inet weft-gateway
    rm /tmp/$name.conf /tmp/$name.log /tmp/removal.log
    rm -r /run/weft
}
is_over() { ! ip link show "$1" && [ ! -e "/run/weft/$1/lock" ]; }
# Where there is no nft(8) there are no rules.
has_nft() { command -v nft >/dev/null; }
rules() {
    has_nft || return 0
    case $1 in
    load) nft -f /etc/weft/gateway.nft ;;
    are_there)
        nft list table inet weft-gateway >/dev/null
        is "$(grep -c "^weft: still running: .*nft delete table inet weft-gateway" /tmp/removal.log)" 1 "line about the rules"
        ;;
    esac
}

# No user answers the questions of dpkg.
dpkg() { command dpkg "$@" </dev/null >&2; }
# Debian's knows of no package that provides what one needs.
rpm_install() { rpm --nodeps "$@" >&2; }
