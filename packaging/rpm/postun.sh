# Keys and configurations in /etc/wireguard stay, and so does the user weft: a later user with its number would read
# what its group was let read.
if [ "$1" -eq 0 ]; then
    for link in /etc/systemd/system/*.wants/weft@*.service /etc/systemd/system/*.wants/weft-gateway.service; do
        if [ -L "$link" ]; then rm "$link"; fi
    done
    if [ -d /run/systemd/system ]; then systemctl --system daemon-reload || :; fi
    rm -rf /run/weft
    rmdir --ignore-fail-on-non-empty /run/wireguard 2>/dev/null || :
    # The package owns files alone, and rpm leaves the directories that they were in.
    for directory in /usr/share/weft/* /usr/share/weft /usr/share/doc/weft /usr/share/licenses/weft /etc/weft; do
        if [ -d "$directory" ]; then rmdir --ignore-fail-on-non-empty "$directory" || :; fi
    done
fi
exit 0
