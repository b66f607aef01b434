//! `weft peer` with the file of an interface that does not run: changes, and errors that change nothing.
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::{Ended, KEY, OTHER, OWN, PEER, file, run, weft};

/// A name that no interface has.
const NAME: &str = "gateway-of-test.conf";

/// The lines that a gateway needs for peers.
const LINES: &str =
    "Address = 10.9.0.1/24, fd09::1/64\nListenPort = 51820\n# weft: Endpoint = vpn.example:51820";

fn gateway(lines: &str) -> (TempDir, PathBuf) {
    let text = format!(
        "# Mine.\n[Interface]\nPrivateKey = {KEY} # secret\n{lines}\n\n# The office.\n[Peer]\n# friendly_name = office\n\
         PublicKey = {PEER}\nAllowedIPs = 10.9.0.2/32, fd09::2/128\n"
    );
    file(NAME, text.as_bytes())
}

fn peer(file: &Path, arguments: &[&str]) -> Ended {
    let arguments = [&["peer"], arguments, &["--interface", file.to_str().unwrap()]].concat();
    run(&arguments, "")
}

#[track_caller]
fn done(file: &Path, arguments: &[&str]) -> String {
    let ended = peer(file, arguments);
    assert_eq!((ended.code, told(&ended)), (0, vec![]), "{arguments:?}");
    ended.stdout
}

/// What is told beside notes.
fn told(ended: &Ended) -> Vec<&str> {
    ended.stderr.lines().filter(|line| !line.starts_with("note: ")).collect()
}

fn entries(directory: &TempDir) -> usize {
    std::fs::read_dir(directory.path()).unwrap().count()
}

#[test]
fn a_new_peer_is_in_the_file_and_its_own_file_is_printed_once() {
    let settings =
        "# weft: PeerDNS = 10.9.0.3, corp.example\n# weft: PeerAllowedIPs = 10.9.0.0/24, fd09::/64";
    let (directory, path) = gateway(&format!("{LINES}\n{settings}"));
    let before = std::fs::read_to_string(&path).unwrap();
    let printed = done(&path, &["add", "Anna's phone", "--rate", "50Mbit"]);
    let key = printed.lines().find_map(|line| line.strip_prefix("PrivateKey = ")).unwrap();
    // 10.9.0.3 is the name server.
    let expected = format!(
        "[Interface]\nPrivateKey = {key}\nAddress = 10.9.0.4/32, fd09::3/128\nDNS = 10.9.0.3, corp.example\n\n[Peer]\n\
         PublicKey = {OWN}\nEndpoint = vpn.example:51820\nAllowedIPs = 10.9.0.0/24, fd09::/64\nPersistentKeepalive = 25\n"
    );
    assert_eq!(printed, expected);
    let public = run(&["pubkey"], key).stdout;
    let added = format!(
        "\n[Peer]\n# friendly_name = Anna's phone\n# weft: RateToPeer = 50Mbit\n# weft: RateFromPeer = 50Mbit\n\
         PublicKey = {public}AllowedIPs = 10.9.0.4/32, fd09::3/128\n"
    );
    let after = std::fs::read_to_string(&path).unwrap();
    assert_eq!(after, before.clone() + &added);
    assert!(!after.contains(key), "the private key is stored");
    assert_eq!(run(&["check", path.to_str().unwrap()], "").code, 0);

    let list: serde_json::Value = serde_json::from_str(&done(&path, &["list", "--json"])).unwrap();
    assert_eq!((&list[0]["name"], &list[1]["public_key"]), (&"office".into(), &public.trim().into()));
    let shown = done(&path, &["list"]);
    assert!(shown.contains("Anna's phone") && shown.contains("10.9.0.2/32"), "{shown}");
    let renamed = peer(&path, &["rename", "Anna's phone", "phone"]);
    assert_eq!((renamed.code, renamed.stderr.as_str()), (0, "note: Anna's phone is named phone now\n"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), after.replace("Anna's phone", "phone"));
    done(&path, &["disable", "phone"]);
    assert!(done(&path, &["list"]).contains("disabled"));
    assert!(done(&path, &["show", "phone"]).starts_with("# disabled\n[Peer]\n"));
    let checked = run(&["check", path.to_str().unwrap(), "--json"], "").stdout;
    assert!(!checked.contains(public.trim()), "{checked}");
    // Its addresses are not free.
    assert!(done(&path, &["add", "next", "--public-key", OTHER]).contains("10.9.0.5/32, fd09::4/128"));
    done(&path, &["remove", "next"]);
    done(&path, &["enable", "phone"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), after.replace("Anna's phone", "phone"));
    done(&path, &["remove", public.trim()]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
    assert_eq!(entries(&directory), 1, "nothing is left beside it");
}

#[test]
fn a_list_has_the_order_of_the_file_and_what_is_so_already_is_said() {
    let (_directory, path) = gateway(LINES);
    done(&path, &["add", "Phone", "--public-key", OTHER]);
    let names = || {
        let list = done(&path, &["list"]);
        list.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["name", "office", "Phone"]);
    // Another peer has no such name, in capitals or not.
    done(&path, &["rename", "Phone", "phone"]);
    assert_eq!(names(), ["name", "office", "phone"]);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("# friendly_name = office\n", "")).unwrap();
    assert_eq!(names(), ["name", "-", "phone"]);
    // A name that an interface has is a mistake.
    let device = run(&["peer", "add", "lo"], "");
    assert!(
        device.code == 2 && device.stderr.contains("lo is an interface, and no name"),
        "{}",
        device.stderr
    );
    for (command, note) in
        [("enable", "note: phone is not disabled\n"), ("disable", "note: phone is disabled already\n")]
    {
        done(&path, &[command, "phone"]);
        let before = std::fs::read_to_string(&path).unwrap();
        let again = peer(&path, &[command, "phone"]);
        assert_eq!((again.code, again.stdout.as_str(), again.stderr.as_str()), (0, "", note));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
    }
}

