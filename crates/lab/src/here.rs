//! What this machine has of what the running test needs. What is missing is reported with the name of the
//! test.

/// Returns the name of the running test: that of the thread which the test harness started for it.
/// [`super::Namespace::run`] and [`super::mounts::run_separate`] pass the name on to their threads.
///
/// With `RUST_TEST_THREADS=1` all tests run on one thread, and have its name, `main`.
pub fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

/// Reports that the running test cannot run here, as [`super::not_run`] does.
pub fn not_run(reason: &str) {
    super::not_run(&test_name(), reason);
}

/// Reports whether this process may create network namespaces; calls [`not_run`] if not.
pub fn namespaces_permitted() -> bool {
    super::namespaces_permitted(&test_name())
}

/// Reports whether this process may create network namespaces and TUN devices; calls [`not_run`] if not.
pub fn tun_permitted() -> bool {
    super::tun_permitted(&test_name())
}

/// Reports whether all these programs are in `PATH`; calls [`not_run`] with the first one that is missing.
pub fn installed(programs: &[&str]) -> bool {
    super::installed(&test_name(), programs)
}
