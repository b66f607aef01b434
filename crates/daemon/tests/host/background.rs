//! `weft up -d`: what ends its start, and what it keeps of its caller.

use std::os::unix::process::CommandExt as _;

use nix::sys::signal::{Signal, killpg};
use weft_lab::{Process, here, wait_until};

use crate::support::{End, Network, peer};
use crate::waiting::{assert_is_gone, hanging, process_of};

/// How a start that hangs is ended.
#[derive(Clone, Copy, Debug)]
enum By {
    /// A signal to the command that was called.
    Signal(Signal),
    /// A signal to its process group, as a terminal sends it.
    Group(Signal),
    /// Both, as timeout(1) does.
    Both(Signal),
}

#[test]
fn a_start_in_the_background_ends_as_a_whole_when_its_command_is_ended() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let cases = [
        (By::Signal(Signal::SIGTERM), "PreUp", Some(1)),
        (By::Signal(Signal::SIGINT), "PostUp", Some(1)),
        (By::Signal(Signal::SIGHUP), "PreUp", Some(1)),
        (By::Group(Signal::SIGINT), "PreUp", Some(1)),
        (By::Group(Signal::SIGTERM), "PostUp", Some(1)),
        (By::Both(Signal::SIGTERM), "PostUp", Some(1)),
        // The command cannot wait for the end then.
        (By::Signal(Signal::SIGKILL), "PreUp", None),
        (By::Signal(Signal::SIGKILL), "PostUp", None),
    ];
    for (by, phase, code) in cases {
        let file = network.file("weft0.conf", &hanging(&network, phase, "# weft: KillSwitch = on"));
        let mut command = network.weft(&["up", "-d", file.to_str().unwrap()]);
        command.process_group(0);
        let mut command = Process::start(&network.client, command).unwrap();
        let hook = wait_until("the command hangs", || process_of(&network));
        match by {
            By::Signal(signal) => command.signal(signal),
            By::Group(signal) => killpg(command.pid(), signal).unwrap(),
            By::Both(signal) => {
                command.signal(signal);
                killpg(command.pid(), signal).unwrap();
            }
        }
        let status = command.wait();
        assert_eq!(status.code(), code, "{by:?} {phase}: {}", command.log());
        if code.is_some() {
            // By then all is undone.
            assert_eq!(network.left(), [""; 0], "{by:?} {phase}: {}", command.log());
        }
        assert_is_gone(&network, hook);
        before.assert_restored(&network.client);
        wait_until("no record", || network.left().is_empty().then_some(()));
    }
}

#[test]
fn a_daemon_keeps_no_descriptor_of_its_caller() {
    let Some(network) = Network::new() else { return };
    if !here::installed(&["bash", "timeout", "flock"]) {
        return;
    }
    let before = network.picture();
    // Commands have the descriptors of the caller.
    let text = End::new(1).interface("PostUp = echo hook >&7") + &peer(End::new(2).public(), "");
    let file = network.file("weft0.conf", &text);
    // What reads a pipe ends when no process has its other end.
    let cases = [
        ("up 7>&1 | timeout 60 cat", "hook"),
        ("up 7>&1 > /dev/null 2>&1 | timeout 60 cat", "hook"),
        ("up 7>&1 2> \"$HERE/log\" | timeout 60 cat", "hook"),
        ("up 7> \"$HERE/hook\" 2> >(timeout 60 cat > \"$HERE/log\"); wait $!; cat \"$HERE/hook\"", "hook"),
        (
            "(flock 9; up 7>&1) 9> \"$HERE/lock\" | timeout 60 cat; flock -n \"$HERE/lock\" echo unlocked",
            "unlocked",
        ),
        ("x=$(up 7>&1 8>&1); echo $x", "hook"),
        // It is there to be read later.
        (
            "up 7>&1 > /dev/null 2> \"$HERE/log\" | timeout 60 cat; weft down weft0; cat \"$HERE/log\"",
            "the interface down",
        ),
    ];
    for (script, expected) in cases {
        let mut bash = network.command("bash");
        let own = std::path::Path::new(env!("CARGO_BIN_EXE_weft")).parent().unwrap();
        let path = format!("{}:{}", own.display(), std::env::var("PATH").unwrap_or_default());
        // timeout(1) fails when a process still has the other end.
        let setting = "set -e -o pipefail; up() { weft up -d \"$FILE\"; }";
        bash.args(["-c", &format!("{setting}; {script}")]);
        bash.env("PATH", path).env("FILE", &file).env("HERE", network.directory.path());
        let output = bash.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && said.contains(expected), "{script}: {said}");
        let _down_already = network.run(&["down", "weft0"]);
        network.assert_as(&before);
    }
}

#[test]
fn a_caller_that_ignores_the_end_of_its_programs_gets_the_exit_code_and_commands_succeed() {
    let Some(network) = Network::new() else { return };
    if !here::installed(&["unshare", "mount"]) {
        return;
    }
    let text =
        End::new(1).interface("PostUp = true") + &peer(End::new(2).public(), "AllowedIPs = 10.88.0.0/16");
    let file = network.file("weft0.conf", &text);
    let closed = "mount -t tmpfs none /dev/net -o nodev; mknod /dev/net/tun c 10 200";
    for (before, expected) in [(closed, 77), ("true", 0)] {
        let mut command = network.command("unshare");
        let script = format!("{before}; exec env --ignore-signal=CHLD \"$0\" up -d \"$1\"");
        command.args(["--mount", "sh", "-ec", &script, env!("CARGO_BIN_EXE_weft")]).arg(&file);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(expected), "{output:?}");
    }
    network.down();
}
