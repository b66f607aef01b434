//! The `weft` binary as a user meets it: what it prints, and how it ends.
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in their helpers")]

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
/// The public key of [`KEY`].
const OWN: &str = "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=";
const PEER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
const OTHER: &str = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";

struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().expect("it ended by itself"),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

fn weft(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(arguments).env_remove("RUST_LOG").env_remove("NO_COLOR");
    command
}

fn run(arguments: &[&str], input: &str) -> Ended {
    let mut child = weft(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // A command that reads nothing may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap().into()
}

/// A private file of this name and text, in a directory that lives as long as the first value.
fn file(name: &str, text: &[u8]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    (directory, path)
}

fn check(text: &str) -> Ended {
    let (_directory, path) = file("wg0.conf", text.as_bytes());
    run(&["check", path.to_str().unwrap()], "")
}

#[test]
fn a_good_file_is_shown_without_its_secrets() {
    let text = format!(
        "\u{feff}[interface]\r\nprivatekey = {KEY}\r\nADDRESS=10.0.0.1/24 , fd00::1/64 # ours\r\nListenPort = 51820\r\n\
         FwMark = 0xca6c\r\nMTU = 1400\r\n\r\n# friendly_name = office\r\n[PEER]\r\nPublicKey={PEER}\r\n\
         PresharedKey = {OTHER}\r\nAllowedIPs = 10.0.0.2, 10.1.0.0/16\r\nAllowedIPs = fd00::2/128\r\n\
         Endpoint = [2001:db8::1]:51820\r\nPersistentKeepalive = 25\r\n[Peer]\r\nPublicKey = {OTHER}\r\nAllowedIPs =\r\n"
    );
    let ended = check(&text);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    for shown in
        [OWN, PEER, "51820", "1400", "0xca6c", "10.0.0.1/24", "10.1.0.0/16", "[2001:db8::1]:51820", "25 s"]
    {
        assert!(ended.stdout.contains(shown), "{shown} in:\n{}", ended.stdout);
    }
    assert!(!ended.stdout.contains(KEY), "{}", ended.stdout);
}

#[test]
fn json_tells_the_same_and_no_secrets() {
    let text = format!("[Interface]\nPrivateKey={KEY}\n[Peer]\nPublicKey={PEER}\nAllowedIPs=10.0.0.1/8\n");
    let (_directory, path) = file("office.conf", text.as_bytes());
    let ended = run(&["check", "--json", path.to_str().unwrap()], "");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["ok"], true);
    assert_eq!(report["interface"]["name"], "office");
    assert_eq!(report["interface"]["public_key"], OWN);
    assert_eq!(report["peers"][0]["allowed_ips"][0], "10.0.0.0/8");
    assert_eq!(report["warnings"][0]["line"], 5);
    assert_eq!(report["warnings"][0]["key"], "AllowedIPs");
    assert!(!ended.stdout.contains(KEY));

    let (_directory, path) = file("office.conf", b"[Interface]\nMtu=1\n");
    let ended = run(&["check", "--json", path.to_str().unwrap()], "");
    assert_eq!(ended.code, 78);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["ok"], false);
    assert_eq!(report["errors"][1]["line"], 2);
    assert_eq!(report["errors"][1]["key"], "MTU");
}

