# What scenarios say, wait for and assert, and how they write files and ask about services.

now() { date +%s%N; }
ms_since() { echo "$((($(now) - $1) / 1000000)) ms"; }
say() { printf '%s\n' "$*" >&2; }

# wait_for SECONDS COMMAND…: until the command succeeds.
wait_for() {
    local end=$(($(now) + $1 * 1000000000))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$(now)" -lt "$end" ] || { say "waited in vain for: $*"; return 1; }
        sleep 0.03
    done
}

# Runs a scenario: a function that prints a line about what it measured, and says on standard error what is wrong.
scenario() {
    local name=$1 detail
    say "== $name"
    # What stands behind && or || runs without errexit.
    set +e
    detail=$(set -eE; trap 'say "${BASH_SOURCE[0]##*/}:$LINENO ended with $?: $BASH_COMMAND"' ERR; "$name")
    local status=$?
    detail=${detail//$'\n'/; }
    if [ $status -eq 0 ]; then
        printf 'ok\t%s\t%s\n' "$name" "$detail" >>/out/results
    else
        printf 'failed\t%s\t%s\n' "$name" "$detail" >>/out/results
        systemctl status --no-pager --full --lines=30 'weft@*' 'weft-client@*' >&2
    fi
}

# is VALUE EXPECTED [WHAT]
is() { [ "$1" = "$2" ] || { say "is '$1', and not '$2' ${3:-}"; return 1; }; }
# absent TEXT WHERE: fails if standard input has the text, which may be a secret.
absent() { if grep -qF -- "$1"; then say "what should not be there is there: $2"; return 1; fi; }
# refuse COMMAND…: fails if the command does not.
refuse() { if "$@" >&2; then say "this should have failed: $*"; return 1; fi; }

# private FILE: standard input becomes a file that its owner alone may read.
private() { (umask 077; cat >"$1"); }
# drop_in DIRECTORY UNIT NAME: standard input becomes a part of the unit, below /etc or /run.
drop_in() {
    install -d "$1/systemd/system/$2.service.d"
    cat >"$1/systemd/system/$2.service.d/$3.conf"
    systemctl daemon-reload
}

# show PROPERTY UNIT
show() { systemctl show --value -p "$1" "$2"; }
pid() { show MainPID "$1"; }
# journal UNIT: what the unit has said.
journal() { journalctl --no-pager -u "$1"; }
# journal_has UNIT TEXT: entries come a moment after what they tell of.
journal_has() { wait_for 10 said "$@"; }
said() { grep -qiF -- "$2" <<<"$(journal "$1")"; }

# wait_for_another_process OLD: weft@wg0 has been started again after OLD, and packets pass.
wait_for_another_process() {
    wait_for 30 is_another_process "$1"
    wait_for 20 through
}
is_another_process() {
    local is
    is=$(pid weft@wg0)
    [ "$is" != 0 ] && [ "$is" != "$1" ] && [ "$(show SubState weft@wg0)" = running ]
}
