//! What a command is, and how it ends.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use weft_ipc::runtime_dir::VARIABLE;
use weft_lab::{Process, terminal};

use crate::support::{Ended, World};

#[test]
fn a_command_is_the_user_in_its_directory_without_capabilities() {
    let Some(world) = World::new() else { return };
    let script = "id -u; id -g; pwd; grep -E '^(CapEff|CapPrm|CapInh|CapAmb|NoNewPrivs|SigBlk|Seccomp):' /proc/self/status; cat";
    let mut command = world.exec(&world.file("DNS = 10.77.0.1"), &[], &["sh", "-c", script]);
    let (input, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"from standard input\n").unwrap();
    drop(writer);
    let ended: Ended = command.stdin(input).output().unwrap().into();
    let user = world.user;
    let directory = world.directory.path().display();
    let none = "0000000000000000";
    let expected = format!(
        "{user}\n{user}\n{directory}\nSigBlk:\t{none}\nCapInh:\t{none}\nCapPrm:\t{none}\nCapEff:\t{none}\n\
         CapAmb:\t{none}\nNoNewPrivs:\t1\nSeccomp:\t2\nfrom standard input\n"
    );
    assert_eq!((ended.text(), ended.stderr.as_str(), ended.code), (expected, "", Some(0)));
}

#[test]
fn the_exit_status_is_that_of_the_command_or_tells_who_failed() {
    let Some(world) = World::new() else { return };
    world.write("data", "no program\n");
    for (command, code, told) in [
        (&["true"][..], 0, ""),
        (&["sh", "-c", "exit 3"], 3, ""),
        (&["sh", "-c", "exit 255"], 255, ""),
        (&["sh", "-c", "kill -TERM $$"], 128 + 15, ""),
        (&["sh", "-c", "kill -KILL $$"], 128 + 9, ""),
        (&["./data"], 126, "error: cannot run ./data: Permission denied"),
        (&["no-such-command"], 127, "error: cannot run no-such-command: No such file or directory"),
    ] {
        let ended = world.run(command);
        assert_eq!(ended.code, Some(code), "{command:?}: {ended:?}");
        assert!(
            if told.is_empty() { ended.stderr.is_empty() } else { ended.stderr.contains(told) },
            "{ended:?}"
        );
    }
}

#[test]
fn signals_are_passed_on() {
    let Some(world) = World::new() else { return };
    for (signal, name) in [
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGINT, "INT"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
    ] {
        let script =
            format!("trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.05; done");
        let command = world.exec(&world.file(""), &[], &["sh", "-c", &script]);
        let mut weft = Process::start(&world.client, command).unwrap();
        weft.wait_for_line("ready");
        weft.signal(signal);
        assert_eq!(weft.wait().code(), Some(5), "{name}: {}", weft.log());
        assert!(weft.log().contains(&format!("got {name}")), "{}", weft.log());
    }
}

/// Starts a command at a terminal. Returns it, what types there, and the lines that the terminal shows: they
/// end when its last process does.
fn at_terminal(mut command: Command) -> (Child, File, impl Iterator<Item = String>) {
    let (ours, end) = terminal::open().unwrap();
    terminal::attach(&mut command, &end).unwrap();
    let child = command.spawn().unwrap();
    let keys = ours.try_clone().unwrap();
    // The terminal ends with an error.
    (child, keys, BufReader::new(ours).lines().map_while(Result::ok))
}

