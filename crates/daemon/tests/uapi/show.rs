//! `wg show` in all its forms, and `wg showconf`.
use weft_lab::until;

use crate::support::{Daemon, Machine, NAME, key, preshared_key, public_key};

/// An interface with a peer that has everything, and one that has nothing.
fn configured() -> Option<(Machine, Daemon)> {
    let machine = Machine::new(&["wg"])?;
    let daemon = Daemon::start(&machine);
    let config = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 4567\nFwMark = 0xca6c\n[Peer]\nPublicKey = {}\nPresharedKey = {}\n\
         AllowedIPs = 10.1.0.0/16, fd01::/64, 10.2.0.1/32\nEndpoint = [2001:db8::7]:9\nPersistentKeepalive = 25\n\
         [Peer]\nPublicKey = {}\n",
        *key(1).to_base64(),
        public_key(2),
        *preshared_key(3).to_base64(),
        public_key(4),
    );
    let file = machine.file("conf", &config);
    machine.wg(&format!("setconf {NAME} {file}"));
    Some((machine, daemon))
}

#[test]
fn an_interface_that_was_told_nothing_shows_a_port_alone() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let _daemon = Daemon::start(&machine);
    let port: u16 = machine.wg(&format!("show {NAME} listen-port")).trim().parse().unwrap();
    assert_eq!(machine.wg(&format!("show {NAME} dump")), format!("(none)\t(none)\t{port}\toff\n"));
    assert_eq!(machine.wg(&format!("show {NAME}")), format!("interface: {NAME}\n  listening port: {port}\n"));
    assert_eq!(machine.wg(&format!("showconf {NAME}")), format!("[Interface]\nListenPort = {port}\n\n"));
}

#[test]
fn every_form_of_show_tells_what_was_set() {
    let Some((machine, _daemon)) = configured() else { return };
    let (full, bare) = (public_key(2), public_key(4));
    let own_key = key(1).to_base64();
    let psk = preshared_key(3).to_base64();
    assert_eq!(machine.wg("show interfaces"), format!("{NAME}\n"));
    for (field, expected) in [
        ("public-key", format!("{}\n", public_key(1))),
        ("private-key", format!("{}\n", *own_key)),
        ("listen-port", "4567\n".to_owned()),
        ("fwmark", "0xca6c\n".to_owned()),
        ("peers", format!("{full}\n{bare}\n")),
        ("preshared-keys", format!("{full}\t{}\n{bare}\t(none)\n", *psk)),
        ("endpoints", format!("{full}\t[2001:db8::7]:9\n{bare}\t(none)\n")),
        ("allowed-ips", format!("{full}\t10.1.0.0/16 fd01::/64 10.2.0.1/32\n{bare}\t(none)\n")),
        ("latest-handshakes", format!("{full}\t0\n{bare}\t0\n")),
        ("persistent-keepalive", format!("{full}\t25\n{bare}\toff\n")),
    ] {
        assert_eq!(machine.wg(&format!("show {NAME} {field}")), expected, "{field}");
        if field == "endpoints" {
            // wg(8) says the interface once only here.
            assert_eq!(machine.wg("show all endpoints"), format!("{NAME}\t{expected}"));
            continue;
        }
        let of_all: String = expected.lines().map(|line| format!("{NAME}\t{line}\n")).collect();
        assert_eq!(machine.wg(&format!("show all {field}")), of_all, "{field}");
    }
    // The handshake that a keepalive asks for may have been tried already.
    let transfer = machine.wg(&format!("show {NAME} transfer"));
    assert!(transfer.starts_with(&format!("{full}\t0\t")) && transfer.ends_with(&format!("{bare}\t0\t0\n")));
    let text = machine.wg("show");
    for line in [
        &format!("interface: {NAME}"),
        &format!("  public key: {}", public_key(1)),
        "  private key: (hidden)",
        "  listening port: 4567",
        "  fwmark: 0xca6c",
        &format!("peer: {full}"),
        "  preshared key: (hidden)",
        "  endpoint: [2001:db8::7]:9",
        "  allowed ips: 10.1.0.0/16, fd01::/64, 10.2.0.1/32",
        "  persistent keepalive: every 25 seconds",
        &format!("peer: {bare}"),
        "  allowed ips: (none)",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line:?} is not in\n{text}");
    }
}

#[test]
fn showconf_is_what_setconf_takes() {
    let Some((machine, _daemon)) = configured() else { return };
    let shown = machine.wg(&format!("showconf {NAME}"));
    assert!(shown.contains("AllowedIPs = 10.1.0.0/16, fd01::/64, 10.2.0.1/32"), "{shown}");
    machine.wg(&format!(
        "set {NAME} private-key /dev/null listen-port 1 fwmark off peer {} remove",
        public_key(2)
    ));
    let file = machine.file("shown", &shown);
    machine.wg(&format!("setconf {NAME} {file}"));
    // Peers stand in the order in which they were added.
    until("all is as it was", || {
        let again = machine.wg(&format!("showconf {NAME}"));
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        sorted(&again) == sorted(&shown)
    });
}
