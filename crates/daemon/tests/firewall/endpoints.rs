//! A device without a mark: its packets are told by where they go.

use std::net::SocketAddr;

use weft_host::firewall::{Local, OwnPackets, Rules};

use crate::attempts::Attempt;
use crate::world::{MARK, World, kill_switch, lines};

fn to(endpoints: &[&str]) -> Rules {
    let endpoints = endpoints.iter().map(|endpoint| endpoint.parse::<SocketAddr>().unwrap());
    kill_switch(OwnPackets::new(0, endpoints), Local::Blocked)
}

fn tries() -> Vec<Attempt> {
    vec![
        Attempt::udp("203.0.113.1", 51820),
        Attempt::udp("203.0.113.1", 51821),
        Attempt::tcp("203.0.113.1", 51820),
        Attempt::udp("203.0.113.2", 51820),
        Attempt::udp("2001:db8:ffff::1", 51820),
        Attempt::udp("2001:db8:ffff::2", 51820),
        Attempt::udp("203.0.113.3", 51820).mark(MARK),
    ]
}

#[test]
fn udp_to_the_peers_passes_and_nothing_else() {
    let Some(mut world) = World::new() else { return };
    world.apply(&to(&["203.0.113.1:51820", "[2001:db8:ffff::1]:51820"]));
    let expected = ["internet: udp 203.0.113.1 51820", "internet: udp 2001:db8:ffff::1 51820"];
    // Not for a client.
    let client = [Attempt::udp("203.0.113.1", 51820).source_port(5000), Attempt::udp("203.0.113.2", 51820)];
    assert_eq!(world.seen(&tries(), &[]), lines(expected));
    assert_eq!(world.seen(&[], &client), lines([]));
    world.apply(&to(&[]));
    assert_eq!(world.seen(&tries(), &[]), lines([]));
}

#[test]
fn ten_thousand_endpoints_are_taken() {
    let Some(mut world) = World::without_tunnel() else { return };
    let many =
        (0..10_000_u32).map(|number| SocketAddr::new((0xcb00_0000 + number).to_be_bytes().into(), 51820));
    world.apply(&kill_switch(OwnPackets::new(0, many), Local::Blocked));
    assert_eq!(
        world.seen(&[Attempt::udp("203.0.0.77", 51820)], &[]),
        lines(["internet: udp 203.0.0.77 51820"])
    );
}
