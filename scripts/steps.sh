# shellcheck shell=bash
# For scripts/test and scripts/test-platforms, which have a directory `work` and the file that WEFT_NOT_RUN_LOG names.

failed=() times=()

heading() { printf '\n== %s\n' "$*"; }
not_run() { printf 'NOT RUN: %s: %s\n' "$1" "$2" | tee -a "$WEFT_NOT_RUN_LOG" >&2; }

# Runs a step, remembers that it failed and how long it took, and goes on: one run shows everything that is wrong.
step() {
    local name=$1 start=$SECONDS
    shift
    heading "$name"
    if ! "$@"; then
        failed+=("$name")
        printf 'FAILED: %s\n' "$name" >&2
    fi
    times+=("$((SECONDS - start)) s: $name")
    echo "${times[-1]}"
}

summary() {
    local passed failures skipped
    passed=$(awk '/^test result/ {n += $4} END {print n + 0}' "$work/all")
    failures=$(awk '/^test result/ {n += $6} END {print n + 0}' "$work/all")
    skipped=$(sort -u "$WEFT_NOT_RUN_LOG" | wc -l)
    heading "Summary"
    printf '%s\n' "${times[@]}" "$SECONDS s: everything"
    if [ "$skipped" -gt 0 ]; then
        echo "$skipped not run on this machine:"
        sort -u "$WEFT_NOT_RUN_LOG" | sed 's/^NOT RUN: /  /'
    fi
    if [ ${#failed[@]} -gt 0 ]; then
        printf 'failed: %s\n' "${failed[@]}"
        [ "$failures" -gt 0 ] || failures=${#failed[@]}
    fi
    echo "$passed passed, $failures failed, $skipped skipped"
    [ ${#failed[@]} -eq 0 ]
}

# The lints of a platform need its standard library, and of aws-lc only that a C compiler seems to be there. One call for
# several platforms compiles build scripts and macros once, and unites the features of all, of which iOS lacks some.
#
# The first argument is which packages and targets of cargo, the others are the platforms.
lint_for() {
    local chosen target variable arguments=() compilers=()
    read -ra chosen <<<"$1"
    shift
    cat >"$work/cc" <<'CC'
#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = -o ] && : >"$2"; shift; done
CC
    chmod +x "$work/cc"
    for target in "$@"; do
        if rustup target add "$target" >/dev/null 2>&1; then
            variable=${target//-/_}
            arguments+=(--target "$target")
            compilers+=("CC_$variable=$work/cc" "AR_$variable=/bin/true")
            # Otherwise the build script of aws-lc asks Xcode where the SDK is.
            [[ $target != *-ios ]] || compilers+=("SDKROOT=$work")
        else
            not_run "lints for $target" "rustup cannot add the target"
        fi
    done
    [ ${#arguments[@]} -eq 0 ] ||
        env "${compilers[@]}" cargo clippy --quiet --locked "${chosen[@]}" "${arguments[@]}" -- -D warnings
}