/// Each wrong line, between a good [Interface] and a good [Peer] as `section` says; the key and a part of the
/// advice that have to be in the message.
#[test]
fn every_wrong_line_is_named_with_its_file_line_and_key() {
    #[rustfmt::skip]
    let cases: &[(&str, &str, &str, &str)] = &[
        // section, line, key in the message, what to do
        ("interface", "PrivateKey = short", "PrivateKey", "44 characters"),
        ("interface", "PrivateKey =", "PrivateKey", "44 characters"),
        ("interface", "PrivateKey = AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "PrivateKey", "weft genkey"),
        ("interface", "ListenPort = 65536", "ListenPort", "`65536`"),
        ("interface", "ListenPort = -1", "ListenPort", "UDP port"),
        ("interface", "ListenPort =", "ListenPort", "no value"),
        ("interface", "FwMark = 0x1ffffffff", "FwMark", "4294967295"),
        ("interface", "FwMark = on", "FwMark", "`off`"),
        ("interface", "Address = 10.0.0.1/33", "Address", "10.0.0.1/24"),
        ("interface", "Address = 10.0.0.1/24 10.0.0", "Address", "`10.0.0`"),
        ("interface", "Address = 0.0.0.0/8", "Address", "this host"),
        ("interface", "MTU = 575", "MTU", "576"),
        ("interface", "MTU = 65535", "MTU", "65455"),
        ("interface", "Table = default", "Table", "4294967295"),
        ("interface", "Table = 0", "Table", "number"),
        ("interface", "DNS = 1.1.1.300", "DNS", "name servers"),
        ("interface", "DNS = ~", "DNS", "~corp.example"),
        ("interface", "PreUp = a\0b", "PreUp", "command"),
        ("interface", "SaveConfig = yes", "SaveConfig", "`true`"),
        ("interface", "# weft: KillSwitch = yes", "KillSwitch", "allow-local"),
        ("interface", "#Weft: MssClamp = true", "MssClamp", "`on`"),
        ("interface", "  # weft: PathMtuDiscovery =", "PathMtuDiscovery", "`on`"),
        ("interface", "# weft: Metrics = 9586", "Metrics", "127.0.0.1:9586"),
        ("interface", "# weft: MetricsHost = gw.example:9586", "MetricsHost", "gateway.example"),
        ("interface", "# weft: KilSwitch = on", "KilSwitch", "did you mean `KillSwitch`?"),
        ("interface", "# weft: Bogus = on", "Bogus", "unknown setting"),
        ("interface", "# weft: a word about it", "", "a comment that begins with"),
        ("peer", "# weft: KillSwitch = on", "KillSwitch", "belongs into [Interface]"),
        ("peer", "# weft: RateToPeer = 50", "RateToPeer", "50Mbit"),
        ("peer", "# weft: RateFromPeer = 0Mbit", "RateFromPeer", "1kbit"),
        ("peer", "# weft: RateFromPeer = 50MB", "RateFromPeer", "kbit, Mbit or Gbit"),
        ("peer", "# weft: RateFromPeer =", "RateFromPeer", "no value"),
        ("peer", "# weft: RateToPer = 50Mbit", "RateToPer", "did you mean `RateToPeer`?"),
        ("interface", "# weft: RateToPeer = 50Mbit", "RateToPeer", "belongs into [Peer]"),
        ("interface", "# weft: DownloadLimit = 50Mbit", "DownloadLimit", "in [Peer] RateToPeer"),
        ("interface", "Adress = 10.0.0.1", "Adress", "did you mean `Address`?"),
        ("interface", "Jc = 4", "Jc", "unknown key in [Interface]"),
        ("interface", "Endpoint = 192.0.2.1:1", "Endpoint", "belongs into [Peer]"),
        ("interface", "just words", "", "neither"),
        ("interface", "[Peers]", "[Peers]", "unknown section"),
        ("interface", "[Peer", "", "neither"),
        ("peer", "PublicKey = short", "PublicKey", "44 characters"),
        ("peer", "PublicKey = HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=", "PublicKey", "own public key"),
        ("peer", "PresharedKey = x", "PresharedKey", "44 characters"),
        ("peer", "AllowedIPs = 10.0.0.0/8, 10.0.0", "AllowedIPs", "`10.0.0`"),
        ("peer", "AllowedIPs = 10.0.0.0/255.0.0.0", "AllowedIPs", "10.0.0.0/8"),
        ("peer", "Endpoint = 192.0.2.1", "Endpoint", "host:port"),
        ("peer", "Endpoint = 2001:db8::1", "Endpoint", "brackets"),
        ("peer", "Endpoint = vpn.example:0", "Endpoint", "port"),
        ("peer", "PersistentKeepalive = 70000", "PersistentKeepalive", "65535"),
        ("peer", "PersistentKeepalive = on", "PersistentKeepalive", "`off`"),
        ("peer", "AllowedIP = 10.0.0.0/8", "AllowedIP", "did you mean `AllowedIPs`?"),
        ("peer", "Address = 10.0.0.1", "Address", "belongs into [Interface]"),
        ("peer", "[Peer]", "PublicKey", "is missing"),
    ];
    for (section, line, key, advice) in cases {
        let text = if *section == "interface" {
            format!("[Interface]\nPrivateKey = {KEY}\n{line}\n")
        } else {
            format!("[Interface]\nPrivateKey = {KEY}\n[Peer]\nPublicKey = {PEER}\n{line}\n")
        };
        let number = text.lines().count();
        let ended = check(&text);
        let place = format!("wg0.conf:{number}: {key}");
        assert_eq!(ended.code, 78, "{line}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{line}");
        assert!(
            ended.stderr.starts_with("error: ") || ended.stderr.starts_with("warning: "),
            "{}",
            ended.stderr
        );
        let errors: Vec<_> = ended.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{line}: {}", ended.stderr);
        assert!(errors[0].contains(&place) && errors[0].contains(advice), "{line}: {}", ended.stderr);
    }
}

#[test]
fn sections_that_lack_or_contradict_something_are_errors() {
    let cases = [
        (String::new(), "wg0.conf:1: [Interface]: there is no"),
        ("PrivateKey = x\n".to_owned(), "wg0.conf:1: PrivateKey: a key before the first section"),
        ("[Interface]\n".to_owned(), "wg0.conf:1: PrivateKey: is missing"),
        (format!("[Interface]\nPrivateKey={KEY}\n\n[Peer]\n"), "wg0.conf:4: PublicKey: is missing"),
        (
            format!("[Interface]\nPrivateKey={KEY}\n[Peer]\nPublicKey={PEER}\n[Peer]\nPublicKey={PEER}\n"),
            "is the peer of line 4 already",
        ),
        (
            format!("[Interface]\nPrivateKey={KEY}\nMTU=1279\nAddress=fd00::1\n"),
            "wg0.conf:3: MTU: 1279 is less than the 1280",
        ),
    ];
    for (text, message) in cases {
        let ended = check(&text);
        assert_eq!(ended.code, 78, "{text}");
        assert!(ended.stderr.contains(message), "{message}:\n{}", ended.stderr);
    }
}

#[test]
fn all_errors_come_in_one_run_in_the_order_of_the_lines() {
    let ended = check("[Interface]\nMTU = 1\nTable = x\n[Peer]\nEndpoint = y\nBogus = 1\n");
    let lines: Vec<_> = ended
        .stderr
        .lines()
        .map(|line| line.split("wg0.conf:").nth(1).unwrap().split(':').next().unwrap())
        .collect();
    assert_eq!(lines, ["1", "2", "3", "4", "5", "6"], "{}", ended.stderr);
}

#[test]
fn odd_but_usable_files_are_warned_of() {
    let cases = [
        ("MTU = 1300\nMTU = 1400", "AllowedIPs =", "wg0.conf:4: MTU: given again, the value of line 3"),
        (
            "Address = 10.0.0.1\nAddress = 10.0.0.1",
            "AllowedIPs =",
            "wg0.conf:4: Address: 10.0.0.1/32 stands in line 3",
        ),
        (
            "MTU = 1300",
            "AllowedIPs = 10.0.0.1/8",
            "wg0.conf:6: AllowedIPs: 10.0.0.1/8 has host bits, 10.0.0.0/8 is used",
        ),
        ("MTU = 1300\nMTU =", "AllowedIPs =", "wg0.conf:4: MTU: given again, the value of line 3"),
        (
            "MTU = 1300",
            "Endpoint = 2001:db8::1:51820",
            "wg0.conf:6: Endpoint: without brackets, what is behind the last colon is the port; write [2001:db8::1]:51820",
        ),
        (
            "[Interface]\nMTU = 1300",
            "AllowedIPs =",
            "wg0.conf:3: [Interface]: a second [Interface] section; its lines count as part of the one in line 1",
        ),
        (
            "MTU = 1300",
            "Endpoint = 10.1.1.1:1\nAllowedIPs = 10.0.0.0/8",
            "wg0.conf:6: Endpoint: 10.1.1.1:1 is within 10.0.0.0/8",
        ),
    ];
    for (interface, peer, message) in cases {
        let ended =
            check(&format!("[Interface]\nPrivateKey={KEY}\n{interface}\n[Peer]\nPublicKey={PEER}\n{peer}\n"));
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(ended.stderr.contains(message), "{message}:\n{}", ended.stderr);
        assert!(ended.stderr.lines().all(|line| line.starts_with("warning: ")), "{}", ended.stderr);
    }
}

/// A template that fills in what it is told, and leaves the rest empty.
#[test]
fn lines_without_a_value_and_loose_lists_mean_what_they_mean_to_wg_quick() {
    let text = format!(
        "[Interface]\nPrivateKey = {KEY}\nAddress = 10.0.0.1/24 fd00::1/64,,10.0.0.2, \nAddress =\nMTU = 1300\nMTU =\n\
         Table =\nDNS =\nPreUp =\nPostUp = # later\nPostUp =\nPreDown =\nPostDown =\n[Peer]\nPublicKey = {PEER}\n\
         Endpoint = 2001:db8::1:51820\n[Interface]\nListenPort = 51820\nAddress = 10.0.0.3/32\n"
    );
    let (_directory, path) = file("wg0.conf", text.as_bytes());
    let ended = run(&["check", "--json", path.to_str().unwrap()], "");
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let interface = &report["interface"];
    let addresses = serde_json::json!(["10.0.0.1/24", "fd00::1/64", "10.0.0.2/32", "10.0.0.3/32"]);
    assert_eq!(interface["addresses"], addresses, "{}", ended.stdout);
    assert_eq!((&interface["mtu"], &interface["table"]), (&serde_json::Value::Null, &"auto".into()));
    assert_eq!(interface["listen_port"], 51_820);
    let hooks = interface["hooks"].as_array().unwrap();
    assert!(hooks.iter().all(|hook| hook["command"] == "# later"), "{hooks:?}");
    assert_eq!(report["peers"][0]["endpoint"], "[2001:db8::1]:51820");
}

#[test]
fn a_prefix_of_two_peers_goes_to_the_later_one_with_a_warning_of_both_lines() {
    let ended = check(&format!(
        "[Interface]\nPrivateKey={KEY}\n[Peer]\nPublicKey={PEER}\nAllowedIPs=10.0.0.0/8, 10.0.0.0/9\n\
         [Peer]\nPublicKey={OTHER}\nAllowedIPs=10.0.0.0/8\n"
    ));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let warning = "wg0.conf:8: AllowedIPs: 10.0.0.0/8 is given to the peer of line 5 as well";
    assert!(ended.stderr.contains(warning), "{}", ended.stderr);
    assert_eq!(ended.stdout.matches("10.0.0.0/8").count(), 1, "{}", ended.stdout);
}

#[test]
fn a_default_route_is_fine_and_its_mark_is_no_table_of_the_kernels() {
    let text = |interface: &str| {
        format!(
            "[Interface]\nPrivateKey={KEY}\n{interface}\n[Peer]\nPublicKey={PEER}\nAllowedIPs=0.0.0.0/0,::/0\n"
        )
    };
    for interface in ["", "Table=off", "Table=51820", "FwMark=51820", "FwMark=254\nTable=off"] {
        let ended = check(&text(interface));
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{interface}");
    }
    let ended = check(&text("FwMark = 254"));
    assert_eq!(ended.code, 78);
    assert!(
        ended.stderr.contains("wg0.conf:3: FwMark: ") && ended.stderr.contains("254"),
        "{}",
        ended.stderr
    );
}

#[test]
fn every_key_of_wg_quick_and_of_weft_is_shown() {
    let text = format!(
        "[Interface]\nPrivateKey={KEY}\nDNS = 192.0.2.53, corp.example, ~.\nSaveConfig = true\n\
         PostUp = echo up # %i\nPreDown = wg set %i peer {PEER} remove\nPostUp = echo again\n\
         # weft: KillSwitch = allow-local\n#weft:mssclamp=on\n# weft: PathMtuDiscovery = on\n\
         # weft: Metrics = [::1]:9586\n# weft: MetricsHost = GW.example, gw\n# weft: SpeedTest = on\n\
         [Peer]\nPublicKey = {PEER}\n#weft: ratetopeer = 50 mbit\n# weft: RateFromPeer = 2Gbit\n\
         # weft: Expected = off\n"
    );
    let (_directory, path) = file("wg0.conf", text.as_bytes());
    let shown = run(&["check", path.to_str().unwrap()], "");
    assert_eq!((shown.code, shown.stderr.as_str()), (0, ""));
    for part in [
        "192.0.2.53, corp.example, ~.",
        "echo up # %i",
        "echo again",
        "wg set %i peer …= remove",
        "allow-local",
        "[::1]:9586",
        "50Mbit to it",
        "2Gbit from it",
        "expected",
        "off",
    ] {
        assert!(shown.stdout.contains(part), "{part} in:\n{}", shown.stdout);
    }
    let ended = run(&["check", "--json", path.to_str().unwrap()], "");
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let interface = &report["interface"];
    assert_eq!(interface["dns"]["routing"][0], ".");
    assert_eq!(
        (&interface["hooks"][0]["stage"], &interface["hooks"][0]["line"]),
        (&"PostUp".into(), &5.into())
    );
    assert_eq!(interface["hooks"][0]["command"], "echo up # %i");
    assert_eq!(interface["kill_switch"], "allow-local");
    assert_eq!(interface["metrics"], "[::1]:9586");
    assert_eq!(interface["metrics_hosts"], serde_json::json!(["gw.example", "gw"]));
    let peer = &report["peers"][0];
    assert_eq!(peer["limit_to_peer_bits_per_second"], 50_000_000);
    assert_eq!(peer["limit_from_peer_bits_per_second"], 2_000_000_000_u64);
    assert_eq!(peer["expected"], false);
    for key in ["save_config", "path_mtu_discovery", "mss_clamp", "speed_test"] {
        assert_eq!(interface[key], true, "{key}");
    }
}

#[test]
fn a_key_in_the_wrong_place_is_never_repeated() {
    for line in [
        KEY.to_owned(),
        format!("{KEY} = 1"),
        format!("Table = {KEY}"),
        format!("Address = {KEY}"),
        format!("[{KEY}]"),
        format!("PrivateKey {KEY}"),
        format!("PrivateKey = {KEY}{KEY}"),
        format!("PrivateKeyFile = {KEY}"),
        format!("PrivateKeyFile = {}", KEY.trim_end_matches('=')),
        format!("[Peer]\nPublicKey = {PEER}\nPresharedKeyFile = {KEY} # mine"),
        format!("[Peer]\nEndpoint = {KEY}:1\nPublicKey = {KEY}x"),
    ] {
        let ended = check(&format!("[Interface]\n{line}\n"));
        assert_eq!(ended.code, 78, "{line}");
        assert!(!ended.stderr.contains(&KEY[..20]), "{}", ended.stderr);
    }
}

#[test]
fn keys_may_stand_in_files_of_their_own() {
    let text = format!(
        "[Interface]\nprivatekeyfile = own.key # ours\n[Peer]\nPublicKey = {PEER}\nPresharedKeyFile = peer.psk\n"
    );
    let (directory, path) = file("wg0.conf", text.as_bytes());
    let path = path.to_str().unwrap();
    for arguments in [
        &["check", path][..],
        &["strip", path],
        &["setconf", "wg0", path],
        &["addconf", "wg0", path],
        &["syncconf", "wg0", path],
    ] {
        let missing = run(arguments, "");
        assert_eq!((missing.code, missing.stdout.as_str()), (78, ""), "{arguments:?}: {}", missing.stderr);
        for part in [
            "wg0.conf:2: PrivateKeyFile: ",
            "own.key: there is no such file",
            "wg0.conf:5: PresharedKeyFile: ",
        ] {
            assert!(missing.stderr.contains(part), "{part} in:\n{}", missing.stderr);
        }
    }
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("own.key", "not a key\n");
    write("peer.psk", &format!("{OTHER}\n"));
    assert!(run(&["check", path], "").stderr.contains("wg0.conf:2: PrivateKeyFile: "));
    write("own.key", &format!("{KEY}\n"));
    let shown = run(&["check", path], "");
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(shown.stdout.contains(OWN), "{}", shown.stdout);
    assert!(!shown.stdout.contains(&OTHER[..20]), "{}", shown.stdout);

    // The service's own comes first.
    let credentials = tempfile::tempdir().unwrap();
    std::fs::write(credentials.path().join("own.key"), OTHER).unwrap();
    let output = weft(&["check", path]).env("CREDENTIALS_DIRECTORY", credentials.path()).output().unwrap();
    let with_credential = Ended::from(output);
    assert_eq!(with_credential.code, 0, "{}", with_credential.stderr);
    assert!(!with_credential.stdout.contains(OWN), "{}", with_credential.stdout);
    // What wg(8) gets has the keys themselves, line by line.
    let stripped = run(&["strip", path], "").stdout;
    let expected =
        format!("[Interface]\nPrivateKey = {KEY}\n[Peer]\nPublicKey = {PEER}\nPresharedKey = {OTHER}\n\n");
    assert_eq!(stripped, expected);
}

#[test]
fn files_that_cannot_be_read_end_with_78_and_their_name() {
    let ended = run(&["check", "/nonexistent/wg0.conf"], "");
    assert_eq!(ended.code, 78);
    assert!(ended.stderr.starts_with("error: /nonexistent/wg0.conf: "), "{}", ended.stderr);

    let ended = run(&["check", "no-such-interface-name"], "");
    assert_eq!(ended.code, 78);
    assert!(ended.stderr.contains("interface name is 1 to 15"), "{}", ended.stderr);

    let (_directory, path) = file("wg0.conf", b"\xff\xfe[\0I\0");
    let ended = run(&["check", path.to_str().unwrap()], "");
    assert_eq!(ended.code, 78);
    assert!(ended.stderr.contains("wg0.conf:1: the file is not UTF-8"), "{}", ended.stderr);
}

#[test]
#[cfg(unix)]
fn a_file_that_others_can_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_directory, path) = file("wg0.conf", format!("[Interface]\nPrivateKey={KEY}\n").as_bytes());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let ended = run(&["check", path.to_str().unwrap()], "");
    assert_eq!(ended.code, 0);
    assert!(ended.stderr.contains("mode 0640") && ended.stderr.contains("chmod 600"), "{}", ended.stderr);
}

