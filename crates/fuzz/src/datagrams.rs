//! Outer datagrams of every type into a tunnel with sessions: honest, late, repeated, damaged and forged.
//!
//! A datagram that is not exactly what the peer sent, or comes again, changes nothing that can be seen,
//! leaves nothing allocated and gets at most one answer, which is not longer. Every packet is opened once or
//! counted once. Afterwards, packets pass both ways again.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use blake2::digest::consts::U16;
use blake2::digest::{Digest as _, KeyInit, Mac as _};
use blake2::{Blake2s256, Blake2sMac};
use weft_tunnel::{
    ControlQueue, DropReason, Ecn, Inbound, Offload, PacketMut, PeerConfig, PeerSettings, PlainSlab,
    PrivateKey, Progress, PublicKey, RecvMeta, TAILROOM, TransmitQueue, Tunnel, TunnelConfig, ip,
};

use crate::input::Input;
use crate::memory::live_bytes;

/// Steps of one input, so that no input takes long.
const STEPS: usize = 200;
/// Bytes that the counters of sources take once handshakes exceed their budget (invariant 5 of
/// ARCHITECTURE.md).
const LOAD_BYTES: i64 = 3 << 20;
/// Time after which two ends that hear only each other agree again: silence is noticed within 15.4 s, a
/// handshake follows within 5.4 s, and under load one more retry may be needed.
const AGREEMENT: u64 = 45;
/// A session ends after 180 s. Its keys are wiped with the next handshake message, or by a timer a second
/// later.
const WIPED: RangeInclusive<Duration> = Duration::from_secs(180)..=Duration::from_secs(181);

/// One end of the tunnel and what it has handled.
struct End {
    tunnel: Tunnel,
    key: PublicKey,
    address: SocketAddr,
    control: ControlQueue,
    transmits: TransmitQueue,
    plain: PlainSlab,
    /// Packets that its TUN gave, and datagrams that its socket gave.
    given: u64,
    /// Datagrams without a packet that were taken.
    consumed: u64,
    /// When it answered an initiation, or took a response.
    agreed: Vec<Instant>,
}

/// A datagram that an end sent.
struct Sent {
    to: usize,
    bytes: Vec<u8>,
    is_accepted: bool,
}

struct World {
    ends: [End; 2],
    now: Instant,
    wire: Vec<Sent>,
    /// The next datagram of the wire to deliver in order.
    next: usize,
    /// Inner packets: to which end, the bytes, and whether they arrived.
    packets: Vec<(usize, Vec<u8>, bool)>,
}

pub(crate) fn check(bytes: &[u8]) {
    let mut world = World::new();
    world.send(0, 0, false);
    world.deliver_all();
    world.send(1, 0, false);
    world.deliver_all();
    assert!(world.packets.iter().all(|packet| packet.2), "the session is there");
    let mut input = Input::new(bytes);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.agrees_again();
}

impl World {
    fn new() -> Self {
        let keys = [1, 2].map(|byte| PrivateKey::from_bytes([byte; 32]));
        let public = keys.each_ref().map(PrivateKey::public_key);
        let now = Instant::now();
        let end = |own: usize, key: PrivateKey| {
            let address = |end: usize| SocketAddr::from(([192, 0, 2, 1 + end as u8], 51820));
            let other = 1 - own;
            let config = PeerConfig {
                public_key: public[other],
                endpoint: Some(address(other)),
                allowed_ips: vec![format!("10.0.0.{}/32", other + 1).parse().unwrap()],
                settings: PeerSettings::default(),
            };
            let mut tunnel = Tunnel::new(key, TunnelConfig { mtu: 1420, staging_bytes: 1 << 16 });
            tunnel.insert_peer(config, now).unwrap();
            End {
                tunnel,
                key: public[own],
                address: address(own),
                control: ControlQueue::new(64),
                transmits: TransmitQueue::new(8),
                plain: PlainSlab::new(2 << 16),
                given: 0,
                consumed: 0,
                agreed: Vec::new(),
            }
        };
        let [a, b] = keys;
        let ends = [end(0, a), end(1, b)];
        Self { ends, now, wire: Vec::new(), next: 0, packets: Vec::new() }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let end = usize::from(choice & 1);
        match choice >> 1 & 15 {
            0..3 => self.send(end, input.byte().into(), false),
            3 => self.send(end, input.byte().into(), true),
            4..7 => self.deliver_next(),
            7 => self.next = (self.next + 1).min(self.wire.len()),
            8 => self.pass(WAITS[input.below(WAITS.len())]),
            9 => {
                let again = self.recorded(input);
                let source = self.source(input);
                if let Some((to, bytes)) = again {
                    self.deliver(to, &bytes, source);
                }
            }
            10 | 11 => {
                let damaged = self.recorded(input);
                let source = self.source(input);
                if let Some((to, mut bytes)) = damaged {
                    damage(&mut bytes, input);
                    self.deliver(to, &bytes, source);
                }
            }
            12 => {
                let forged = self.recorded(input);
                let (source, times) = (self.source(input), 1 + input.below(200));
                if let Some((to, mut bytes)) = forged {
                    damage(&mut bytes, input);
                    make_mac1(&mut bytes, &self.ends[to].key);
                    for _ in 0..times {
                        self.deliver(to, &bytes, source);
                    }
                }
            }
            13 | 14 => {
                let source = self.source(input);
                let bytes = self.forged(end, input);
                self.deliver(end, &bytes, source);
            }
            _ => {
                let (source, len) = (self.source(input), input.u16());
                self.deliver(end, input.bytes(len.into()), source);
            }
        }
    }

