//! What a hostile peer sends.

use std::net::SocketAddr;
use std::time::Duration;

use weft_endpoint::{Config, Event, Limits, StreamState};

use crate::wire::*;
use crate::world::*;

const SECOND: Duration = Duration::from_secs(1);
const SACK: [u8; 12] = [2, 4, 5, 100, 1, 1, 4, 2, 1, 3, 3, 7];

#[test]
fn acknowledgements_of_what_was_never_sent_change_nothing() {
    let mut wire = Wire::connected(&SACK);
    wire.put(&[1; 1380 * 4]);
    let first = wire.ack;
    let at = |offset: i32| first.wrapping_add_signed(offset);
    let before = wire.end.stream(wire.id()).unwrap();
    let blocks = [
        (at(6000), at(9000)),
        (at(-5000), at(-10)),
        (at(3000), at(2000)),
        (at(1380), at(1_000_000)),
        (at(i32::MIN), at(i32::MAX)),
        (at(0), at(0)),
    ];
    for block in blocks {
        let forged = wire.ack().options(&sacks(&[block, block]));
        wire.send(&[forged]);
    }
    let beyond = Seg::new(ACK, wire.seq, at(6000));
    assert_eq!(wire.send(&[beyond])[0].ack, wire.seq);
    let after = wire.end.stream(wire.id()).unwrap();
    assert_eq!((after.in_flight, after.cwnd, after.bytes_acked), (before.in_flight, before.cwnd, 0));
}

#[test]
fn an_mss_of_one_does_not_make_segments_of_one_byte() {
    for mss in [0, 1, 47, 48, 100] {
        let mut wire = Wire::connected(&[2, 4, 0, mss]);
        let sent = wire.put(&[1; 500]);
        let most = sent.iter().map(|segment| segment.payload.len()).max().unwrap();
        assert_eq!(most, usize::from(mss.max(48)));
    }
}

#[test]
fn of_overlapping_segments_the_first_counts() {
    let mut wire = Wire::connected(&SACK);
    let piece = |at: u32, bytes: &[u8]| Seg::new(ACK, wire.seq.wrapping_add(at), wire.ack).payload(bytes);
    let segments = [piece(4, b"EF"), piece(2, b"cdxxg"), piece(0, b"abzzzzzh"), piece(1, b"qqqqqqqqqq")];
    wire.send(&segments);
    assert_eq!(wire.take(), b"abcdEFghqqq");
}

#[test]
fn half_open_connections_are_bounded_for_each_source_and_in_all() {
    let mut wire = Wire::new();
    let at = SocketAddr::new(address(0, true), 80);
    let listener = wire.end.listen(at, 4).unwrap();
    // One honest peer, then a flood from one source, then from many.
    let honest = wire.send(&[Seg::new(SYN, 1000, 0)]).remove(0);
    for port in 0..2000 {
        let syn = Seg { ports: (1000 + port, 80), ..Seg::new(SYN, 5, 0) };
        let bytes = syn.bytes("10.0.0.3".parse().unwrap(), address(0, true));
        assert_eq!(wire.raw(&[bytes]).len(), 1);
        assert!(wire.end.stats().half_open <= 65);
    }
    assert_eq!(wire.send(&[Seg::new(ACK, 1001, honest.seq.wrapping_add(1))]), []);
    assert!(wire.end.accept(listener).is_some());
    for source in 0..10_000_u32 {
        let address_of = std::net::Ipv4Addr::from_bits(0x0b00_0000 + source);
        let syn = Seg { ports: (1000, 80), ..Seg::new(SYN, 5, 0) };
        wire.raw(&[syn.bytes(address_of.into(), address(0, true))]);
        assert!(wire.end.stats().half_open <= 4097);
    }
    wire.wait(100 * SECOND);
    assert_eq!(wire.end.stats().half_open, 0);
}

