//! What a daemon that was killed leaves, and what takes that away.

use std::fs::File;
use std::panic::AssertUnwindSafe;
use std::process::Stdio;

use nix::sys::signal::Signal;
use weft::up::{Beginning, Daemon, Options};
use weft_config::parse;
use weft_host::{Host, Recording};
use weft_lab::{Process, installed, wait_until};

use crate::support::{End, NAME, Network, Picture, make_proc_sys_read_only, peer, separate_mounts};

fn full_tunnel(lines: &str) -> String {
    End::new(1).interface(lines) + &peer(End::new(2).public(), "AllowedIPs = 0.0.0.0/0, ::/0, 10.88.0.0/16")
}

fn killed(network: &Network, lines: &str) -> std::path::PathBuf {
    let file = network.file("weft0.conf", &full_tunnel(lines));
    let mut daemon = network.up(&network.client, &file);
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    file
}

#[test]
fn down_takes_away_what_a_killed_daemon_left() {
    let Some(network) = Network::new("down_takes_away_what_a_killed_daemon_left") else { return };
    let before = Picture::of(&network.client);
    let log = network.directory.path().join("log");
    let hooks = format!("PreDown = echo pre %i >> {0}\nPostDown = echo post %i >> {0}", log.display());
    killed(&network, &hooks);
    assert!(Picture::of(&network.client).has("\"suppress_prefixlen\""), "the rules are still there");
    let told = network.run(&network.client, &["down", "weft0", "--dry-run"]);
    assert_eq!(told.code, Some(0), "{told:?}");
    for line in [
        "run PreDown: ",
        "remove ip rule not fwmark 0xca6c table 51820 priority 32765",
        "set sysctl net.ipv4",
    ] {
        assert!(told.stdout.contains(line), "{line} in:\n{}", told.stdout);
    }
    assert!(Picture::of(&network.client).has("\"suppress_prefixlen\""), "it was only told");
    let ended = network.run(&network.client, &["down", "weft0"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    before.assert_restored(&network.client);
    assert_eq!(network.left(&network.client), [""; 0]);
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "pre weft0\npost weft0\n");
    assert_eq!(network.run(&network.client, &["down", "--keep-kill-switch", "weft0"]).code, Some(0));
    let again = network.run(&network.client, &["down", "weft0"]);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.stderr.contains("is not up by weft"), "{again:?}");
}

