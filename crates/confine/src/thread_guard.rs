//! A thread that panics ends the process. Without the thread, the process would look healthy and lose
//! packets.

use std::thread;

/// A guard that a thread holds for as long as it runs. If a panic drops the guard, the process ends with exit
/// code 1, after the message of the panic was printed.
#[derive(Debug)]
pub struct EndProcessOnPanic;

impl Drop for EndProcessOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!(
                "thread {} panicked; ending the process",
                thread::current().name().unwrap_or("without a name")
            );
            std::process::exit(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_ends_the_process() {
        const CHILD: &str = "WEFT_TEST_PANICKING_CHILD";
        if std::env::var_os(CHILD).is_some() {
            let body = || {
                let _guard = EndProcessOnPanic;
                panic!("on purpose");
            };
            let _ = thread::Builder::new().name("weft-tun-r9".to_owned()).spawn(body).unwrap().join();
            std::process::exit(0);
        }
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "thread_guard::tests::a_thread_that_panics_ends_the_process", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_eq!(child.status.code(), Some(1));
        let stderr = String::from_utf8_lossy(&child.stderr);
        assert!(stderr.contains("on purpose"), "{stderr}");
        assert!(stderr.contains("thread weft-tun-r9 panicked"), "{stderr}");
    }
}
