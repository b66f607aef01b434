//! Allocations in steady state: a packet causes none in either direction.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use weft_tunnel::{
    Change, ControlQueue, CookieRoot, Ecn, Inbound, Offload, PacketMut, PeerConfig, PeerLimits, PeerSettings,
    PlainSlab, PrivateKey, PublicKey, Rate, RecvMeta, Shard, TAILROOM, TransmitQueue, Tunnel, TunnelConfig,
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, with counters of this thread's allocations and live bytes.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        LIVE_BYTES.with(|bytes| bytes.set(bytes.get() + layout.size() as i64));
        // SAFETY: the caller upholds the contract of this function, which is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.with(|bytes| bytes.set(bytes.get() - layout.size() as i64));
        // SAFETY: the caller upholds the contract of this function, which is that of the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct End {
    tunnel: Tunnel,
    address: SocketAddr,
    control: ControlQueue,
    plain: PlainSlab,
    received: Vec<u8>,
}

fn end(key: PrivateKey, peer: PublicKey, own: u8, other: u8) -> End {
    let address = |end: u8| SocketAddr::from(([192, 0, 2, end], 51820));
    let config = PeerConfig {
        public_key: peer,
        endpoint: Some(address(other)),
        allowed_ips: vec![format!("10.0.0.{other}/32").parse().unwrap()],
        settings: PeerSettings::default(),
    };
    let mut tunnel = Tunnel::new(key, TunnelConfig { mtu: 1420, staging_bytes: 1 << 20 });
    assert!(tunnel.insert_peer(config, Instant::now()).is_ok());
    End {
        tunnel,
        address: address(own),
        control: ControlQueue::new(16),
        plain: PlainSlab::new(1 << 18),
        received: Vec::with_capacity(1 << 16),
    }
}

/// A TCP super-packet of 20 segments.
fn super_packet(from: u8, to: u8) -> (Vec<u8>, usize) {
    let len = 40 + 20 * 1380;
    let mut packet = vec![0; len + TAILROOM];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[8] = 64;
    packet[9] = 6;
    packet[12..16].copy_from_slice(&[10, 0, 0, from]);
    packet[16..20].copy_from_slice(&[10, 0, 0, to]);
    packet[32] = 5 << 4;
    packet[33] = 0x10;
    (packet, len)
}

impl End {
    fn receive(&mut self, source: SocketAddr, datagrams: &mut [u8], stride: usize, now: Instant) -> usize {
        let meta = RecvMeta { source, local: None, ecn: Ecn::NotEct, len: datagrams.len(), stride };
        let mut opened = 0;
        for datagram in datagrams.chunks_mut(stride) {
            let result =
                self.tunnel.handle_datagram(&meta, datagram, now, &mut self.plain, &mut self.control);
            opened += usize::from(matches!(result, Ok(Inbound::Packet(_))));
        }
        opened
    }
}

fn exchange_control(a: &mut End, b: &mut End, now: Instant) {
    while let Some(message) = a.control.pop() {
        let mut contents = message.transmit().contents.to_vec();
        let len = contents.len();
        b.receive(a.address, &mut contents, len, now);
    }
}

/// Sends one super-packet from `a` to `b`, and returns the number of packets that arrived.
fn send(
    a: &mut End,
    b: &mut End,
    packet: &mut [u8],
    len: usize,
    queue: &mut TransmitQueue,
    now: Instant,
) -> usize {
    let offload = Offload::TcpSegmentation { segment_size: 1380 };
    let mut packet = PacketMut::new(packet, len, offload).unwrap();
    a.tunnel.handle_tun_packet(&mut packet, now, queue).unwrap();
    let mut opened = 0;
    while let Some(batch) = queue.pop() {
        let transmit = batch.unsent();
        let mut received = std::mem::take(&mut b.received);
        received.clear();
        received.extend_from_slice(transmit.contents);
        opened += b.receive(a.address, &mut received, transmit.segment_size, now);
        b.received = received;
        queue.recycle(batch);
    }
    b.plain.clear();
    opened
}

#[test]
fn a_packet_in_steady_state_allocates_nothing() {
    steady_state(PeerLimits::default());
}

#[test]
fn a_packet_of_a_limited_peer_allocates_nothing_either() {
    let rate = Rate::from_bits_per_second(1_000_000_000_000);
    steady_state(PeerLimits { to_peer: rate, from_peer: rate });
}

