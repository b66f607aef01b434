//! SIGHUP: a terminal that closes, as when an SSH session breaks, ends an interface like Ctrl-C; nohup(1)
//! spares it.

use std::process::Stdio;

use nix::sys::signal::Signal;
use weft_lab::{terminal, until, wait_until};

use crate::support::{End, Network, peer};

/// A default route, and commands that write what they do into the file `log`.
fn everything(network: &Network, post_down: &str) -> (String, std::path::PathBuf) {
    let log = network.directory.path().join("log");
    let lines = format!("PostUp = echo up >> {0}\nPostDown = {post_down}echo down >> {0}", log.display());
    let peer = peer(End::new(2).public(), "Endpoint = 203.0.113.1:51820\nAllowedIPs = 0.0.0.0/0, ::/0");
    (End::new(1).interface(&lines) + &peer, log)
}

#[test]
fn a_terminal_that_closes_leaves_nothing_of_the_interface() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    // The kernel sends it once more when the shell of the session ends: that ends no command of the
    // configuration.
    let (text, log) = everything(&network, "kill -HUP $$; ");
    let file = network.file("weft0.conf", &text);
    let mut command = network.weft_up(&file);
    let (terminal, end) = terminal::open().unwrap();
    terminal::attach(&mut command, &end).unwrap();
    // No other process may have it.
    drop(end);
    let mut daemon = network.client.start(command).unwrap();
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    until("the interface is up", || said() == "up\n");
    assert_ne!(network.picture(), before);
    drop(terminal);
    let status = wait_until("it ends", || daemon.try_wait().unwrap());
    assert!(status.success(), "{status}");
    assert_eq!(said(), "up\ndown\n");
    network.assert_as(&before);
}

#[test]
fn an_interface_that_was_started_with_nohup_stays() {
    let Some(network) = Network::new() else { return };
    let (text, _log) = everything(&network, "");
    let file = network.file("weft0.conf", &text);
    let weft = network.weft_up(&file);
    let mut command = network.client.command("nohup");
    command.arg(weft.get_program()).args(weft.get_args());
    for (name, value) in weft.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::null());
    let daemon = network.start(command);
    daemon.signal(Signal::SIGHUP);
    // It may not answer yet.
    until("it answers", || network.run(&["status", "weft0"]).code == Some(0));
    // What had come before would be told.
    let log = daemon.stop();
    assert!(log.contains("SIGTERM") && !log.contains("SIGHUP"), "{log}");
}