#[test]
fn a_full_backlog_lets_the_peer_try_again() {
    let mut wire = Wire::new();
    let at = SocketAddr::new(address(0, true), 80);
    let listener = wire.end.listen(at, 2).unwrap();
    let handshake = |wire: &mut Wire, port: u16| {
        wire.ports.0 = port;
        let answer = wire.send(&[Seg::new(SYN, 1, 0)]).remove(0);
        let ack = Seg::new(ACK, 2, answer.seq.wrapping_add(1));
        wire.send(std::slice::from_ref(&ack));
        ack
    };
    let acks: Vec<Seg> = (1..=3).map(|port| handshake(&mut wire, port)).collect();
    assert_eq!((wire.end.stats().streams, wire.end.stats().half_open), (2, 1));
    assert!(wire.end.accept(listener).is_some());
    wire.ports.0 = 3;
    wire.send(&acks[2..]);
    assert_eq!((wire.end.stats().streams, wire.end.stats().half_open), (3, 0));
    wire.end.release_listener(listener, wire.now);
    assert_eq!(wire.sent().iter().filter(|segment| segment.flags & RST != 0).count(), 2);
    assert!(wire.end.listener_address(listener).is_none());
}

#[test]
fn no_more_is_kept_than_was_advertised() {
    let limits = Limits { receive_window: 100_000, ..Limits::default() };
    let mut wire = Wire::connected_with(Config { limits, ..config(0) }, &SACK, 60_000);
    for round in 0..3 {
        for n in (0..400).rev() {
            let data = Seg::new(ACK, wire.seq.wrapping_add(n * 1000), wire.ack).payload(&[7; 1000]);
            wire.send(&[data]);
        }
        let stats = wire.end.stream(wire.id()).unwrap();
        assert!(stats.receive_queue <= 100_064, "{} in round {round}", stats.receive_queue);
        assert!(wire.end.stats().reserved_bytes <= 100_064);
    }
}

#[test]
fn a_thousand_gaps_and_one_byte_segments_are_survived() {
    let mut wire = Wire::connected(&SACK);
    for n in 0..3000 {
        let data = Seg::new(ACK, wire.seq.wrapping_add(1 + 2 * n), wire.ack).payload(&[n as u8]);
        wire.send(&[data]);
    }
    for n in 0..6000 {
        let data = Seg::new(ACK, wire.seq.wrapping_add(n), wire.ack).payload(&[n as u8]);
        wire.send(&[data]);
    }
    assert_eq!(wire.take().len(), 6000);
}

#[test]
fn every_second_segment_sacked_is_survived() {
    let mut wire = Wire::connected_with(config(0), &[2, 4, 0, 48, 1, 1, 4, 2, 1, 3, 3, 14], 60_000);
    wire.put(&[1; 200_000]);
    let first = wire.ack;
    let mut acked = 0_u32;
    for round in 0..2000_u32 {
        let at = |offset: u32| first.wrapping_add(offset);
        let start = acked + 96 * (round % 50) + 48;
        let ack = Seg::new(ACK, wire.seq, at(acked)).options(&sacks(&[(at(start), at(start + 48))]));
        acked += u32::from(round % 60 == 59) * 480;
        wire.now += SECOND / 1000;
        wire.send(&[ack]);
        wire.wait(SECOND / 1000);
    }
    assert_eq!(wire.state(), StreamState::Established);
}

/// Returns a segment of the peer with this number, to port 80.
fn of_peer(peer: u32, segment: Seg) -> Vec<u8> {
    let source = std::net::Ipv4Addr::from_bits(0x0b00_0000 + peer);
    Seg { ports: (1000, 80), ..segment }.bytes(source.into(), address(0, true))
}

/// Has a peer connect. Returns the acknowledgement of its SYN, if it gets in.
fn open(wire: &mut Wire, peer: u32) -> Option<u32> {
    let answer =
        wire.raw(&[of_peer(peer, Seg::new(SYN, 0, 0))]).into_iter().find(|seg| seg.flags & SYN != 0)?;
    let before = wire.end.stats().opened;
    wire.raw(&[of_peer(peer, Seg::new(ACK, 1, answer.seq.wrapping_add(1)))]);
    (wire.end.stats().opened > before).then_some(answer.seq.wrapping_add(1))
}

