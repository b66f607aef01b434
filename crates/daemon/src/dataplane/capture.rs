//! Copies of packets for `weft capture`, while somebody captures; otherwise the packet thread asks once a batch
//! whether anybody does.
//!
//! A [`Tap`] on the packet thread fills chunks of memory that its [`Capture`] hands back when they are read. Where
//! none is free, packets are not copied, and counted: a reader that is slow loses packets, and nobody else does.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::SystemTime;

use tokio::sync::{mpsc, oneshot};
use weft_report::control_socket::Layer;
use weft_tunnel::{Ecn, MAX_PACKET, PacketMut, PeerId, PublicKey, RecvMeta, Transmit, Tunnel, each_segment};

/// Captures at the same time.
pub(super) const MAX_TAPS: usize = 4;
/// Chunks of a capture. With the descriptions of their packets they are about 6 MiB.
const CHUNKS: usize = 16;
const CHUNK_BYTES: usize = 256 << 10;
const CHUNK_PACKETS: usize = 1024;

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From this machine to a peer.
    Outbound,
    /// From a peer to this machine.
    Inbound,
}

/// What to capture.
#[derive(Clone, Copy, Debug)]
pub struct CaptureFilter {
    /// Only there.
    pub layer: Option<Layer>,
    /// Only packets of this peer.
    pub peer: Option<PublicKey>,
    /// Bytes to keep of each packet, headers included, at most 65,535.
    pub snap_bytes: usize,
}

/// The headers around a datagram, which the system writes and takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterHeader {
    /// Who sent it; the address is unspecified where the routing table chooses it.
    pub source: SocketAddr,
    /// Whom it is for.
    pub destination: SocketAddr,
    /// Its congestion mark.
    pub ecn: Ecn,
}

impl OuterHeader {
    /// Bytes of the IP and the UDP header.
    pub fn bytes(&self) -> usize {
        if self.source.is_ipv4() && self.destination.is_ipv4() { 20 + 8 } else { 40 + 8 }
    }
}

/// A packet that was seen.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// When.
    pub at: SystemTime,
    /// Which way it goes.
    pub direction: Direction,
    /// Whose it is, if that is known.
    pub peer: Option<PublicKey>,
    /// What is around a datagram; `None`: an inner packet.
    pub outer: Option<OuterHeader>,
    /// Bytes that were kept.
    pub kept: usize,
    /// Bytes that it had.
    pub len: usize,
}

impl Seen {
    /// Where it was seen.
    pub fn layer(&self) -> Layer {
        if self.outer.is_some() { Layer::Outer } else { Layer::Inner }
    }
}

/// Packets one after the other.
#[derive(Debug)]
pub struct Chunk {
    bytes: Vec<u8>,
    packets: Vec<Seen>,
}

impl Chunk {
    fn new() -> Self {
        Self { bytes: Vec::with_capacity(CHUNK_BYTES), packets: Vec::with_capacity(CHUNK_PACKETS) }
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.packets.len() < CHUNK_PACKETS && self.bytes.len() + bytes <= CHUNK_BYTES
    }

    fn is_half_full(&self) -> bool {
        self.packets.len() > CHUNK_PACKETS / 2 || self.bytes.len() > CHUNK_BYTES / 2
    }

    /// Each packet with the bytes that were kept of it.
    pub fn packets(&self) -> impl Iterator<Item = (&Seen, &[u8])> {
        let mut rest = self.bytes.as_slice();
        self.packets.iter().map(move |seen| {
            let (bytes, behind) = rest.split_at(seen.kept);
            rest = behind;
            (seen, bytes)
        })
    }
}

/// What a capture counts, in packets.
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

/// What the packet thread fills.
pub struct Tap {
    filter: CaptureFilter,
    current: Chunk,
    free: mpsc::UnboundedReceiver<Chunk>,
    full: mpsc::UnboundedSender<Chunk>,
    counts: Arc<Counts>,
    /// Closed once nobody captures any more.
    wanted: oneshot::Sender<()>,
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").field("filter", &self.filter).finish_non_exhaustive()
    }
}

/// What reads what a tap was filled with. Dropping it ends the capture.
#[derive(Debug)]
pub struct Capture {
    free: mpsc::UnboundedSender<Chunk>,
    full: mpsc::UnboundedReceiver<Chunk>,
    counts: Arc<Counts>,
    wanted: Option<oneshot::Receiver<()>>,
}

impl Capture {
    /// A capture, and the tap for the packet thread.
    pub fn new(filter: CaptureFilter) -> (Self, Tap) {
        let (free, free_chunks) = mpsc::unbounded_channel();
        let (full, full_chunks) = mpsc::unbounded_channel();
        for _ in 1..CHUNKS {
            // The receiver is right here.
            let _ = free.send(Chunk::new());
        }
        let counts = Arc::<Counts>::default();
        let (is_wanted, wanted) = oneshot::channel();
        let tap = Tap {
            filter,
            current: Chunk::new(),
            free: free_chunks,
            full,
            counts: Arc::clone(&counts),
            wanted: is_wanted,
        };
        (Self { free, full: full_chunks, counts, wanted: Some(wanted) }, tap)
    }

