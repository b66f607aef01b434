use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use weft_tunnel::{ControlQueue, DropReason, Ecn, PlainSlab, PrivateKey, RecvMeta, Tunnel, TunnelConfig};

use super::*;
use crate::Namespace;
use crate::link::{self, LinkOptions};

/// A tunnel without peers, and its replies.
struct Target {
    tunnel: Tunnel,
    control: ControlQueue,
    now: Instant,
}

impl Target {
    fn new(key: &PrivateKey) -> Self {
        let tunnel = Tunnel::new(key.clone(), TunnelConfig { mtu: 1420, staging_bytes: 0 });
        Self { tunnel, control: ControlQueue::new(4), now: Instant::now() }
    }

    fn take(&mut self, source: &str, datagram: &[u8]) -> Option<DropReason> {
        let meta = RecvMeta {
            source: source.parse().unwrap(),
            local: None,
            ecn: Ecn::NotEct,
            len: datagram.len(),
            stride: datagram.len(),
        };
        let mut plain = PlainSlab::new(4096);
        let mut datagram = datagram.to_vec();
        self.tunnel.handle_datagram(&meta, &mut datagram, self.now, &mut plain, &mut self.control).err()
    }

    /// Returns the reply to the last datagram.
    fn answer(&mut self) -> Option<Vec<u8>> {
        Some(self.control.pop()?.transmit().contents.to_vec())
    }

    /// Sends initiations until the target demands a cookie, and returns that initiation with the reply.
    fn put_under_load(&mut self, source: &str, all: &[Initiation]) -> (Initiation, Vec<u8>) {
        for message in all {
            if self.take(source, message.bytes()) == Some(DropReason::CookieRequired) {
                return (message.clone(), self.answer().unwrap());
            }
        }
        panic!("{} initiations, and no cookie was asked for", all.len());
    }
}

const SOURCE: &str = "192.0.2.7:4000";

#[test]
fn an_initiation_passes_the_first_mac_and_a_spoilt_one_does_not() {
    let key = PrivateKey::generate().unwrap();
    for contents in [Contents::Random, Contents::UnknownKey] {
        let mut all = Initiation::several(&key.public_key(), 3, contents).unwrap();
        assert_ne!(all[0].bytes()[8..], all[1].bytes()[8..], "ephemeral keys differ");
        let mut target = Target::new(&key);
        assert_eq!(target.take(SOURCE, all[0].bytes()), Some(DropReason::UnknownPeer), "{contents:?}");
        all[1].spoil();
        assert_eq!(target.take(SOURCE, all[1].bytes()), Some(DropReason::InvalidMac));
        let other = PrivateKey::generate().unwrap();
        assert_eq!(Target::new(&other).take(SOURCE, all[2].bytes()), Some(DropReason::InvalidMac));
    }
}

#[test]
fn a_cookie_proves_a_source_and_no_other() {
    let key = PrivateKey::generate().unwrap();
    let public = key.public_key();
    let all = Initiation::several(&public, 1500, Contents::Random).unwrap();
    let mut target = Target::new(&key);
    let (asked, reply) = target.put_under_load(SOURCE, &all);
    assert_eq!(open_cookie_reply(&public, &reply, &[0; 16]), None, "a reply to another message");
    assert_eq!(open_cookie_reply(&public, &reply[..63], asked.mac1()), None);
    let cookie = open_cookie_reply(&public, &reply, asked.mac1()).unwrap();
    let mut proven = all[999].clone();
    proven.prove(&cookie);
    assert_eq!(target.take("192.0.2.8:4000", proven.bytes()), Some(DropReason::CookieRequired));
    assert_eq!(target.take(SOURCE, all[998].bytes()), Some(DropReason::CookieRequired));
    assert_eq!(target.take(SOURCE, proven.bytes()), Some(DropReason::UnknownPeer));
}

#[test]
fn every_message_of_a_source_gets_its_cookie() {
    let key = PrivateKey::generate().unwrap();
    let public = key.public_key();
    let mut all = Initiation::several(&public, 1500, Contents::Random).unwrap();
    let mut target = Target::new(&key);
    let (asked, reply) = target.put_under_load(SOURCE, &all);
    let source = all.iter().position(|message| *message == asked).unwrap() % 4;
    let mut proofs = Proofs::new(&public, 4, all.len());
    assert_eq!(proofs.take(b"junk", &mut all), 0);
    assert_eq!(proofs.take(&reply, &mut all), 1);
    assert_eq!(proofs.take(&reply, &mut all), 0, "it has one already");
    for (number, message) in all.iter().enumerate().skip(980).take(4) {
        assert_eq!(proofs.has(number), number % 4 == source);
        let reason = target.take(SOURCE, message.bytes());
        assert_eq!(reason != Some(DropReason::CookieRequired), number % 4 == source, "{reason:?}");
    }
}

#[test]
fn sources_are_as_many_as_asked_for() {
    let distinct = |sources: &Sources| {
        let all: BTreeSet<SocketAddr> = (0..sources.len()).map(|number| sources.get(number)).collect();
        (all.len(), all.iter().map(SocketAddr::ip).collect::<BTreeSet<IpAddr>>().len())
    };
    let v4 = Sources::addresses("198.19.0.0".parse().unwrap(), 65_536);
    assert_eq!(distinct(&v4), (65_536, 65_536));
    assert_eq!(v4.get(65_535).ip(), "198.19.255.255".parse::<IpAddr>().unwrap());
    let v6 = Sources::addresses("2001:db8:f::1".parse().unwrap(), 1024);
    assert_eq!(v6.get(1023).ip(), "2001:db8:f:3ff::1".parse::<IpAddr>().unwrap());
    assert_eq!(v6.get(1024), v6.get(0));
    let ports = Sources::ports("198.19.0.1".parse().unwrap(), 60_000);
    assert_eq!(distinct(&ports), (60_000, 1));
}

