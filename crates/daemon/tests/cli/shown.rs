//! What `weft check` shows of a file, as text and as JSON, and what it warns of.

use crate::support::{KEY, OTHER, OWN, PEER, check, file, run};

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
    for shown in [
        OWN,
        &PEER[..10],
        "51820",
        "1400",
        "0xca6c",
        "10.0.0.1/24",
        "10.1.0.0/16",
        "[2001:db8::1]:51820",
        "25 s",
    ] {
        assert!(ended.stdout.contains(shown), "{shown} in:\n{}", ended.stdout);
    }
    assert!(!ended.stdout.contains(KEY), "{}", ended.stdout);
}

#[test]
fn json_tells_the_same_and_no_secrets() {
    let text = format!(
        "[Interface]\nPrivateKey={KEY}\n[Peer]\n# friendly_name = home\nPublicKey={PEER}\nAllowedIPs=10.0.0.1/8\n"
    );
    let (_directory, path) = file("office.conf", text.as_bytes());
    let ended = run(&["check", "--json", path.to_str().unwrap()], "");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["ok"], true);
    assert_eq!(report["interface"]["name"], "office");
    assert_eq!(report["interface"]["public_key"], OWN);
    assert_eq!(report["peers"][0]["allowed_ips"][0], "10.0.0.0/8");
    assert_eq!(report["peers"][0]["friendly_name"], "home");
    assert_eq!(report["warnings"][0]["line"], 6);
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
            "Address = 10.9.0.0/24",
            "AllowedIPs =",
            "wg0.conf:3: Address: 10.9.0.0 is the network of 10.9.0.0/24",
        ),
        ("Address = 10.9.0.255/24", "AllowedIPs =", "10.9.0.255 is the broadcast address of 10.9.0.0/24"),
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
            "",
            "# friendly_name = of\u{200b}fice",
            "wg0.conf:6: friendly_name: the name has invisible characters",
        ),
        (
            "[Interface]\nMTU = 1300",
            "AllowedIPs =",
            "wg0.conf:3: [Interface]: a second [Interface] section; its lines count as part of the one in line 1",
        ),
    ];
    for (interface, peer, message) in cases {
        let ended =
            check(&format!("[Interface]\nPrivateKey={KEY}\n{interface}\n[Peer]\nPublicKey={PEER}\n{peer}\n"));
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(ended.stderr.contains(message), "{message}:\n{}", ended.stderr);
        // Beside the note about what goes into the tunnel from no address of it.
        let mut others =
            ended.stderr.lines().filter(|line| !line.contains("wg0.conf: Address: [Interface] has none"));
        assert!(others.all(|line| line.starts_with("warning: ")), "{}", ended.stderr);
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
fn packets_that_get_no_address_of_the_tunnel_are_noted() {
    for (interface, peer, is_noted) in [
        ("", "AllowedIPs = 10.0.0.0/8", true),
        ("Address = 10.0.0.1/24", "AllowedIPs = 10.0.0.0/8", false),
        ("PostUp = ip addr add 10.0.0.1/24 dev %i", "AllowedIPs = 10.0.0.0/8", false),
        ("", "AllowedIPs =", false),
    ] {
        let text = format!("[Interface]\nPrivateKey={KEY}\n{interface}\n[Peer]\nPublicKey={PEER}\n{peer}\n");
        let ended = check(&text);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let note = |line: &str| {
            line.starts_with("note: ") && line.contains("wg0.conf: Address: [Interface] has none")
        };
        assert_eq!(ended.stderr.lines().any(note), is_noted, "{interface} {peer}: {}", ended.stderr);
    }
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
            "[Interface]\nPrivateKey={KEY}\n{interface}\nAddress=10.9.0.2/32\n[Peer]\nPublicKey={PEER}\n\
             AllowedIPs=0.0.0.0/0,::/0\n"
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
         # weft: Endpoint = vpn.example:7\n# weft: PeerDNS = 10.9.0.1, lan\n# weft: PeerAllowedIPs = 10.9.0.7/24\n\
         ListenPort = 7\n\
         [Peer]\nPublicKey = {PEER}\n#weft: ratetopeer = 50 mbit\n# weft: RateFromPeer = 2Gbit\n\
         # weft: Expected = off\nAllowedIPs = 192.0.2.53\n"
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
        "vpn.example:7",
        "10.9.0.1, lan",
        "10.9.0.0/24",
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
    assert_eq!(interface["peer_endpoint"], "vpn.example:7");
    assert_eq!(interface["peer_dns"]["search"][0], "lan");
    assert_eq!(interface["peer_allowed_ips"][0], "10.9.0.0/24");
    let peer = &report["peers"][0];
    assert_eq!(peer["limit_to_peer_bits_per_second"], 50_000_000);
    assert_eq!(peer["limit_from_peer_bits_per_second"], 2_000_000_000_u64);
    assert_eq!(peer["expected"], false);
    for key in ["save_config", "path_mtu_discovery", "mss_clamp", "speed_test"] {
        assert_eq!(interface[key], true, "{key}");
    }
}
