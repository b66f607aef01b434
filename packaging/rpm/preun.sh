if [ "$1" -eq 0 ]; then
    # While the program is there, which takes routes, rules and name servers back.
    if [ -d /run/systemd/system ]; then systemctl stop 'weft@*.service' weft-gateway.service || :; fi
    # No tunnel is left to forward from; the rules would keep its name.
    if command -v nft >/dev/null; then nft delete table inet weft-gateway 2>/dev/null || :; fi
    profile=/etc/apparmor.d/weft
    if [ -L "$profile" ] && [ "$(readlink "$profile")" = /usr/share/weft/apparmor.d/weft ]; then
        if aa-enabled --quiet 2>/dev/null; then apparmor_parser --remove "$profile" || :; fi
        rm "$profile"
    fi
fi
exit 0
