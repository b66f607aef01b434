//! `weft NAME`: in the background once it can be used, and what ends it.

use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use weft_lab::{PATIENCE, link, until};

use crate::support::{Daemon, Kind, Machine, NAME, daemon_of, key, socket_of};

/// Whether a process that is not our child runs, and is not a zombie.
fn is_running(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state stands behind the name, which is in brackets.
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z') && !rest.is_empty())
}

fn assert_nothing_is_left(machine: &Machine, pid: Pid) {
    until("the daemon ends", || !is_running(pid));
    assert!(!machine.has_link(NAME) && !machine.has_socket(NAME));
}

#[test]
fn the_command_returns_once_wg_can_configure_it() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    for run in [&["wg0"][..], &["run", "wg0"]] {
        // Its output ends with it: the daemon holds no end of the pipes.
        let start = Instant::now();
        let output = machine.output("weft", run);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert!(start.elapsed() < PATIENCE);
        machine.wg(&format!("set {NAME} listen-port 4567"));
        let pid = daemon_of(&machine, NAME).unwrap();
        assert!(is_running(pid));
        // In a new session, without a terminal.
        let session = nix::unistd::getsid(Some(pid)).unwrap();
        assert_eq!(session, pid);
        kill(pid, Signal::SIGTERM).unwrap();
        assert_nothing_is_left(&machine, pid);
    }
}

#[test]
fn a_link_named_wireguard_go_takes_every_name_and_weft_only_what_is_no_mistake() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("wireguard-go");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_weft"), &link).unwrap();
    for name in ["list", "restart", "connect"] {
        let refused = machine.output("weft", &[name]);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(2) && said.contains("tip: `weft "), "{name}: {said}");
        assert!(!machine.has_link(name) && !machine.has_socket(name), "{name}");
        machine.run(link.to_str().unwrap(), &[name]);
        assert_eq!(machine.wg("show interfaces"), format!("{name}\n"));
        machine.run("weft", &["down", name]);
    }
}

#[test]
fn either_signal_ends_it() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut daemon = Daemon::start(&machine);
        daemon.signal(signal);
        assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
        assert_nothing_is_left(&machine, daemon.pid());
    }
}

#[test]
fn weft_down_ends_it_and_waits_for_that() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    assert!(machine.output("weft", &[NAME]).status.success());
    let pid = daemon_of(&machine, NAME).unwrap();
    assert_eq!(machine.run("weft", &["down", NAME, "--dry-run"]), format!("remove device {NAME}\n"));
    assert!(is_running(pid));
    let output = machine.output("weft", &["down", NAME]);
    assert!(output.status.success(), "{output:?}");
    assert!(!machine.has_link(NAME) && !machine.has_socket(NAME));
    assert_nothing_is_left(&machine, pid);
    assert_not_up(&machine);
}

#[track_caller]
fn assert_not_up(machine: &Machine) {
    let output = machine.output("weft", &["down", NAME]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && error.contains("wg0 is not running under weft"), "{output:?}");
}

#[test]
fn weft_down_leaves_an_interface_of_another_program_alone() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let path = socket_of(NAME);
    let _other = machine.inside(|| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::net::UnixListener::bind(&path).unwrap()
    });
    assert_not_up(&machine);
    assert!(machine.has_socket(NAME));
}

#[test]
fn weft_down_leaves_wireguard_go_alone() {
    let Some(machine) = Machine::new(&["wg", "wireguard-go"]) else { return };
    let daemon = Daemon::start_kind(&machine, Kind::WireguardGo);
    assert_not_up(&machine);
    let text = format!("[Interface]\nPrivateKey = {}\n", *key(1).to_base64());
    let file = machine.file(&format!("{NAME}.conf"), &text);
    let runs = format!("(process {}) runs it; `wg-quick down {NAME}` ends it", daemon.pid());
    for command in ["up", "down"] {
        let output = machine.output("weft", &[command, &file]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && error.contains(&runs), "{error}");
    }
    assert!(daemon.is_running() && machine.has_link(NAME) && machine.has_socket(NAME));
}

#[test]
fn a_deleted_device_ends_it() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let mut daemon = Daemon::start(&machine);
    link::remove(&machine.namespace, NAME).unwrap();
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    assert_nothing_is_left(&machine, daemon.pid());
}

#[test]
fn a_removed_socket_ends_it() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let mut daemon = Daemon::start(&machine);
    machine.inside(|| std::fs::remove_file(socket_of(NAME))).unwrap();
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    assert_nothing_is_left(&machine, daemon.pid());
}

#[test]
fn after_a_crash_the_next_one_takes_over_the_socket() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let mut daemon = Daemon::start(&machine);
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    assert!(machine.has_socket(NAME), "it could not remove it");
    let daemon = Daemon::start(&machine);
    assert_eq!(daemon_of(&machine, NAME), Some(daemon.pid()));
}

#[test]
fn the_name_is_written_where_it_is_asked_for() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let file = machine.file("name", "");
    let output = machine.command("weft").arg(NAME).env("WG_TUN_NAME_FILE", &file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{NAME}\n"));
    kill(daemon_of(&machine, NAME).unwrap(), Signal::SIGTERM).unwrap();
    until("it is down", || !machine.has_link(NAME));
    let output = machine.command("weft").arg(NAME).env("WG_TUN_NAME_FILE", "/nowhere/name").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("/nowhere/name"), "{error}");
    assert!(!machine.has_link(NAME) && !machine.has_socket(NAME));
}

#[test]
fn the_log_says_as_much_as_it_is_told_to() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let log_of = |level: &str| {
        let mut command = machine.command("weft");
        command.args(["-f", NAME]);
        let mut daemon = Daemon::spawn_with_level(&machine, command, level);
        daemon.wait_until_ready(&machine);
        machine.output("wg", &["set", NAME, "peer", "x"]);
        daemon.signal(Signal::SIGTERM);
        assert_eq!(daemon.wait().code(), Some(0));
        daemon.log()
    };
    assert!(log_of("verbose").contains("wg(8) can configure the interface"));
    assert!(log_of("debug").contains("wg(8) can configure the interface"));
    for quiet in ["error", "silent", ""] {
        assert_eq!(log_of(quiet), "", "{quiet:?}");
    }
}
