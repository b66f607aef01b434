//! A start while the daemon that had the interface before is ending, or was killed.

use std::io::Write as _;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use weft_lab::{here, until};

use crate::support::{Daemon, Machine, NAME, daemon_of, key, public_key, socket_of};

/// What ends a daemon.
#[derive(Clone, Copy, Debug)]
enum End {
    DeviceRemoved,
    SocketRemoved,
    Terminated,
    Killed,
}

const ENDS: [End; 4] = [End::DeviceRemoved, End::SocketRemoved, End::Terminated, End::Killed];

fn end(machine: &Machine, end: End) {
    let daemon = daemon_of(machine, NAME).unwrap();
    match end {
        End::DeviceRemoved => drop(machine.run("ip", &["link", "delete", "dev", NAME])),
        End::SocketRemoved => machine.inside(|| std::fs::remove_file(socket_of(NAME)).unwrap()),
        End::Terminated => kill(daemon, Signal::SIGTERM).unwrap(),
        End::Killed => kill(daemon, Signal::SIGKILL).unwrap(),
    }
}

/// A file with every name that two daemons cannot have at once.
fn file(machine: &Machine, more: &str) -> String {
    let text = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 4567\nAddress = 10.9.0.1/24\n# weft: Metrics = 127.0.0.1:9586\n\
         {more}[Peer]\nPublicKey = {}\nAllowedIPs = 10.20.0.0/16\n",
        *key(1).to_base64(),
        public_key(2)
    );
    machine.file(&format!("{NAME}.conf"), &text)
}

/// Checks that one daemon has the interface, and everything that belongs to it.
#[track_caller]
fn assert_serves(machine: &Machine, after: &str) {
    assert_eq!(machine.wg("show interfaces"), format!("{NAME}\n"), "{after}");
    let status = machine.output("weft", &["status", NAME]);
    assert!(status.status.success(), "{after}: {status:?}");
}

#[track_caller]
fn down(machine: &Machine) {
    machine.run("weft", &["down", NAME]);
    assert!(!machine.has_link(NAME) && !machine.has_socket(NAME));
    assert!(!machine.inside(|| std::path::Path::new("/run/weft").join(NAME).exists()), "nothing is left");
}

#[test]
fn every_start_waits_for_a_daemon_that_is_ending() {
    let Some(machine) = Machine::new(&["wg", "ip"]) else { return };
    let file = file(&machine, "");
    let starts: [&[&str]; 2] = [&[NAME], &["up", "-d", &file]];
    for first in starts {
        for second in starts {
            for by in ENDS {
                let case = format!("{first:?}, {by:?}, {second:?}");
                machine.run("weft", first);
                end(&machine, by);
                let started = machine.output("weft", second);
                assert!(started.status.success(), "{case}: {started:?}");
                assert_serves(&machine, &case);
                down(&machine);
            }
        }
    }
}

/// Whether no thread of the process runs: a signal stops them one after the other.
fn is_stopped(process: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|after| after.trim_start().starts_with('T'))
    })
}

#[test]
fn a_daemon_that_has_not_noticed_that_its_device_is_gone_is_waited_for() {
    let Some(machine) = Machine::new(&["wg", "ip"]) else { return };
    let file = file(&machine, "");
    let starts: [&[&str]; 2] = [&[NAME], &["up", "-d", &file]];
    for start in starts {
        machine.run("weft", start);
        let old = daemon_of(&machine, NAME).unwrap();
        // It cannot notice anything.
        kill(old, Signal::SIGSTOP).unwrap();
        until("each of its threads stands still", || is_stopped(old));
        machine.run("ip", &["link", "delete", "dev", NAME]);
        let mut command = machine.command("weft");
        command.args([start, &[if start.len() == 1 { "--foreground" } else { "--no-offload" }]].concat());
        let new = Daemon::spawn(&machine, command);
        new.wait_for_line("waiting for the process that takes it down");
        kill(old, Signal::SIGCONT).unwrap();
        new.wait_until_ready(&machine);
        assert_serves(&machine, "once it has ended");
        down(&machine);
    }
}

#[test]
fn commands_of_post_down_come_before_those_of_the_next_start() {
    let Some(machine) = Machine::new(&["wg", "ip"]) else { return };
    let directory = tempfile::tempdir().unwrap();
    let [gate, log] = ["gate", "log"].map(|name| directory.path().join(name));
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let hooks = format!(
        "PostUp = echo up >> {0}\nPostDown = echo down >> {0}; cat {1} >> {0}\n",
        log.display(),
        gate.display()
    );
    let file = file(&machine, &hooks);
    machine.run("weft", &["up", "-d", &file]);
    end(&machine, End::Terminated);
    until("PostDown runs", || std::fs::read_to_string(&log).unwrap().ends_with("down\n"));
    let mut up = machine.command("weft");
    up.args(["up", &file]);
    let new = Daemon::spawn(&machine, up);
    new.wait_for_line("waiting for the process that takes it down");
    std::fs::OpenOptions::new().write(true).open(&gate).unwrap().write_all(b"gate\n").unwrap();
    new.wait_until_ready(&machine);
    new.wait_for_line(" is up: port ");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "up\ndown\ngate\nup\n");
}

