# shellcheck shell=bash
# For scripts/test and scripts/test-platforms, which have `work` and `not_run`.

# The lints of a platform need its standard library, and of ring only that a C compiler seems to be there. One call for
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
            # Otherwise the build script of ring asks Xcode where the SDK is.
            [[ $target != *-ios ]] || compilers+=("SDKROOT=$work")
        else
            not_run "lints for $target" "rustup cannot add the target"
        fi
    done
    [ ${#arguments[@]} -eq 0 ] ||
        env "${compilers[@]}" cargo clippy --quiet --locked "${chosen[@]}" "${arguments[@]}" -- -D warnings
}