#[test]
fn junk_is_no_message_of_a_peer() {
    let key = PrivateKey::generate().unwrap();
    let mut target = Target::new(&key);
    let reasons: BTreeSet<&str> = Junk::Mixed
        .several(600)
        .iter()
        .map(|datagram| target.take(SOURCE, datagram).expect("it is dropped").label())
        .collect();
    assert_eq!(reasons, ["malformed_datagram", "unknown_receiver_index"].into());
    let aimed = Junk::ForIndex(0x0102_0304).several(2);
    assert_eq!(junk::receiver_index(&aimed[1]), Some(0x0102_0304));
    assert_ne!(aimed[0], aimed[1]);
}

#[test]
fn a_frame_is_read_as_it_was_written() {
    for (source, target) in [(SOURCE, "198.51.100.1:51820"), ("[2001:db8::7]:4000", "[2001:db8::1]:51820")] {
        let (source, target) = (source.parse().unwrap(), target.parse().unwrap());
        let frame = Frame::new([2; 6], [4; 6], target);
        let mut buffer = vec![0xff; 200];
        let len = frame.write(source, b"a datagram", &mut buffer);
        assert_eq!(len, frame.headers() + 10);
        assert_eq!(frame::parse(&buffer[..len]), Some((source, target, &b"a datagram"[..])));
    }
}

/// Two namespaces, and a socket in the second one as the target of a flood.
fn target(address: &str) -> (Namespace, Namespace, UdpSocket) {
    let (attacker, target) = (Namespace::new("attacker").unwrap(), Namespace::new("target").unwrap());
    let address = address.parse::<ipnet::IpNet>().unwrap();
    let options = LinkOptions { addresses_b: vec![address], ..LinkOptions::default() };
    link::join(&attacker, &target, &options).unwrap();
    // Accept packets from any source, although nothing is routed back.
    for name in ["all", "eth0"] {
        target.set_sysctl(&format!("net/ipv4/conf/{name}/rp_filter"), "0").unwrap();
    }
    let socket = target.bind_udp((address.addr(), 0));
    socket.set_read_timeout(Some(crate::PATIENCE)).unwrap();
    (attacker, target, socket)
}

#[test]
fn a_flood_arrives_from_all_its_sources_and_ends_by_itself() {
    if !crate::here::namespaces_permitted() {
        return;
    }
    for (address, first) in [("198.18.0.1/24", "198.19.0.0"), ("2001:db8::1/64", "2001:db8:f::1")] {
        let (attacker, target, socket) = target(address);
        let flood = Flood {
            kind: Kind::WithMac1(Contents::Random),
            target: socket.local_addr().unwrap(),
            key: PrivateKey::generate().unwrap().public_key(),
            sources: Sources::addresses(first.parse().unwrap(), 16),
            per_second: 1000,
            time: Duration::from_secs(1),
        };
        let sources: BTreeSet<SocketAddr> = (0..16).map(|number| flood.sources.get(number)).collect();
        let mut running = flood.start(&attacker, "eth0", &target, "eth0").unwrap();
        let mut seen = BTreeSet::new();
        while seen.len() < sources.len() {
            let mut buffer = [0; 2048];
            let (len, from) = socket.recv_from(&mut buffer).unwrap();
            // Neighbour discovery is not UDP: nothing else arrives here.
            assert_eq!((len, sources.contains(&from)), (INITIATION_LEN, true), "{from}");
            seen.insert(from);
        }
        let sent = running.wait().unwrap();
        assert!(sent.datagrams >= 16 && sent.proven == 0, "{sent:?}");
    }
}

#[test]
fn a_flood_with_cookies_opens_the_replies_that_come_back() {
    if !crate::here::namespaces_permitted() {
        return;
    }
    let (attacker, namespace, socket) = target("198.18.0.1/24");
    link::add_address(&attacker, "eth0", "198.18.0.2/24".parse().unwrap()).unwrap();
    // The target's network routes the sources to the attacker.
    let behind = "198.19.0.0/16".parse().unwrap();
    link::add_route(&namespace, behind, "198.18.0.2".parse().unwrap()).unwrap();
    let key = PrivateKey::generate().unwrap();
    let flood = Flood {
        kind: Kind::WithCookie(Contents::Random),
        target: socket.local_addr().unwrap(),
        key: key.public_key(),
        sources: Sources::addresses("198.19.0.1".parse().unwrap(), 4),
        per_second: 2000,
        time: crate::PATIENCE,
    };
    let running = flood.start(&attacker, "eth0", &namespace, "eth0").unwrap();
    let mut target = Target::new(&key);
    let mut buffer = [0; 2048];
    // Four sources with a cookie: more than pass without one.
    let mut proven = BTreeSet::new();
    while proven.len() < 4 {
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        let reason = target.take(&from.to_string(), &buffer[..len]);
        if let Some(reply) = target.answer() {
            assert_eq!(reason, Some(DropReason::CookieRequired));
            socket.send_to(&reply, from).unwrap();
        } else if buffer[INITIATION_LEN - 16..len] != [0; 16] {
            proven.insert(from);
        }
    }
    let sent = running.end().unwrap();
    assert!(sent.cookies >= 4 && sent.proven >= 4, "{sent:?}");
}
