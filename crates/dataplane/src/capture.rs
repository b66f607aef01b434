//! Copies packets for `weft capture`. While no capture runs, the packet thread only checks for captures once
//! per turn.
//!
//! A [`Tap`] on the packet thread fills chunks of memory, which its [`Capture`] returns after reading them.
//! If no chunk is free, packets are not copied but counted: a slow reader loses packets of its capture, and
//! delays no other traffic.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::SystemTime;

use tokio::sync::{mpsc, oneshot};
use weft_tun::Tun;
use weft_tunnel::{
    Ecn, MAX_PACKET, PacketMut, PeerId, Plaintext, PublicKey, RecvMeta, Transmit, Tunnel, each_segment,
};

use crate::parts::Observer;

/// Maximum number of concurrent captures.
pub(super) const MAX_TAPS: usize = 4;
/// Number of chunks of a capture, all packet threads together. With the descriptions of their packets they
/// take about 6 MiB.
const CHUNKS: usize = 16;
/// Minimum number of chunks of each packet thread.
const MIN_CHUNKS: usize = 3;
const CHUNK_BYTES: usize = 256 << 10;
const CHUNK_PACKETS: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From this machine to a peer.
    Outbound,
    /// From a peer to this machine.
    Inbound,
}

/// Where packets are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    /// Inside the tunnel: IP packets, as they are read from and written to the TUN.
    Inner,
    /// Outside the tunnel: WireGuard's datagrams.
    Outer,
}

/// What to capture.
#[derive(Clone, Copy, Debug)]
pub struct CaptureFilter {
    /// Captures this layer only.
    pub layer: Option<Layer>,
    /// Captures packets of this peer only.
    pub peer: Option<PublicKey>,
    /// Maximum bytes to keep of each packet, headers included; at most 65,535.
    pub snap_bytes: usize,
}

/// The headers around a datagram. The kernel adds and removes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterHeader {
    /// Sender. Its address is unspecified if the routing table chooses it.
    pub source: SocketAddr,
    pub destination: SocketAddr,
    /// ECN codepoint.
    pub ecn: Ecn,
}

impl OuterHeader {
    /// Returns the bytes of the IP and the UDP header.
    pub fn bytes(&self) -> usize {
        if self.source.is_ipv4() && self.destination.is_ipv4() { 20 + 8 } else { 40 + 8 }
    }
}

/// The description of a packet that a capture saw.
#[derive(Clone, Copy, Debug)]
pub struct CapturedPacket {
    pub at: SystemTime,
    pub direction: Direction,
    /// The peer that the packet comes from or goes to, if known.
    pub peer: Option<PublicKey>,
    /// Headers of a datagram; `None` for an inner packet.
    pub outer: Option<OuterHeader>,
    /// Bytes of the packet that the capture holds, without outer headers.
    pub kept: usize,
    /// Bytes of the packet, without outer headers.
    pub len: usize,
}

impl CapturedPacket {
    /// Returns the layer of the packet.
    pub fn layer(&self) -> Layer {
        if self.outer.is_some() { Layer::Outer } else { Layer::Inner }
    }
}

/// A block of memory with captured packets.
#[derive(Debug)]
pub struct Chunk {
    /// Number of the tap that filled it.
    tap: usize,
    bytes: Vec<u8>,
    packets: Vec<CapturedPacket>,
}

impl Chunk {
    fn new(tap: usize) -> Self {
        Self { tap, bytes: Vec::with_capacity(CHUNK_BYTES), packets: Vec::with_capacity(CHUNK_PACKETS) }
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.packets.len() < CHUNK_PACKETS && self.bytes.len() + bytes <= CHUNK_BYTES
    }

    fn is_half_full(&self) -> bool {
        self.packets.len() > CHUNK_PACKETS / 2 || self.bytes.len() > CHUNK_BYTES / 2
    }

    /// Returns each packet with its captured bytes.
    pub fn packets(&self) -> impl Iterator<Item = (&CapturedPacket, &[u8])> {
        let mut rest = self.bytes.as_slice();
        self.packets.iter().map(move |seen| {
            let (bytes, behind) = rest.split_at(seen.kept);
            rest = behind;
            (seen, bytes)
        })
    }
}

/// Packets seen and dropped by a capture, by layer.
#[derive(Debug, Default)]
struct Counts {
    seen: [AtomicU64; 2],
    dropped: [AtomicU64; 2],
}

