//! What a daemon that was killed leaves, and what takes that away.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::panic::AssertUnwindSafe;
use std::process::Stdio;

use nix::sys::signal::Signal;
use weft::up::{Beginning, Daemon, Options};
use weft_config::parse;
use weft_host::{Host, Recording};
use weft_lab::{Process, here, wait_until, wait_until_ok};

use crate::support::{End, NAME, Network, make_proc_sys_read_only, peer, separate_mounts};

fn full_tunnel(lines: &str) -> String {
    End::new(1).interface(lines) + &peer(End::new(2).public(), "AllowedIPs = 0.0.0.0/0, ::/0, 10.88.0.0/16")
}

fn killed(network: &Network, lines: &str) -> std::path::PathBuf {
    let file = network.file("weft0.conf", &full_tunnel(lines));
    let mut daemon = network.up(&file);
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    file
}

#[test]
fn down_takes_away_what_a_killed_daemon_left() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let log = network.directory.path().join("log");
    let hooks = format!("PreDown = echo pre %i >> {0}\nPostDown = echo post %i >> {0}", log.display());
    killed(&network, &hooks);
    assert!(network.picture().has("\"suppress_prefixlen\""), "the rules are still there");
    let told = network.run(&["down", "weft0", "--dry-run"]);
    assert_eq!(told.code, Some(0), "{told:?}");
    for line in [
        "run PreDown: ",
        "remove ip rule not fwmark 0xca6c table 51820 priority 32765",
        "set sysctl net.ipv4",
    ] {
        assert!(told.stdout.contains(line), "{line} in:\n{}", told.stdout);
    }
    assert!(network.picture().has("\"suppress_prefixlen\""), "it was only told");
    let status = network.run(&["status"]);
    assert!(status.stderr.contains("`weft down weft0` takes it back"), "{status:?}");
    let doctor = network.run(&["doctor", "weft0"]).stdout;
    assert!(doctor.contains("`weft down weft0` takes it back") && !doctor.contains("is free"), "{doctor}");
    // Commands learn how their programs end also where the caller ignores that.
    let down = network
        .command("env")
        .args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_weft"), "down", "weft0"])
        .output();
    assert!(down.as_ref().is_ok_and(|output| output.status.success()), "{down:?}");
    network.assert_as(&before);
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "pre weft0\npost weft0\n");
    assert_eq!(network.run(&["down", "--keep-kill-switch", "weft0"]).code, Some(0));
    let again = network.run(&["down", "weft0"]);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.stderr.contains("is not running under weft"), "{again:?}");
}