#[test]
fn down_ends_a_daemon_and_waits_until_it_is_gone() {
    let Some(network) = Network::new("down_ends_a_daemon_and_waits_until_it_is_gone") else { return };
    let before = Picture::of(&network.client);
    let file = network.file("weft0.conf", &full_tunnel(""));
    let mut daemon = network.up(&network.client, &file);
    let second = network.run(&network.client, &["up", file.to_str().unwrap()]);
    assert_eq!(second.code, Some(1), "{second:?}");
    let says = format!("interface weft0 is up already (weft runs as process {})", daemon.pid());
    assert!(second.stderr.contains(&says), "{second:?}");
    let ended = network.run(&network.client, &["down", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // Nothing is waited for: all is gone when the command is back.
    assert_eq!(Picture::of(&network.client), before);
    assert_eq!(network.left(&network.client), [""; 0]);
    let (status, said) = (daemon.wait(), daemon.log());
    assert!(status.success() && said.contains("SIGTERM"), "{status}: {said}");
}

#[test]
fn a_start_after_a_crash_takes_away_what_was_left_and_comes_up() {
    let test = "a_start_after_a_crash_takes_away_what_was_left_and_comes_up";
    let Some(network) = Network::new(test) else { return };
    let before = Picture::of(&network.client);
    let file = killed(&network, "");
    let command = network.weft(&network.client, &["up", file.to_str().unwrap()]);
    let daemon = Process::start(&network.client, command).unwrap();
    daemon.wait_for_line("taking back what a daemon left behind");
    daemon.wait_for_line("interface is up");
    let rules = Picture::of(&network.client).0;
    let suppressing = rules.iter().filter(|item| item.contains("suppress_prefixlen")).count();
    assert_eq!(suppressing, 2, "one a family: {rules:#?}");
    daemon.stop();
    before.assert_restored(&network.client);
    assert_eq!(network.left(&network.client), [""; 0]);
}

#[test]
fn a_kill_switch_holds_after_a_crash_and_after_a_start_that_fails_until_down() {
    let test = "a_kill_switch_holds_after_a_crash_and_after_a_start_that_fails_until_down";
    let Some(network) = Network::new(test) else { return };
    if !installed(test, &["nft"]) {
        return;
    }
    let before = Picture::of(&network.client);
    let tables = |network: &Network| {
        let picture = Picture::of(&network.client);
        picture.0.iter().find(|item| item.starts_with("nft: ")).cloned().unwrap()
    };
    let none = tables(&network);
    killed(&network, "# weft: KillSwitch = on");
    let with_switch = tables(&network);
    assert_ne!(with_switch, none);

    let failing = full_tunnel("# weft: KillSwitch = on\nPostUp = false");
    let file = network.file("weft0.conf", &failing);
    let ended = network.run(&network.client, &["up", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("the kill switch stays in force"), "{ended:?}");
    assert_eq!(tables(&network), with_switch);
    assert_eq!(network.left(&network.client), ["weft0/record.json"]);
    let ended = network.run(&network.client, &["down", "--keep-kill-switch", "weft0"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(tables(&network), with_switch);

    let ended = network.run(&network.client, &["down", "weft0"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    before.assert_restored(&network.client);
    assert_eq!(network.left(&network.client), [""; 0]);
}

/// The packet filter of the client.
fn filter(network: &Network) -> String {
    let output = network.client.command("nft").args(["-s", "list", "ruleset"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_kill_switch_holds_when_packets_stop_by_themselves_until_down() {
    let test = "a_kill_switch_holds_when_packets_stop_by_themselves_until_down";
    let Some(network) = Network::new(test) else { return };
    if !installed(test, &["nft"]) {
        return;
    }
    let before = Picture::of(&network.client);
    let file = network.file("weft0.conf", &full_tunnel("# weft: KillSwitch = on"));
    // The second one takes over what the first one left.
    for _ in 0..2 {
        let mut daemon = network.up(&network.client, &file);
        let with_switch = filter(&network);
        assert!(with_switch.contains("chain output"), "{with_switch}");
        let deleted = network.client.command("ip").args(["link", "del", NAME]).status().unwrap();
        assert!(deleted.success());
        assert!(!daemon.wait().success(), "{}", daemon.log());
        let said = daemon.log();
        assert!(said.contains("the kill switch stays in force; `weft down weft0`"), "{said}");
        assert_eq!(filter(&network), with_switch);
        assert!(!Picture::of(&network.client).has("\"suppress_prefixlen\""), "the rest is taken back");
        assert_eq!(network.left(&network.client), ["weft0/record.json"]);
    }
    let ended = network.run(&network.client, &["down", "weft0"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    before.assert_restored(&network.client);
    assert_eq!(network.left(&network.client), [""; 0]);
}

#[test]
fn a_start_that_fails_late_leaves_a_kill_switch_that_was_there_before_and_no_other() {
    let test = "a_start_that_fails_late_leaves_a_kill_switch_that_was_there_before_and_no_other";
    let Some(network) = Network::new(test) else { return };
    if !installed(test, &["nft"]) {
        return;
    }
    let before = Picture::of(&network.client);
    let text = full_tunnel("# weft: KillSwitch = on");
    let config = parse(&text, "weft0.conf".as_ref(), NAME.parse().unwrap()).unwrap().config;
    let recording = Recording::In(network.records(&network.client));
    let start = || {
        let host = Host::prepare(&config, None, &[], &recording).unwrap();
        let (beginning, options) = (Beginning::default(), Options::default());
        Daemon::start_on(host, &config, beginning, &options, None, |_| {}, || {}).unwrap()
    };
    let start_and_give_up = || network.client.run(|| drop(start()));
    start_and_give_up();
    before.assert_restored(&network.client);
    assert_eq!(network.left(&network.client), [""; 0]);

    killed(&network, "# weft: KillSwitch = on");
    let with_switch = filter(&network);
    for _ in 0..2 {
        start_and_give_up();
        assert_eq!(filter(&network), with_switch);
        assert!(network.left(&network.client).contains(&"weft0/record.json".to_owned()), "it is on record");
    }
    let down = || {
        let ended = network.run(&network.client, &["down", "weft0"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        before.assert_restored(&network.client);
    };
    down();

    // A panic is no end that anybody asked for.
    let panics = AssertUnwindSafe(|| {
        let _daemon = start();
        panic!("as a mistake of weft's own would");
    });
    assert!(network.client.run(|| std::panic::catch_unwind(panics)).is_err());
    assert_eq!(filter(&network), with_switch);
    down();
}

#[test]
fn what_runs_after_a_service_leaves_a_daemon_alone_that_somebody_else_runs() {
    let test = "what_runs_after_a_service_leaves_a_daemon_alone_that_somebody_else_runs";
    let Some(network) = Network::new(test) else { return };
    let file = network.file("weft0.conf", &full_tunnel(""));
    let daemon = network.up(&network.client, &file);
    let with_daemon = Picture::of(&network.client);
    let service = network.run(&network.client, &["up", file.to_str().unwrap()]);
    assert_eq!(service.code, Some(1), "{service:?}");
    let after = network.run(&network.client, &["down", "--keep-kill-switch", "weft0"]);
    assert_eq!(after.code, Some(0), "{after:?}");
    assert!(after.stderr.contains(&format!("process {}", daemon.pid())), "{after:?}");
    assert!(daemon.is_running(), "{}", daemon.log());
    assert_eq!(Picture::of(&network.client), with_daemon);
    daemon.stop();
}

/// Ends a daemon that is nobody's child, also when the test fails.
struct DownWhenDropped<'a>(&'a Network);

impl Drop for DownWhenDropped<'_> {
    fn drop(&mut self) {
        let _ = self.0.weft(&self.0.client, &["down", "weft0"]).output();
    }
}

#[test]
fn in_the_background_it_is_up_when_the_command_is_back_and_down_ends_it() {
    let test = "in_the_background_it_is_up_when_the_command_is_back_and_down_ends_it";
    let Some(network) = Network::new(test) else { return };
    let before = Picture::of(&network.client);
    let file = network.file("weft0.conf", &full_tunnel(""));
    let _end = DownWhenDropped(&network);
    let ended = network.run(&network.client, &["up", "-d", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(Picture::of(&network.client).has("\"suppress_prefixlen\""));
    let ended = network.run(&network.client, &["down", "weft0"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    before.assert_restored(&network.client);
    assert_eq!(network.left(&network.client), [""; 0]);
}

#[test]
fn what_a_start_that_fails_cannot_take_back_stays_on_record_for_down() {
    let test = "what_a_start_that_fails_cannot_take_back_stays_on_record_for_down";
    let Some(network) = Network::new(test) else { return };
    if !installed(test, &["mount"]) {
        return;
    }
    let before = Picture::of(&network.client);
    // From then on no sysctl can be set.
    let seal = "PostUp = mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys; false";
    let file = network.file("weft0.conf", &full_tunnel(seal));
    let mut command = network.weft(&network.client, &["up", file.to_str().unwrap()]);
    separate_mounts(&mut command);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("`weft down weft0` tries it again"), "{said}");
    assert!(Picture::of(&network.client).has("src_valid_mark: 1"), "{said}");
    assert_eq!(network.left(&network.client), ["weft0/record.json"]);
    let told = network.run(&network.client, &["down", "weft0", "--dry-run"]);
    assert_eq!(told.stdout, "set sysctl net.ipv4.conf.all.src_valid_mark=0\nremove device weft0\n");
    let ended = network.run(&network.client, &["down", "weft0"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    before.assert_restored(&network.client);
    assert_eq!(network.left(&network.client), [""; 0]);
}

#[test]
fn what_a_start_cannot_take_back_of_a_crash_stays_on_record_for_down() {
    let test = "what_a_start_cannot_take_back_of_a_crash_stays_on_record_for_down";
    let Some(network) = Network::new(test) else { return };
    let before = Picture::of(&network.client);
    let file = killed(&network, "");
    let mut command = network.weft(&network.client, &["up", file.to_str().unwrap()]);
    make_proc_sys_read_only(&mut command);
    let daemon = Process::start(&network.client, command).unwrap();
    daemon.wait_for_line("interface is up");
    let said = daemon.stop();
    assert!(said.contains("cannot set the sysctl"), "{said}");
    assert!(Picture::of(&network.client).has("src_valid_mark: 1"), "{said}");
    assert_eq!(network.left(&network.client), ["weft0/record.json"]);
    let ended = network.run(&network.client, &["down", "weft0"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    before.assert_restored(&network.client);
    assert_eq!(network.left(&network.client), [""; 0]);
}

#[test]
fn in_the_background_a_start_that_fails_is_told_beside_a_command_that_stays() {
    let test = "in_the_background_a_start_that_fails_is_told_beside_a_command_that_stays";
    let Some(network) = Network::new(test) else { return };
    let before = Picture::of(&network.client);
    // The command waits for a word until nobody can give it any more.
    let gate = network.directory.path().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let held = File::options().read(true).write(true).open(&gate).unwrap();
    let lines = format!("PostUp = cat < {} >/dev/null 2>&1 &\nPostUp = exit 7", gate.display());
    let file = network.file("weft0.conf", &full_tunnel(&lines));
    let mut command = network.weft(&network.client, &["up", "-d", file.to_str().unwrap()]);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let status = wait_until("the command is back", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(1));
    before.assert_restored(&network.client);
    assert_eq!(network.left(&network.client), [""; 0]);
    // Whoever comes late finds nothing to wait for.
    std::fs::remove_file(&gate).unwrap();
    drop(held);
}
