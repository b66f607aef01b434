//! Several commands share one tunnel, which ends with the last of them.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use weft_lab::{Process, here, terminal, until, within};

use crate::support::{BEHIND, Ended, PAGE, World};

/// Says which network it is in, and ends with its standard input.
const STAY: [&str; 3] = ["sh", "-c", "readlink /proc/self/ns/net; read line"];

/// A command that runs in a tunnel, until its standard input ends.
struct Staying {
    weft: Child,
    _input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Its network namespace.
    network: String,
}

impl Staying {
    fn start(world: &World, file: &Path, options: &[&str]) -> Self {
        Self::begin(world, file, options).ready()
    }

    /// Does not wait for the tunnel.
    fn begin(world: &World, file: &Path, options: &[&str]) -> Starting {
        Self::spawn(world.in_session(world.exec(file, options, &STAY)))
    }

    fn spawn(mut command: Command) -> Starting {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Starting(command.spawn().unwrap())
    }

    /// Lets the command end.
    fn end(self) -> Ended {
        let Self { weft, _input: input, output, .. } = self;
        drop((input, output));
        ended(weft)
    }
}

/// Waits for the end of weft, and of all that it said.
fn ended(weft: Child) -> Ended {
    within("weft ends", || weft.wait_with_output()).unwrap().into()
}

/// Reads to the end: no process has the other end.
fn rest(mut output: impl Read + Send + 'static) -> String {
    within("the output ends", move || {
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        text
    })
}

struct Starting(Child);

impl Starting {
    fn ready(self) -> Staying {
        let Self(mut weft) = self;
        let (input, output) = (weft.stdin.take().unwrap(), weft.stdout.take().unwrap());
        let mut output = BufReader::new(output);
        let (network, output) = within("the command runs", move || {
            let mut network = String::new();
            output.read_line(&mut network).unwrap();
            (network, output)
        });
        let staying = Staying { weft, _input: input, output, network };
        if staying.network.is_empty() {
            panic!("{:?}", staying.end());
        }
        staying
    }
}

impl World {
    fn fetch(&self, file: &Path) -> Ended {
        let url = format!("http://{}/", BEHIND[0]);
        let command = self.exec(file, &[], &["curl", "-sS", "--max-time", "60", &url]);
        self.in_session(command).output().unwrap().into()
    }

    fn assert_nothing_left(&self) {
        until("no process of the user is left", || self.processes().is_empty());
        assert_eq!(self.left_in_session(), [""; 0]);
    }
}

#[test]
fn a_second_command_joins_the_tunnel_which_ends_with_the_last_one() {
    let Some(world) = World::new() else { return };
    world.serve_page(80);
    let file = world.file("DNS = 10.77.0.1");
    let first = Staying::start(&world, &file, &[]);
    let tunnel = world.tunnel();
    let second = Staying::start(&world, &file, &[]);
    assert_eq!(first.network, second.network);
    let status = world.weft_in_session(&["status", "office", "--json", "--sample", "0"]);
    let report: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let members = report["interfaces"][0]["members"].as_array().unwrap();
    assert_eq!(*members, [first.weft.id(), second.weft.id()], "{report}");
    assert_eq!(report["interfaces"][0]["pid"], tunnel.as_raw());
    let shown = world.weft_in_session(&["status", "office", "--sample", "0"]).text();
    for member in [&first, &second] {
        assert!(shown.contains(&format!(" process {},", member.weft.id())), "{shown}");
    }

    // The first one had started it.
    let ended = first.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(1), ""));
    let fetched = world.fetch(&file);
    assert_eq!((fetched.code, fetched.stdout.len()), (Some(0), PAGE), "{}", fetched.stderr);
    assert_eq!(world.tunnel(), tunnel);
    // The last command returns when the tunnel is gone.
    second.end();
    assert_eq!(world.left_in_session(), [""; 0]);
    world.assert_nothing_left();
}