#[test]
fn what_peers_send_behind_gaps_and_ends_stays_within_the_memory() {
    const MEMORY: u64 = 16 << 20;
    for (has_end, is_released) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut wire = Wire::with(Config { memory: MEMORY, ..config(0) });
        let listener = wire.end.listen(SocketAddr::new(address(0, true), 80), 4096).unwrap();
        let honest = open(&mut wire, 0).unwrap();
        let id = wire.end.accept(listener).unwrap();
        let mut opened = 0_u64;
        let peers = if has_end && is_released { 3000 } else { 1000 };
        for peer in 1..=peers {
            let Some(ack) = open(&mut wire, peer) else { continue };
            opened += 1;
            let piece = |at: u32| of_peer(peer, Seg::new(ACK, 1 + at, ack).payload(b"x"));
            let mut segments: Vec<_> = (4000..65_000_u32).step_by(4096).map(piece).collect();
            if has_end {
                segments.push(of_peer(peer, Seg::new(ACK | FIN, 1, ack)));
            }
            wire.raw(&segments);
            let stream = wire.end.accept(listener).unwrap();
            if is_released {
                wire.end.release(stream, wire.now);
            }
            let reserved = wire.end.stats().reserved_bytes;
            assert!(reserved <= MEMORY, "{reserved} bytes of {peer} peers, {has_end} {is_released}");
            // Nothing is left of what nobody can take, beside the window of the honest one.
            let is_little = reserved <= 65_535;
            assert!(is_little || !has_end && !is_released, "{reserved} bytes, {has_end} {is_released}");
        }
        assert!(opened == peers.into() || !has_end && !is_released && opened > 250, "{opened}");
        // One that was there goes on, both ways.
        let sent = Seg::new(ACK, 1, honest).payload(&[7; 1000]);
        wire.raw(&[of_peer(0, sent)]);
        assert_eq!(wire.end.take(id, wire.now).unwrap().unwrap().bytes(), [7; 1000]);
        let mut chunk = wire.end.reserve(id).unwrap().unwrap();
        chunk.fill(&[8; 500]);
        wire.end.put(id, chunk, wire.now).unwrap();
        assert!(wire.sent().iter().any(|segment| segment.payload == [8; 500]));
        if is_released {
            wire.wait(70 * SECOND);
            assert_eq!(wire.end.stats().streams, 1);
        }
    }
}

#[test]
fn the_oldest_of_many_released_connections_give_way() {
    let limits = Limits { orphans: 100, ..Limits::default() };
    let mut wire = Wire::with(Config { limits, ..config(0) });
    let listener = wire.end.listen(SocketAddr::new(address(0, true), 80), 4096).unwrap();
    for peer in 1..=300 {
        open(&mut wire, peer).unwrap();
        let stream = wire.end.accept(listener).unwrap();
        wire.end.release(stream, wire.now);
        let resets = wire.sent().iter().filter(|segment| segment.flags & RST != 0).count();
        assert_eq!(resets, usize::from(peer > 100), "{peer}");
        assert_eq!(wire.end.stats().streams, u64::from(peer.min(100)));
    }
}

#[test]
fn a_peer_that_takes_nothing_is_given_up_after_the_time_that_was_set() {
    for window in [60_000, 0] {
        let mut wire = Wire::connected(&SACK);
        let id = wire.id();
        wire.end.give_up_after(id, 20 * SECOND, wire.now);
        wire.wait(100 * SECOND);
        assert!(!wire.end.has_failed(id), "nothing was sent");
        wire.put(&[1; 2000]);
        wire.wait(19 * SECOND);
        // Progress counts, and answers without it do not.
        wire.ack = wire.ack.wrapping_add(1000);
        wire.send(&[wire.ack().window(window)]);
        for _ in 0..19 {
            wire.wait(SECOND);
            wire.send(&[wire.ack().window(window)]);
            assert!(!wire.end.has_failed(id), "{window}");
        }
        let sent = wire.wait(2 * SECOND);
        assert!(sent.iter().any(|(_, segment)| segment.flags & RST != 0));
        assert!(wire.end.has_failed(id) && wire.end.has_ended(id), "{window}");
    }
}

