//! What cannot be done, how it is said, and with which code it ends.

use std::io::Read as _;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use nix::unistd::geteuid;
use socket2::{Domain, SockAddr, Socket, Type};
use weft_lab::{self as lab, here, until};

use crate::fake_daemon::FakeDaemon;
use crate::programs::{Ended, WEFT, command, weft, weft_reads};
use crate::sandbox::{self, SOCKETS};

const PEER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";

#[track_caller]
fn refused(ended: impl Into<Ended>, code: i32, words: &[&str]) {
    let ended = ended.into();
    assert_eq!((ended.code, ended.stdout.as_str()), (code, ""), "{}", ended.stderr);
    for words in words {
        assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
    }
    assert!(ended.stderr.starts_with("error: "), "{}", ended.stderr);
}

#[test]
fn an_interface_without_a_daemon_is_named() {
    sandbox::run(|| {
        let stale = std::os::unix::net::UnixListener::bind(format!("{SOCKETS}/stale.sock")).unwrap();
        // Ends it for sure: a child that another test has just forked may hold its descriptor for a moment.
        socket2::Socket::from(stale).shutdown(std::net::Shutdown::Both).unwrap();
        for name in ["absent", "stale"] {
            for command in ["show", "showconf"] {
                let place = format!("error: {name}: no daemon answers at /var/run/wireguard/{name}.sock");
                refused(weft(&[command, name]), 1, &[&place, "weft show interfaces"]);
            }
        }
        refused(weft(&["set", "absent", "fwmark", "1"]), 1, &["absent: no daemon answers"]);
        refused(weft_reads(&["syncconf", "absent", "-"], ""), 1, &["absent: no daemon answers"]);
        refused(weft(&["show", "lo"]), 1, &["the interface is there, but no daemon", "wg(8)"]);
    });
}

#[test]
fn a_daemon_that_refuses_is_quoted() {
    sandbox::run(|| {
        for (errno, words) in [(-98, "another program has that UDP port"), (22, "invalid"), (-71, "refused")]
        {
            let _daemon = FakeDaemon::answering("fake", "", errno);
            refused(weft(&["set", "fake", "listen-port", "5"]), 1, &["fake: its daemon refused: ", words]);
        }
        let _daemon = FakeDaemon::start("odd", "rx_bytes=1\n");
        refused(
            weft(&["show", "odd"]),
            1,
            &["odd: its daemon's answer cannot be understood: `rx_bytes` in line 1"],
        );
        // The others are shown all the same.
        let _good = FakeDaemon::start("wg0", "");
        let ended = weft(&["show"]);
        assert_eq!((ended.code, ended.stdout.as_str()), (1, "interface: wg0\n"));
        assert!(ended.stderr.starts_with("error: odd: "), "{}", ended.stderr);
    });
}

#[test]
fn another_user_that_listens_is_told_nothing_unless_the_interface_is_that_users() {
    const ANOTHER: u32 = 65_534;
    sandbox::run(|| {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.bind(&SockAddr::unix(format!("{SOCKETS}/fake.sock")).unwrap()).unwrap();
        // The kernel reports which user listens: the file may belong to any user.
        if !lab::run_as(ANOTHER, || socket.listen(8)).is_ok_and(|listens| listens.is_ok()) {
            return here::not_run("needs root");
        }
        let heard = || {
            let mut heard = Vec::new();
            socket.set_nonblocking(true).unwrap();
            while let Ok((mut client, _)) = socket.accept() {
                client.set_nonblocking(false).unwrap();
                let mut chunk = [0; 1024];
                // To the end of a request, or of a connection without one.
                while !heard.ends_with(b"\n\n")
                    && let count @ 1.. = client.read(&mut chunk).unwrap()
                {
                    heard.extend_from_slice(&chunk[..count]);
                }
            }
            String::from_utf8(heard).unwrap()
        };
        let told =
            "fake: user 65534 listens at /var/run/wireguard/fake.sock, and not root: nothing was sent; ";
        for arguments in [&["set", "fake", "fwmark", "7"][..], &["showconf", "fake"], &["save", "fake"]] {
            refused(weft(arguments), 77, &[told, "ss -xlp"]);
            assert_eq!(heard(), "");
        }
        // A service that runs as that user has the directory from root.
        std::fs::create_dir_all("/run/weft/fake").unwrap();
        chown("/run/weft/fake", Some(ANOTHER), None).unwrap();
        let mut client = command(WEFT, &["set", "fake", "fwmark", "7"]);
        // It gets no answer.
        let mut client = client.stderr(Stdio::null()).spawn().unwrap();
        until("the change", || heard().contains("fwmark=7\n"));
        client.wait().unwrap();
    });
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    for words in [
        &["show", "all", "laptop"][..],
        &["show", "sixteen-letters0"],
        &["show", "wg0", "dump", "--json"],
        &["show", "interfaces", "dump"],
        &["showconf"],
        &["set"],
        &["set", "wg0"],
        &["set", "wg0", "bogus"],
        &["set", "wg0", "listen-port"],
        &["set", "wg0", "peer", PEER, "endpoint", "192.0.2.1"],
        &["setconf", "wg0"],
        &["syncconf", "wg0", "a", "b"],
        &["completions"],
        &["completions", "tcsh"],
    ] {
        let ended = weft(words);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{words:?}: {}", ended.stderr);
    }
}