#[test]
fn of_two_starts_at_once_one_is_refused_and_names_the_other() {
    let Some(machine) = Machine::new(&["wg", "ip"]) else { return };
    let file = file(&machine, "");
    let starts: [&[&str]; 2] = [&[NAME], &["up", "-d", &file]];
    for start in starts {
        let [a, b] = [(); 2].map(|()| {
            let mut command = machine.command("weft");
            command.args(start);
            Daemon::spawn(&machine, command)
        });
        let mut both = [a, b];
        let codes = both.each_mut().map(|daemon| daemon.wait().code().unwrap());
        assert_eq!(codes.iter().sum::<i32>(), 78, "{codes:?}: {}\n{}", both[0].log(), both[1].log());
        let refused = both[usize::from(codes[1] == 78)].log();
        let pid = daemon_of(&machine, NAME).unwrap();
        let told = format!("is up already (weft runs as process {pid})");
        assert!(refused.contains(&told), "{pid}: {refused}");
        assert_serves(&machine, &refused);
        down(&machine);
    }
}

/// systemd gives the directory of an interface to the user of its service before that starts, which does not
/// see the processes of others (`ProtectProc=`).
#[test]
fn a_service_of_another_user_says_at_once_that_root_runs_the_interface() {
    let Some(machine) = Machine::new(&["wg", "ip", "setpriv", "chown", "mount", "unshare"]) else { return };
    if !machine.output("setpriv", &["--reuid=12", "--clear-groups", "true"]).status.success() {
        return here::not_run("there is no other user");
    }
    let file = file(&machine, "");
    let start =
        |program: &str, arguments: &[&str]| machine.output(program, &[arguments, &["up", &file]].concat());
    machine.run("weft", &["up", "-d", &file]);
    let pid = daemon_of(&machine, NAME).unwrap();
    machine.run("chown", &["--recursive", "12", &format!("/run/weft/{NAME}"), &file]);
    machine.run("chmod", &["o+x", std::path::Path::new(&file).parent().unwrap().to_str().unwrap()]);
    let hidden = "mount -t proc -o hidepid=invisible proc /proc && exec setpriv --reuid=12 --clear-groups \
                  --inh-caps=+net_admin --ambient-caps=+net_admin weft \"$@\"";
    let refused = start("unshare", &["--mount", "sh", "-c", hidden, "sh"]);
    let log = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(78), "{log}");
    assert!(log.contains(&format!("is up already (weft runs as process {pid})")), "{log}");
    assert!(!log.contains("still in force"), "{log}");
    // Its ExecStopPost=.
    machine.run("weft", &["down", "--keep-kill-switch", NAME]);
    assert_eq!(daemon_of(&machine, NAME), Some(pid));
    machine.run("weft", &["down", NAME]);
    assert!(!machine.has_link(NAME));
}

#[test]
fn down_leaves_a_daemon_alone_that_started_meanwhile() {
    let Some(machine) = Machine::new(&["wg", "ip"]) else { return };
    let file = file(&machine, "");
    for by in ["down", "clean-up of a service"] {
        for _ in 0..8 {
            machine.run("weft", &["up", "-d", &file]);
            let mut command = machine.command("weft");
            if by == "down" {
                command.args(["down", NAME]);
            } else {
                end(&machine, End::Killed);
                command.args(["down", "--keep-kill-switch", NAME]);
            }
            let mut down_beside = Daemon::spawn(&machine, command);
            let up = machine.output("weft", &["up", "-d", &file]);
            assert!(down_beside.wait().success(), "{by}: {}", down_beside.log());
            // The start may have come before the end, and is refused then.
            if !up.status.success() {
                let error = String::from_utf8(up.stderr).unwrap();
                assert!(by == "down" && error.contains("is up already"), "{error}");
                continue;
            }
            assert_serves(&machine, by);
            down(&machine);
        }
    }
}

#[test]
fn a_name_that_another_program_has_is_told_with_its_process() {
    let Some(machine) = Machine::new(&["wg", "ip"]) else { return };
    let file = file(&machine, "");
    let own = std::process::id();
    let refused = |arguments: &[&str]| {
        let output = machine.output("weft", arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let port = machine.inside(|| std::net::UdpSocket::bind("0.0.0.0:4567").unwrap());
    let error = refused(&["up", "-d", &file]);
    assert!(error.contains("port 4567") && error.contains(&format!("process {own} (")), "{error}");
    drop(port);
    let listener = machine.inside(|| std::net::TcpListener::bind("127.0.0.1:9586").unwrap());
    let error = refused(&["up", "-d", &file]);
    assert!(error.contains("127.0.0.1:9586") && error.contains(&format!("(process {own}, ")), "{error}");
    drop(listener);
    let path = socket_of(NAME);
    let socket = machine.inside(|| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::net::UnixListener::bind(&path).unwrap()
    });
    let error = refused(&[NAME]);
    assert!(error.contains("wg0.sock") && error.contains(&format!("(process {own}, ")), "{error}");
    drop(socket);
    machine.inside(|| std::fs::remove_file(&path).unwrap());
}