/// Segments with random fields near what is valid, in every state: nothing panics, every invariant holds (the
/// wire checks them), and memory stays within its bounds.
#[test]
fn random_segments_are_survived_in_every_state() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let limits = Limits { receive_window: 200_000, time_wait: 5, ..Limits::default() };
        let config = Config { limits, mtu: 1280 + random.next(9000) as u16, ..config(0) };
        let mut wire = match seed % 3 {
            0 => Wire::connected_with(config, &SACK, random.next(65_536) as u16),
            1 => Wire::connected_with(config, &[2, 4, 0, random.next(256) as u8], random.next(65_536) as u16),
            _ => {
                let mut wire = Wire::with(config);
                wire.connect();
                wire
            }
        };
        let at = SocketAddr::new(address(0, true), 443);
        wire.end.listen(at, 3).unwrap();
        let mut is_open = true;
        for _ in 0..400 {
            let near = |random: &mut Random, number: u32| match random.next(6) {
                0 | 1 => number,
                2 => number.wrapping_add(random.next(3000) as u32),
                3 => number.wrapping_sub(random.next(3000) as u32),
                4 => number.wrapping_add(random.next(400_000) as u32),
                _ => random.next(1 << 32) as u32,
            };
            let flags = match random.next(8) {
                0 => random.next(256) as u8,
                1 => ACK | FIN,
                2 => ACK | RST,
                3 => SYN | ACK,
                _ => ACK | PSH,
            };
            let mut segment = Seg::new(flags, near(&mut random, wire.seq), near(&mut random, wire.ack));
            segment.window = random.next(65_536) as u16 >> random.next(16);
            segment.payload = vec![3; random.next(1500) as usize * random.next(2) as usize];
            segment.options = match random.next(4) {
                0 => {
                    let mut block = || (near(&mut random, wire.ack), near(&mut random, wire.ack));
                    sacks(&[block(), block(), block()])
                }
                1 => times(near(&mut random, 5), near(&mut random, 5)),
                2 => (0..4 * random.next(10)).map(|_| random.next(256) as u8).collect(),
                _ => Vec::new(),
            };
            let mut bytes = segment.clone();
            bytes.ports = if random.one_in(20) { (random.next(3) as u16, 443) } else { wire.ports };
            let mut packet = bytes.bytes(address(1, true), address(0, true));
            if random.one_in(10) {
                let at = random.next(packet.len() as u64) as usize;
                packet[at] ^= 1 << random.next(8);
            }
            for sent in wire.raw(&[packet]) {
                if sent.ports == (wire.ports.1, wire.ports.0) {
                    wire.ack = sent.seq.wrapping_add(sent.payload.len() as u32);
                    if sent.flags & RST == 0 {
                        wire.seq = sent.ack;
                    }
                }
            }
            let id = wire.id();
            match random.next(12) {
                0 => drop(wire.wait(SECOND * random.next(100) as u32 / 10)),
                1 => {
                    if let Ok(Some(mut chunk)) = wire.end.reserve(id) {
                        chunk.commit(random.next(40_000) as usize);
                        wire.end.put(id, chunk, wire.now).unwrap();
                    }
                }
                2 => drop(wire.end.take(id, wire.now)),
                3 if random.one_in(20) => wire.end.finish(id, wire.now),
                4 if random.one_in(60) => {
                    wire.end.release(id, wire.now);
                    is_open = false;
                }
                5 if !is_open && random.one_in(3) => {
                    wire.connect();
                    is_open = true;
                }
                6 => wire.end.set_mtu(576 + random.next(60_000) as u16, wire.now),
                _ => {}
            }
            assert!(wire.end.stats().reserved_bytes < 8 << 20);
        }
    }
}

