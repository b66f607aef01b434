//! The device of the packet thread. Outbound packets are pulled: a free slab is the permit, and the endpoint
//! writes super-packets into it. Inbound packets are handed over by the flush, a batch at once.

use std::collections::VecDeque;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tokio::sync::mpsc;
use tokio::time::Sleep;
use weft_endpoint::PacketSink;
use weft_sched::flow::FlowHasher;
use weft_tun::{Slab, Tun, TunBatch, TunStats};
use weft_tunnel::{MAX_PACKET, Offload, PacketMut, PlainSlab, Plaintext, TAILROOM};

use crate::shared::Shared;

/// Bytes of a slab: two of the longest super-packets.
const SLAB_BYTES: usize = 2 * (MAX_PACKET + TAILROOM);
/// Slabs of the device: they bound what has left the endpoint and is not sealed.
const SLABS: usize = 4;
/// Bytes that one batch from the tunnel decrypts to, as for any device.
const PLAIN_BYTES: usize = 4 * MAX_PACKET;

/// The endpoint, from the side of the packet thread.
pub struct EndpointTun {
    shared: Arc<Shared>,
    free: Vec<Slab>,
    home: mpsc::UnboundedSender<(u16, Slab)>,
    back: mpsc::UnboundedReceiver<(u16, Slab)>,
    plain: PlainSlab,
    staged: Vec<Plaintext>,
    /// Made at the first poll, inside of the runtime.
    timer: Option<Pin<Box<Sleep>>>,
    armed_for: Option<Instant>,
    packets_taken: u64,
    stats: Arc<TunStats>,
    /// Empty between calls.
    woken: Vec<Waker>,
}

impl std::fmt::Debug for EndpointTun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndpointTun").field("packets_taken", &self.packets_taken).finish_non_exhaustive()
    }
}

impl EndpointTun {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let (home, back) = mpsc::unbounded_channel();
        let hasher = FlowHasher::random();
        Self {
            shared,
            free: (0..SLABS).map(|_| Slab::new(SLAB_BYTES, hasher)).collect(),
            home,
            back,
            plain: PlainSlab::new(PLAIN_BYTES),
            staged: Vec::new(),
            timer: None,
            armed_for: None,
            packets_taken: 0,
            stats: Arc::new(TunStats::new(1)),
            woken: Vec::new(),
        }
    }

    /// Returns the counters of the device.
    pub fn stats(&self) -> &Arc<TunStats> {
        &self.stats
    }

    /// Waits until a deadline of the endpoint.
    fn arm(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) {
        let Some(deadline) = deadline else {
            self.armed_for = None;
            return;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline.into())));
        if self.armed_for != Some(deadline) {
            timer.as_mut().reset(deadline.into());
            self.armed_for = Some(deadline);
        }
        if timer.as_mut().poll(cx).is_ready() {
            self.armed_for = None;
            cx.waker().wake_by_ref();
        }
    }
}

impl Tun for EndpointTun {
    fn poll_recv_many(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut VecDeque<TunBatch>,
        max_bytes: usize,
    ) -> Poll<io::Result<usize>> {
        let Self { shared, free, home, back, stats, woken, .. } = self;
        let now = Instant::now();
        let mut state = shared.lock();
        let is_due = state.endpoint.poll_timeout().is_some_and(|at| at <= now);
        if is_due {
            state.endpoint.handle_timeout(now);
        }
        let mut taken = 0;
        let mut more = state.endpoint.has_output();
        while more && taken < max_bytes {
            let free = free.pop().map_or_else(
                || back.poll_recv(cx).map(|back| back.map(|(_, slab)| slab)),
                |slab| Poll::Ready(Some(slab)),
            );
            let Poll::Ready(Some(mut slab)) = free else { break };
            let mut sink = Sink { slab: &mut slab, segments: 0 };
            more = state.endpoint.transmit(now, &mut sink);
            let segments = sink.segments;
            taken += slab.bytes();
            stats.add_outbound(slab.packets() as u64, segments, slab.bytes() as u64);
            // An empty one returns as well.
            let batch = TunBatch::new(slab, 0, home.clone());
            if batch.packets() > 0 {
                out.push_back(batch);
            }
        }
        state.collect(woken);
        let deadline = state.endpoint.poll_timeout();
        if taken == 0 {
            state.packets = Some(cx.waker().clone());
            state.armed_for = deadline;
        }
        drop(state);
        woken.drain(..).for_each(Waker::wake);
        if taken > 0 {
            return Poll::Ready(Ok(taken));
        }
        self.arm(cx, deadline);
        Poll::Pending
    }

    /// The endpoint takes everything: peers send no more than was advertised to them.
    fn poll_send_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn packets_taken(&self) -> u64 {
        self.packets_taken
    }

    fn plain_slab(&mut self) -> &mut PlainSlab {
        &mut self.plain
    }

    fn send(&mut self, packet: Plaintext) -> io::Result<()> {
        self.staged.push(packet);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.staged.is_empty() {
            return Ok(());
        }
        let Self { shared, plain, staged, stats, woken, .. } = self;
        let (packets, bytes) = (staged.len() as u64, staged.iter().map(|packet| u64::from(packet.len)).sum());
        let now = Instant::now();
        let mut state = shared.lock();
        state.endpoint.handle_batch(staged.iter().map(|packet| plain.get(*packet)), now);
        state.collect(woken);
        drop(state);
        woken.drain(..).for_each(Waker::wake);
        stats.add_inbound(packets, packets, bytes);
        self.packets_taken += packets;
        self.plain.clear();
        self.staged.clear();
        Ok(())
    }
}

impl Drop for EndpointTun {
    fn drop(&mut self) {
        self.shared.lock().end(&mut self.woken);
        self.woken.drain(..).for_each(Waker::wake);
    }
}

/// A slab that the endpoint writes packets into.
struct Sink<'a> {
    slab: &'a mut Slab,
    /// How many packets these are on the wire.
    segments: u64,
}

impl PacketSink for Sink<'_> {
    fn spare_mut(&mut self) -> &mut [u8] {
        self.slab.spare_mut()
    }

    fn commit(&mut self, len: usize, offload: Offload) -> bool {
        let packet = PacketMut::new(self.slab.spare_mut(), len, offload);
        let segments = packet.map_or(0, |packet| packet.segments());
        let fits = self.slab.commit(0, len, offload);
        self.segments += if fits { segments } else { 0 };
        fits
    }
}
