//! Daemons in a network namespace of the test's own.

use weft_lab::{Namespace, Process, here, link, until};

use crate::programs::{WEFT, weft};

/// The implementations that the commands have to work with.
pub(crate) const IMPLEMENTATIONS: [&str; 2] = ["wireguard-go", WEFT];

/// Runs a program for an interface of this name. The namespace has to be made inside the sandbox.
pub(crate) fn start(program: &str, namespace: &Namespace, name: &str) -> Process {
    let mut command = namespace.command(program);
    command.args(["-f", name]);
    let process = Process::start(namespace, command).unwrap();
    until("the daemon answers", || {
        assert!(process.is_running(), "{program} ended");
        weft(&["show", name, "listen-port"]).code == 0
    });
    // Only what is up has a port and talks.
    link::set_up(namespace, name).unwrap();
    process
}

/// Whether it can be run here with TUN devices; where it cannot, says so.
pub(crate) fn can_run() -> bool {
    here::tun_permitted() && here::installed(&["wireguard-go", "wg"])
}
