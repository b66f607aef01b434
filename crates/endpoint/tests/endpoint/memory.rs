//! What is advertised is there: the memory of windows and queues, and how it is shared.

use std::net::SocketAddr;
use std::time::Duration;

use weft_endpoint::{Config, ListenerId, StreamError, StreamId, StreamState};

use crate::wire::*;
use crate::world::*;

const SECOND: Duration = Duration::from_secs(1);
const SCALE: u8 = 7;
const ROUND_TRIP: Duration = Duration::from_millis(20);

/// A peer that sends as much as it may.
struct Peer {
    number: u32,
    id: StreamId,
    next: u32,
    ack: u32,
    /// The right edge of the window, and the unit in which it is told.
    edge: u32,
    scale: u8,
}

impl Peer {
    /// Connects to port 80. `None`: the endpoint does not take it.
    fn open(wire: &mut Wire, listener: ListenerId, number: u32) -> Option<Self> {
        let syn = Seg::new(SYN, 0, 0).options(&[2, 4, 5, 100, 4, 2, 3, 3, SCALE, 0, 0, 0]);
        let answer = wire.raw(&[Self::packet(number, syn)]).pop()?;
        let scale = *answer.options.last()?;
        let edge = 1 + u32::from(answer.window);
        let ack = answer.seq.wrapping_add(1);
        wire.now += ROUND_TRIP;
        wire.raw(&[Self::packet(number, Seg::new(ACK, 1, ack))]);
        let id = wire.end.accept(listener)?;
        Some(Self { number, id, next: 1, ack, edge, scale })
    }

    fn packet(number: u32, segment: Seg) -> Vec<u8> {
        let source = std::net::Ipv4Addr::from_bits(0x0b00_0000 + number);
        Seg { ports: (1000, 80), ..segment }.bytes(source.into(), address(0, true))
    }

    /// Sends all that the window takes, the last segment first. Everything is taken.
    fn fill(&mut self, wire: &mut Wire) -> u32 {
        let mut sent = 0;
        while self.next < self.edge {
            let end = self.edge.min(self.next + 32 * 1380);
            let piece = |at: u32| {
                let len = (end - at).min(1380) as usize;
                Self::packet(self.number, Seg::new(ACK, at, self.ack).payload(&vec![7; len]))
            };
            let packets: Vec<_> = (self.next..end).step_by(1380).map(piece).rev().collect();
            sent += end - self.next;
            self.next = end;
            let mut answers = wire.raw(&packets);
            if answers.is_empty() {
                answers.extend(wire.wait(SECOND / 20).into_iter().map(|(_, answer)| answer));
            }
            self.read(&answers);
            assert_eq!(answers.last().map(|answer| answer.ack), Some(end), "of {}", self.number);
        }
        sent
    }

    fn read(&mut self, answers: &[Seg]) {
        for answer in answers {
            let edge = answer.ack + (u32::from(answer.window) << self.scale);
            // What is told is rounded.
            assert!(edge + (1 << self.scale) > self.edge, "from {} back to {edge}", self.edge);
            self.edge = self.edge.max(edge);
        }
    }

    /// Has the application take everything.
    fn take(&mut self, wire: &mut Wire) {
        while let Some(chunk) = wire.end.take(self.id, wire.now).unwrap() {
            wire.end.give_back(chunk);
        }
        let answers = wire.sent();
        self.read(&answers);
    }

    /// Fills the window and has it taken, a few round trips long. Returns the last window.
    fn stream(&mut self, wire: &mut Wire, rounds: u32) -> u32 {
        for _ in 0..rounds {
            wire.now += ROUND_TRIP;
            assert!(self.fill(wire) > 0, "the window does not open again");
            self.take(wire);
        }
        self.edge - self.next
    }
}

fn listening(memory: u64) -> (Wire, ListenerId) {
    let mut wire = Wire::with(Config { memory, ..config(0) });
    let listener = wire.end.listen(SocketAddr::new(address(0, true), 80), 20_000).unwrap();
    (wire, listener)
}