#[test]
fn a_gateway_has_the_families_that_it_has() {
    for (addresses, expected) in [
        ("10.9.0.1/24", "Address = 10.9.0.3/32\n"),
        ("fd09::1/64", "Address = fd09::3/128\n"),
        ("10.9.0.1/24, fe80::1/64", "Address = 10.9.0.3/32\n"),
    ] {
        let (_directory, path) = gateway(&format!("Address = {addresses}\nListenPort = 7"));
        let printed = done(&path, &["add", "a", "--endpoint", "[2001:db8::1]:7"]);
        assert!(printed.contains(expected), "{printed}");
        // Nothing goes past the tunnel.
        assert!(printed.contains("Endpoint = [2001:db8::1]:7\nAllowedIPs = 0.0.0.0/0, ::/0\n"), "{printed}");
    }
}

#[test]
fn a_peer_that_sends_everything_and_is_told_no_name_servers_is_noted() {
    for (lines, is_noted) in [
        ("", true),
        ("# weft: PeerDNS = 10.9.0.1", false),
        ("# weft: PeerAllowedIPs = 10.9.0.0/24", false),
        ("# weft: PeerAllowedIPs = 10.9.0.0/24, ::/0", true),
    ] {
        let (_directory, path) = gateway(&format!("{LINES}\n{lines}"));
        let added = peer(&path, &["add", "phone"]).stderr;
        assert_eq!(added.contains("the file of phone has no DNS"), is_noted, "{lines}: {added}");
    }
}

