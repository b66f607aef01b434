//! What a packet costs in steady state: no allocation, whichever way it goes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Instant;

use weft_tunnel::{
    Change, ControlQueue, Ecn, Offload, PacketMut, PeerBuilder, PeerConfig, PeerLimits, PlainSlab,
    PrivateKey, PublicKey, Rate, RecvMeta, TAILROOM, TransmitQueue, Tunnel, TunnelConfig,
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, which counts what this thread asks of it.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        LIVE_BYTES.with(|bytes| bytes.set(bytes.get() + layout.size() as i64));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.with(|bytes| bytes.set(bytes.get() - layout.size() as i64));
        // SAFETY: the caller's promise is passed on.
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
}

fn end(key: PrivateKey, peer: PublicKey, own: u8, other: u8) -> End {
    let address = |end: u8| SocketAddr::from(([192, 0, 2, end], 51820));
    let config = PeerConfig {
        public_key: peer,
        preshared_key: None,
        endpoint: Some(address(other)),
        allowed_ips: vec![format!("10.0.0.{other}/32").parse().unwrap()],
        persistent_keepalive: None,
    };
    let peer = PeerBuilder::new(&key).build(config);
    let mut tunnel = Tunnel::new(key, TunnelConfig { mtu: 1420, staging_bytes: 1 << 20 });
    assert!(tunnel.insert_peer(peer, Instant::now()).is_ok());
    End { tunnel, address: address(own), control: ControlQueue::new(16), plain: PlainSlab::new(1 << 18) }
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
    fn receive(&mut self, source: SocketAddr, datagrams: &[u8], stride: usize, now: Instant) -> usize {
        let meta = RecvMeta { source, local: None, ecn: Ecn::NotEct, len: datagrams.len(), stride };
        let mut opened = 0;
        for datagram in datagrams.chunks(stride) {
            let result =
                self.tunnel.handle_datagram(&meta, datagram, now, &mut self.plain, &mut self.control);
            opened += usize::from(matches!(result, Ok(Some(_))));
        }
        opened
    }
}

fn exchange_control(a: &mut End, b: &mut End, now: Instant) {
    while let Some(message) = a.control.pop() {
        let contents = message.transmit().contents.to_vec();
        b.receive(a.address, &contents, contents.len(), now);
    }
}

/// Sends one super-packet from `a` to `b` and gives the packets that arrived.
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
        opened += b.receive(a.address, transmit.contents, transmit.segment_size, now);
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
        // The first rounds take buffers that are kept from then on.
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
    // Far more than the 200 a second that are worked on without a cookie.
    let before = (ALLOCATIONS.with(Cell::get), LIVE_BYTES.with(Cell::get));
    for _ in 0..300 {
        for datagram in
            [&initiation[..], &wrong_mac, &initiation[..147], &data, &data[..31], &[], &[1], &[255; 64]]
        {
            let stride = datagram.len().max(1);
            assert_eq!(victim.receive(source, datagram, stride, now), 0);
        }
        while victim.control.pop().is_some() {}
    }
    // boringtun opens the static key of an initiation in a scratch buffer: one for each of the 200.
    assert_eq!(ALLOCATIONS.with(Cell::get) - before.0, 200);
    assert_eq!(LIVE_BYTES.with(Cell::get), before.1);
    assert!(victim.tunnel.stats().cookies_sent > 0);
}

/// What an idle peer costs beside boringtun's own state: at most 4 KiB, and limits are little of it.
#[test]
fn an_idle_peer_takes_little_memory() {
    const PEERS: u16 = 1000;
    let live = || LIVE_BYTES.with(Cell::get);
    let key = PrivateKey::generate().unwrap();
    let builder = PeerBuilder::new(&key);
    let mut tunnel = Tunnel::new(key, TunnelConfig { mtu: 1420, staging_bytes: 1 << 20 });
    let build = |number: u16| {
        builder.build(PeerConfig {
            public_key: PrivateKey::generate().unwrap().public_key(),
            preshared_key: None,
            endpoint: Some(SocketAddr::from(([192, 0, 2, 1], number))),
            allowed_ips: vec![format!("10.1.{}.{}/32", number >> 8, number & 0xff).parse().unwrap()],
            persistent_keepalive: None,
        })
    };
    let before = live();
    for peer in (0..PEERS).map(build) {
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
    // A session's keys and replay window are in the struct; it has nothing on the heap while nobody uses it.
    let boringtuns = size_of::<boringtun::noise::Tunn>() as i64;
    assert_eq!(tunnel.peers().count(), usize::from(PEERS));
    assert!(each > boringtuns, "{each} bytes a peer are counted wrongly: {boringtuns} are boringtun's alone");
    assert!(each - boringtuns <= 4096, "{each} bytes a peer, of which {boringtuns} are boringtun's");
}