/// How weft ends for a user who owns nothing; `None` if the test cannot become one. All can read the
/// directory.
#[cfg(target_os = "linux")]
fn run_as_nobody(directory: &TempDir, arguments: &[&str]) -> Option<Ended> {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = if nix::unistd::geteuid().is_root() {
        // The binary is copied to where the other user can run it.
        let binary = directory.path().join("weft");
        // By another process: what this one has open for writing, a child forked meanwhile has too, and such
        // a program cannot be executed.
        assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_weft")).arg(&binary).status().unwrap().success());
        Command::new(&binary).args(arguments).uid(65_534).gid(65_534).output()
    } else {
        weft(arguments).output()
    };
    match output {
        Ok(output) => Some(output.into()),
        Err(reason) => {
            weft_lab::here::not_run(&format!("weft {arguments:?}: {reason}"));
            None
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_key_that_may_not_be_read_ends_with_77_and_its_file_and_line() {
    use std::os::unix::fs::PermissionsExt as _;
    let (directory, path) = file("wg0.conf", b"[Interface]\nListenPort = 1\nPrivateKeyFile = own.key\n");
    let key = directory.path().join("own.key");
    std::fs::write(&key, KEY).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o000)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let path = path.to_str().unwrap();
    for arguments in [
        &["check", path][..],
        &["strip", path],
        &["setconf", "wg0", path],
        &["addconf", "wg0", path],
        &["syncconf", "wg0", path],
    ] {
        let Some(ended) = run_as_nobody(&directory, arguments) else { return };
        assert_eq!((ended.code, ended.stdout.as_str()), (77, ""), "{arguments:?}: {}", ended.stderr);
        let told =
            ["wg0.conf:3: PrivateKeyFile: ", "own.key: cannot read the key: permission denied", "as root"];
        assert!(told.iter().all(|part| ended.stderr.contains(part)), "{arguments:?}: {}", ended.stderr);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_that_may_not_be_read_ends_with_77() {
    use std::os::unix::fs::PermissionsExt as _;
    let (directory, path) = file("wg0.conf", format!("[Interface]\nPrivateKey={KEY}\n").as_bytes());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    let Some(ended) = run_as_nobody(&directory, &["check", path.to_str().unwrap()]) else { return };
    assert_eq!(ended.code, 77, "{}", ended.stderr);
    assert!(ended.stderr.contains("wg0.conf") && ended.stderr.contains("as root"), "{}", ended.stderr);
}

#[test]
fn keys_are_made_and_fit_each_other() {
    let private = run(&["genkey"], "");
    assert_eq!((private.code, private.stdout.len()), (0, 45));
    assert_ne!(private.stdout, run(&["genkey"], "").stdout);
    assert_eq!(run(&["genpsk"], "").stdout.len(), 45);

    assert_eq!(run(&["pubkey"], &format!("{KEY}\n")).stdout, format!("{OWN}\n"));
    assert_eq!(run(&["pubkey"], &private.stdout).stdout.len(), 45);
    let wrong = run(&["pubkey"], &format!("{KEY}{KEY}"));
    assert_eq!(wrong.code, 1);
    assert!(wrong.stderr.contains("not a private key") && !wrong.stderr.contains(KEY), "{}", wrong.stderr);
}

#[test]
#[cfg(unix)]
fn a_secret_that_goes_into_a_file_for_everybody_is_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_directory, path) = file("key", b"");
    for (command, mode, warned) in [
        ("genkey", 0o644, true),
        ("genpsk", 0o602, true),
        ("genkey", 0o640, false),
        ("genpsk", 0o600, false),
        ("pubkey", 0o644, false),
    ] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let (input, output) = (std::fs::File::open(&path).unwrap(), std::fs::File::create(&path).unwrap());
        std::fs::write(&path, KEY).unwrap();
        let ended = Ended::from(weft(&[command]).stdin(input).stdout(output).output().unwrap());
        assert_eq!(ended.code, 0, "{command}: {}", ended.stderr);
        let told =
            ended.stderr.starts_with("warning: ") && ended.stderr.contains(&format!("mode {mode:04o}"));
        assert_eq!((told, ended.stderr.is_empty()), (warned, !warned), "{command}: {}", ended.stderr);
        assert_eq!(std::fs::read_to_string(&path).unwrap().len(), 45, "{command}");
        let help = run(&["help", command], "").stdout;
        assert!(command == "pubkey" || help.contains("(umask 077; weft gen"), "{help}");
    }
}

#[test]
fn a_wrong_command_line_ends_with_2_and_help_with_0() {
    for arguments in [
        &[][..],
        &["chekc"],
        &["up"],
        &["check"],
        &["check", "a", "b"],
        &["up", "wg0", "--tun-threads", "65"],
        &["up", "wg0", "--tun-threads", "many"],
        &["up", "wg0", "--packet-threads", "0"],
        &["run", "wg0", "--packet-threads", "65"],
        &["demo", "--packet-threads", "-1"],
        &["demo", "--secs", "0"],
        &["genkey", "extra"],
        &["--log-format", "xml", "genkey"],
        &["--log", "weft=loud", "genkey"],
    ] {
        let ended = run(arguments, "");
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{arguments:?}: {}", ended.stderr);
    }
    if weft_udp::MAX_SHARDS > 1 {
        let ended = run(&["up", "wg0", "--packet-threads", "0"], "");
        assert!(ended.stderr.contains("write a number from 1 to 64, or `auto`"), "{}", ended.stderr);
    }
    for arguments in [&["--help"][..], &["up", "--help"], &["check", "-h"], &["help", "demo"], &["--version"]]
    {
        assert_eq!(run(arguments, "").code, 0, "{arguments:?}");
    }
    let help = run(&["--help"], "").stdout;
    assert!(help.contains("Examples:") && help.contains("78  the configuration is wrong"), "{help}");
    assert!(!run(&["up", "--help"], "").stdout.contains("no-offload"));
}

#[test]
#[cfg(unix)]
fn a_reader_that_went_away_is_no_failure() {
    let mut child = weft(&["genkey"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), ended.stderr.len()), (Some(0), 0));
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_a_failure() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let ended = weft(&["genkey"]).stdout(full).output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8(ended.stderr).unwrap().starts_with("error: cannot write to standard output"));
}