    /// The next packets; `None` once the capture is over. Give the chunk back when it is read.
    pub async fn next(&mut self) -> Option<Chunk> {
        self.full.recv().await
    }

    /// A chunk that was read.
    pub fn give_back(&self, mut chunk: Chunk) {
        chunk.bytes.clear();
        chunk.packets.clear();
        // The packet thread may have ended.
        let _ = self.free.send(chunk);
    }

    /// Ends the capture: what was seen until now still comes, then nothing.
    pub fn stop(&mut self) {
        self.wanted = None;
    }

    /// Packets seen at a layer, copied or not.
    pub fn seen(&self, layer: Layer) -> u64 {
        self.counts.seen[layer as usize].load(Ordering::Relaxed)
    }

    /// Packets that were not copied, because all chunks waited to be read.
    pub fn dropped(&self, layer: Layer) -> u64 {
        self.counts.dropped[layer as usize].load(Ordering::Relaxed)
    }
}

impl Tap {
    fn takes(&self, layer: Layer, peer: Option<PublicKey>) -> bool {
        self.filter.layer.is_none_or(|wanted| wanted == layer)
            && self.filter.peer.is_none_or(|wanted| peer == Some(wanted))
    }

    fn put(&mut self, seen: &Seen, bytes: &[u8]) {
        let layer = seen.layer();
        Counts::add(&self.counts.seen, layer);
        let headers = seen.outer.map_or(0, |outer| outer.bytes());
        let kept = bytes.len().min(self.filter.snap_bytes.saturating_sub(headers)).min(MAX_PACKET);
        if !self.current.has_room_for(kept) && !self.hand_over() {
            return Counts::add(&self.counts.dropped, layer);
        }
        self.current.bytes.extend_from_slice(&bytes[..kept]);
        self.current.packets.push(Seen { kept, ..*seen });
    }

    /// False where there is no other chunk to go on with.
    fn hand_over(&mut self) -> bool {
        let Ok(next) = self.free.try_recv() else { return false };
        self.send(next);
        true
    }

    fn send(&mut self, next: Chunk) {
        // Nobody reads any more if this fails, which is noticed with the next turn.
        let _ = self.full.send(std::mem::replace(&mut self.current, next));
    }

    /// Hands over what there is, now or as soon as a chunk comes home. False once nobody captures any more.
    fn turn(&mut self, cx: &mut Context<'_>, is_idle: bool) -> bool {
        if self.wanted.poll_closed(cx).is_ready() {
            if !self.current.packets.is_empty() {
                self.send(Chunk { bytes: Vec::new(), packets: Vec::new() });
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
    /// The UDP port of this end.
    port: u16,
}

impl Captures {
    /// Whether anybody captures.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        !self.taps.is_empty()
    }

    /// The UDP port of this end from now on.
    pub(super) fn set_port(&mut self, port: u16) {
        self.port = port;
    }

    /// False if there are too many.
    pub(super) fn add(&mut self, tap: Tap) -> bool {
        let has_room = self.taps.len() < MAX_TAPS;
        if has_room {
            self.taps.push(tap);
        }
        has_room
    }

    /// At the end of each turn: hands over what was seen, at once if the loop is about to sleep.
    pub(super) fn turn(&mut self, cx: &mut Context<'_>, is_idle: bool) {
        self.taps.retain_mut(|tap| tap.turn(cx, is_idle));
    }

    /// Whether anybody captures there: whose a packet is has to be looked up.
    fn want(&self, layer: Layer) -> bool {
        self.taps.iter().any(|tap| tap.filter.layer.is_none_or(|wanted| wanted == layer))
    }

    /// A packet from the device, before it is sealed or refused.
    pub(super) fn read(&mut self, tunnel: &mut Tunnel, packet: &PacketMut<'_>) {
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

    /// A packet for the device: from a peer, or an answer of our own.
    pub(super) fn written(&mut self, tunnel: &mut Tunnel, packet: &[u8], is_own: bool) {
        if !self.want(Layer::Inner) {
            return;
        }
        let peer = if is_own { None } else { tunnel.peer_of_source(packet) };
        put(&mut self.taps, &inner(Direction::Inbound, peer, packet), packet);
    }

    /// Datagrams that the socket took: the first `bytes` of `transmit`.
    pub(super) fn sent(
        &mut self,
        tunnel: &Tunnel,
        peer: Option<PeerId>,
        transmit: &Transmit<'_>,
        bytes: usize,
    ) {
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

    /// A datagram that came in, after the tunnel took it.
    pub(super) fn received(&mut self, tunnel: &Tunnel, meta: &RecvMeta, datagram: &[u8]) {
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

fn put(taps: &mut [Tap], seen: &Seen, bytes: &[u8]) {
    for tap in taps.iter_mut().filter(|tap| tap.takes(seen.layer(), seen.peer)) {
        tap.put(seen, bytes);
    }
}

fn inner(direction: Direction, peer: Option<PublicKey>, packet: &[u8]) -> Seen {
    Seen { at: SystemTime::now(), direction, peer, outer: None, kept: 0, len: packet.len() }
}

fn outside(direction: Direction, peer: Option<PublicKey>, outer: OuterHeader, datagram: &[u8]) -> Seen {
    Seen { outer: Some(outer), ..inner(direction, peer, datagram) }
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