impl Counts {
    fn add(counters: &[AtomicU64; 2], layer: Layer) {
        counters[layer as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// The writing end of a capture, on the packet thread.
pub struct Tap {
    filter: CaptureFilter,
    current: Chunk,
    free: mpsc::UnboundedReceiver<Chunk>,
    full: mpsc::UnboundedSender<Chunk>,
    counts: Arc<Counts>,
    /// Closed when the capture has ended.
    wanted: oneshot::Sender<()>,
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").field("filter", &self.filter).finish_non_exhaustive()
    }
}

/// The reading end of a capture. Dropping it ends the capture.
#[derive(Debug)]
pub struct Capture {
    /// The way back to each tap.
    free: Vec<mpsc::UnboundedSender<Chunk>>,
    full: mpsc::UnboundedReceiver<Chunk>,
    counts: Arc<Counts>,
    wanted: Vec<oneshot::Receiver<()>>,
}

impl Capture {
    /// Creates a capture, and the taps for `packet_threads` packet threads.
    pub fn new(filter: CaptureFilter, packet_threads: usize) -> (Self, Vec<Tap>) {
        let (full, full_chunks) = mpsc::unbounded_channel();
        let counts = Arc::<Counts>::default();
        let mut capture =
            Self { free: Vec::new(), full: full_chunks, counts: Arc::clone(&counts), wanted: Vec::new() };
        let tap = |number| {
            let (free, free_chunks) = mpsc::unbounded_channel();
            for _ in 1..(CHUNKS / packet_threads).max(MIN_CHUNKS) {
                // The receiver is in this function, so this cannot fail.
                let _ = free.send(Chunk::new(number));
            }
            let (is_wanted, wanted) = oneshot::channel();
            capture.free.push(free);
            capture.wanted.push(wanted);
            Tap {
                filter,
                current: Chunk::new(number),
                free: free_chunks,
                full: full.clone(),
                counts: Arc::clone(&counts),
                wanted: is_wanted,
            }
        };
        let taps = (0..packet_threads).map(tap).collect();
        (capture, taps)
    }

    /// Returns the next packets, or `None` when the capture is over. Return the chunk with
    /// [`Self::give_back`] after reading it.
    pub async fn next(&mut self) -> Option<Chunk> {
        self.full.recv().await
    }

    /// Returns a chunk to the packet thread for reuse.
    pub fn give_back(&self, mut chunk: Chunk) {
        chunk.bytes.clear();
        chunk.packets.clear();
        if let Some(free) = self.free.get(chunk.tap) {
            // The packet thread may have ended.
            let _ = free.send(chunk);
        }
    }

    /// Ends the capture. Packets seen so far are still delivered.
    pub fn stop(&mut self) {
        self.wanted.clear();
    }

    /// Returns the number of packets seen at a layer, copied or not.
    pub fn seen(&self, layer: Layer) -> u64 {
        self.counts.seen[layer as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of packets that were not copied because all chunks were waiting to be read.
    pub fn dropped(&self, layer: Layer) -> u64 {
        self.counts.dropped[layer as usize].load(Ordering::Relaxed)
    }
}

impl Tap {
    fn takes(&self, layer: Layer, peer: Option<PublicKey>) -> bool {
        self.filter.layer.is_none_or(|wanted| wanted == layer)
            && self.filter.peer.is_none_or(|wanted| peer == Some(wanted))
    }

    fn put(&mut self, seen: &CapturedPacket, bytes: &[u8]) {
        let layer = seen.layer();
        Counts::add(&self.counts.seen, layer);
        let headers = seen.outer.map_or(0, |outer| outer.bytes());
        let kept = bytes.len().min(self.filter.snap_bytes.saturating_sub(headers)).min(MAX_PACKET);
        if !self.current.has_room_for(kept) && !self.hand_over() {
            return Counts::add(&self.counts.dropped, layer);
        }
        self.current.bytes.extend_from_slice(&bytes[..kept]);
        self.current.packets.push(CapturedPacket { kept, ..*seen });
    }

    /// Hands the current chunk to the reader and continues with a free chunk. Returns false if no chunk is
    /// free.
    fn hand_over(&mut self) -> bool {
        let Ok(next) = self.free.try_recv() else { return false };
        self.send(next);
        true
    }

    fn send(&mut self, next: Chunk) {
        // This fails if the reader is gone; the next turn notices that.
        let _ = self.full.send(std::mem::replace(&mut self.current, next));
    }

    /// Hands the current chunk to the reader if it is due, now or when a chunk is returned. Returns false
    /// when the capture has ended.
    fn turn(&mut self, cx: &mut Context<'_>, is_idle: bool) -> bool {
        if self.wanted.poll_closed(cx).is_ready() {
            if !self.current.packets.is_empty() {
                self.send(Chunk { tap: 0, bytes: Vec::new(), packets: Vec::new() });
            }
            return false;
        }
        let is_due = self.current.is_half_full() || is_idle && !self.current.packets.is_empty();
        if is_due && let Poll::Ready(Some(next)) = self.free.poll_recv(cx) {
            self.send(next);
        }
        true
    }
}

/// The taps of the packet thread.
#[derive(Debug, Default)]
pub(super) struct Captures {
    taps: Vec<Tap>,
    scratch: Vec<u8>,
    /// The local UDP port.
    port: u16,
}

impl Captures {
    /// Reports whether any capture runs.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        !self.taps.is_empty()
    }

    /// Sets the local UDP port.
    pub(super) fn set_port(&mut self, port: u16) {
        self.port = port;
    }

    /// Adds a tap. Returns false if too many captures are running.
    pub(super) fn add(&mut self, tap: Tap) -> bool {
        let has_room = self.taps.len() < MAX_TAPS;
        if has_room {
            self.taps.push(tap);
        }
        has_room
    }

    /// Runs at the end of each turn: hands packets to the readers, at once if the loop is about to sleep.
    pub(super) fn turn(&mut self, cx: &mut Context<'_>, is_idle: bool) {
        self.taps.retain_mut(|tap| tap.turn(cx, is_idle));
    }

    /// Reports whether any capture includes this layer. Only then is the peer of a packet looked up.
    fn want(&self, layer: Layer) -> bool {
        self.taps.iter().any(|tap| tap.filter.layer.is_none_or(|wanted| wanted == layer))
    }
}

impl Observer for Captures {
    fn read(&mut self, tunnel: &mut Tunnel, packet: &PacketMut<'_>) {
        if !self.want(Layer::Inner) {
            return;
        }
        let Self { taps, scratch, .. } = self;
        let peer = tunnel.peer_of_destination(packet.bytes());
        if !taps.iter().any(|tap| tap.takes(Layer::Inner, peer)) {
            return;
        }
        each_segment(packet, scratch, |segment| {
            put(taps, &inner(Direction::Outbound, peer, segment), segment);
        });
    }

    fn written(&mut self, tunnel: &mut Tunnel, tun: &mut impl Tun, packet: Plaintext, is_own: bool) {
        if !self.want(Layer::Inner) {
            return;
        }
        let packet = tun.plain_slab().get(packet);
        let peer = if is_own { None } else { tunnel.peer_of_source(packet) };
        put(&mut self.taps, &inner(Direction::Inbound, peer, packet), packet);
    }

    fn sent(&mut self, tunnel: &Tunnel, peer: Option<PeerId>, transmit: &Transmit<'_>, bytes: usize) {
        if !self.want(Layer::Outer) {
            return;
        }
        let local = transmit.source.unwrap_or_else(|| unspecified(transmit.destination));
        let outer = OuterHeader {
            source: SocketAddr::new(local, self.port),
            destination: transmit.destination,
            ecn: transmit.ecn,
        };
        let peer = peer.and_then(|id| tunnel.peer_key(id));
        for datagram in transmit.contents[..bytes].chunks(transmit.segment_size) {
            let peer = peer.or_else(|| tunnel.peer_of_sent(datagram, transmit.destination));
            put(&mut self.taps, &outside(Direction::Outbound, peer, outer, datagram), datagram);
        }
    }

    fn received(&mut self, tunnel: &Tunnel, meta: &RecvMeta, datagram: &[u8]) {
        if !self.want(Layer::Outer) {
            return;
        }
        let local = meta.local.unwrap_or_else(|| unspecified(meta.source));
        let outer = OuterHeader {
            source: meta.source,
            destination: SocketAddr::new(local, self.port),
            ecn: meta.ecn,
        };
        let peer = tunnel.peer_of_received(datagram, meta.source);
        put(&mut self.taps, &outside(Direction::Inbound, peer, outer, datagram), datagram);
    }
}

fn put(taps: &mut [Tap], seen: &CapturedPacket, bytes: &[u8]) {
    for tap in taps.iter_mut().filter(|tap| tap.takes(seen.layer(), seen.peer)) {
        tap.put(seen, bytes);
    }
}

fn inner(direction: Direction, peer: Option<PublicKey>, packet: &[u8]) -> CapturedPacket {
    CapturedPacket { at: SystemTime::now(), direction, peer, outer: None, kept: 0, len: packet.len() }
}

fn outside(
    direction: Direction,
    peer: Option<PublicKey>,
    outer: OuterHeader,
    datagram: &[u8],
) -> CapturedPacket {
    CapturedPacket { outer: Some(outer), ..inner(direction, peer, datagram) }
}

fn unspecified(other: SocketAddr) -> IpAddr {
    match other {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
#[path = "capture/tests.rs"]
mod tests;