#[test]
fn top_needs_a_terminal_and_says_what_does_not() {
    let ended = run(&["top", "wg0"], "");
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("weft status --json"), "{}", ended.stderr);
}

#[test]
#[cfg(unix)]
fn status_of_nothing_is_a_failure_that_names_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in [&["status"][..], &["status", "wg0"], &["status", "--json"]] {
        let output = weft(arguments).env("WEFT_RUNTIME_DIR", directory.path()).output().unwrap();
        let ended = Ended::from(output);
        assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{arguments:?}");
        assert!(ended.stderr.contains(directory.path().to_str().unwrap()), "{}", ended.stderr);
    }
    assert_eq!(run(&["status", "no/name"], "").code, 2);
    assert_eq!(run(&["status", "--sample", "x"], "").code, 2);
}

#[test]
fn doctor_refuses_a_wrong_configuration_with_its_lines() {
    let (_directory, path) = file("wg0.conf", b"[Interface]\nMtu=1\n");
    let ended = run(&["doctor", path.to_str().unwrap()], "");
    assert_eq!(ended.code, 78);
    assert!(ended.stderr.contains("wg0.conf:2: MTU"), "{}", ended.stderr);
}

#[test]
fn doctor_prints_findings_for_people_and_for_scripts() {
    let people = run(&["doctor"], "");
    assert!([0, 1].contains(&people.code), "{}", people.stderr);
    assert!(!people.stdout.contains('\u{1b}'), "{}", people.stdout);
    let scripts = run(&["doctor", "--json"], "");
    let report: serde_json::Value = serde_json::from_str(&scripts.stdout).unwrap();
    let problems = report["problems"].as_u64().unwrap();
    assert_eq!(scripts.code, i32::from(problems > 0));
    assert_eq!(people.stdout.lines().filter(|line| line.starts_with("problem")).count() as u64, problems);
}

#[test]
fn launchd_does_not_start_again_what_cannot_work() {
    let (_directory, path) = file("utun7.conf", b"[Interface]\nMTU = 1\n");
    let path = path.to_str().unwrap();
    assert_eq!(run(&["up", path], "").code, 78);
    let ended = run(&["up", "--launchd", path], "");
    assert_eq!(ended.code, 0);
    assert!(ended.stderr.contains("error:") && ended.stderr.contains("MTU"), "{}", ended.stderr);
}

#[cfg(target_os = "linux")]
#[test]
fn on_linux_the_unit_of_systemd_is_named() {
    for (action, advice) in [
        ("install", "systemctl enable --now weft@wg-home"),
        ("remove", "systemctl disable --now weft@wg-home"),
        ("status", "systemctl status weft@wg-home"),
    ] {
        let ended = run(&["service", action, "wg-home"], "");
        assert_eq!((ended.code, ended.stdout.as_str()), (1, ""));
        assert!(ended.stderr.contains(&format!("`{advice}`")), "{}", ended.stderr);
    }
}
