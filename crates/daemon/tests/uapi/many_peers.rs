//! Ten thousand peers through `wg setconf`.

use std::collections::HashMap;
use std::fmt::Write as _;

use weft_tunnel::PublicKey;

use crate::support::{Daemon, Machine, NAME, key};

const PEERS: u32 = 10_000;

fn peer(number: u32) -> PublicKey {
    let mut bytes = [5; 32];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    PublicKey::from_bytes(bytes)
}

fn allowed_ips(number: u32) -> String {
    let (high, low) = (number / 256, number % 256);
    format!("10.{high}.{low}.0/24,fd00:1:2:{:x}::/64,172.16.{high}.{low}/32", number + 1)
}

#[test]
fn ten_thousand_peers_are_set_and_shown() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let _daemon = Daemon::start(&machine);
    let mut config = format!("[Interface]\nPrivateKey = {}\nListenPort = 4567\n", *key(1).to_base64());
    for number in 0..PEERS {
        let (peer, ips) = (peer(number), allowed_ips(number));
        let port = 1 + number % 65_535;
        writeln!(config, "[Peer]\nPublicKey = {peer}\nAllowedIPs = {ips}\nEndpoint = 192.0.2.1:{port}")
            .unwrap();
    }
    let file = machine.file("conf", &config);
    machine.wg(&format!("setconf {NAME} {file}"));
    let dump = machine.wg(&format!("show {NAME} dump"));
    let shown: HashMap<&str, &str> =
        dump.lines().skip(1).map(|line| line.split_once('\t').unwrap()).collect();
    assert_eq!(shown.len(), PEERS as usize);
    for number in 0..PEERS {
        let port = 1 + number % 65_535;
        let expected = format!("(none)\t192.0.2.1:{port}\t{}\t0\t0\t0\toff", allowed_ips(number));
        assert_eq!(shown.get(peer(number).to_string().as_str()), Some(&expected.as_str()), "peer {number}");
    }
    // The same again, and all but one away.
    machine.wg(&format!("syncconf {NAME} {file}"));
    let one = format!("[Interface]\nListenPort = 4567\n[Peer]\nPublicKey = {}\n", peer(77));
    let file = machine.file("one", &one);
    machine.wg(&format!("syncconf {NAME} {file}"));
    assert_eq!(machine.wg(&format!("show {NAME} peers")), format!("{}\n", peer(77)));
}
