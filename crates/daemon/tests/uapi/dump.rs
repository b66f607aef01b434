//! `wg show all dump` of weft and of wireguard-go, after the same commands.

use weft_lab::link;

use crate::support::{Daemon, Kind, Machine, NAME, key, preshared_key, public_key};

/// What is compared: the columns that must differ are bytes sent (handshakes are tried when they are due) and
/// nothing else. wireguard-go gives peers in no order.
fn masked(dump: &str) -> Vec<String> {
    let mask = |line: &str| {
        let mut fields: Vec<&str> = line.split('\t').collect();
        if fields.len() == 9 {
            fields[7] = "SENT";
        }
        fields.join("\t")
    };
    let mut lines: Vec<String> = dump.lines().map(mask).collect();
    lines.sort();
    lines
}

fn peer(number: u8, more: &str) -> String {
    format!("[Peer]\nPublicKey = {}\n{more}", public_key(number))
}

/// Commands, as the words behind `wg`, with the text of the file at `FILE`.
fn commands() -> Vec<(String, String)> {
    let interface =
        format!("[Interface]\nPrivateKey = {}\nListenPort = 4567\nFwMark = 0x1234\n", *key(1).to_base64());
    let psk = format!("PresharedKey = {}\n", *preshared_key(8).to_base64());
    let set = |words: String| (format!("set {NAME} {words}"), String::new());
    vec![
        (
            format!("setconf {NAME} FILE"),
            interface.clone()
                + &peer(2, "AllowedIPs = 10.1.2.3/16, fd00::5/64, 0.0.0.0/0, ::/0\nEndpoint = 192.0.2.1:7\n")
                + &peer(3, &format!("{psk}AllowedIPs = 10.9.0.0/24\nPersistentKeepalive = 25\n"))
                + &peer(4, ""),
        ),
        set(format!("peer {} allowed-ips 10.1.0.0/16", public_key(4))),
        set(format!("peer {} endpoint [2001:db8::1]:65535 persistent-keepalive 1", public_key(4))),
        set(format!("peer {} preshared-key /dev/null persistent-keepalive off", public_key(3))),
        (format!("addconf {NAME} FILE"), peer(5, "AllowedIPs = 10.5.0.0/16, 10.5.0.0/17\n") + &peer(2, "")),
        set(format!("peer {} remove peer {} remove", public_key(3), public_key(200))),
        // The interface's key, and a peer with the key that it becomes.
        set(format!("peer {} allowed-ips 10.77.0.0/16", public_key(1))),
        ("set wg0 private-key FILE".to_owned(), key(5).to_base64().to_string()),
        (
            format!("syncconf {NAME} FILE"),
            interface.clone() + &peer(2, "AllowedIPs = 10.1.0.0/16\n") + &peer(6, "AllowedIPs = fd06::/16\n"),
        ),
        set("fwmark off listen-port 4568".to_owned()),
        (format!("setconf {NAME} FILE"), interface + &peer(6, "")),
        set(format!("private-key /dev/null peer {} remove", public_key(6))),
    ]
}

#[test]
fn weft_shows_what_wireguard_go_shows() {
    let Some(ours) = Machine::new(&["wg", "wireguard-go"]) else { return };
    let Some(theirs) = Machine::new(&["wg", "wireguard-go"]) else { return };
    let _daemons = [Daemon::start_kind(&ours, Kind::Weft), Daemon::start_kind(&theirs, Kind::WireguardGo)];
    for machine in [&ours, &theirs] {
        // wireguard-go has no port while its interface is down.
        link::set_up(&machine.namespace, NAME).unwrap();
    }
    for (words, text) in commands() {
        for machine in [&ours, &theirs] {
            let file = machine.file("file", &text);
            machine.wg(&words.replace("FILE", &file));
        }
        let (shown, expected) = (ours.wg("show all dump"), theirs.wg("show all dump"));
        assert_eq!(masked(&shown), masked(&expected), "after wg {words}");
    }
}