fn steady_state(limits: PeerLimits) {
    let keys = [PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap()];
    let public = [keys[0].public_key(), keys[1].public_key()];
    let [key_a, key_b] = keys;
    let (mut a, mut b) = (end(key_a, public[1], 1, 2), end(key_b, public[0], 2, 1));
    let mut queue = TransmitQueue::new(8);
    let now = Instant::now();
    assert!(a.tunnel.apply(Change::Limits { peer: public[1], limits }, now));
    assert!(b.tunnel.apply(Change::Limits { peer: public[0], limits }, now));

    // The first packet brings the session up.
    let (mut template, len) = super_packet(1, 2);
    let mut first =
        PacketMut::new(&mut template, len, Offload::TcpSegmentation { segment_size: 1380 }).unwrap();
    a.tunnel.handle_tun_packet(&mut first, now, &mut queue).unwrap();
    let _ = a.tunnel.handle_timeout(now, &mut a.control);
    exchange_control(&mut a, &mut b, now);
    exchange_control(&mut b, &mut a, now);
    exchange_control(&mut a, &mut b, now);
    let _ = a.tunnel.flush_staged(now, &mut queue);
    while let Some(batch) = queue.pop() {
        queue.recycle(batch);
    }

    let packets: Vec<_> = (0..200).map(|_| (super_packet(1, 2).0, super_packet(2, 1).0)).collect();
    let mut opened = 0;
    for (round, (mut outward, mut back)) in packets.into_iter().enumerate() {
        let before = ALLOCATIONS.with(Cell::get);
        opened += send(&mut a, &mut b, &mut outward, len, &mut queue, now);
        opened += send(&mut b, &mut a, &mut back, len, &mut queue, now);
        let allocations = ALLOCATIONS.with(Cell::get) - before;
        // The first rounds allocate buffers that are reused from then on.
        assert!(round < 2 || allocations == 0, "round {round} allocated {allocations} times for 40 packets");
    }
    assert_eq!(opened, 200 * 40);
}

#[test]
fn a_datagram_that_is_not_authentic_leaves_nothing_allocated() {
    let keys: Vec<PrivateKey> = (0..3).map(|_| PrivateKey::generate().unwrap()).collect();
    let mut victim = end(keys[0].clone(), keys[1].public_key(), 1, 2);
    let mut stranger = end(keys[2].clone(), keys[0].public_key(), 3, 1);
    let now = Instant::now();
    let (mut packet, len) = super_packet(3, 1);
    let mut packet = PacketMut::new(&mut packet, len, Offload::None).unwrap();
    stranger.tunnel.handle_tun_packet(&mut packet, now, &mut TransmitQueue::new(8)).unwrap();
    let _ = stranger.tunnel.handle_timeout(now, &mut stranger.control);
    let initiation = stranger.control.pop().unwrap().transmit().contents.to_vec();

    let mut wrong_mac = initiation.clone();
    wrong_mac[120] ^= 1;
    let mut data = vec![0; 200];
    data[0] = 4;
    let source = stranger.address;
    let mut datagrams = [
        initiation.clone(),
        wrong_mac,
        initiation[..147].to_vec(),
        data.clone(),
        data[..31].to_vec(),
        vec![],
        vec![1],
        vec![255; 64],
    ];
    let mut flood = |victim: &mut End, times| {
        for _ in 0..times {
            for datagram in &mut datagrams {
                let stride = datagram.len().max(1);
                assert_eq!(victim.receive(source, datagram, stride, now), 0);
            }
            while victim.control.pop().is_some() {}
        }
    };
    let measure = || (ALLOCATIONS.with(Cell::get), LIVE_BYTES.with(Cell::get));
    let before = measure();
    flood(&mut victim, 500);
    // boringtun decrypts the static key of an initiation into a scratch buffer: one allocation for each
    // initiation.
    let calm = measure();
    assert_eq!((calm.0 - before.0, calm.1 - before.1), (500, 0));
    // Under load the sources are counted, in memory of one size for any number of them.
    flood(&mut victim, 2000);
    assert!(victim.tunnel.stats().cookies_sent > 0);
    let loaded = measure();
    assert!((1..3 << 20).contains(&(loaded.1 - calm.1)), "{} bytes", loaded.1 - calm.1);
    flood(&mut victim, 2000);
    assert_eq!(measure(), loaded);
}