#[test]
fn a_clean_up_that_failed_is_finished_without_the_commands_that_ran_already() {
    let Some(network) = Network::new() else { return };
    if !here::installed(&["nft"]) {
        return;
    }
    let before = network.picture();
    let log = network.directory.path().join("log");
    let hooks = format!("PreDown = echo pre >> {0}\nPostDown = echo post >> {0}", log.display());
    killed(&network, &format!("# weft: KillSwitch = on\n{hooks}"));
    let failing = network.directory.path().join("failing");
    std::fs::create_dir(&failing).unwrap();
    std::fs::write(failing.join("nft"), "#!/bin/sh\nexit 1\n").unwrap();
    std::fs::set_permissions(failing.join("nft"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", failing.display(), std::env::var("PATH").unwrap());
    let failed = network.weft(&["down", "weft0"]).env("PATH", path).output().unwrap();
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert_ne!(network.picture(), before);
    network.down();
    network.assert_as(&before);
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "pre\npost\n");
}

#[test]
fn down_ends_a_daemon_and_waits_until_it_is_gone() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let file = network.file("weft0.conf", &full_tunnel(""));
    let mut daemon = network.up(&file);
    let second = network.run(&["up", file.to_str().unwrap()]);
    assert_eq!(second.code, Some(78), "{second:?}");
    let says = format!("interface weft0 is up already (weft runs as process {})", daemon.pid());
    assert!(second.stderr.contains(&says), "{second:?}");
    let ended = network.run(&["down", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // Nothing is waited for: all is gone when the command is back.
    assert_eq!(network.picture(), before);
    assert_eq!(network.left(), [""; 0]);
    let (status, said) = (daemon.wait(), daemon.log());
    assert!(status.success() && said.contains("asked to take the interface down"), "{status}: {said}");
}

#[test]
fn a_start_after_a_crash_takes_away_what_was_left_and_comes_up() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let file = killed(&network, "");
    let command = network.weft_up(&file);
    let daemon = Process::start(&network.client, command).unwrap();
    daemon.wait_for_line("taking back what a daemon left behind");
    daemon.wait_for_line(" is up: port ");
    let rules = network.picture().0;
    let suppressing = rules.iter().filter(|item| item.contains("suppress_prefixlen")).count();
    assert_eq!(suppressing, 2, "one a family: {rules:#?}");
    daemon.stop();
    network.assert_as(&before);
}

#[test]
fn a_kill_switch_holds_after_a_crash_and_after_a_start_that_fails_until_down() {
    let Some(network) = Network::new() else { return };
    if !here::installed(&["nft"]) {
        return;
    }
    let before = network.picture();
    let tables = |network: &Network| {
        let picture = network.picture();
        picture.0.iter().find(|item| item.starts_with("nft: ")).cloned().unwrap()
    };
    let none = tables(&network);
    killed(&network, "# weft: KillSwitch = on");
    let with_switch = tables(&network);
    assert_ne!(with_switch, none);

    let earlier = "what an earlier daemon had set up is still in force";
    let stays = "the kill switch stays in force; `weft down weft0` takes it away";
    let in_use = network.client.run(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let metrics = format!("# weft: Metrics = {}", in_use.local_addr().unwrap());
    // Nothing was taken back before the third of them.
    for (lines, said) in [
        ("MTU = x", earlier),
        (&*metrics, earlier),
        ("PreUp = false", stays),
        ("PostUp = false", stays),
        ("PreUp = true\nPrivateKeyFile = gone", stays),
        ("PreUp = kill $PPID; sleep 1000", stays),
        ("MTU = x", stays),
        (&metrics, stays),
    ] {
        let failing = full_tunnel(&format!("# weft: KillSwitch = on\n{lines}"));
        let failing = if lines.contains("PrivateKeyFile") {
            failing.lines().filter(|line| !line.starts_with("PrivateKey =")).collect::<Vec<_>>().join("\n")
        } else {
            failing
        };
        let file = network.file("weft0.conf", &failing);
        for command in [&["up", file.to_str().unwrap()][..], &["up", "-d", file.to_str().unwrap()]] {
            let ended = network.run(command);
            assert!(matches!(ended.code, Some(1 | 78)), "{lines}: {ended:?}");
            assert_eq!(ended.stderr.matches(said).count(), 1, "{lines}: {ended:?}");
            assert_eq!(tables(&network), with_switch, "{lines}");
            assert!(network.left().contains(&"weft0/record.json".to_owned()), "{lines}");
        }
    }
    let status = network.run(&["status"]);
    assert!(status.stderr.contains("`weft down weft0` takes it back"), "{status:?}");
    let ended = network.run(&["down", "--keep-kill-switch", "weft0"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(tables(&network), with_switch);

    network.down();
    network.assert_as(&before);
}

/// A record is lost where /run is emptied, or what is old in it.
#[test]
fn what_a_killed_daemon_left_without_a_record_is_taken_back_by_what_is_recognisably_wefts() {
    let Some(network) = Network::new() else { return };
    if !here::installed(&["nft"]) {
        return;
    }
    let ip = |commands: &str| {
        assert!(
            network.client.command("sh").args(["-ec", commands]).status().unwrap().success(),
            "{commands}"
        );
    };
    // The rules of another program, which a start beside them leaves alone also without routes.
    ip("ip -6 rule add not fwmark 9 table 9; ip -6 rule add table main suppress_prefixlength 0");
    let before = network.picture();
    network.up(&network.file("weft0.conf", &full_tunnel(""))).stop();
    network.assert_as(&before);
    ip("ip -6 route add default dev eth0 table 9; ip -6 rule add not fwmark 8 table 8");
    let before = network.picture();
    let sysctl = "net/ipv4/conf/all/src_valid_mark";
    for switch in ["", "# weft: KillSwitch = on"] {
        for lost in ["weft0/record.json", ""] {
            for command in ["down", "up"] {
                let file = killed(&network, switch);
                let lost = network.records().join(lost);
                if lost.is_dir() {
                    std::fs::remove_dir_all(lost).unwrap();
                } else {
                    std::fs::remove_file(lost).unwrap();
                }
                let status = network.run(&["status", NAME]);
                assert!(status.stderr.contains("`weft down weft0` takes it back"), "{status:?}");
                // Who does not know the name is offline with the kill switch.
                let status = network.run(&["status"]).stderr;
                let is_known = !switch.is_empty();
                assert!(!is_known || status.contains("`weft down weft0` takes it back"), "{status}");
                let told = if command == "up" {
                    let daemon = network.up(&file);
                    let suppressing =
                        network.picture().0.iter().filter(|rule| rule.contains("51820")).count();
                    assert_eq!(suppressing, 4, "a rule and a route of each family: {:#?}", network.picture());
                    let log = daemon.log();
                    daemon.stop();
                    log
                } else {
                    let down = network.run(&["down", NAME]);
                    assert_eq!(down.code, Some(0), "{down:?}");
                    down.stderr
                };
                assert!(told.contains("`sysctl -w net.ipv4.conf.all.src_valid_mark=0`"), "{told}");
                network.client.set_sysctl(sysctl, "0").unwrap();
                network.assert_as(&before);
            }
        }
    }
}

/// The packet filter of the client.
fn filter(network: &Network) -> String {
    let output = network.client.command("nft").args(["-s", "list", "ruleset"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_kill_switch_holds_when_packets_stop_by_themselves_until_down() {
    let Some(network) = Network::new() else { return };
    if !here::installed(&["nft"]) {
        return;
    }
    let before = network.picture();
    let file = network.file("weft0.conf", &full_tunnel("# weft: KillSwitch = on"));
    // The second one takes over what the first one left.
    for _ in 0..2 {
        let mut daemon = network.up(&file);
        let with_switch = filter(&network);
        assert!(with_switch.contains("chain output"), "{with_switch}");
        let deleted = network.client.command("ip").args(["link", "del", NAME]).status().unwrap();
        assert!(deleted.success());
        assert!(!daemon.wait().success(), "{}", daemon.log());
        let said = daemon.log();
        assert!(said.contains("the kill switch stays in force; `weft down weft0`"), "{said}");
        assert_eq!(filter(&network), with_switch);
        assert!(!network.picture().has("\"suppress_prefixlen\""), "the rest is taken back");
        assert_eq!(network.left(), ["weft0/record.json"]);
    }
    network.down();
    network.assert_as(&before);
}

#[test]
fn a_start_that_fails_late_leaves_a_kill_switch_that_was_there_before_and_no_other() {
    let Some(network) = Network::new() else { return };
    if !here::installed(&["nft"]) {
        return;
    }
    let before = network.picture();
    let text = full_tunnel("# weft: KillSwitch = on");
    let config = parse(&text, "weft0.conf".as_ref(), NAME.parse().unwrap()).unwrap().config;
    let recording = Recording::In(network.records());
    // The device of one that was given up may stay a moment: a child that another test has just forked has it
    // until it has executed its program.
    let start = || {
        wait_until_ok(|| {
            let host = Host::prepare(&config, None, &[], &recording).unwrap();
            let (beginning, options) = (Beginning::default(), Options::default());
            Daemon::start_on(host, &config, beginning, &options, None, |_| Ok(()), || {})
                .map_err(|error| error.to_string())
        })
    };
    let start_and_give_up = || network.client.run(|| drop(start()));
    start_and_give_up();
    network.assert_as(&before);

    killed(&network, "# weft: KillSwitch = on");
    let with_switch = filter(&network);
    for _ in 0..2 {
        start_and_give_up();
        assert_eq!(filter(&network), with_switch);
        assert!(network.left().contains(&"weft0/record.json".to_owned()), "it is on record");
    }
    let down = || {
        network.down();
        network.assert_as(&before);
    };
    down();

    // A panic is not an ordinary end.
    let panics = AssertUnwindSafe(|| {
        let _daemon = start();
        panic!("as a mistake of weft's own would");
    });
    assert!(network.client.run(|| std::panic::catch_unwind(panics)).is_err());
    assert_eq!(filter(&network), with_switch);
    down();
}

#[test]
fn what_runs_after_a_service_leaves_a_daemon_that_was_started_by_hand_alone() {
    let Some(network) = Network::new() else { return };
    let file = network.file("weft0.conf", &full_tunnel(""));
    let daemon = network.up(&file);
    let with_daemon = network.picture();
    let service = network.run(&["up", file.to_str().unwrap()]);
    assert_eq!(service.code, Some(78), "{service:?}");
    let after = network.run(&["down", "--keep-kill-switch", "weft0"]);
    assert_eq!(after.code, Some(0), "{after:?}");
    assert!(after.stderr.contains(&format!("process {}", daemon.pid())), "{after:?}");
    assert!(daemon.is_running(), "{}", daemon.log());
    assert_eq!(network.picture(), with_daemon);
    daemon.stop();
}

/// Ends a daemon that is not a child of the test, also when the test fails.
struct DownWhenDropped<'a>(&'a Network);

impl Drop for DownWhenDropped<'_> {
    fn drop(&mut self) {
        let _ = self.0.weft(&["down", "weft0"]).output();
    }
}

#[test]
fn in_the_background_it_is_up_when_the_command_is_back_and_down_ends_it() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let file = network.file("weft0.conf", &full_tunnel(""));
    let _end = DownWhenDropped(&network);
    let ended = network.run(&["up", "-d", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(network.picture().has("\"suppress_prefixlen\""));
    network.down();
    network.assert_as(&before);
}

#[test]
fn what_a_start_that_fails_cannot_take_back_stays_on_record_for_down() {
    let Some(network) = Network::new() else { return };
    if !here::installed(&["mount"]) {
        return;
    }
    let before = network.picture();
    // From then on no sysctl can be set.
    let seal = "PostUp = mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys; false";
    let file = network.file("weft0.conf", &full_tunnel(seal));
    let mut command = network.weft_up(&file);
    separate_mounts(&mut command);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("`weft down weft0` tries it again"), "{said}");
    assert!(network.picture().has("src_valid_mark: 1"), "{said}");
    assert_eq!(network.left(), ["weft0/record.json"]);
    let told = network.run(&["down", "weft0", "--dry-run"]);
    assert_eq!(told.stdout, "set sysctl net.ipv4.conf.all.src_valid_mark=0\nremove device weft0\n");
    network.down();
    network.assert_as(&before);
}

#[test]
fn what_a_start_cannot_take_back_of_a_crash_stays_on_record_for_down() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let file = killed(&network, "");
    let mut command = network.weft_up(&file);
    make_proc_sys_read_only(&mut command);
    let mut daemon = network.start(command);
    daemon.signal(Signal::SIGTERM);
    let (status, said) = (daemon.wait(), daemon.log());
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("cannot set the sysctl"), "{said}");
    assert!(network.picture().has("src_valid_mark: 1"), "{said}");
    assert_eq!(network.left(), ["weft0/record.json"]);
    network.down();
    network.assert_as(&before);
}

#[test]
fn in_the_background_a_start_that_fails_is_told_beside_a_command_that_stays() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    // The command reads until the other end is closed.
    let gate = network.directory.path().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let held = File::options().read(true).write(true).open(&gate).unwrap();
    let lines = format!("PostUp = cat < {} >/dev/null 2>&1 &\nPostUp = exit 7", gate.display());
    let file = network.file("weft0.conf", &full_tunnel(&lines));
    let mut command = network.weft(&["up", "-d", file.to_str().unwrap()]);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let status = wait_until("the command is back", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(1));
    network.assert_as(&before);
    // A later command has nothing to wait for.
    std::fs::remove_file(&gate).unwrap();
    drop(held);
}

#[test]
fn a_daemon_that_is_stopped_is_named_with_its_state_and_goes_down_once_it_goes_on() {
    let Some(network) = Network::new() else { return };
    let file = network.file("weft0.conf", &full_tunnel("PostDown = sleep 5"));
    let daemon = network.up(&file);
    daemon.signal(Signal::SIGSTOP);
    let path = file.to_str().unwrap();
    let says = format!("process {}, state T (stopped)", daemon.pid());
    let commands: [&[&str]; 9] = [
        &["down", NAME],
        &["reload", NAME],
        &["peer", "add", "phone", "--interface", path],
        &["status", NAME],
        &["save", NAME],
        &["show", NAME],
        &["showconf", NAME],
        &["set", NAME, "fwmark", "off"],
        &["capture", NAME, "-w", "/dev/null"],
    ];
    let asked = commands.map(|command| {
        let mut asked = network.weft(command);
        (command, asked.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    });
    for (command, mut asked) in asked {
        let command = command.join(" ");
        let status = wait_until("the command to end", || asked.try_wait().unwrap());
        let mut told = String::new();
        std::io::Read::read_to_string(&mut asked.stderr.take().unwrap(), &mut told).unwrap();
        assert_eq!(status.code(), Some(1), "{command}: {told}");
        assert!(told.contains(&says), "{command}: {told}");
        // Not as long as one that changes ten thousand peers may take.
        assert!(command.starts_with("down") || told.contains(" within 10 s"), "{command}: {told}");
    }
    daemon.signal(Signal::SIGCONT);
    // A slow command is not cut.
    let down = network.run(&["down", NAME]);
    assert_eq!(down.code, Some(0), "{down:?}");
}
