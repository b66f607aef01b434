# Nothing is enabled or started; what runs gets the new program, and keeps its connections over that.
if command -v systemd-sysusers >/dev/null; then systemd-sysusers weft.conf; fi
if command -v systemd-tmpfiles >/dev/null; then systemd-tmpfiles --create weft.conf || :; fi
if [ ! -e /etc/wireguard ]; then mkdir -m 700 /etc/wireguard; fi
if [ -e /etc/apparmor.d/abi/4.0 ]; then
    if [ ! -e /etc/apparmor.d/weft ] && [ ! -L /etc/apparmor.d/weft ]; then
        ln -s /usr/share/weft/apparmor.d/weft /etc/apparmor.d/weft
    fi
    if [ ! -e /etc/apparmor.d/disable/weft ] && aa-enabled --quiet 2>/dev/null; then
        apparmor_parser --replace --write-cache --skip-cache /etc/apparmor.d/weft || :
    fi
fi
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload || :
    if [ "$1" -gt 1 ]; then systemctl try-restart 'weft@*.service' 'weft-client@*.service' || :; fi
fi
exit 0