/// Foreign peers need no sessions, and are found for each packet.
#[test]
fn a_foreign_peer_takes_little_memory_and_is_found_without_an_allocation() {
    const PEERS: u16 = 1000;
    let (key, now) = (PrivateKey::generate().unwrap(), Instant::now());
    let cookies = CookieRoot::generate(now);
    let config = TunnelConfig { mtu: 1420, staging_bytes: 1 << 20 };
    let mut tunnel = Tunnel::of_shard(key, config, Shard::new(0, 3), &cookies);
    let foreign = |number: u16| Change::AddForeignPeer {
        peer: PrivateKey::generate().unwrap().public_key(),
        shard: 1 + number % 2,
        endpoint: Some(SocketAddr::from(([192, 0, 2, 1], number))),
        allowed_ips: vec![format!("10.1.{}.{}/32", number >> 8, number & 0xff).parse().unwrap()],
    };
    let live = || LIVE_BYTES.with(Cell::get);
    let before = live();
    for change in (0..PEERS).map(foreign) {
        assert!(tunnel.apply(change, now));
    }
    let each = (live() - before) / i64::from(PEERS);
    assert!((64..=256).contains(&each), "{each} bytes a peer");

    let (mut packet, _) = super_packet(1, 2);
    let (mut plain, mut control) = (PlainSlab::new(1 << 17), ControlQueue::new(4));
    let allocations = ALLOCATIONS.with(Cell::get);
    for number in 0..PEERS {
        packet[16..20].copy_from_slice(&[10, 1, (number >> 8) as u8, number as u8]);
        assert_eq!(tunnel.shard_of(&packet), Some(1 + number % 2));
        let mut datagram = [0; 64];
        datagram[0] = 4;
        datagram[4..8].copy_from_slice(&(3 * u32::from(number) + 1).to_be_bytes());
        let meta = RecvMeta {
            source: ([192, 0, 2, 1], 1).into(),
            local: None,
            ecn: Ecn::NotEct,
            len: 64,
            stride: 64,
        };
        let inbound = tunnel.handle_datagram(&meta, &mut datagram, now, &mut plain, &mut control);
        assert_eq!(inbound, Ok(Inbound::Elsewhere(1)));
    }
    assert_eq!(ALLOCATIONS.with(Cell::get), allocations);
}

/// A peer that never completed a handshake takes at most 8 KiB, of which limits are a small part. boringtun's
/// state would take 25 KB.
#[test]
fn an_idle_peer_takes_little_memory() {
    const PEERS: u16 = 1000;
    let live = || LIVE_BYTES.with(Cell::get);
    let key = PrivateKey::generate().unwrap();
    let mut tunnel = Tunnel::new(key, TunnelConfig { mtu: 1420, staging_bytes: 1 << 20 });
    let config = |number: u16| PeerConfig {
        public_key: PrivateKey::generate().unwrap().public_key(),
        endpoint: Some(SocketAddr::from(([192, 0, 2, 1], number))),
        allowed_ips: vec![format!("10.1.{}.{}/32", number >> 8, number & 0xff).parse().unwrap()],
        settings: PeerSettings::default(),
    };
    let before = live();
    for peer in (0..PEERS).map(config) {
        let _ = tunnel.insert_peer(peer, Instant::now());
    }
    let unlimited = (live() - before) / i64::from(PEERS);
    let rate = Rate::from_bits_per_second(1_000_000);
    let keys: Vec<PublicKey> = tunnel.peers().map(|peer| peer.public_key).collect();
    let before_limits = live();
    for peer in keys.iter().copied() {
        let limits = PeerLimits { to_peer: rate, from_peer: rate };
        assert!(tunnel.apply(Change::Limits { peer, limits }, Instant::now()));
    }
    let limits = (live() - before_limits) / i64::from(PEERS);
    assert!((1..=128).contains(&limits), "{limits} bytes for the limits of a peer");
    let each = unlimited + limits;
    assert_eq!(tunnel.peers().count(), usize::from(PEERS));
    assert!((512..=8192).contains(&each), "{each} bytes a peer");

    // Unanswered handshakes leave nothing allocated either, once they are given up.
    let start = Instant::now();
    let mut control = ControlQueue::new(64);
    let mut queue = TransmitQueue::new(8);
    let idle = live();
    for number in 0..PEERS {
        let (mut packet, len) = super_packet(1, 2);
        packet[12..20].copy_from_slice(&[10, 9, 9, 9, 10, 1, (number >> 8) as u8, number as u8]);
        let mut packet = PacketMut::new(&mut packet, len, Offload::None).unwrap();
        tunnel.handle_tun_packet(&mut packet, start, &mut queue).unwrap();
    }
    let mut now = start;
    while let Some((at, _)) = tunnel.poll_timeout() {
        now = now.max(at);
        let _ = tunnel.handle_timeout(now, &mut control);
        while control.pop().is_some() {}
        while tunnel.poll_event().is_some() {}
    }
    assert!(now - start < Duration::from_secs(200), "all were given up after {:?}", now - start);
    assert!(tunnel.stats().initiations_sent >= u64::from(PEERS));
    let left = (live() - idle) / i64::from(PEERS);
    assert!(left <= 512, "{left} bytes a peer are left");
}
