//! `wg set` on every field, `wg setconf` and `wg addconf`.

use crate::support::{Daemon, Machine, NAME, Pair, key, preshared_key, public_key};

/// A machine and an interface without anything.
fn empty() -> Option<(Machine, Daemon)> {
    let machine = Machine::new(&["wg"])?;
    let daemon = Daemon::start(&machine);
    Some((machine, daemon))
}

#[test]
fn every_field_of_an_interface_is_set_and_taken_back() {
    let Some((machine, _daemon)) = empty() else { return };
    let show = |field: &str| machine.wg(&format!("show {NAME} {field}")).trim_end().to_owned();
    let file = machine.file("key", &key(1).to_base64());
    machine.wg(&format!("set {NAME} private-key {file}"));
    assert_eq!(show("public-key"), public_key(1).to_string());
    machine.wg(&format!("set {NAME} listen-port 4567 fwmark 7"));
    assert_eq!((show("listen-port").as_str(), show("fwmark").as_str()), ("4567", "0x7"));
    let sockets = machine.run("cat", &["/proc/net/udp", "/proc/net/udp6"]);
    let packet_threads = std::env::var("WEFT_PACKET_THREADS").map_or(1, |text| text.parse().unwrap());
    // Beside them each family has one of which nothing is received.
    let drains = if cfg!(feature = "portable") { 0 } else { 2 };
    let all = weft_udp::receiving_sockets(packet_threads) + drains;
    assert_eq!(sockets.matches(&format!(":{:04X} ", 4567)).count(), all, "{sockets}");
    machine.wg(&format!("set {NAME} private-key /dev/null fwmark off listen-port 0"));
    assert_eq!((show("private-key").as_str(), show("fwmark").as_str()), ("(none)", "off"));
    assert!(!["4567", "0", "off"].contains(&show("listen-port").as_str()), "a port that the system chooses");
}

#[test]
fn every_field_of_a_peer_is_set_and_taken_back() {
    let Some((machine, _daemon)) = empty() else { return };
    let peer = public_key(2);
    let show = |field: &str| {
        let text = machine.wg(&format!("show {NAME} {field}"));
        text.trim_end().strip_prefix(&format!("{peer}\t")).unwrap_or(&text).to_owned()
    };
    let set = |words: &str| machine.wg(&format!("set {NAME} peer {peer} {words}"));
    set("");
    assert_eq!(show("peers"), format!("{peer}\n"));
    let file = machine.file("psk", &preshared_key(3).to_base64());
    set(&format!("preshared-key {file}"));
    assert_eq!(show("preshared-keys"), *preshared_key(3).to_base64());
    set("preshared-key /dev/null");
    assert_eq!(show("preshared-keys"), "(none)");
    for endpoint in ["192.0.2.9:1", "[2001:db8::9]:65535", "[fe80::1%lo]:5"] {
        set(&format!("endpoint {endpoint}"));
        assert_eq!(show("endpoints"), endpoint);
    }
    set("persistent-keepalive 65535");
    assert_eq!(show("persistent-keepalive"), "65535");
    set("persistent-keepalive off");
    assert_eq!(show("persistent-keepalive"), "off");
    set("allowed-ips 10.1.2.3/16,fd00::1/64,192.0.2.1");
    assert_eq!(show("allowed-ips"), "10.1.0.0/16 fd00::/64 192.0.2.1/32");
    set("allowed-ips 10.2.0.0/16");
    assert_eq!(show("allowed-ips"), "10.2.0.0/16");
    machine.run("wg", &["set", NAME, "peer", &peer.to_string(), "allowed-ips", ""]);
    assert_eq!(show("allowed-ips"), "(none)");
    set("remove");
    assert_eq!(machine.wg(&format!("show {NAME} peers")), "");
    // As does one that is not there.
    set("remove");
}

#[test]
fn a_prefix_has_one_owner() {
    let Some((machine, _daemon)) = empty() else { return };
    let (first, second) = (public_key(2), public_key(3));
    machine.wg(&format!("set {NAME} peer {first} allowed-ips 10.1.0.0/16,10.2.0.0/16"));
    machine.wg(&format!("set {NAME} peer {second} allowed-ips 10.2.0.0/16"));
    let shown = machine.wg(&format!("show {NAME} allowed-ips"));
    assert_eq!(shown, format!("{first}\t10.1.0.0/16\n{second}\t10.2.0.0/16\n"));
}