/// The threads of a process with this name, and of them those whose system calls are filtered.
fn filtered(process: u32, name: &str) -> (usize, usize) {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let threads =
        threads.flatten().map(|thread| std::fs::read_to_string(thread.path().join("status")).unwrap());
    let threads: Vec<_> = threads.filter(|status| status.starts_with(&format!("Name:\t{name}\n"))).collect();
    (threads.len(), threads.iter().filter(|status| status.contains("\nSeccomp:\t2\n")).count())
}

#[test]
fn threads_that_hear_of_the_tunnel_and_of_its_commands_are_confined() {
    if !weft_confine::support().system_calls {
        return here::not_run("this kernel or processor cannot filter system calls");
    }
    let Some(world) = World::new() else { return };
    let file = world.file("");
    let command = Staying::start(&world, &file, &[]);
    let proxy = world.weft(&["proxy", file.to_str().unwrap(), "--socks5", "1080"]);
    let mut proxy = Process::start(&world.client, world.in_session(proxy)).unwrap();
    proxy.wait_for_line("serving");
    let tunnel = world.tunnel().as_raw().cast_unsigned();
    for (process, name) in [
        (tunnel, "weft-members"),
        (command.weft.id(), "weft-member"),
        (proxy.pid().as_raw().cast_unsigned(), "weft-member"),
    ] {
        until("the thread is confined", || filtered(process, name) == (1, 1));
    }
    // They do all their work so: a change, a command that leaves, and the end.
    world.file("MTU = 1300");
    assert_eq!(world.weft_in_session(&["reload", file.to_str().unwrap()]).code, Some(0));
    assert_eq!(command.end().code, Some(1));
    assert_eq!(world.weft_in_session(&["down", "office"]).code, Some(0));
    assert_eq!(proxy.wait().code(), Some(0), "{}", proxy.log());
    world.assert_nothing_left();
}

#[test]
fn commands_that_start_at_once_share_a_tunnel() {
    let Some(world) = World::new() else { return };
    let file = world.file("");
    let starting: Vec<Starting> = (0..6).map(|_| Staying::begin(&world, &file, &[])).collect();
    let staying: Vec<Staying> = starting.into_iter().map(Starting::ready).collect();
    let networks: BTreeSet<&str> = staying.iter().map(|staying| &*staying.network).collect();
    assert_eq!(networks.len(), 1, "{networks:?}");
    // All leave at once, while others come.
    let again: Vec<Starting> = (0..3).map(|_| Staying::begin(&world, &file, &[])).collect();
    for staying in staying {
        assert_eq!(staying.end().code, Some(1));
    }
    let again: Vec<Staying> = again.into_iter().map(Starting::ready).collect();
    let networks: BTreeSet<&str> = again.iter().map(|staying| &*staying.network).collect();
    assert_eq!(networks.len(), 1, "{networks:?}");
    for staying in again {
        assert_eq!(staying.end().code, Some(1));
    }
    world.assert_nothing_left();
}