#[test]
fn a_peer_that_keeps_its_key_gets_a_file_without_one() {
    let (directory, path) = gateway(LINES);
    let out = directory.path().join("server.conf");
    let said = done(&path, &["add", "server", "--public-key", OTHER, "--out", out.to_str().unwrap()]);
    assert_eq!(said, "");
    let text = std::fs::read_to_string(&out).unwrap();
    assert!(
        text.contains("# PrivateKey = (") && text.contains("Address = 10.9.0.3/32, fd09::3/128"),
        "{text}"
    );
    assert_eq!(std::fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(std::fs::read_to_string(&path).unwrap().contains(OTHER));
    // As elsewhere, `-` is no file.
    let printed = done(&path, &["add", "next", "--out", "-"]);
    assert!(printed.starts_with("[Interface]\nPrivateKey = ") && !Path::new("-").exists(), "{printed}");
}

#[test]
fn a_random_port_is_warned_of_where_peers_are_told_one() {
    for (port, is_told) in [("", true), ("ListenPort = 0\n", true), ("ListenPort = 51820\n", false)] {
        let (_directory, path) = gateway(&format!("{port}# weft: Endpoint = a.example:7"));
        let told = run(&["check", path.to_str().unwrap()], "").stderr;
        assert_eq!(
            told.contains("Endpoint: peers are told port 7") && told.contains("`ListenPort = 7`"),
            is_told,
            "{told}"
        );
    }
}

#[test]
fn an_error_is_plain_and_changes_nothing() {
    let long = "x".repeat(65);
    let table: &[(&str, &[&str], i32, &str)] = &[
        ("Address = 10.9.0.1/24\nListenPort = 7", &["add", "a"], 78, "`# weft: Endpoint = HOST:7`"),
        ("Address = 10.9.0.1/24\n# weft: Endpoint = vpn.example", &["add", "a"], 78, ":5: Endpoint: "),
        ("# weft: Endpoint = a:1\n# weft: PeerDNS = 1.2.3", &["add", "a"], 78, ":5: PeerDNS: "),
        ("# weft: Endpoint = a:1\n# weft: PeerAllowedIPs = x", &["add", "a"], 78, ":5: PeerAllowedIPs: "),
        ("Adress = 10.9.0.1/24", &["add", "a"], 78, ":4: Adress: "),
        (
            "Address = 10.9.0.1/30\n# weft: Endpoint = a:1",
            &["add", "a"],
            1,
            "no address is free in 10.9.0.0/30;",
        ),
        ("ListenPort = 1\nAddress = 10.9.0.1/24, fd09::1/126\n# weft: Endpoint = a:1", &["add", "a"], 0, ""),
        ("Address = 10.9.0.1/24, fd09::1/128\n# weft: Endpoint = a:1", &["add", "a"], 1, "in fd09::1/128;"),
        ("# weft: Endpoint = a:1", &["add", "a"], 78, "add the line `Address = 10.9.0.1/24`"),
        ("Address = 10.9.0.1/24\n# weft: Endpoint = a:7", &["add", "a"], 78, "the line `ListenPort = 7`"),
        ("Address = 10.9.0.1/24", &["add", "a", "--endpoint", "a:7"], 78, "the line `ListenPort = 7`"),
        (LINES, &["add", "a", "--expires", "-3d"], 2, "-3d is not in the future"),
        (LINES, &["extend", "office", "-3d"], 2, "-3d is not in the future"),
        (LINES, &["add", "/dev/null"], 2, "/dev/null is the path of a file"),
        (LINES, &["add", "team/anna"], 2, "team/anna is the path of a file"),
        (LINES, &["add", "anna.conf", "--out", "anna"], 2, "anna.conf is the path of a file"),
        (LINES, &["rename", "office", "team/office"], 2, "no name for a peer; `--to FILE`"),
        (
            "Address = 10.9.0.1/24\n# weft: Endpoint = a:1\nPrivateKeyFile = missing.key",
            &["add", "a"],
            78,
            "its private key cannot be read here",
        ),
        (LINES, &["add", "Office"], 1, "a peer is named office already"),
        (LINES, &["add", ""], 2, "1 to 64 characters"),
        (LINES, &["add", "a\n[Peer]"], 2, "1 to 64 characters"),
        (LINES, &["add", &long], 2, "1 to 64 characters"),
        (LINES, &["add", OTHER], 2, "a key cannot be the name"),
        (LINES, &["add", "a", "--public-key", PEER], 1, "a peer named office has this public key"),
        (LINES, &["add", "a", "--public-key", OWN], 2, "--public-key: this is the key of"),
        (LINES, &["add", "a", "--out", "/nonexistent/a.conf"], 1, "/nonexistent/a.conf: cannot write it"),
        (LINES, &["add", "a", "--out", "/dev/null"], 1, "/dev/null: this is a device or a pipe, and no file"),
        (LINES, &["add", "a", "--out", "/tmp"], 1, "/tmp: this is a directory, and no file"),
        (LINES, &["add", "a", "--rate", "0Mbit"], 2, "at least 1kbit; without --rate there is no limit"),
        (LINES, &["remove", "nothing"], 1, "no peer has the key or the name nothing"),
        (LINES, &["rename", "office", " x"], 2, "1 to 64 characters"),
    ];
    for &(lines, arguments, code, message) in table {
        let (directory, path) = gateway(lines);
        let before = std::fs::read_to_string(&path).unwrap();
        let ended = peer(&path, arguments);
        assert_eq!(ended.code, code, "{lines}; {arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(message), "{lines}; {arguments:?}: {}", ended.stderr);
        let is_as_before = std::fs::read_to_string(&path).unwrap() == before;
        assert_eq!((is_as_before, ended.stdout.is_empty()), (code != 0, code != 0), "{arguments:?}");
        assert_eq!(entries(&directory), 1, "{arguments:?}");
    }
}

#[test]
fn what_cannot_be_written_leaves_no_peer_that_has_no_key() {
    let (directory, path) = gateway(LINES);
    let before = std::fs::read_to_string(&path).unwrap();
    let target = path.to_str().unwrap();
    // Standard output is full, closed, the null device, or a pipe without a reader.
    let device = |path| std::fs::OpenOptions::new().write(true).open(path).ok().map(Stdio::from);
    let no_reader = || Some(Stdio::from(std::io::pipe().unwrap().1));
    let targets: [(&str, &dyn Fn() -> Option<Stdio>); 4] = [
        ("full", &|| device("/dev/full")),
        ("null", &|| device("/dev/null")),
        ("closed", &|| Some(Stdio::piped())),
        ("no reader", &no_reader),
    ];
    for (name, stdout) in targets {
        for words in [&[][..], &["--qr"], &["--out", "-"]] {
            let Some(stdout) = stdout() else { continue };
            let arguments = [&["peer", "add", "a", "--to", target], words].concat();
            let mut command = weft(&arguments);
            if name == "closed" {
                command = Command::new("sh");
                command.args(["-c", "exec \"$0\" \"$@\" >&-", env!("CARGO_BIN_EXE_weft")]).args(arguments);
            }
            let ended: Ended = command.stdout(stdout).output().unwrap().into();
            let is_told = ended.stderr.contains("a was not added");
            assert!(ended.code == 1 && is_told, "{name} {words:?}: {}", ended.stderr);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), before, "{name} {words:?}");
        }
    }
    // The file is there.
    let out = directory.path().join("mine");
    std::fs::write(&out, "mine").unwrap();
    let ended = peer(&path, &["add", "a", "--out", out.to_str().unwrap()]);
    assert!(ended.code == 1 && ended.stderr.contains("a was not added"), "{}", ended.stderr);
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "mine");
    // Killed while it writes the file, as a file larger than the limit has it.
    let other = directory.path().join("other");
    let add = ["peer", "add", "a", "--to", target, "--out", other.to_str().unwrap()];
    let mut killed = Command::new("sh");
    killed.args(["-c", "ulimit -c 0; ulimit -f 0; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_weft")]).args(add);
    let ended = killed.output().unwrap();
    assert_eq!(ended.status.signal(), Some(libc::SIGXFSZ), "{ended:?}");
    assert!(!other.exists());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
    // The gateway's file is read-only, also for root.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
    let ended = peer(&path, &["add", "a", "--out", other.to_str().unwrap()]);
    assert!(ended.code == 1 && ended.stderr.contains("read-only"), "{}", ended.stderr);
    assert!(!other.exists());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
}