    /// Gives an end a packet for the other, with a number and a size that depends on `size`.
    fn send(&mut self, from: usize, size: usize, is_spoofed: bool) {
        let number = self.packets.len() as u32;
        let source = if is_spoofed { 99 } else { from as u8 + 1 };
        let packet = packet(source, 2 - from as u8, number, size * 5);
        if !is_spoofed {
            self.packets.push((1 - from, packet.clone(), false));
        }
        let len = packet.len();
        let mut buffer = packet;
        buffer.resize(len + TAILROOM, 0xee);
        let mut packet = PacketMut::new(&mut buffer, len, Offload::None).unwrap();
        let End { tunnel, transmits, given, .. } = &mut self.ends[from];
        *given += 1;
        let _ = tunnel.handle_tun_packet(&mut packet, self.now, transmits);
        self.pump(from);
    }

    /// Runs an end until it waits for time or datagrams, and puts what it sends on the wire.
    fn pump(&mut self, end: usize) {
        for _ in 0..1000 {
            let End { tunnel, control, transmits, .. } = &mut self.ends[end];
            let mut progress = Progress::Done;
            if tunnel.has_ready_staged() {
                progress = tunnel.flush_staged(self.now, transmits);
            }
            if tunnel.handle_timeout(self.now, control) == Progress::Blocked {
                progress = Progress::Blocked;
            }
            while tunnel.poll_event().is_some() {}
            let mut put = |bytes: &[u8]| {
                self.wire.push(Sent { to: 1 - end, bytes: bytes.to_vec(), is_accepted: false });
            };
            while let Some(message) = control.pop() {
                put(message.transmit().contents);
            }
            while let Some(batch) = transmits.pop() {
                let transmit = batch.unsent();
                transmit.contents.chunks(transmit.segment_size).for_each(&mut put);
                transmits.recycle(batch);
            }
            if progress == Progress::Done {
                let due = tunnel.poll_timeout();
                assert!(due.is_none_or(|(at, _)| at > self.now), "still due: {due:?}");
                self.check_accounts(end);
                return;
            }
        }
        panic!("a tunnel never has enough");
    }

    /// Every packet and datagram that an end was given is somewhere, or is counted.
    fn check_accounts(&self, end: usize) {
        let End { tunnel, given, consumed, .. } = &self.ends[end];
        let stats = tunnel.stats();
        let accounted =
            stats.sealed + stats.staged_segments + stats.opened + consumed + tunnel.drops().total();
        assert_eq!(*given, accounted, "{stats:?} {:?}", tunnel.drops());
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        (0..2).for_each(|end| self.pump(end));
    }

    fn deliver_next(&mut self) {
        let Some(sent) = self.wire.get(self.next) else { return };
        let (to, bytes) = (sent.to, sent.bytes.clone());
        self.next += 1;
        let source = self.ends[1 - to].address;
        self.deliver(to, &bytes, source);
    }

    fn deliver_all(&mut self) {
        while self.next < self.wire.len() {
            self.deliver_next();
        }
    }

    /// A datagram of the wire, and the end that it was sent to.
    fn recorded(&self, input: &mut Input<'_>) -> Option<(usize, Vec<u8>)> {
        let back = input.below(256);
        let at = self.wire.len().checked_sub(1 + back % self.wire.len().max(1))?;
        Some((self.wire[at].to, self.wire[at].bytes.clone()))
    }

