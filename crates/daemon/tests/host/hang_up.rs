//! SIGHUP: a terminal that closes, as when an SSH session breaks, ends an interface like Ctrl-C; nohup(1) spares it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use weft_lab::{Namespace, Process, wait_until};

use crate::support::{End, Network, Picture, peer};

/// The two ends of a new terminal. Closing the first one is its end; no other process may have it.
fn terminal() -> io::Result<(File, OwnedFd)> {
    let ours = File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/ptmx")?;
    let unlocked: libc::c_int = 0;
    // SAFETY: the ioctl reads the number, which lives until after the call.
    if unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the ioctl takes a number.
    match unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCGPTPEER, flags) } {
        // SAFETY: it was just opened, and nobody else has it.
        theirs @ 0.. => Ok((ours, unsafe { OwnedFd::from_raw_fd(theirs) })),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Starts a command as the first of a session with a terminal of its own, the other end of which is given.
fn in_a_terminal(namespace: &Namespace, mut command: Command) -> (Child, File) {
    let (ours, theirs) = terminal().unwrap();
    command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
    let take_terminal = || {
        nix::unistd::setsid()?;
        // SAFETY: the ioctl takes a number; standard input is the terminal.
        match unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec the closure only makes system calls.
    unsafe { command.pre_exec(take_terminal) };
    (namespace.start(command).unwrap(), ours)
}

/// A default route, and commands that write what they do into the file `log`.
fn everything(network: &Network, post_down: &str) -> (String, std::path::PathBuf) {
    let log = network.directory.path().join("log");
    let lines = format!("PostUp = echo up >> {0}\nPostDown = {post_down}echo down >> {0}", log.display());
    let peer = peer(End::new(2).public(), "Endpoint = 203.0.113.1:51820\nAllowedIPs = 0.0.0.0/0, ::/0");
    (End::new(1).interface(&lines) + &peer, log)
}

#[test]
fn a_terminal_that_closes_leaves_nothing_of_the_interface() {
    let Some(network) = Network::new("a_terminal_that_closes_leaves_nothing_of_the_interface") else {
        return;
    };
    let before = Picture::of(&network.client);
    // The kernel sends it once more when the shell of the session ends: that ends no command of the configuration.
    let (text, log) = everything(&network, "kill -HUP $$; ");
    let file = network.file("weft0.conf", &text);
    let command = network.weft(&network.client, &["up", file.to_str().unwrap()]);
    let (mut daemon, terminal) = in_a_terminal(&network.client, command);
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_until("the interface is up", || (said() == "up\n").then_some(()));
    assert_ne!(Picture::of(&network.client), before);
    drop(terminal);
    let status = wait_until("it ends", || daemon.try_wait().unwrap());
    assert!(status.success(), "{status}");
    assert_eq!(said(), "up\ndown\n");
    before.assert_restored(&network.client);
    assert_eq!(network.left(&network.client), [""; 0]);
}

#[test]
fn an_interface_that_was_started_with_nohup_stays() {
    let Some(network) = Network::new("an_interface_that_was_started_with_nohup_stays") else { return };
    let (text, _log) = everything(&network, "");
    let file = network.file("weft0.conf", &text);
    let weft = network.weft(&network.client, &["up", file.to_str().unwrap()]);
    let mut command = network.client.command("nohup");
    command.arg(weft.get_program()).args(weft.get_args());
    for (name, value) in weft.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::null());
    let daemon = Process::start(&network.client, command).unwrap();
    daemon.wait_for_line("interface is up");
    daemon.signal(Signal::SIGHUP);
    assert_eq!(network.run(&network.client, &["status", "weft0"]).code, Some(0));
    // What had come before would be told.
    let log = daemon.stop();
    assert!(log.contains("SIGTERM") && !log.contains("SIGHUP"), "{log}");
}
