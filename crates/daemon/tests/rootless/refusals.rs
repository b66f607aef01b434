//! What makes a tunnel without root impossible, and what is said of it.

use std::os::unix::process::CommandExt as _;

use weft_lab::refusal::{Argument, Refusal};
use weft_lab::{mounts, until};

use crate::support::{BEHIND, Ended, PAGE, World, page};

#[test]
fn a_filter_of_a_container_is_named_with_the_ways_out() {
    let Some(world) = World::new() else { return };
    let mut command = world.exec(&world.file(""), &[], &["true"]);
    // As the default filters of Docker and Kubernetes do.
    refuse(&mut command, libc::SYS_unshare, None);
    let ended: Ended = command.output().unwrap().into();
    assert_eq!(ended.code, Some(77), "{ended:?}");
    for part in [
        "cannot make a user namespace",
        "seccomp filter",
        "--security-opt",
        "seccompProfile",
        "`weft exec --with-proxy`",
    ] {
        assert!(ended.stderr.contains(part), "{part} is missing: {ended:?}");
    }
    assert!(world.processes().is_empty());
}

#[test]
fn the_restriction_of_apparmor_is_named_with_the_ways_out() {
    let Some(world) = World::new() else { return };
    // As on Ubuntu: a user may make a user namespace, which gives no right to another one.
    let prepare = || {
        // setpriv(1) reads it.
        let last_capability = std::fs::read("/proc/sys/kernel/cap_last_cap")?;
        mounts::empty("/proc/sys/kernel")?;
        std::fs::write("/proc/sys/kernel/cap_last_cap", last_capability)?;
        std::fs::write("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
    };
    let work = || {
        let mut command = world.exec(&world.file(""), &[], &["true"]);
        refuse(&mut command, libc::SYS_unshare, Some(libc::CLONE_NEWNET));
        let ended: Ended = command.output().unwrap().into();
        assert_eq!(ended.code, Some(77), "{ended:?}");
        for part in [
            "cannot make a network namespace",
            "AppArmor lets only programs with a profile do so",
            "packaging/apparmor.d/weft",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
            "sudo weft up",
        ] {
            assert!(ended.stderr.contains(part), "{part} is missing: {ended:?}");
        }
        assert!(world.processes().is_empty());
    };
    mounts::run_separate(prepare, work);
}

#[test]
fn a_working_directory_that_was_deleted_is_named() {
    let Some(world) = World::new() else { return };
    let directory = world.directory.path().join("gone");
    std::fs::create_dir(&directory).unwrap();
    let mut command = world.exec(&world.file(""), &[], &["true"]);
    let path = std::ffi::CString::new(directory.as_os_str().as_encoded_bytes()).unwrap();
    // It is in the directory then.
    let delete = move || {
        // SAFETY: the path ends with a byte 0.
        Ok(nix::errno::Errno::result(unsafe { libc::rmdir(path.as_ptr()) }).map(drop)?)
    };
    // SAFETY: between fork and exec the closure makes a system call.
    unsafe { command.current_dir(&directory).pre_exec(delete) };
    let ended: Ended = command.output().unwrap().into();
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert!(ended.stderr.contains("the working directory cannot be entered again"), "{ended:?}");
    assert!(world.processes().is_empty());
}

/// Refuses a command a system call, with this first argument alone if one is given.
fn refuse(command: &mut std::process::Command, call: libc::c_long, argument: Option<libc::c_int>) {
    let argument = argument.map(|value| (0, Argument::Is(value)));
    Refusal::new(call, argument.as_slice(), libc::EPERM).apply_to(command);
}

/// Runs `work` where `/dev/net/tun` is missing, and where it is closed to users.
fn without_tun(work: impl Fn(&str) + Sync) {
    mounts::run_separate(|| mounts::empty("/dev/net"), || work("--device /dev/net/tun"));
    let close = || {
        mounts::empty("/dev/net")?;
        nix::sys::stat::mknod(
            "/dev/net/tun",
            nix::sys::stat::SFlag::S_IFCHR,
            nix::sys::stat::Mode::from_bits_truncate(0o600),
            nix::sys::stat::makedev(10, 200),
        )?;
        Ok(())
    };
    mounts::run_separate(close, || work("chmod 0666 /dev/net/tun"));
}

#[test]
fn where_the_tun_is_missing_or_closed_a_veth_pair_takes_its_place() {
    let Some(world) = World::new() else { return };
    world.serve_page(80);
    without_tun(|cause| {
        for (address, own) in BEHIND.iter().zip(["10.77.0.2", "fd77::2"]) {
            let host = if address.contains(':') { format!("[{address}]") } else { (*address).to_owned() };
            let curl = ["curl", "-sS", "--max-time", "60", &format!("http://{host}/")];
            let mut command = world.exec(&world.file("DNS = 10.77.0.1"), &[], &curl);
            let ended: Ended = command.env("RUST_LOG", "info").output().unwrap().into();
            assert_eq!((ended.code, ended.stdout.len()), (Some(0), PAGE), "{}", ended.stderr);
            assert!(ended.stdout == page(own), "the page of {own} differs");
            let told =
                ended.stderr.lines().find(|line| line.contains("a veth pair takes the place of a TUN"));
            assert!(told.is_some_and(|told| told.contains(cause)), "{}", ended.stderr);
        }
        for address in BEHIND {
            let ended = world.run(&["ping", "-c", "1", "-W", "60", address]);
            assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
        }
    });
}

#[test]
fn without_a_device_of_either_kind_both_causes_are_told() {
    let Some(world) = World::new() else { return };
    let work = |cause: &str| {
        let mut command = world.exec(&world.file(""), &[], &["true"]);
        refuse(&mut command, libc::SYS_socket, Some(libc::AF_PACKET));
        let ended: Ended = command.output().unwrap().into();
        assert_eq!(ended.code, Some(77), "{ended:?}");
        for part in [cause, "cannot open a packet socket", "sudo weft up"] {
            assert!(ended.stderr.contains(part), "{part} is missing: {ended:?}");
        }
    };
    without_tun(work);
    let mut command = world.exec(&world.file(""), &[], &["true"]);
    command.env("WEFT_ROOTLESS_DEVICE", "tun");
    mounts::run_separate(
        || mounts::empty("/dev/net"),
        || {
            let ended: Ended = command.output().unwrap().into();
            assert_eq!(ended.code, Some(125), "{ended:?}");
            assert!(ended.stderr.contains("--device /dev/net/tun"), "{ended:?}");
        },
    );
    until("no process of the user is left", || world.processes().is_empty());
}

#[test]
fn a_wrong_configuration_ends_before_anything_is_made() {
    let Some(world) = World::new() else { return };
    let without_key = world.write("nokey.conf", "[Interface]\nAddress = 10.0.0.1/24\nPostUp = true\n");
    let wrong = world.write("wrong.conf", "[Interface]\nPrivateKey = x\n");
    let closed = world.write("closed.conf", "[Interface]\n");
    std::os::unix::fs::chown(&closed, Some(0), Some(0)).unwrap();
    for (file, code, told) in [
        (without_key, 78, "no PrivateKey"),
        (wrong, 78, "wrong.conf:2"),
        (closed, 77, "closed.conf"),
        (world.directory.path().join("missing.conf"), 78, "missing.conf"),
    ] {
        let ended: Ended = world.exec(&file, &[], &["true"]).output().unwrap().into();
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.stderr.contains(told), "{ended:?}");
    }
    let ended: Ended = world.weft(&["exec", "office.conf"]).output().unwrap().into();
    assert_eq!(ended.code, Some(2), "{ended:?}");
}

#[test]
fn what_a_file_asks_of_the_host_is_left_out_and_named() {
    let Some(world) = World::new() else { return };
    let file = world.file("PostUp = touch /made-by-post-up\nFwMark = 5\nTable = off\nSaveConfig = true");
    let ended: Ended = world.exec(&file, &[], &["ip", "route", "show", "default"]).output().unwrap().into();
    assert!(ended.code == Some(0) && ended.text().contains("default dev office"), "{ended:?}");
    assert!(ended.stderr.contains("without root, PostUp, FwMark, SaveConfig has no effect"), "{ended:?}");
}
