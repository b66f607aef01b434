//! Descriptors that the parent of weft hands in: WG_TUN_FD and WG_UAPI_FD.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixListener;

use nix::libc;
use weft_lab::{inherit, until};

use crate::support::{Daemon, Machine, NAME, Pair, key};

nix::ioctl_write_ptr_bad!(set_iff, libc::TUNSETIFF, libc::ifreq);

/// A queue of a new TUN device in the machine's namespace.
fn new_tun(machine: &Machine, name: &str, flags: i32) -> File {
    machine.namespace.run(|| {
        let tun = OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
        let mut bytes = [0; libc::IFNAMSIZ];
        for (to, from) in bytes.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let flags = i16::try_from(libc::IFF_TUN | libc::IFF_NO_PI | flags).unwrap();
        let request =
            libc::ifreq { ifr_name: bytes, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags } };
        // SAFETY: the ioctl reads an ifreq, and `request` is one that lives until it returns.
        unsafe { set_iff(tun.as_raw_fd(), &request) }.unwrap();
        tun
    })
}

#[test]
fn a_device_and_a_socket_are_taken_over() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let tun = new_tun(&machine, "given0", libc::IFF_VNET_HDR);
    let socket = machine
        .inside(|| {
            std::fs::create_dir_all("/var/run/wireguard")?;
            UnixListener::bind("/var/run/wireguard/given0.sock")
        })
        .unwrap();
    let mut command = machine.command("weft");
    // The name is the device's, whatever the command line says.
    command.args(["-f", NAME]).env("WG_TUN_FD", "101").env("WG_UAPI_FD", "100");
    inherit(&mut command, 100, vec![socket.into(), tun.into()]);
    let mut daemon = Daemon::spawn(&machine, command);
    let file = machine.file("key", &key(1).to_base64());
    let words = ["set", "given0", "private-key", &file, "listen-port", "4567"];
    until("it answers", || {
        assert!(daemon.is_running(), "{}", daemon.log());
        machine.output("wg", &words).status.success()
    });
    assert_eq!(machine.wg("show all listen-port"), "given0\t4567\n");
    let link = machine.output("ip", &["-d", "link", "show", "given0"]);
    let link = String::from_utf8(link.stdout).unwrap();
    assert!(link.contains("<POINTOPOINT,NOARP>") && link.contains("addrgenmode none"), "{link}");
    assert!(!machine.has_link(NAME) && !machine.has_socket(NAME));
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    assert!(!machine.has_link("given0") && !machine.has_socket("given0"));
}

#[test]
fn a_plain_device_carries_traffic() {
    // As most programs make it: without virtio headers, and so without any offload.
    let start = |machine: &Machine| {
        let tun = new_tun(machine, NAME, 0);
        let mut command = machine.command("weft");
        command.args(["-f", NAME]).env("WG_TUN_FD", "101");
        inherit(&mut command, 101, vec![tun.into()]);
        let daemon = Daemon::spawn(machine, command);
        daemon.wait_until_ready(machine);
        daemon
    };
    let Some(pair) = Pair::with(start) else { return };
    let stream = pair.stream();
    stream.goes_on();
    stream.end();
}

#[test]
fn what_was_not_handed_in_is_said() {
    let Some(machine) = Machine::new(&[]) else { return };
    for (variable, value, reason) in [
        ("WG_TUN_FD", "77", "no descriptor of this number is open"),
        ("WG_UAPI_FD", "77", "no descriptor of this number is open"),
        ("WG_UAPI_FD", "2", "standard input, output or error"),
        ("WG_TUN_FD", "x", "write the number of an open descriptor"),
        ("WG_TUN_FD", "-1", "write the number of an open descriptor"),
        ("WG_TUN_FD", "99999999999", "write the number of an open descriptor"),
    ] {
        let output = machine.command("weft").arg(NAME).env(variable, value).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(&format!("{variable}={value}")) && error.contains(reason), "{error}");
    }
    // Open, but something else.
    let null = File::open("/dev/null").unwrap();
    for (variable, reason) in [("WG_TUN_FD", "TUN queue"), ("WG_UAPI_FD", "listening Unix socket")] {
        let mut command = machine.command("weft");
        command.arg(NAME).env(variable, "100");
        inherit(&mut command, 100, vec![null.try_clone().unwrap().into()]);
        let output = command.output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(reason), "{error}");
    }
    assert!(!machine.has_link(NAME) && !machine.has_socket(NAME));
}
