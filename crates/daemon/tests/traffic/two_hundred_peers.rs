//! A gateway with 200 peers and two packet threads, as `weft status` and `weft top` show it while all peers
//! send.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weft_tunnel::{
    ControlQueue, Ecn, Inbound, Offload, PacketMut, PeerConfig, PeerSettings, PlainSlab, PrivateKey,
    PublicKey, RecvMeta, TAILROOM, TransmitQueue, Tunnel, TunnelConfig,
};

use crate::support::{Conf, End, Ends, Family, NAME, PORT, PeerConf, Pty, Running, alone, weft};

const PEERS: u16 = 200;
/// Packets of a peer that are under way at once. One never waits behind another of its source, so it is never
/// dropped as overload, however busy the machine is.
const WINDOW: u32 = 1;
const PACKETS: u32 = 40;
const HEADERS: usize = 28;
const PACKET: usize = 500;
/// The ports of the echo behind the gateway: the buffer of each socket holds what all of its peers have under
/// way.
const ECHOES: std::ops::Range<u16> = 7000..7008;
/// Every exchange takes far less.
const PATIENCE: Duration = Duration::from_secs(60);

/// A peer without a TUN: it sends numbered packets, and gets them back in this order.
struct Peer {
    tunnel: Tunnel,
    socket: UdpSocket,
    gateway: SocketAddr,
    inner: Ipv4Addr,
    echo: u16,
    sent: u32,
    received: u32,
}

/// Buffers of all peers.
struct Buffers {
    control: ControlQueue,
    transmit: TransmitQueue,
    plain: PlainSlab,
}

fn inner(number: u16) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, (number >> 8) as u8, number as u8)
}

impl Peer {
    /// Call it in the namespace of the peers.
    fn new(number: u16, key: PrivateKey, gateway: SocketAddr, gateway_key: PublicKey) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.connect(gateway).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut tunnel = Tunnel::new(key, TunnelConfig { mtu: 1420, staging_bytes: 1 << 16 });
        let peer = PeerConfig {
            public_key: gateway_key,
            endpoint: Some(gateway),
            allowed_ips: vec!["0.0.0.0/0".parse().unwrap()],
            settings: PeerSettings::default(),
        };
        assert!(tunnel.insert_peer(peer, Instant::now()).is_ok());
        Self {
            tunnel,
            socket,
            gateway,
            inner: inner(number),
            echo: ECHOES.start + number % ECHOES.len() as u16,
            sent: 0,
            received: 0,
        }
    }

    /// Sends until the window or `limit` is full.
    fn send(&mut self, limit: u32, buffers: &mut Buffers) {
        while self.sent < limit && self.sent < self.received + WINDOW {
            let IpAddr::V4(destination) = End::A.inner(Family::V4) else { return };
            let mut packet = [0; PACKET + TAILROOM];
            packet[..10].copy_from_slice(&[
                0x45,
                0,
                (PACKET >> 8) as u8,
                PACKET as u8,
                0,
                0,
                0x40,
                0,
                64,
                17,
            ]);
            packet[12..16].copy_from_slice(&self.inner.octets());
            packet[16..20].copy_from_slice(&destination.octets());
            let sum =
                packet[..20].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
            packet[10..12].copy_from_slice(&checksum(sum).to_be_bytes());
            // The peer's number as the port; no checksum.
            packet[20..22].copy_from_slice(&(1024 + u16::from(self.inner.octets()[3])).to_be_bytes());
            packet[22..24].copy_from_slice(&self.echo.to_be_bytes());
            packet[24..26].copy_from_slice(&((PACKET - 20) as u16).to_be_bytes());
            packet[HEADERS..HEADERS + 4].copy_from_slice(&self.sent.to_be_bytes());
            let mut packet = PacketMut::new(&mut packet, PACKET, Offload::None).unwrap();
            let _ = self.tunnel.handle_tun_packet(&mut packet, Instant::now(), &mut buffers.transmit);
            self.sent += 1;
            self.flush(buffers);
        }
    }

    fn receive(&mut self, buffers: &mut Buffers) {
        let mut datagram = [0; 2048];
        while let Ok(len) = self.socket.recv(&mut datagram) {
            let meta =
                RecvMeta { source: self.gateway, local: None, ecn: Ecn::NotEct, len, stride: len.max(1) };
            buffers.plain.clear();
            let Buffers { control, plain, .. } = &mut *buffers;
            let opened =
                self.tunnel.handle_datagram(&meta, &mut datagram[..len], Instant::now(), plain, control);
            if let Ok(Inbound::Packet(packet)) = opened {
                let packet = buffers.plain.get(packet);
                assert_eq!(packet[16..20], self.inner.octets());
                let number = u32::from_be_bytes(packet[HEADERS..HEADERS + 4].try_into().unwrap());
                assert_eq!(number, self.received, "a packet is lost or displaced");
                self.received += 1;
            }
        }
        while self.tunnel.poll_event().is_some() {}
        let now = Instant::now();
        let _ = self.tunnel.handle_timeout(now, &mut buffers.control);
        let _ = self.tunnel.flush_staged(now, &mut buffers.transmit);
        self.flush(buffers);
    }

    fn flush(&self, buffers: &mut Buffers) {
        while let Some(message) = buffers.control.pop() {
            self.socket.send(message.transmit().contents).unwrap();
        }
        while let Some(batch) = buffers.transmit.pop() {
            let transmit = batch.unsent();
            for datagram in transmit.contents.chunks(transmit.segment_size) {
                self.socket.send(datagram).unwrap();
            }
            buffers.transmit.recycle(batch);
        }
    }
}

