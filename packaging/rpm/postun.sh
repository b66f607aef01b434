# Keys and configurations in /etc/wireguard stay, and so does the user weft: a later user with its number would read
# what its group was let read.

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
    for link in /etc/systemd/system/*.wants/weft@*.service /etc/systemd/system/*.wants/weft-client@*.service \
        /etc/systemd/system/*.wants/weft-gateway.service; do
        if [ -L "$link" ]; then rm "$link"; fi
    done
    if [ -d /run/systemd/system ]; then systemctl --system daemon-reload || :; fi
    # A socket without its file, and the record of an interface, are of use as long as the interface runs.
    left=$(running)
    if [ -z "$left" ]; then
        rm -rf /run/weft
    else
        echo "weft: still running: $left; /run/weft stays. To end it: kill its process (pgrep -ax weft)" >&2
    fi
    rmdir --ignore-fail-on-non-empty /run/wireguard 2>/dev/null || :
    # The package owns files alone, and rpm leaves the directories that they were in.
    for directory in /usr/share/weft/* /usr/share/weft /usr/share/doc/weft/docs /usr/share/doc/weft /usr/share/licenses/weft /etc/weft; do
        if [ -d "$directory" ]; then rmdir --ignore-fail-on-non-empty "$directory" || :; fi
    done
    # Directories of completions: filesystem owns them on Fedora; elsewhere no package may, without the shell.
    for directory in bash-completion/completions bash-completion fish/vendor_completions.d fish zsh/site-functions zsh; do
        directory=/usr/share/$directory
        if [ -d "$directory" ] && LC_ALL=C rpm --query --file "$directory" 2>/dev/null | grep -q 'is not owned'; then
            rmdir --ignore-fail-on-non-empty "$directory" || :
        fi
    done
fi
exit 0
