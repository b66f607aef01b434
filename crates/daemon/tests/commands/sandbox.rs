//! A /var/run of a test's own.

use weft_lab::mounts;

/// Where daemons have their sockets.
pub(crate) const SOCKETS: &str = "/var/run/wireguard";

/// Runs `work` on a thread that has an empty /var/run, which its threads and children share; says so where
/// that is not possible.
pub(crate) fn run(work: impl FnOnce() + Send) {
    let prepare = || {
        mounts::empty("/var/run")?;
        std::fs::create_dir(SOCKETS)
    };
    mounts::run_separate(prepare, work);
}
