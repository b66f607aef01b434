//! A start that cannot succeed says why, with the exit code for it, and leaves nothing behind.

use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use nix::mount::{MsFlags, mount};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use weft_lab::{Namespace, Process, here, mounts};

use crate::support::{
    Conf, End, Ended, Ends, Family, NAME, PORT, Running, Traces, answers, links_of, weft_up,
};

/// Starts what cannot succeed, and asserts how it ends and that the namespace looks as before.
#[track_caller]
fn refused(namespace: &Namespace, command: Command, code: i32, says: &[&str]) -> Ended {
    let before = Traces::of(namespace);
    let ended = Ended::of(Process::start(namespace, command).unwrap());
    assert_eq!(ended.code, Some(code), "{ended:?}");
    for text in says {
        assert!(ended.stderr.contains(text), "{text:?} in:\n{}", ended.stderr);
    }
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    before.assert_restored(namespace);
    ended
}

#[track_caller]
fn refused_conf(namespace: &Namespace, conf: &Conf, name: &str, code: i32, says: &[&str]) -> Ended {
    let directory = tempfile::tempdir().unwrap();
    let file = conf.write(directory.path(), name);
    refused(namespace, weft_up(namespace, &file), code, says)
}

#[test]
fn a_second_daemon_on_the_same_interface_is_refused_and_disturbs_nothing() {
    let Some(ends) = Ends::new(1500) else { return };
    for tun_threads in ["0", "2"] {
        let (conf_a, conf_b) = Conf::pair(Family::V4);
        let a = Running::up(&ends.a, &conf_a, &["--tun-threads", tun_threads]);
        let b = Running::up(&ends.b, &conf_b, &[]);
        let second = Conf { listen_port: None, ..conf_a.clone() };
        refused_conf(&ends.a, &second, NAME, 1, &["interface weft0 already exists"]);
        // Of another kind.
        refused_conf(&ends.a, &second, "eth0", 1, &["interface eth0 already exists"]);
        assert!(answers(&ends.a, End::B.inner(Family::V4)));
        assert!(answers(&ends.b, End::A.inner(Family::V6)));
        a.stop();
        b.stop();
    }
}

#[test]
fn a_busy_port_is_refused_and_disturbs_nothing() {
    let Some(ends) = Ends::new(1500) else { return };
    let (conf_a, conf_b) = Conf::pair(Family::V4);
    let a = Running::up(&ends.a, &conf_a, &[]);
    let b = Running::up(&ends.b, &conf_b, &[]);
    let other = Conf { listen_port: Some(PORT), ..Conf::new() };
    refused_conf(&ends.a, &other, "weft1", 1, &["port 51820 is in use"]);
    // The socket of another program, of one family.
    for address in ["0.0.0.0:51821", "[::]:51821"] {
        let _busy = ends.a.run(|| {
            let address: std::net::SocketAddr = address.parse().unwrap();
            let socket =
                socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::DGRAM, None)
                    .unwrap();
            if address.is_ipv6() {
                socket.set_only_v6(true).unwrap();
            }
            socket.bind(&address.into()).unwrap();
            UdpSocket::from(socket)
        });
        let other = Conf { listen_port: Some(51821), ..Conf::new() };
        refused_conf(&ends.a, &other, "weft1", 1, &["port 51821 is in use"]);
    }
    assert!(answers(&ends.a, End::B.inner(Family::V4)));
    a.stop();
    b.stop();
}

