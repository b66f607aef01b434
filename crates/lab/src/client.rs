//! A peer of a gateway without a daemon: a tunnel with a socket, of which many share a thread.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Instant;

use weft_tunnel::{
    ControlQueue, Ecn, Inbound, Offload, Outbound, PacketMut, PeerConfig, PeerSettings, PlainSlab,
    PrivateKey, PublicKey, RecvMeta, TAILROOM, TransmitQueue, Tunnel, TunnelConfig,
};

mod packet;
pub mod socket;

pub use packet::{Flow, HEADERS, STAMP, Stamp};

/// The MTU of its tunnel.
pub const MTU: u16 = 1420;

/// Capacity for packets that wait for a session: the first one and a few more.
const STAGING_BYTES: usize = 1 << 16;
/// Receive calls for one client before the next client's turn.
const CALLS: usize = 4;

/// Buffers that the clients of one thread share.
pub struct Workbench {
    queue: TransmitQueue,
    control: ControlQueue,
    plain: PlainSlab,
    packet: Vec<u8>,
    received: Vec<u8>,
    ancillary: Vec<u8>,
}

impl Default for Workbench {
    fn default() -> Self {
        Self {
            queue: TransmitQueue::new(8),
            control: ControlQueue::new(16),
            plain: PlainSlab::new(2 * socket::BUFFER),
            packet: vec![0; usize::from(MTU) + TAILROOM],
            received: vec![0; socket::BUFFER],
            ancillary: socket::control_buffer(),
        }
    }
}

/// A peer of a gateway.
pub struct Client {
    tunnel: Tunnel,
    /// Its socket, which is connected to the gateway.
    pub socket: UdpSocket,
    gateway: SocketAddr,
    /// Its address in the tunnel.
    pub inner: Ipv4Addr,
    /// How many handshakes have completed once there is a session for what was sent.
    wanted_handshakes: u64,
}

impl Client {
    /// Creates a peer with this address in the tunnel, over a socket that is connected to the gateway.
    pub fn over(
        socket: UdpSocket,
        gateway: SocketAddr,
        inner: Ipv4Addr,
        key: &PrivateKey,
        gateway_key: PublicKey,
    ) -> io::Result<Self> {
        socket.connect(gateway)?;
        socket.set_nonblocking(true)?;
        let config = PeerConfig {
            public_key: gateway_key,
            endpoint: Some(gateway),
            allowed_ips: vec!["0.0.0.0/0".parse().map_err(io::Error::other)?],
            settings: PeerSettings::default(),
        };
        let mut tunnel = Tunnel::new(key.clone(), TunnelConfig { mtu: MTU, staging_bytes: STAGING_BYTES });
        let inserted = tunnel.insert_peer(config, Instant::now());
        inserted.map_err(|_| io::Error::other("a tunnel does not take its only peer"))?;
        Ok(Self { tunnel, socket, gateway, inner, wanted_handshakes: 1 })
    }

    /// Moves to another socket, as a roaming peer does. The gateway notices with the next packet.
    pub fn roam(&mut self, socket: UdpSocket) -> io::Result<()> {
        socket.connect(self.gateway)?;
        socket.set_nonblocking(true)?;
        self.socket = socket;
        Ok(())
    }

    /// Reports whether a handshake has completed.
    pub fn has_session(&self) -> bool {
        self.tunnel.stats().handshakes > 0
    }

    /// Reports whether what was sent last waits for a session.
    pub fn waits_for_session(&self) -> bool {
        self.tunnel.stats().handshakes < self.wanted_handshakes
    }

    /// Returns the number of handshake initiations sent.
    pub fn initiations(&self) -> u64 {
        self.tunnel.stats().initiations_sent
    }

    /// Sends `count` packets of `bytes` bytes each, numbered from `stamp` on. Without a session they are
    /// staged, and a handshake begins.
    pub fn send(
        &mut self,
        flow: Flow,
        bytes: usize,
        stamp: Stamp,
        count: u64,
        now: Instant,
        bench: &mut Workbench,
    ) -> io::Result<()> {
        let mut waits = false;
        for number in stamp.number..stamp.number + count {
            if !bench.queue.has_room_for_super_packet() {
                self.flush(bench)?;
            }
            waits |= self.seal(flow, bytes, Stamp { number, ..stamp }, now, bench);
        }
        if waits {
            self.wanted_handshakes = self.tunnel.stats().handshakes + 1;
            self.timers(now, bench)?;
        }
        self.flush(bench)
    }

