//! No half-alive daemon: a thread that panics ends the process.

/// Held by a thread for as long as it runs; ends the process when it is dropped by a panic. The panic's own
/// message has been printed by then.
#[derive(Debug)]
pub struct EndProcessOnPanic;

impl Drop for EndProcessOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("unnamed");
            tracing::error!(thread = name, "a thread panicked; weft ends, since it would be half alive");
            std::process::exit(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::EndProcessOnPanic;

    #[test]
    fn a_thread_that_panics_ends_the_process() {
        const CHILD: &str = "WEFT_TEST_PANICKING_CHILD";
        if std::env::var_os(CHILD).is_some() {
            let thread = std::thread::spawn(|| {
                let _guard = EndProcessOnPanic;
                panic!("on purpose");
            });
            let _ = thread.join();
            std::process::exit(0);
        }
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "thread_guard::tests::a_thread_that_panics_ends_the_process", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_eq!(child.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&child.stderr).contains("on purpose"));
    }
}
