//! Daemons in a network namespace of the test's own.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use weft_lab::{self as lab, Namespace};

use crate::programs::{self, WEFT, weft};

/// The implementations that the commands have to work with.
pub(crate) const IMPLEMENTATIONS: [&str; 2] = ["wireguard-go", WEFT];

/// A running daemon. It is killed when it is dropped.
pub(crate) struct Daemon(Child);

impl Daemon {
    /// Runs a program for an interface of this name. The namespace has to be made inside the sandbox.
    pub(crate) fn start(program: &str, namespace: &Namespace, name: &str) -> Self {
        let mut command = namespace.command(program);
        command.args(["-f", name]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut this = Self(namespace.start(command).unwrap());
        until("the daemon answers", || {
            assert!(this.0.try_wait().unwrap().is_none(), "{program} ended");
            weft(&["show", name, "listen-port"]).code == 0
        });
        // Only what is up has a port and talks.
        lab::link::set_up(namespace, name).unwrap();
        this
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether it can be run here with TUN devices; where it cannot, says so for `test`.
pub(crate) fn can_run(test: &str) -> bool {
    lab::tun_permitted(test) && programs::installed(test, &["wireguard-go", "wg"])
}

/// Asks again and again until it is so.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    const PATIENCE: Duration = Duration::from_secs(45);
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
}