#[test]
fn ten_thousand_connections_that_nobody_reads_leave_the_memory_to_one_that_is_read() {
    for (memory, window) in [(64 << 20, 4096), (256 << 20, 8 << 20)] {
        let (mut wire, listener) = listening(memory);
        let mut reader = Peer::open(&mut wire, listener, 0).unwrap();
        let mut opened = 0;
        for number in 1..=10_000 {
            wire.checks = number % 1000 == 0;
            if let Some(mut peer) = Peer::open(&mut wire, listener, number) {
                peer.fill(&mut wire);
                opened += 1;
            }
            let reserved = wire.end.stats().reserved_bytes;
            assert!(reserved <= memory, "{reserved} bytes of {opened} connections");
        }
        // Those that stand still for long give way to new ones.
        assert_eq!((opened, wire.end.stats().gave_way > 0), (10_000, memory == 64 << 20));
        wire.checks = false;
        let found = reader.stream(&mut wire, 12);
        assert!(found >= window, "a window of {found} beside them");
        wire.end.check();
    }
}

#[test]
fn memory_that_others_hold_narrows_a_window_and_widens_it_when_it_is_free() {
    let (mut wire, listener) = listening(16 << 20);
    let mut reader = Peer::open(&mut wire, listener, 0).unwrap();
    // One has no more than a quarter.
    let window = reader.stream(&mut wire, 12);
    assert!((1 << 20..=4 << 20).contains(&window), "{window}");
    // Others have much to send, which their peers do not take.
    let others: Vec<Peer> = (1..300).map_while(|number| Peer::open(&mut wire, listener, number)).collect();
    wire.checks = false;
    let mut window = 0;
    for _ in 0..4 {
        for other in others.iter().cycle().take(1000) {
            if let Ok(Some(mut chunk)) = wire.end.reserve(other.id) {
                chunk.commit(64 << 10);
                wire.end.put(other.id, chunk, wire.now).unwrap();
            }
        }
        wire.sent();
        window = reader.stream(&mut wire, 12);
    }
    wire.checks = true;
    let reserved = wire.end.stats().reserved_bytes;
    assert!(reserved > 13 << 20, "{reserved} bytes");
    assert!((4096..=4096 + 1380).contains(&window), "{window}");
    // They are gone.
    for other in others {
        let reset = Seg::new(RST | ACK, other.next, other.ack);
        wire.raw(&[Peer::packet(other.number, reset)]);
    }
    let window = reader.stream(&mut wire, 12);
    assert!(window > 1 << 20, "{window}");
}

/// Opens connections of `numbers` until one is not taken.
fn fill_memory(wire: &mut Wire, listener: ListenerId, numbers: std::ops::Range<u32>) -> Vec<Peer> {
    wire.checks = false;
    let peers: Vec<Peer> = numbers.map_while(|number| Peer::open(wire, listener, number)).collect();
    wire.checks = true;
    assert!(peers.len() > 500 && wire.end.stats().gave_way == 0, "{} connections", peers.len());
    peers
}

#[test]
fn an_owner_that_fills_the_memory_gives_way_to_others() {
    let (mut wire, listener) = listening(8 << 20);
    let networks = ["11.0.0.0/16", "11.1.0.0/16"].map(|network| vec![network.parse().unwrap()]);
    wire.end.set_owners(&networks);
    let mut greedy = fill_memory(&mut wire, listener, 0..10_000);
    // A byte now and then is no use of its memory.
    for peer in &mut greedy {
        wire.raw(&[Peer::packet(peer.number, Seg::new(ACK, 1, peer.ack).payload(&[7]))]);
        peer.next += 1;
        peer.take(&mut wire);
    }
    let mut others: Vec<Peer> =
        (65_536..65_586).map(|number| Peer::open(&mut wire, listener, number).unwrap()).collect();
    for other in &mut others {
        other.fill(&mut wire);
        other.take(&mut wire);
    }
    let gave_way = wire.end.stats().gave_way;
    assert!((1..300).contains(&gave_way), "{gave_way}");
    let error = wire.end.take(greedy[0].id, wire.now).unwrap_err();
    assert_eq!(error, StreamError::GaveWay);
}