#[test]
fn a_command_does_not_wait_for_a_tunnel_that_is_stopped() {
    let Some(world) = World::new() else { return };
    let file = world.file("");
    let first = Staying::start(&world, &file, &[]);
    let tunnel = world.tunnel();
    kill(tunnel, Signal::SIGSTOP).unwrap();
    let path = file.to_str().unwrap();
    let commands = [(125, &["exec", path, "--", "true"][..]), (1, &["proxy", path, "--socks5", "1080"])];
    let asked = commands.map(|(code, words)| {
        let mut asked = world.in_session(world.weft(words));
        (code, asked.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    });
    for (code, asked) in asked {
        let Ended { code: ended_with, stderr, .. } = ended(asked);
        assert_eq!(ended_with, Some(code), "{stderr}");
        let told =
            format!("office does not answer within 10 s: its daemon (process {tunnel}, state T (stopped)) ");
        assert!(stderr.contains(&told), "{stderr}");
    }
    kill(tunnel, Signal::SIGCONT).unwrap();
    // It hears of those that have left.
    let again = Staying::start(&world, &file, &[]);
    assert_eq!(again.network, first.network);
    again.end();
    first.end();
    world.assert_nothing_left();
}

#[test]
fn a_command_does_not_wait_for_a_tunnel_that_is_stopped_while_it_comes_up() {
    let Some(world) = World::new() else { return };
    // Here is no name server, and the name is looked up again and again.
    let text = std::fs::read_to_string(world.file("")).unwrap();
    let file = world.write("office.conf", &text.replace("192.0.2.2:", "gateway.example:"));
    let mut command = world.in_session(world.exec(&file, &[], &STAY));
    command.env("WG_ENDPOINT_RESOLUTION_RETRIES", "infinity");
    let Starting(mut starting) = Staying::spawn(command);
    // What it forks has its name for a moment.
    until("the tunnel has its namespaces", || {
        let mut names = world.processes();
        names.retain(|name| ["weft-tunnel", "weft-namespace"].contains(&&**name));
        names.sort_unstable();
        names == ["weft-namespace", "weft-tunnel"]
    });
    let tunnel = world.tunnel();
    kill(tunnel, Signal::SIGSTOP).unwrap();
    until("weft ends", || starting.try_wait().unwrap().is_some());
    // The tunnel has its standard error.
    kill(tunnel, Signal::SIGCONT).unwrap();
    let Ended { code, stderr, .. } = ended(starting);
    assert_eq!(code, Some(125), "{stderr}");
    let told =
        format!("office does not answer within 10 s: its daemon (process {tunnel}, state T (stopped)) ");
    assert!(stderr.contains(&told), "{stderr}");
    world.assert_nothing_left();
}

#[test]
fn the_end_of_the_first_command_by_its_terminal_or_sigkill_does_not_end_the_second() {
    let Some(world) = World::new() else { return };
    world.serve_page(80);
    let file = world.file("");
    let mut command = world.in_session(world.exec(&file, &[], &["sh", "-c", "echo ready; exec sleep 600"]));
    let (ours, end) = terminal::open().unwrap();
    terminal::attach(&mut command, &end).unwrap();
    let mut first = command.spawn().unwrap();
    drop((command, end));
    let mut keys = ours.try_clone().unwrap();
    let mut lines = BufReader::new(ours).lines();
    let lines = within("the command is ready", move || {
        assert!(lines.any(|line| line.unwrap().contains("ready")));
        lines
    });
    let second = Staying::start(&world, &file, &[]);
    keys.write_all(&[3]).unwrap();
    let status = within("weft ends", move || first.wait().unwrap());
    assert_eq!(status.code(), Some(128 + Signal::SIGINT as i32));
    // The terminal ends as well: SIGHUP to its session.
    drop((lines, keys));
    assert_eq!(world.fetch(&file).stdout.len(), PAGE);

    let mut killed = Staying::start(&world, &file, &[]);
    assert_eq!(killed.network, second.network);
    kill(nix::unistd::Pid::from_raw(killed.weft.id().cast_signed()), Signal::SIGKILL).unwrap();
    killed.weft.wait().unwrap();
    // The command in it got SIGHUP.
    assert_eq!(rest(killed.output), "");
    assert_eq!(world.fetch(&file).stdout.len(), PAGE);
    assert_eq!(second.end().code, Some(1));
    world.assert_nothing_left();
}

#[test]
fn when_the_tunnel_is_killed_every_command_is_told_and_weft_says_so() {
    let Some(world) = World::new() else { return };
    let file = world.file("");
    let staying = [Staying::start(&world, &file, &[]), Staying::start(&world, &file, &[])];
    let tunnel = world.tunnel();
    kill(tunnel, Signal::SIGKILL).unwrap();
    for staying in staying {
        // Its input goes on: SIGHUP ends it.
        let ended = ended(staying.weft);
        assert_eq!(ended.code, Some(125), "{ended:?}");
        assert!(
            ended.stderr.contains(&format!("error: process {tunnel}, which ran the tunnel")),
            "{ended:?}"
        );
    }
    until("no process of the user is left", || world.processes().is_empty());
    // What it left does not keep the next one from starting.
    assert_eq!(Staying::start(&world, &file, &[]).end().code, Some(1));
    world.assert_nothing_left();
}

#[test]
fn down_ends_all_commands_and_proxies() {
    let Some(world) = World::new() else { return };
    let file = world.file("DNS = 10.77.0.1");
    let first = Staying::start(&world, &file, &[]);
    let proxy = world.weft(&["proxy", file.to_str().unwrap(), "--socks5", "1080"]);
    let mut proxy = Process::start(&world.client, world.in_session(proxy)).unwrap();
    proxy.wait_for_line("serving");
    assert_eq!(world.weft_in_session(&["down", "office"]).code, Some(0));
    let ended = ended(first.weft);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(128 + Signal::SIGHUP as i32), ""));
    assert_eq!(proxy.wait().code(), Some(0), "{}", proxy.log());
    world.assert_nothing_left();
}