/// Lets all peers send until each has got `limit` packets back in all, or `is_over` says so.
fn exchange(peers: &mut [Peer], limit: u32, buffers: &mut Buffers, is_over: impl Fn() -> bool) {
    let start = Instant::now();
    while peers.iter().any(|peer| peer.received < limit) && !is_over() {
        for peer in &mut *peers {
            peer.send(limit, buffers);
            peer.receive(buffers);
        }
        assert!(start.elapsed() < PATIENCE, "something is lost");
    }
}

fn checksum(sum: u32) -> u16 {
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// Ends the echoes, also where the test fails.
struct EndEchoes<'a>(&'a AtomicBool);

impl Drop for EndEchoes<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns every packet behind the gateway to its sender, until it is told to end.
fn echo(socket: &UdpSocket, is_over: &AtomicBool) {
    let mut packet = [0; PACKET];
    while !is_over.load(Ordering::Relaxed) {
        if let Ok((len, source)) = socket.recv_from(&mut packet) {
            socket.send_to(&packet[..len], source).unwrap();
        }
    }
}

#[test]
fn two_hundred_peers_keep_two_packet_threads_busy_and_lose_nothing() {
    let _alone = alone();
    if weft_udp::MAX_SHARDS == 1 {
        return;
    }
    let Some(ends) = Ends::new(1500) else { return };
    let mut conf = Conf::new();
    conf.listen_port = Some(PORT);
    conf.addresses = vec![format!("{}/24", End::A.inner(Family::V4))];
    let keys: Vec<_> = (0..PEERS).map(|_| PrivateKey::generate().unwrap()).collect();
    conf.peers = (0..PEERS)
        .zip(&keys)
        .map(|(number, key)| PeerConf {
            allowed_ips: vec![format!("{}/32", inner(number))],
            ..PeerConf::new(key.public_key())
        })
        .collect();
    let gateway = Running::up(&ends.a, &conf, &["--packet-threads", "2"]);
    let (address, key) = (SocketAddr::new(End::A.outer(Family::V4), PORT), conf.private_key.public_key());
    let mut peers: Vec<Peer> = ends
        .b
        .run(|| (0..PEERS).zip(keys).map(|(number, own)| Peer::new(number, own, address, key)).collect());
    let echo_sockets = ECHOES.map(|port| {
        let socket = ends.a.run(|| UdpSocket::bind((End::A.inner(Family::V4), port))).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        socket
    });
    let echo_sockets: Vec<UdpSocket> = echo_sockets.collect();
    let mut buffers = Buffers {
        control: ControlQueue::new(16),
        transmit: TransmitQueue::new(8),
        plain: PlainSlab::new(1 << 17),
    };
    let is_over = AtomicBool::new(false);
    let (status, top) = std::thread::scope(|scope| {
        let _end = EndEchoes(&is_over);
        for socket in &echo_sockets {
            scope.spawn(|| echo(socket, &is_over));
        }
        // Each has a session, and all of them have got everything back.
        exchange(&mut peers, PACKETS, &mut buffers, || false);
        // They go on while it is looked at.
        let shown = scope.spawn(|| {
            let status = gateway.status("1");
            let top = Pty::spawn(weft(gateway.directory(), &["top", NAME, "--interval", "0.5"]), 120, 40);
            // The line of the threads, which there is with several only. A terminal gets each word by itself.
            top.wait_for("busiest", 0);
            (status, top)
        });
        exchange(&mut peers, u32::MAX, &mut buffers, || shown.is_finished());
        let sent = peers.iter().map(|peer| peer.sent).max().unwrap();
        exchange(&mut peers, sent, &mut buffers, || false);
        shown.join().unwrap()
    });
    let threads = status["packet_threads"].as_array().unwrap();
    assert_eq!(threads.len(), 2, "{status}");
    for thread in threads {
        assert_eq!(thread["peers"], PEERS / 2, "{status}");
        assert!(thread["busy"].as_f64().unwrap() > 0.01, "{status}");
        let packets = u64::from(PACKETS) * u64::from(PEERS) / 2;
        assert!(
            thread["opened"].as_u64() >= Some(packets) && thread["sealed"].as_u64() >= Some(packets),
            "{status}"
        );
    }
    drop(top);
    let drops = gateway.status("0")["drops"].as_array().unwrap().clone();
    // The kernel's own multicast is for no peer.
    assert!(drops.iter().all(|drop| drop["reason"] == "no_peer" || drop["packets"] == 0), "{drops:?}");
    gateway.stop();
}
