//! The tunnel from end to end, and its sessions by themselves.

use std::hint::black_box;
use std::net::SocketAddr;
use std::time::Instant;

use weft_tunnel::bench::SessionPair;
use weft_tunnel::{
    ControlQueue, Ecn, Inbound, Offload, PeerConfig, PeerSettings, PlainSlab, PrivateKey, PublicKey,
    RecvMeta, TransmitQueue, Tunnel, TunnelConfig,
};

use super::packets::{MSS, MTU, Outbound, SEGMENTS, tcp, udp};
use super::{PACKETS, Work, Workload};

/// One end, with the buffers that its caller owns.
struct End {
    tunnel: Tunnel,
    address: SocketAddr,
    control: ControlQueue,
    plain: PlainSlab,
}

impl End {
    fn new(key: PrivateKey, peer: PublicKey, own: u8, other: u8, now: Instant) -> Self {
        let address = |end: u8| SocketAddr::from(([192, 0, 2, end], 51820));
        let config = PeerConfig {
            public_key: peer,
            endpoint: Some(address(other)),
            allowed_ips: vec![ipnet::Ipv4Net::new_assert([10, 0, 0, other].into(), 32).into()],
            settings: PeerSettings::default(),
        };
        let mut tunnel = Tunnel::new(key, TunnelConfig { mtu: MTU as u16, staging_bytes: 1 << 20 });
        assert!(tunnel.insert_peer(config, now).is_ok(), "the only peer finds a place");
        Self { tunnel, address: address(own), control: ControlQueue::new(16), plain: PlainSlab::new(1 << 18) }
    }

    fn receive(&mut self, source: SocketAddr, datagrams: &mut [u8], stride: usize, now: Instant) -> usize {
        let meta = RecvMeta { source, local: None, ecn: Ecn::NotEct, len: datagrams.len(), stride };
        let results = datagrams.chunks_mut(stride).map(|datagram| {
            self.tunnel.handle_datagram(&meta, datagram, now, &mut self.plain, &mut self.control)
        });
        results.filter(|result| matches!(result, Ok(Inbound::Packet(_)))).count()
    }
}

/// Two ends with a session, and a packet that goes `times` times from the first to the second.
struct Pair {
    ends: [End; 2],
    packet: Outbound,
    times: usize,
    queue: TransmitQueue,
    /// Buffers received at the other end, each with the length of its datagrams.
    received: Vec<(Vec<u8>, usize)>,
    now: Instant,
}

impl Pair {
    fn new(packet: Outbound, times: usize) -> Self {
        let now = Instant::now();
        // Fixed keys, so that the tables of two runs have the same contents.
        let [a, b] = [[1; 32], [2; 32]].map(PrivateKey::from_bytes);
        let public = [a.public_key(), b.public_key()];
        let ends = [End::new(a, public[1], 1, 2, now), End::new(b, public[0], 2, 1, now)];
        let mut pair = Self { ends, packet, times, queue: TransmitQueue::new(8), received: Vec::new(), now };
        pair.seal();
        let _ = pair.ends[0].tunnel.handle_timeout(now, &mut pair.ends[0].control);
        for from in [0, 1, 0] {
            let address = pair.ends[from].address;
            while let Some(message) = pair.ends[from].control.pop() {
                let mut contents = message.transmit().contents.to_vec();
                let len = contents.len();
                pair.ends[1 - from].receive(address, &mut contents, len, now);
            }
        }
        let _ = pair.ends[0].tunnel.flush_staged(now, &mut pair.queue);
        pair.carry();
        assert!(pair.open() > 0, "no packet came through the tunnel");
        pair
    }

    fn restore(&mut self) {
        self.packet.restore();
        while let Some(batch) = self.queue.pop() {
            self.queue.recycle(batch);
        }
        self.ends[1].plain.clear();
    }

    fn seal(&mut self) {
        for _ in 0..self.times {
            let Some(mut packet) = self.packet.packet() else { return };
            black_box(self.ends[0].tunnel.handle_tun_packet(&mut packet, self.now, &mut self.queue).is_ok());
        }
    }

    /// Moves the sealed datagrams to the other end.
    fn carry(&mut self) {
        self.received.clear();
        while let Some(batch) = self.queue.pop() {
            let transmit = batch.unsent();
            self.received.push((transmit.contents.to_vec(), transmit.segment_size));
            self.queue.recycle(batch);
        }
    }

    fn open(&mut self) -> usize {
        let Self { ends: [from, to], received, now, .. } = self;
        received.iter_mut().map(|(bytes, stride)| to.receive(from.address, bytes, *stride, *now)).sum()
    }
}

struct Seal(Pair);

impl Work for Seal {
    fn prepare(&mut self) {
        self.0.restore();
    }

    fn run(&mut self) {
        self.0.seal();
    }
}

struct Open(Pair);

impl Work for Open {
    fn prepare(&mut self) {
        self.0.restore();
        self.0.seal();
        self.0.carry();
    }

    fn run(&mut self) {
        black_box(self.0.open());
    }
}

/// A session that seals a packet many times, and opens each message once.
struct Session {
    pair: SessionPair,
    packet: Vec<u8>,
    sealed: Vec<Vec<u8>>,
    opened: Vec<u8>,
}

impl Session {
    fn new(pair: SessionPair) -> Self {
        let packet = tcp(40_000, 1, MSS.into());
        let room = vec![0; packet.len() + 32];
        Self { pair, packet, sealed: vec![room.clone(); PACKETS], opened: room }
    }

    fn seal(&mut self) {
        for message in &mut self.sealed {
            black_box(self.pair.seal(&self.packet, message));
        }
    }
}

struct SessionSeal(Session);

impl Work for SessionSeal {
    fn run(&mut self) {
        self.0.seal();
    }
}

struct SessionOpen(Session);

impl Work for SessionOpen {
    fn prepare(&mut self) {
        self.0.seal();
    }

    fn run(&mut self) {
        let Session { pair, sealed, opened, .. } = &mut self.0;
        for message in sealed {
            black_box(pair.open(message, opened));
        }
    }
}

fn session() -> Option<Session> {
    SessionPair::new(&[[1; 32], [2; 32]].map(PrivateKey::from_bytes)).map(Session::new)
}

pub(super) fn workloads() -> Vec<Workload> {
    let long = || Pair::new(Outbound::tcp_super_packet(), 1);
    let full = || Pair::new(Outbound::new(tcp(40_000, 1, MSS.into()), Offload::None), PACKETS);
    let small = || Pair::new(Outbound::new(udp(40_000, 64), Offload::None), PACKETS);
    let (segments, packets) = (SEGMENTS as u64, PACKETS as u64);
    let mut workloads = vec![
        Workload::new("outbound-super-packet", segments, Seal(long())),
        Workload::new("outbound-packet", packets, Seal(full())),
        Workload::new("outbound-64-bytes", packets, Seal(small())),
        Workload::new("inbound-super-packet", segments, Open(long())),
        Workload::new("inbound-packet", packets, Open(full())),
        Workload::new("inbound-64-bytes", packets, Open(small())),
    ];
    if let (Some(seal), Some(open)) = (session(), session()) {
        workloads.extend([
            Workload::new("session-seal-1420", packets, SessionSeal(seal)).uncountable(),
            Workload::new("session-open-1420", packets, SessionOpen(open)).uncountable(),
        ]);
    }
    workloads
}