#[test]
fn ones_own_key_is_no_peer() {
    let Some((machine, _daemon)) = empty() else { return };
    let file = machine.file("key", &key(1).to_base64());
    let (own, other) = (public_key(1), public_key(2));
    machine.wg(&format!("set {NAME} private-key {file} peer {own} allowed-ips 10.1.0.0/16 peer {other}"));
    assert_eq!(machine.wg(&format!("show {NAME} peers")), format!("{other}\n"));
    // And a peer goes when its key becomes the interface's.
    let file = machine.file("key", &key(2).to_base64());
    machine.wg(&format!("set {NAME} private-key {file}"));
    assert_eq!(machine.wg(&format!("show {NAME} peers")), "");
}

#[test]
fn setconf_replaces_all_and_addconf_adds() {
    let Some((machine, _daemon)) = empty() else { return };
    let conf = |port: u16, peers: &[(u8, &str)]| {
        let peers: String = peers
            .iter()
            .map(|(number, more)| format!("[Peer]\nPublicKey = {}\n{more}", public_key(*number)))
            .collect();
        machine.file("conf", &format!("[Interface]\nListenPort = {port}\n{peers}"))
    };
    let keepalive = "PersistentKeepalive = 25\nAllowedIPs = 10.1.0.0/16\n";
    let psk = format!("PresharedKey = {}\n", *preshared_key(9).to_base64());
    let file = conf(4567, &[(2, keepalive), (3, &psk)]);
    machine.wg(&format!("setconf {NAME} {file}"));
    let file = conf(4567, &[(4, ""), (2, "AllowedIPs = 10.2.0.0/16\n")]);
    machine.wg(&format!("addconf {NAME} {file}"));
    let dump = |machine: &Machine| {
        let mut lines: Vec<String> =
            machine.wg(&format!("show {NAME} dump")).lines().skip(1).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let line = |number: u8, psk: &str, ips: &str, keepalive: &str| {
        format!("{}\t{psk}\t(none)\t{ips}\t0\t0\t0\t{keepalive}", public_key(number))
    };
    let psk_text = preshared_key(9).to_base64();
    let mut expected = vec![
        line(2, "(none)", "10.2.0.0/16", "25"),
        line(3, &psk_text, "(none)", "off"),
        line(4, "(none)", "(none)", "off"),
    ];
    expected.sort();
    assert_eq!(dump(&machine), expected);
    // Settings that are not given are not kept: the peer is replaced.
    let file = conf(4568, &[(2, ""), (3, "")]);
    machine.wg(&format!("setconf {NAME} {file}"));
    let mut expected = vec![line(2, "(none)", "(none)", "off"), line(3, "(none)", "(none)", "off")];
    expected.sort();
    assert_eq!(dump(&machine), expected);
    assert_eq!(machine.wg(&format!("show {NAME} listen-port")), "4568\n");
}

#[test]
fn a_loaded_tunnel_takes_changes_of_its_peer_unharmed() {
    let Some(pair) = Pair::new() else { return };
    let stream = pair.stream();
    let before = pair.last_handshake();
    let peer = public_key(2);
    for words in [
        "persistent-keepalive 1",
        "persistent-keepalive off",
        "endpoint 192.0.2.2:51820",
        "allowed-ips 10.9.0.2/32,10.10.0.0/16",
        "allowed-ips 10.9.0.0/24",
    ] {
        pair.a.wg(&format!("set {NAME} peer {peer} {words}"));
        stream.goes_on();
    }
    assert_eq!(pair.last_handshake(), before, "nothing of this needs a new session");
    let (of_a, of_b) = (
        pair.a.file("psk", &preshared_key(5).to_base64()),
        pair.b.file("psk", &preshared_key(5).to_base64()),
    );
    pair.b.wg(&format!("set {NAME} peer {} preshared-key {of_b}", public_key(1)));
    pair.a.wg(&format!("set {NAME} peer {peer} preshared-key {of_a}"));
    stream.goes_on();
    stream.end();
}