#[test]
fn a_disabled_peer_that_was_let_in_at_run_time_is_one_peer() {
    for (name, command, sections, disabled) in [
        ("office", "disable", 1, 1),
        (PEER, "disable", 1, 1),
        ("office", "remove", 0, 0),
        (PEER, "remove", 0, 0),
        ("office", "extend", 1, 0),
    ] {
        let (_directory, path) = gateway(LINES);
        done(&path, &["disable", "office"]);
        // As `weft save` writes it.
        let saved = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{saved}\n[Peer]\nPublicKey = {PEER}\n")).unwrap();
        let time: &[&str] = if command == "extend" { &["30d"] } else { &[] };
        done(&path, &[&[command, name], time].concat());
        let left = std::fs::read_to_string(&path).unwrap();
        assert_eq!(left.matches(PEER).count(), sections, "{command} {name}: {left}");
        assert_eq!(left.matches("#[disabled] [Peer]").count(), disabled, "{command} {name}: {left}");
    }
}

#[test]
fn peers_that_are_added_at_once_all_get_addresses() {
    let (_directory, path) = gateway(LINES);
    let target = path.to_str().unwrap();
    let adds: Vec<_> = (0..6)
        .map(|number| {
            let name = format!("p{number}");
            let mut add = weft(&["peer", "add", &name, "--to", target]);
            add.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut addresses: Vec<String> = Vec::new();
    for add in adds {
        let ended: Ended = add.wait_with_output().unwrap().into();
        assert_eq!((ended.code, told(&ended)), (0, vec![]));
        addresses.extend(ended.stdout.lines().find(|line| line.starts_with("Address")).map(str::to_owned));
    }
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 6, "{addresses:?}");
    assert_eq!(done(&path, &["list"]).lines().count(), 8);
}

/// Draws half blocks as an image in the format of netpbm, four pixels for a module.
fn image(code: &str) -> String {
    let rows = code.lines().flat_map(|line| {
        let half = |is_upper: bool| -> Vec<bool> {
            let is_light = |block: char| block == '█' || block == if is_upper { '▀' } else { '▄' };
            line.chars().map(|block| !is_light(block)).collect()
        };
        [half(true), half(false)]
    });
    let rows: Vec<Vec<bool>> = rows.collect();
    let mut image = format!("P1\n{} {}\n", rows[0].len() * 4, rows.len() * 4);
    for row in rows {
        let line: String = row.iter().map(|&is_dark| if is_dark { "1 1 1 1 " } else { "0 0 0 0 " }).collect();
        image += &format!("{line}\n").repeat(4);
    }
    image
}

#[test]
fn a_qr_code_is_the_file() {
    let (directory, path) = gateway(LINES);
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let code = done(&path, &["add", "phone", "--qr", "--out", &at("phone.conf")]);
    assert!(code.lines().count() > 20 && code.chars().all(|c| " █▀▄\n".contains(c)), "{code}");
    assert!(code.lines().all(|line| line.chars().count() < 80), "it does not fit a terminal");
    #[cfg(target_os = "linux")]
    if weft_lab::here::installed(&["zbarimg"]) {
        std::fs::write(at("code.pbm"), image(&code)).unwrap();
        let mut reader = std::process::Command::new("zbarimg");
        let read: Ended = reader.args(["--quiet", "--raw", &at("code.pbm")]).output().unwrap().into();
        let text = std::fs::read_to_string(at("phone.conf")).unwrap();
        assert_eq!(read.stdout.trim(), text.trim(), "{}", read.stderr);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = image(&code);
}

#[test]
fn an_unknown_peer_is_one_of_those_that_the_command_for_the_file_lists() {
    let (_directory, path) = gateway(LINES);
    for name in ["a1", "b2", "c3", "d4", "e5"] {
        done(
            &path,
            &["add", name, "--public-key", run(&["pubkey"], &run(&["genkey"], "").stdout).stdout.trim()],
        );
    }
    let told = peer(&path, &["remove", "nosuch"]).stderr;
    assert!(told.contains("`weft peer list` shows the 6 names"), "{told}");
}

#[test]
fn a_peer_has_an_end_that_commands_set_and_show() {
    let (_directory, path) = gateway(LINES);
    done(&path, &["add", "guest", "--expires", "2999-12-31"]);
    let text = || std::fs::read_to_string(&path).unwrap();
    assert!(text().contains("# friendly_name = guest\n# weft: Expires = 2999-12-31T23:59:59Z\nPublicKey"));
    assert!(done(&path, &["list"]).contains("ends 2999-12-31T23:59:59Z"));
    done(&path, &["disable", "guest"]);
    done(&path, &["extend", "guest", "2998-01-01T10:00:00Z"]);
    let shown = done(&path, &["show", "guest"]);
    assert!(shown.starts_with("# disabled") && shown.contains("Expires = 2998-01-01T10:00:00Z"), "{shown}");
    done(&path, &["enable", "guest"]);
    done(&path, &["extend", "office", "30d"]);
    // However the line is written.
    std::fs::write(&path, text().replace("# weft: Expires = 20", "#weft: expires = 20")).unwrap();
    assert_eq!(peer(&path, &["extend", "office", "never"]).stderr, "note: office never ends\n");
    assert!(
        text().contains("# weft: Expires = never") && text().matches("xpires").count() == 2,
        "{}",
        text()
    );

    let check = |arguments: &[&str]| run(&[&["check", path.to_str().unwrap()], arguments].concat(), "");
    std::fs::write(&path, text().replace("never", "2001-09-09")).unwrap();
    let ended = check(&[]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let told = ":10: Expires: the peer ended at 2001-09-09T23:59:59Z and is not let in";
    assert!(
        ended.stderr.contains(told) && !ended.stdout.contains(&PEER[..10]),
        "{} {}",
        ended.stderr,
        ended.stdout
    );
    let list: serde_json::Value = serde_json::from_str(&done(&path, &["list", "--json"])).unwrap();
    assert_eq!((&list[0]["expired"], &list[1]["expired"]), (&true.into(), &false.into()));
    for wrong in ["2001-02-29", "soon", "2001-09-09T10:00:00", ""] {
        std::fs::write(&path, text().replace("2001-09-09\n", &format!("{wrong}\n"))).unwrap();
        let refused = check(&[]);
        assert!(
            refused.code == 78 && refused.stderr.contains(":10: Expires: "),
            "{wrong}: {}",
            refused.stderr
        );
        std::fs::write(&path, text().replace(&format!("Expires = {wrong}\n"), "Expires = 2001-09-09\n"))
            .unwrap();
    }
    for wrong in ["2001-01-01", "soon", "0d", "30"] {
        let refused = peer(&path, &["extend", "guest", wrong]);
        assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{wrong}: {}", refused.stderr);
    }
}