/// Arbitrary bytes as IP packets.
#[test]
fn random_packets_are_survived() {
    let mut random = Random(5);
    let mut wire = Wire::new();
    let any: SocketAddr = "0.0.0.0:99".parse().unwrap();
    wire.end.bind_udp(any).unwrap();
    for _ in 0..20_000 {
        let protocol = [1, 6, 17, 58, 44, 0, 43, 60][random.next(8) as usize];
        let payload: Vec<u8> = (0..random.next(120)).map(|_| random.next(256) as u8).collect();
        let is_ipv4 = random.one_in(2);
        let checksum_at = match protocol {
            1 | 58 if payload.len() > 4 => Some(2),
            6 if payload.len() > 18 => Some(16),
            17 if payload.len() > 8 => Some(6),
            _ => None,
        };
        let mut bytes = packet(address(1, is_ipv4), address(0, is_ipv4), protocol, payload, checksum_at);
        if is_ipv4 && random.one_in(3) {
            bytes[6..8].copy_from_slice(&(random.next(1 << 16) as u16).to_be_bytes());
            weft_tunnel::ip::write_ipv4_checksum(&mut bytes, 20);
        }
        wire.raw(&[bytes]);
    }
}

#[test]
fn a_peer_that_vanishes_in_any_state_leaves_nothing_behind() {
    for cut_after in 0..40 {
        let mut world = World::new("rate=20mbit,delay=10ms", cut_after);
        let ids = world.connect(true);
        let mut applications = [Application::new(ids[0], 100_000, 0), Application::new(ids[1], 100_000, 1)];
        for _ in 0..cut_after * 4 {
            for (end, application) in applications.iter_mut().enumerate() {
                let now = world.now;
                application.work(&mut world.ends[end], 1 - end as u64, now);
            }
            world.step();
        }
        world.is_cut = true;
        for (end, id) in ids.into_iter().enumerate() {
            let now = world.now;
            world.ends[end].release(id, now);
        }
        world.run(3000 * SECOND, |world| world.states().iter().all(Vec::is_empty));
        while world.step() {}
        assert!(world.ends.iter().all(|end| end.stats().reserved_bytes == 0 && end.stats().streams == 0));
    }
}

#[test]
fn an_application_that_does_not_read_stops_its_peer_only() {
    let mut world = World::new("rate=100mbit,delay=5ms,loss=1%", 3);
    let ids = world.connect(true);
    let mut applications = [Application::new(ids[0], 5 << 20, 0), Application::new(ids[1], 0, 1)];
    applications[1].reads = false;
    let until = world.now + 300 * SECOND;
    while world.now < until {
        for (end, application) in applications.iter_mut().enumerate() {
            let now = world.now;
            application.work(&mut world.ends[end], 1 - end as u64, now);
        }
        assert!(world.step());
    }
    let stats = world.ends[1].stream(ids[1]).unwrap();
    assert!((65_535..65_535 + 1024).contains(&stats.receive_queue), "{}", stats.receive_queue);
    applications[1].reads = true;
    exchange_with(&mut world, &mut applications, 600 * SECOND);
    assert_eq!((applications[1].read, applications[1].error), (5 << 20, None));
    assert!(!world.events[0].iter().any(|event| matches!(event, Event::Failed(..))));
}

#[test]
fn gaps_of_connections_that_were_open_before_stay_within_the_memory() {
    const MEMORY: u64 = 16 << 20;
    let mut wire = Wire::with(Config { memory: MEMORY, ..config(0) });
    wire.end.listen(SocketAddr::new(address(0, true), 80), 4096).unwrap();
    let acks: Vec<(u32, u32)> = (1..=700).map(|peer| (peer, open(&mut wire, peer).unwrap())).collect();
    for (peer, ack) in acks {
        let piece = |at: u32| of_peer(peer, Seg::new(ACK, 1 + at, ack).payload(b"x"));
        wire.raw(&(4000..65_000_u32).step_by(4096).map(piece).collect::<Vec<_>>());
        let reserved = wire.end.stats().reserved_bytes;
        assert!(reserved <= MEMORY, "{reserved} bytes of {peer} peers");
    }
}
