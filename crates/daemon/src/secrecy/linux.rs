//! PR_SET_DUMPABLE (prctl(2)). RLIMIT_CORE would not stop a dump that is piped to a program (core(5)).

pub(super) fn forbid_core_dumps() {
    if let Err(errno) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!(error = errno.desc(), "cannot forbid core dumps, which would hold keys");
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::prctl;

    #[test]
    fn a_process_with_keys_leaves_no_core_dump() {
        let before = prctl::get_dumpable().unwrap();
        super::forbid_core_dumps();
        let after = prctl::get_dumpable().unwrap();
        // Restored for the other tests of this process.
        prctl::set_dumpable(before).unwrap();
        assert!(!after);
    }
}
