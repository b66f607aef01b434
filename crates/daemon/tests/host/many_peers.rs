//! The memory of a daemon that had ten thousand peers.

use std::fmt::Write as _;

use weft_tunnel::PublicKey;

use crate::support::{End, NAME, Network, peer};

const PEERS: u32 = 10_000;
/// The peers take 30 MiB, and a reload as much for a moment. What stays is between blocks that are in use.
const ALLOWED_KIB: u64 = 24 << 10;

#[test]
fn memory_goes_back_to_the_system_when_ten_thousand_peers_are_gone() {
    let Some(network) = Network::new() else { return };
    let end = End::new(1);
    let few = end.interface("") + &peer(End::new(2).public(), "AllowedIPs = 192.168.7.2/32");
    let mut many = few.clone();
    for number in 0..PEERS {
        let [_, _, high, low] = number.to_be_bytes();
        let mut key = [7; 32];
        key[..4].copy_from_slice(&number.to_be_bytes());
        let ips = format!("AllowedIPs = 11.{high}.{low}.0/24, fd11:{number:x}::/64");
        write!(many, "{}", peer(PublicKey::from_bytes(key), &ips)).unwrap();
    }
    let file = network.file("weft0.conf", &few);
    let daemon = network.up(&file);
    let memory = || daemon.anonymous_memory_kib().unwrap();
    let mut measured = vec![memory()];
    for text in [&many, &many, &few] {
        network.file("weft0.conf", text);
        let reload = network.run(&["reload", file.to_str().unwrap()]);
        assert_eq!(reload.code, Some(0), "{}", reload.stderr);
        assert_eq!(network.run(&["status", NAME]).code, Some(0));
        measured.push(memory());
    }
    assert!(measured[3] < measured[0] + ALLOWED_KIB, "{measured:?} KiB");
}