#[test]
fn a_command_that_wants_another_tunnel_is_told_what_runs() {
    let Some(world) = World::new() else { return };
    let file = world.file("");
    let options = ["--packet-threads", "1"];
    let first = Staying::start(&world, &file, &options);
    let run = |file: &Path, options: &[&str]| -> Ended {
        world.in_session(world.exec(file, options, &["true"])).output().unwrap().into()
    };
    for same in [&options[..], &[]] {
        let ended = run(&file, same);
        assert!(ended.code == Some(0) && !ended.stderr.contains("error"), "{ended:?}");
    }
    let other = run(&file, &["--tun-threads", "1", "--metrics", "127.0.0.1:9586"]);
    let told = "--metrics 127.0.0.1:9586, --tun-threads 1 is for the command that starts it";
    assert!(other.code == Some(125) && other.stderr.contains(told), "{other:?}");

    std::fs::create_dir(world.directory.path().join("home")).unwrap();
    let namesake = world.write("home/office.conf", &std::fs::read_to_string(&file).unwrap());
    let ended = run(&namesake, &[]);
    let told = format!("process {} runs a tunnel of the same name from {}", world.tunnel(), file.display());
    assert!(ended.code == Some(125) && ended.stderr.contains(&told), "{ended:?}");

    // Edited, with the same key.
    world.file("MTU = 1300");
    let link = world.exec(&file, &["--dns", "10.77.0.1"], &["ip", "link", "show", "office"]);
    let before: Ended = world.in_session(link).output().unwrap().into();
    assert!(before.text().contains("mtu 1420"), "{before:?}");
    assert!(before.stderr.contains("the file was edited since the tunnel came up"), "{before:?}");
    let reloaded = world.weft_in_session(&["reload", file.to_str().unwrap()]);
    assert_eq!(reloaded.code, Some(0), "{reloaded:?}");
    let link = world.exec(&file, &["--dns", "10.77.0.1"], &["ip", "link", "show", "office"]);
    let after: Ended = world.in_session(link).output().unwrap().into();
    assert!(after.text().contains("mtu 1300") && after.stderr.is_empty(), "{after:?}");
    first.end();
    world.assert_nothing_left();
}

#[test]
fn a_tunnel_holds_nothing_of_a_command_that_has_ended() {
    let Some(world) = World::new() else { return };
    let file = world.file("");
    let mut first = Staying::start(&world, &file, &[]);
    let second = Staying::start(&world, &file, &[]);
    let stderr = first.weft.stderr.take().unwrap();
    let Staying { mut weft, _input: input, output, .. } = first;
    drop(input);
    within("weft ends", move || weft.wait().unwrap());
    // Both pipes end, though the tunnel runs on.
    rest(output);
    rest(stderr);
    // What weft logs from then on is at the second one.
    kill(world.tunnel(), Signal::SIGKILL).unwrap();
    assert!(ended(second.weft).stderr.contains("which ran the tunnel"));
}