#[test]
fn without_a_permission_it_says_what_to_do() {
    let Some(ends) = Ends::new(1500) else { return };
    let (conf, _) = Conf::pair(Family::V4);
    // Readable by all, as is its directory: what is missing is CAP_NET_ADMIN alone.
    let directory = tempfile::tempdir().unwrap();
    let file = conf.write(directory.path(), NAME);
    for (path, mode) in [(directory.path(), 0o755), (file.as_path(), 0o644)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let says = ["needs CAP_NET_ADMIN", "run as root"];

    refused(&ends.a, without_capability(CapabilitySet::NET_ADMIN, weft_up(&ends.a, &file)), 77, &says);

    let command = as_nobody(weft_up(&ends.a, &file));
    match Process::start(&ends.a, as_nobody(weft_up(&ends.a, &file))) {
        Ok(_) => drop(refused(&ends.a, command, 77, &says)),
        Err(error) => here::not_run(&format!("as another user: it cannot run the binary: {error}")),
    }
}

#[test]
fn realtime_priority_that_may_not_be_had_is_refused_with_what_it_needs() {
    let Some(ends) = Ends::new(1500) else { return };
    let (conf, _) = Conf::pair(Family::V4);
    let directory = tempfile::tempdir().unwrap();
    let mut command = weft_up(&ends.a, &conf.write(directory.path(), NAME));
    command.arg("--realtime");
    let says = ["real-time priority", "CAP_SYS_NICE", "LimitRTPRIO", "--realtime"];
    refused(&ends.a, without_capability(CapabilitySet::SYS_NICE, command), 77, &says);
}

#[test]
fn a_port_that_needs_a_capability_is_refused_with_its_name() {
    let Some(ends) = Ends::new(1500) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = Conf { listen_port: Some(443), ..Conf::new() }.write(directory.path(), NAME);
    let command = without_capability(CapabilitySet::NET_BIND_SERVICE, weft_up(&ends.a, &file));
    refused(&ends.a, command, 77, &["CAP_NET_BIND_SERVICE", "AmbientCapabilities="]);
}

#[test]
fn a_file_that_may_not_be_read_asks_for_root() {
    let Some(ends) = Ends::new(1500) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = Conf::new().write(directory.path(), NAME);
    match Process::start(&ends.a, as_nobody(weft_up(&ends.a, &file))) {
        Ok(process) => {
            let ended = Ended::of(process);
            assert_eq!(ended.code, Some(77), "{ended:?}");
            assert!(ended.stderr.contains("run weft as root"), "{ended:?}");
        }
        Err(error) => here::not_run(&format!("another user cannot run the binary: {error}")),
    }
}

#[test]
fn without_a_tun_device_it_says_what_to_do() {
    let Some(ends) = Ends::new(1500) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = Conf::new().write(directory.path(), NAME);
    let hidden = || hide_tun_device(weft_up(&ends.a, &file), false);
    if let Err(error) = Process::start(&ends.a, hidden()) {
        return here::not_run(&format!("cannot hide /dev/net/tun: {error}"));
    }
    refused(&ends.a, hidden(), 1, &["/dev/net/tun is missing", "modprobe tun", "--device /dev/net/tun"]);
    // There, but forbidden.
    let forbidden = || hide_tun_device(weft_up(&ends.a, &file), true);
    if let Err(error) = Process::start(&ends.a, forbidden()) {
        return here::not_run(&format!("cannot forbid /dev/net/tun: {error}"));
    }
    refused(&ends.a, forbidden(), 77, &["/dev/net/tun", "weft0"]);
}

#[test]
fn an_address_that_cannot_be_added_leaves_no_interface() {
    let Some(ends) = Ends::new(1500) else { return };
    if let Err(error) = ends.a.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1") {
        return here::not_run(&error.to_string());
    }
    let (conf, _) = Conf::pair(Family::V4);
    let ended = refused_conf(&ends.a, &conf, NAME, 78, &["fd77::1/64", "disable_ipv6"]);
    assert!(!ended.stderr.contains(" is up: port "), "{ended:?}");
    assert!(links_of(&ends.a).iter().all(|(name, ..)| name != NAME));
}

#[test]
fn a_route_of_another_program_stays_and_no_interface_is_left() {
    let Some(ends) = Ends::new(1500) else { return };
    let (mut conf, _) = Conf::pair(Family::V6);
    // The longer one is added first, and has to go again.
    conf.peers[0].allowed_ips.extend(["192.0.2.0/24".to_owned(), "198.51.100.0/25".to_owned()]);
    refused_conf(&ends.a, &conf, NAME, 1, &["192.0.2.0/24", "Table"]);
}

/// Runs the command as an ordinary user.
fn as_nobody(mut command: Command) -> Command {
    const NOBODY: u32 = 65_534;
    // Not by `Command::uid`, which comes before the child enters its namespace.
    let become_nobody = || {
        nix::unistd::setgroups(&[])?;
        nix::unistd::setgid(NOBODY.into())?;
        nix::unistd::setuid(NOBODY.into())?;
        // The death signal is cleared with the user.
        Ok(nix::sys::prctl::set_pdeathsig(Some(nix::sys::signal::Signal::SIGKILL))?)
    };
    // SAFETY: between fork and exec the closure only makes system calls: no allocation, no lock.
    unsafe { command.pre_exec(become_nobody) };
    command
}

/// Runs the command as root without this one capability, as in most containers.
fn without_capability(capability: CapabilitySet, mut command: Command) -> Command {
    let drop_capability = move || Ok(remove_capability_from_bounding_set(capability)?);
    // SAFETY: between fork and exec the closure only makes a system call.
    unsafe { command.pre_exec(drop_capability) };
    command
}

/// Runs the command with another /dev/net: an empty one, or one with a device that may not be opened.
fn hide_tun_device(mut command: Command, with_forbidden_device: bool) -> Command {
    let hide = move || {
        mounts::separate()?;
        let none = None::<&Path>;
        mount(Some("tmpfs"), "/dev/net", Some("tmpfs"), MsFlags::MS_NODEV, none)?;
        if with_forbidden_device {
            let device = nix::sys::stat::makedev(10, 200);
            let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
            nix::sys::stat::mknod("/dev/net/tun", nix::sys::stat::SFlag::S_IFCHR, mode, device)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes system calls; short paths are put on the stack.
    unsafe { command.pre_exec(hide) };
    command
}
