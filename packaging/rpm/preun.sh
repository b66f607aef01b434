# The interfaces that run by hand: `weft up` holds a lock, and `weft NAME` has at least a socket.
running() {
    {
        for lock in /run/weft/*/lock; do
            [ -L "$lock" ] || [ ! -f "$lock" ] || flock --shared --nonblock "$lock" true || basename "${lock%/lock}"
        done
        sed -n 's,.* /run/weft/\([^/]*\)/control\.sock\(\.new\)*$,\1,p' /proc/net/unix
    } | grep -x '[A-Za-z0-9_=+.-]*' | sort -u | paste -sd ' '
}
if [ "$1" -eq 0 ]; then
    # While the program is there, which takes routes, rules and name servers back.
    if [ -d /run/systemd/system ]; then systemctl stop 'weft@*.service' 'weft-client@*.service' weft-gateway.service || :; fi
    # Where no tunnel is left to forward from, the rules would keep its name.
    if command -v nft >/dev/null && nft list table inet weft-gateway >/dev/null 2>&1; then
        left=$(running)
        if [ -z "$left" ]; then
            nft delete table inet weft-gateway || :
        else
            echo "weft: still running: $left; the gateway's rules stay. After its end: nft delete table inet weft-gateway" >&2
        fi
    fi
    profile=/etc/apparmor.d/weft
    if [ -L "$profile" ] && [ "$(readlink "$profile")" = /usr/share/weft/apparmor.d/weft ]; then
        if aa-enabled --quiet 2>/dev/null; then apparmor_parser --remove "$profile" || :; fi
        rm "$profile"
    fi
fi
exit 0
