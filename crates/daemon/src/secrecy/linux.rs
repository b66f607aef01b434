//! PR_SET_DUMPABLE (prctl(2)). RLIMIT_CORE would not stop a dump that is piped to a program (core(5)).

pub(super) fn forbid_core_dumps() {
    if let Err(errno) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!(error = errno.desc(), "cannot forbid core dumps, which would hold keys");
    }
}