    fn source(&self, input: &mut Input<'_>) -> SocketAddr {
        match input.below(5) {
            end @ 0..2 => self.ends[end].address,
            2 => SocketAddr::from(([203, 0, 113, input.byte()], 666)),
            3 => SocketAddr::from(([0x2001, 0xdb8, 0, input.byte().into(), 0, 0, 0, 1], 666)),
            _ => SocketAddr::from(([203, 0, 113, 66], input.u16())),
        }
    }

    /// A message of some type to an index that exists, with any content.
    fn forged(&self, to: usize, input: &mut Input<'_>) -> Vec<u8> {
        let kind = input.byte();
        let indices: Vec<u32> = self.ends[to].tunnel.receiver_indices().collect();
        let index = indices.get(input.below(indices.len())).copied().unwrap_or_default();
        let (len, at) = match kind & 7 {
            1 => (148, None),
            2 => (92, Some(8)),
            3 => (64, Some(4)),
            _ => (usize::from(input.u16() % 1600), Some(4)),
        };
        let mut bytes = vec![input.byte(); len];
        let content = input.bytes(len);
        bytes[..content.len()].copy_from_slice(content);
        for (at, byte) in [kind & 7, 0, 0, 0].into_iter().enumerate() {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        if let Some(place) = at.and_then(|at| bytes.get_mut(at..at + 4)) {
            place.copy_from_slice(&index.to_le_bytes());
        }
        if kind & 8 != 0 {
            make_mac1(&mut bytes, &self.ends[to].key);
        }
        bytes
    }

    fn deliver(&mut self, to: usize, bytes: &[u8], source: SocketAddr) {
        let before = self.look(to);
        let End { tunnel, plain, control, given, consumed, agreed, address, .. } = &mut self.ends[to];
        let was_loaded = tunnel.handshake_load(self.now).since.is_some();
        let drops = tunnel.drops().clone();
        let version = tunnel.receiver_indices_version();
        let indices: HashSet<u32> = tunnel.receiver_indices().collect();
        let mut datagram = bytes.to_vec();
        let (local, len) = (Some(address.ip()), bytes.len());
        let meta = RecvMeta { source, local, ecn: Ecn::NotEct, len, stride: len.max(1) };
        plain.clear();
        *given += 1;
        let live = live_bytes();
        let result = tunnel.handle_datagram(&meta, &mut datagram, self.now, plain, control);
        let grown = live_bytes() - live;
        assert_eq!(datagram, bytes, "it is as it was");
        assert!(control.len() <= 1, "at most one answer");
        let packet = match result {
            Ok(Inbound::Packet(packet)) => Some(plain.get(packet).to_vec()),
            _ => None,
        };
        match result {
            Ok(Inbound::Elsewhere(shard)) => panic!("there is no shard {shard}"),
            Ok(taken) => {
                *consumed += u64::from(taken == Inbound::Consumed);
                if matches!(bytes[0], 1 | 2) {
                    agreed.push(self.now);
                }
                self.accept(to, bytes);
            }
            Err(reason) => {
                let mut counted = drops;
                counted.add(reason, 1);
                assert_eq!(tunnel.drops(), &counted, "counted once, as {reason:?}");
                if is_authentic(reason) {
                    self.accept(to, bytes);
                } else {
                    let answer = control.front().map(|answer| answer.transmit());
                    assert!(answer.is_none_or(|answer| answer.contents.len() <= len), "{reason:?}");
                    assert!(
                        answer.is_none_or(
                            |answer| answer.destination == source && reason == DropReason::CookieRequired
                        ),
                        "{reason:?}"
                    );
                    let is_loaded = was_loaded || tunnel.handshake_load(self.now).since.is_some();
                    let allowed = if is_loaded { LOAD_BYTES } else { 0 };
                    assert!(grown <= allowed, "{grown} bytes stay allocated: {reason:?}");
                    let is_wiped = agreed.iter().any(|at| WIPED.contains(&(self.now - *at)));
                    assert!(
                        tunnel.receiver_indices_version() == version
                            || is_wiped && tunnel.receiver_indices().all(|index| indices.contains(&index)),
                        "{reason:?} changes no index"
                    );
                    assert_eq!(self.look(to), before, "{reason:?} changes nothing");
                }
            }
        }
        if let Some(packet) = packet {
            let sent = self.packets.iter_mut().find(|sent| sent.0 == to && sent.1 == packet);
            let sent = sent.expect("a packet that was not sent");
            assert!(!std::mem::replace(&mut sent.2, true), "a packet arrives once");
        }
        self.pump(to);
    }

    /// Records that an end took a datagram as authentic: the peer sent it, and it was not taken before.
    fn accept(&mut self, to: usize, bytes: &[u8]) {
        let sent = self.wire.iter_mut().find(|sent| sent.to == to && covered(&sent.bytes) == covered(bytes));
        let sent = sent.expect("a datagram that the peer did not send was taken");
        let is_cookie = bytes[0] == 3;
        assert!(is_cookie || !sent.is_accepted, "a datagram was taken twice");
        sent.is_accepted = true;
    }

    /// Everything of an end that a user or a peer can see, apart from drops, cookie replies and indices.
    fn look(&self, end: usize) -> impl PartialEq + std::fmt::Debug + use<> {
        let tunnel = &self.ends[end].tunnel;
        let peers: Vec<_> = tunnel
            .peers()
            .map(|peer| {
                let traffic = (peer.sent_bytes, peer.received_bytes, peer.staged_bytes);
                let place: (Option<SocketAddr>, Option<IpAddr>) = (peer.endpoint, peer.source);
                (place, peer.last_handshake, traffic, peer.path_limit, peer.is_trying)
            })
            .collect();
        let stats = tunnel.stats();
        let moved = (stats.sealed, stats.opened, stats.keepalives_received, stats.staged_segments);
        let handshakes = (stats.handshakes, stats.initiations_sent, stats.responses_sent, stats.icmp_sent);
        (peers, moved, handshakes, tunnel.poll_timeout())
    }

    /// Without attackers and losses, packets pass both ways again.
    fn agrees_again(&mut self) {
        for _ in 0..AGREEMENT {
            self.pass(Duration::from_secs(1));
            self.deliver_all();
            let first = self.packets.len();
            (0..2).for_each(|end| self.send(end, 0, false));
            self.deliver_all();
            if self.packets[first..].iter().all(|packet| packet.2) {
                return;
            }
        }
        panic!("no agreement within {AGREEMENT} s");
    }
}

/// Waits on both sides of WireGuard's limits.
const WAITS: [Duration; 12] = [
    Duration::from_micros(1),
    Duration::from_millis(1),
    Duration::from_millis(21),
    Duration::from_millis(400),
    Duration::from_secs(1),
    Duration::from_millis(5300),
    Duration::from_secs(10),
    Duration::from_secs(16),
    Duration::from_secs(91),
    Duration::from_secs(121),
    Duration::from_secs(181),
    Duration::from_secs(700),
];

/// Whether only an authentic datagram is dropped for this reason.
fn is_authentic(reason: DropReason) -> bool {
    use DropReason as Reason;
    matches!(reason, Reason::MalformedPlaintext | Reason::SourceNotAllowed | Reason::CongestionNotEct)
}

/// The parts of a datagram that its sender authenticates. Of a handshake message these are not its sender
/// index, and not its macs: with the receiver's public key anyone can make mac1 (whitepaper, section 5.4.4),
/// and mac2 counts under load only.
fn covered(bytes: &[u8]) -> (&[u8], &[u8]) {
    match (bytes.first(), bytes.len()) {
        (Some(1 | 2), 92 | 148) => (&bytes[..4], &bytes[8..bytes.len() - 32]),
        _ => (bytes, &[]),
    }
}

fn damage(bytes: &mut Vec<u8>, input: &mut Input<'_>) {
    for _ in 0..=input.below(3) {
        let at = usize::from(input.u16()) % bytes.len().max(1);
        match input.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.extend_from_slice(input.bytes(at % 64)),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= input.byte();
                }
            }
        }
    }
}

/// Computes mac1 of a handshake message to `receiver`, as anyone can who knows its key.
fn make_mac1(message: &mut [u8], receiver: &PublicKey) {
    let Some(at) = message.len().checked_sub(32) else { return };
    let key = Blake2s256::new().chain_update(b"mac1----").chain_update(receiver.as_bytes()).finalize();
    let mac = <Blake2sMac<U16> as KeyInit>::new_from_slice(&key).unwrap();
    let mac1 = mac.chain_update(&message[..at]).finalize().into_bytes();
    message[at..at + 16].copy_from_slice(&mac1);
}

/// A UDP packet between two inner addresses, with a number.
fn packet(source: u8, destination: u8, number: u32, extra: usize) -> Vec<u8> {
    let len = 32 + extra;
    let mut packet = vec![number as u8; len];
    packet[..2].copy_from_slice(&[0x45, 0]);
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[4..12].copy_from_slice(&[0, 0, 0, 0, 64, ip::UDP, 0, 0]);
    packet[12..20].copy_from_slice(&[10, 0, 0, source, 10, 0, 0, destination]);
    ip::write_ipv4_checksum(&mut packet, 20);
    packet[28..32].copy_from_slice(&number.to_be_bytes());
    packet
}