    /// Seals one packet into the queue. Returns whether it waits for a session.
    fn seal(&mut self, flow: Flow, bytes: usize, stamp: Stamp, now: Instant, bench: &mut Workbench) -> bool {
        // Clear what splitting or padding the previous packet left behind.
        bench.packet[packet::HEADERS..].fill(0);
        packet::write(&mut bench.packet[..bytes], flow, stamp);
        let packet = PacketMut::new(&mut bench.packet, bytes, Offload::None);
        packet.is_some_and(|mut packet| {
            self.tunnel.handle_tun_packet(&mut packet, now, &mut bench.queue) == Ok(Outbound::Staged)
        })
    }

    /// Seals `count` packets for later, at most a batch of them: appends their messages to `sealed`, which
    /// can be sent in any order but only once. Returns the length of a message.
    pub fn seal_for_later(
        &mut self,
        flow: Flow,
        bytes: usize,
        count: usize,
        now: Instant,
        bench: &mut Workbench,
        sealed: &mut Vec<u8>,
    ) -> usize {
        for _ in 0..count {
            self.seal(flow, bytes, Stamp::default(), now, bench);
        }
        let mut segment = 0;
        while let Some(batch) = bench.queue.pop() {
            let unsent = batch.unsent();
            segment = unsent.segment_size;
            sealed.extend_from_slice(unsent.contents);
            bench.queue.recycle(batch);
        }
        segment
    }

    /// Handles expired timers.
    pub fn timers(&mut self, now: Instant, bench: &mut Workbench) -> io::Result<()> {
        if self.tunnel.poll_timeout().is_some_and(|(at, _)| at <= now) {
            let _ = self.tunnel.handle_timeout(now, &mut bench.control);
            self.flush(bench)?;
        }
        Ok(())
    }

    /// Receives the pending datagrams, and calls `show` with the destination port and payload of each packet
    /// from the tunnel.
    pub fn receive(
        &mut self,
        now: Instant,
        bench: &mut Workbench,
        mut show: impl FnMut(u16, &[u8]),
    ) -> io::Result<()> {
        for _ in 0..CALLS {
            let received = socket::receive(&self.socket, &mut bench.received, &mut bench.ancillary)?;
            let Some((len, stride)) = received else { break };
            let meta =
                RecvMeta { source: self.gateway, local: None::<IpAddr>, ecn: Ecn::NotEct, len, stride };
            for datagram in bench.received[..len].chunks_mut(stride) {
                bench.plain.clear();
                let opened =
                    self.tunnel.handle_datagram(&meta, datagram, now, &mut bench.plain, &mut bench.control);
                // A packet that the tunnel drops is counted as lost.
                if let Ok(Inbound::Packet(plaintext)) = opened
                    && let Some((port, payload)) = packet::parse(bench.plain.get(plaintext))
                {
                    show(port, payload);
                }
            }
        }
        while self.tunnel.poll_event().is_some() {}
        if self.tunnel.has_ready_staged() {
            let _ = self.tunnel.flush_staged(now, &mut bench.queue);
        }
        self.flush(bench)
    }

    fn flush(&self, bench: &mut Workbench) -> io::Result<()> {
        while let Some(message) = bench.control.pop() {
            let transmit = message.transmit();
            self.transmit(transmit.contents, transmit.segment_size)?;
        }
        while let Some(batch) = bench.queue.pop() {
            let unsent = batch.unsent();
            let result = self.transmit(unsent.contents, unsent.segment_size);
            bench.queue.recycle(batch);
            result?;
        }
        Ok(())
    }

    /// Sends a batch. If the socket's buffer is full the batch is lost, which does not happen: the buffer
    /// holds more than is ever in flight.
    fn transmit(&self, contents: &[u8], segment: usize) -> io::Result<()> {
        match socket::send(&self.socket, contents, segment, None) {
            Err(error)
                if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused) =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    }
}
