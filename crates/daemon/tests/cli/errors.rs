//! Wrong files: each error with its file, line and key, and no secrets.

use crate::support::{Ended, KEY, PEER, check, weft};

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
        ("interface", "Address = ::1/128", "Address", "this host"),
        ("interface", "Address = ff02::1/64", "Address", "this host"),
        ("interface", "Address = fd00::1/64, fd00::1/128", "Address", "another prefix length"),
        ("interface", "Address = fd00::1/64\nMTU = 1279", "MTU", "1280"),
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
        ("interface", "KillSwitch = on", "KillSwitch", "write `# weft: KillSwitch = on`"),
        ("peer", "Expires = 2030-01-01", "Expires", "write `# weft: Expires = 2030-01-01`"),
        ("peer", "friendly_name = phone", "", "write `# friendly_name = phone`"),
        ("interface", "Adress = 10.0.0.1", "Adress", "did you mean `Address`?"),
        ("interface", "LstenPrt = 1", "LstenPrt", "did you mean `ListenPort`?"),
        ("interface", "Jc = 4", "Jc", "a file of AmneziaWG, which weft does not speak"),
        ("interface", "ExcludedApplications = a.b", "ExcludedApplications", "WireGuard app for Android"),
        ("interface", "DisallowedIPs = 10.0.0.0/8", "DisallowedIPs", "WireSock"),
        ("interface", "[Socks5]", "[Socks5]", "weft proxy"),
        ("interface", "[NetDev]", "[NetDev]", "systemd-networkd"),
        ("interface", "[wireguard-peer.x]", "[wireguard-peer.x]", "keyfile of NetworkManager"),
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
        ("peer", "Endpoint = https://gw.example:51820", "Endpoint", "leave out what stands before the name"),
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
#[cfg(target_os = "linux")]
fn a_seccomp_profile_that_refuses_threads_is_named() {
    use weft_lab::refusal::Refusal;

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("wg0.conf");
    std::fs::write(&file, format!("[Interface]\nPrivateKey = {KEY}\n")).unwrap();
    let file = file.to_str().unwrap();
    let commands: [&[&str]; 7] = [
        &["up", file],
        &["wg0"],
        &["exec", file, "--", "true"],
        &["proxy", file, "--socks5", "1080"],
        &["demo"],
        &["top"],
        &["capture", "-w", "-"],
    ];
    for words in commands {
        let mut command = weft(words);
        Refusal::new(libc::SYS_clone3, &[], libc::EPERM).apply_to(&mut command);
        let ended: Ended = command.output().unwrap().into();
        assert_eq!(ended.code, 77, "{words:?}: {}", ended.stderr);
        assert!(
            ended.stderr.contains("may not start threads: a seccomp profile refuses clone3"),
            "{words:?}: {}",
            ended.stderr
        );
    }
    // The C library does without it.
    let mut command = weft(&["top"]);
    command.env("WEFT_RUNTIME_DIR", directory.path());
    Refusal::new(libc::SYS_clone3, &[], libc::ENOSYS).apply_to(&mut command);
    let ended: Ended = command.output().unwrap().into();
    assert!(ended.stderr.contains("no interface is running"), "{}", ended.stderr);
}