#[test]
fn of_one_owner_a_connection_that_stands_still_gives_way() {
    let (mut wire, listener) = listening(8 << 20);
    let mut peers = fill_memory(&mut wire, listener, 0..10_000);
    let is_open = |wire: &Wire, peer: &Peer| wire.end.stream(peer.id).unwrap().state != StreamState::Closed;
    // Its application takes nothing, though the peer has sent everything.
    peers[1].fill(&mut wire);
    let fin = Seg::new(FIN | ACK, peers[1].next, peers[1].ack);
    wire.raw(&[Peer::packet(1, fin)]);
    assert!(Peer::open(&mut wire, listener, 10_000).is_none());
    wire.now += 20 * SECOND;
    assert!(Peer::open(&mut wire, listener, 10_001).is_some());
    assert_eq!((is_open(&wire, &peers[1]), wire.end.stats().gave_way), (false, 1));
    assert_eq!(wire.end.take(peers[1].id, wire.now).unwrap_err(), StreamError::GaveWay, "no end");
    // The others have a minute.
    peers[0].stream(&mut wire, 3);
    let _more = (10_002..).map_while(|number| Peer::open(&mut wire, listener, number)).count();
    peers[0].stream(&mut wire, 3);
    wire.now += 41 * SECOND;
    assert!(Peer::open(&mut wire, listener, 20_000).is_some());
    assert!(is_open(&wire, &peers[0]) && !is_open(&wire, &peers[2]));
}

#[test]
fn at_the_end_every_peer_gets_a_reset() {
    let (mut wire, listener) = listening(64 << 20);
    let peers = (0..3000).filter_map(|number| Peer::open(&mut wire, listener, number)).count();
    wire.end.reset_all(wire.now);
    let resets = wire.sent().iter().filter(|segment| segment.flags & RST != 0).count();
    assert_eq!((peers, resets), (3000, 3000));
}

#[test]
fn a_window_follows_what_the_application_takes_in_a_round_trip() {
    // A thin stream: 40 KB a second leave the window as it was.
    let (mut wire, listener) = listening(256 << 20);
    let mut thin = Peer::open(&mut wire, listener, 0).unwrap();
    let edge = thin.edge;
    for _ in 0..500 {
        wire.now += SECOND;
        let piece = |at: u32| Peer::packet(0, Seg::new(ACK, at, thin.ack).payload(&[7; 1000]));
        let packets: Vec<_> = (0..40).map(|n| piece(thin.next + 1000 * n)).collect();
        let answers = wire.raw(&packets);
        thin.read(&answers);
        thin.next += 40_000;
        thin.take(&mut wire);
        wire.wait(SECOND / 10);
    }
    assert!(wire.end.stream(thin.id).unwrap().receive_window <= u64::from(edge) + 1024);
    assert!(wire.end.stats().reserved_bytes <= u64::from(edge) + 2 * 4096);
}

#[test]
fn windows_close_and_open_on_a_link_that_loses_their_updates() {
    for seed in 1..6 {
        let configs = [0, 1].map(|end| Config { memory: 4 << 20, ..config(end) });
        let mut world = World::with("rate=50mbit,delay=5ms,loss=20%", seed, configs);
        let ids = world.connect(true);
        let mut applications = [0, 1].map(|end| Application::new(ids[end], 400_000, end as u64));
        let mut random = Random(seed);
        let mut again = world.now;
        world.run(3000 * SECOND, |world| {
            let now = world.now;
            if world.elapsed() > 30 * SECOND {
                applications.iter_mut().for_each(|application| application.reads = true);
            } else if now >= again {
                again = now + SECOND / 10 * random.next(50) as u32;
                applications.iter_mut().for_each(|application| application.reads = random.one_in(3));
            }
            for (end, application) in applications.iter_mut().enumerate() {
                application.work(&mut world.ends[end], 1 - end as u64, now);
            }
            applications.iter().all(Application::is_done)
        });
        assert_eq!(applications.map(|one| (one.read, one.error)), [(400_000, None); 2]);
    }
}