#[test]
fn a_signal_while_names_are_looked_up_leaves_nothing() {
    let Some(world) = World::new() else { return };
    let text = std::fs::read_to_string(world.file("")).unwrap();
    let file = world.write("office.conf", &text.replace("192.0.2.2:", "no-such-name.invalid:"));
    let mut command = world.in_session(world.exec(&file, &[], &["true"]));
    command.env("WG_ENDPOINT_RESOLUTION_RETRIES", "infinity");
    let mut weft = command.spawn().unwrap();
    until("the tunnel is being started", || world.processes().iter().any(|name| name == "weft-namespace"));
    kill(nix::unistd::Pid::from_raw(weft.id().cast_signed()), Signal::SIGTERM).unwrap();
    within("weft ends", move || weft.wait().unwrap());
    world.assert_nothing_left();
}

#[test]
fn commands_without_a_session_share_a_tunnel_in_a_directory_of_the_user_alone() {
    let Some(world) = World::new() else { return };
    let file = world.file("");
    let start = || Staying::spawn(world.exec(&file, &[], &STAY)).ready();
    let run = |arguments: &[&str]| -> Ended { world.weft(arguments).output().unwrap().into() };
    let first = start();
    let own = world.temporary_directory();
    let found = std::fs::symlink_metadata(&own).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (world.user, 0o700));
    let second = start();
    assert_eq!(first.network, second.network);
    let status = run(&["status", "--json", "--sample", "0"]);
    let report: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let members = report["interfaces"][0]["members"].as_array().unwrap();
    assert_eq!(*members, [first.weft.id(), second.weft.id()], "{report}");
    first.end();
    assert_eq!(run(&["down", "office"]).code, Some(0));
    assert_eq!(ended(second.weft).code, Some(128 + Signal::SIGHUP as i32));
    until("no process of the user is left", || world.processes().is_empty());
    assert!(!own.exists());
}

/// A directory that is removed at the end.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_directory_in_tmp_that_another_user_made_is_not_used() {
    let Some(world) = World::new() else { return };
    let file = world.file("");
    // By root, with all rights for the user.
    let own = Temporary(world.temporary_directory());
    std::fs::create_dir(&own.0).unwrap();
    std::fs::set_permissions(&own.0, PermissionsExt::from_mode(0o777)).unwrap();
    // At the same time: the kernel gives the number of a network that has ended to the next one.
    let staying = [(); 2].map(|()| Staying::spawn(world.exec(&file, &[], &STAY)).ready());
    assert_ne!(staying[0].network, staying[1].network);
    for staying in staying {
        let status: Ended = world.weft(&["status", "office"]).output().unwrap().into();
        assert!(status.code == Some(1) && status.stderr.contains("office is not running"), "{status:?}");
        assert_eq!(std::fs::read_dir(&own.0).unwrap().count(), 0);
        let ended = staying.end();
        let told = format!(
            "warning: no other command finds this tunnel, or that it has its key: {}: the runtime directory belongs to \
             user 0; set XDG_RUNTIME_DIR",
            own.0.display()
        );
        assert!(ended.code == Some(1) && ended.stderr.starts_with(&told), "{ended:?}");
        assert_eq!(ended.stderr.matches("no other command").count(), 1, "{ended:?}");
    }
    for stack in ["own", "kernel"] {
        let command = world.weft(&["proxy", file.to_str().unwrap(), "--stack", stack, "--socks5", "1080"]);
        let process = Process::start(&world.client, command).unwrap();
        process.wait_for_line("serving");
        let log = process.log();
        let told =
            format!("{}: the runtime directory belongs to user 0; set XDG_RUNTIME_DIR", own.0.display());
        assert_eq!(log.matches(&told).count(), 1, "{stack}: {log}");
        process.stop();
    }
}

#[test]
fn a_command_in_the_tunnel_cannot_join_it_again() {
    let Some(world) = World::new() else { return };
    let file = world.file("");
    let inner = ["./weft", "exec", "office.conf", "--", "true"];
    let ended: Ended = world.in_session(world.exec(&file, &[], &inner)).output().unwrap().into();
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert!(ended.stderr.contains("this command is in the tunnel already"), "{ended:?}");
}