#[test]
fn a_wrong_file_is_named_with_its_lines_before_a_daemon_is_asked() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("wg.conf");
    std::fs::write(&file, "[Interface]\nAddress = 10.0.0.1\n[Peer]\nAllowedIPs = 10.0.0\n").unwrap();
    let file = file.to_str().unwrap();
    for command in ["setconf", "addconf"] {
        let ended = weft(&[command, "absent", file]);
        let expected =
            [format!("{file}:2: Address: this key is wg-quick's"), format!("{file}:4: AllowedIPs: `10.0.0`")];
        refused(ended, 78, &[&expected[0], &expected[1], "weft strip", ":3: PublicKey: is missing"]);
    }
    refused(
        weft(&["setconf", "absent", "/nonexistent"]),
        78,
        &["/nonexistent: cannot read the configuration"],
    );
    refused(weft(&["strip", "/nonexistent.conf"]), 78, &["/nonexistent.conf: cannot read"]);
    refused(
        weft(&["set", "absent", "private-key", "/nonexistent"]),
        1,
        &["private-key: /nonexistent: cannot read"],
    );
}

#[test]
fn a_file_of_amnezia_wg_is_one_error_for_every_command_that_reads_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("wg0.conf");
    let changed = "Jc = 4\nJmin = 40\nJmax = 70\nS1 = 15\nS2 = 20\nH1 = 123\nH2 = 456\nH3 = 789\nH4 = 1011\n";
    let junk = "Jc = 4\nJmin = 40\nJmax = 70\nS1 = 0\nS2 = 0\nH1 = 1\nH2 = 2\nH3 = 3\nH4 = 4\n";
    for (lines, advice) in [(changed, "use a program of AmneziaWG"), (junk, "remove all lines with Jc")] {
        let text = format!("[Interface]\nAddress = 10.0.0.1\n{lines}[Peer]\nPublicKey = {PEER}\nBogus = 1\n");
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        let of_file: [&[&str]; 7] = [
            &["check", file],
            &["up", file],
            &["strip", file],
            &["setconf", "absent", file],
            &["addconf", "absent", file],
            &["syncconf", "absent", file],
            &["reload", file],
        ];
        for words in of_file {
            let ended: Ended = weft(words);
            let place = format!("{file}:3: Jc: this is a file of AmneziaWG");
            let errors = ended.stderr.lines().filter(|line| line.starts_with("error: ")).count();
            assert_eq!((ended.code, errors), (78, 1), "{words:?}: {}", ended.stderr);
            assert!(
                ended.stderr.contains(&place) && ended.stderr.contains(advice),
                "{words:?}: {}",
                ended.stderr
            );
        }
    }
    refused(weft(&["set", "absent", "jc", "4"]), 2, &["jc: this setting is AmneziaWG's"]);
}

#[test]
fn a_name_that_does_not_exist_is_not_waited_for() {
    let endpoint = "vpn.invalid:1";
    // Without a reachable name server it is unknown whether the name exists.
    let mut command = command(WEFT, &["set", "absent", "peer", PEER, "endpoint", endpoint]);
    refused(command.env("WG_ENDPOINT_RESOLUTION_RETRIES", "0").output().unwrap(), 1, &[endpoint]);
    // No name is looked up for an interface that is not there.
    for conf in ["setconf", "addconf", "syncconf"] {
        let file = format!("[Peer]\nPublicKey = {PEER}\nEndpoint = {endpoint}\n");
        refused(weft_reads(&[conf, "absent", "-"], &file), 1, &["absent: no daemon answers"]);
    }
}

#[test]
fn who_may_not_ask_is_told_so_with_77() {
    if !geteuid().is_root() {
        return here::not_run("becoming another user needs root");
    }
    let directory = tempfile::tempdir().unwrap();
    let binary = directory.path().join("weft");
    // By another process: what this one has open for writing, a child forked meanwhile has too, and such a
    // program cannot be executed.
    assert!(Command::new("cp").arg(WEFT).arg(&binary).status().unwrap().success());
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).unwrap();
    sandbox::run(|| {
        let _daemon = FakeDaemon::start("wg0", "");
        for words in [&["show", "wg0"][..], &["show"], &["set", "wg0", "fwmark", "1"]] {
            let mut command = command(binary.to_str().unwrap(), words);
            command.uid(65_534).gid(65_534);
            match command.output() {
                Ok(output) => {
                    refused(output, 77, &["wg0: cannot reach its daemon", "run weft as root"]);
                }
                Err(reason) => here::not_run(&reason.to_string()),
            }
        }
    });
}
