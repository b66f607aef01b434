//! Keys stay in memory only: a crash must not write them to a disk.

/// Excludes the memory of this process from core dumps, including those that the kernel pipes to a program,
/// and from access by other processes of the same user. A failure is only logged. Windows writes dumps only
/// where the machine is configured for it.
pub(crate) fn forbid_core_dumps() {
    // RLIMIT_CORE would not stop a dump that Linux pipes to a program (core(5)).
    #[cfg(target_os = "linux")]
    let forbidden = nix::sys::prctl::set_dumpable(false);
    #[cfg(all(unix, not(target_os = "linux")))]
    let forbidden = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0);
    #[cfg(unix)]
    if let Err(errno) = forbidden {
        tracing::warn!(error = errno.desc(), "cannot forbid core dumps, which would hold keys");
    }
}

#[cfg(all(test, target_os = "linux"))]
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