#[test]
fn the_terminal_belongs_to_the_command() {
    let Some(world) = World::new() else { return };
    let script = "test -t 0 && echo terminal; n=0; trap 'n=$((n+1)); echo interrupted' INT; echo ready; \
                  until [ $n -gt 0 ]; do sleep 0.05; done; read line; echo \"line $line\"; exit 9";
    let command = world.exec(&world.file(""), &[], &["sh", "-c", script]);
    let (mut child, mut keys, lines) = at_terminal(command);
    let mut said = Vec::new();
    for line in lines {
        if line.contains("ready") {
            // Ctrl-C goes to weft and to the command.
            keys.write_all(&[3]).unwrap();
        }
        if line.contains("interrupted") {
            keys.write_all(b"typed\n").unwrap();
        }
        said.push(line.trim().to_owned());
    }
    assert_eq!(child.wait().unwrap().code(), Some(9), "{said:?}");
    let of_command = |text: &str| said.iter().filter(|line| line.ends_with(text)).count();
    assert_eq!(
        (of_command("terminal"), of_command("interrupted"), of_command("line typed")),
        (1, 1, 1),
        "{said:?}"
    );
}

#[test]
fn what_the_terminal_sends_is_not_passed_on() {
    let Some(world) = World::with(&["setsid"]) else { return };
    // Not in the foreground, the command gets nothing from the terminal. SIGUSR1 comes after all that weft
    // passes on before.
    let script =
        "trap 'echo passed on' INT; trap 'echo last; exit 4' USR1; echo ready; while :; do sleep 0.05; done";
    let command = world.exec(&world.file(""), &[], &["setsid", "sh", "-c", script]);
    let (mut child, mut keys, lines) = at_terminal(command);
    let mut said = Vec::new();
    for line in lines {
        if line.contains("ready") {
            // The terminal shows Ctrl-C once it has sent the signal, and here a line ends.
            keys.write_all(&[3]).unwrap();
            keys.write_all(b"\n").unwrap();
        }
        if line.contains("^C") {
            kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGUSR1).unwrap();
        }
        said.push(line.trim().to_owned());
    }
    assert_eq!(child.wait().unwrap().code(), Some(4), "{said:?}");
    assert!(!said.iter().any(|line| line.contains("passed on")), "{said:?}");
}

#[test]
fn a_command_of_root_has_no_capability_either() {
    let Some(world) = World::new() else { return };
    let file = world.file("DNS = 10.77.0.1");
    let arguments = ["exec", file.to_str().unwrap(), "--", "sh", "-c"];
    let mut command = world.client.command(env!("CARGO_BIN_EXE_weft"));
    command.args(arguments).arg("id -u; grep -E '^Cap(Eff|Prm)' /proc/self/status");
    command.env_remove("XDG_RUNTIME_DIR").env(VARIABLE, world.directory.path().join("root"));
    let ended: Ended = command.output().unwrap().into();
    let none = "0000000000000000";
    assert_eq!(ended.text(), format!("0\nCapPrm:\t{none}\nCapEff:\t{none}\n"), "{ended:?}");
}

#[test]
fn the_file_may_have_any_name_or_none() {
    let Some(world) = World::new() else { return };
    let file = world.file("");
    let text = std::fs::read_to_string(&file).unwrap();
    let address = |ended: &Ended| ended.text().contains("10.77.0.2/24");
    for name in ["wg (1).conf", "a-name-of-forty-characters-is-none-of-it.conf", "#.conf", "lo.conf"] {
        let file = world.write(name, &text);
        let command = world.exec(&file, &[], &["ip", "-brief", "address"]);
        let ended: Ended = world.in_session(command).output().unwrap().into();
        assert!(ended.code == Some(0) && address(&ended), "{name}: {ended:?}");
        let checked = world.weft_in_session(&["check", file.to_str().unwrap()]);
        assert!(address(&checked) && checked.stderr.contains("needs --name NAME"), "{name}: {checked:?}");
    }
    let file = file.display();
    for words in [
        format!("exec <(cat {file}) -- ip -brief address"),
        format!("exec - -- ip -brief address < {file}"),
        format!("check <(cat {file})"),
        format!("check - < {file}"),
    ] {
        let command = world.as_user("bash", &["-c", &format!("./weft {words}")]);
        let ended: Ended = world.in_session(command).output().unwrap().into();
        assert!(address(&ended), "{words}: {ended:?}");
    }
}
