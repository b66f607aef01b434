//! A TUN without a kernel, for tests of the layers above a TUN: two queues in the same process, one for each
//! direction.
//!
//! [`pair`] returns the [`Memory`], which is the [`Tun`], and its [`MemoryPeer`], which plays the kernel: it
//! injects outbound packets and takes inbound packets. Both directions are bounded, and either side wakes the
//! other, on one runtime or two. With [`MemoryPeer::set_accepting`] the TUN stalls, as with a kernel that
//! accepts nothing.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::mpsc;
use weft_sched::flow::FlowHasher;
use weft_tunnel::{MAX_PACKET, Offload, PlainSlab, Plaintext, TAILROOM};

use crate::Tun;
use crate::batch::{Slab, TunBatch};
use crate::stats::TunStats;

/// The capacities of a pair.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of injected packets that wait to be received.
    pub outbound_packets: usize,
    /// Maximum number of batches that exist at once; each has room for two of the longest packets.
    pub slabs: usize,
    /// Number of flushed packets at which the TUN is no longer ready. The last flush may exceed it.
    pub inbound_packets: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { outbound_packets: 1024, slabs: 3, inbound_packets: 1024 }
    }
}

/// The packet was not injected: there is no room, the TUN is gone, or the packet is empty or longer than
/// 65,535 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory TUN takes no packet")]
pub struct Refused;

#[derive(Debug)]
struct State {
    limits: Limits,
    outbound: VecDeque<(Vec<u8>, Offload)>,
    inbound: VecDeque<Vec<u8>>,
    /// Packets that the peer has taken out of `inbound`.
    taken: u64,
    is_accepting: bool,
    peer_is_gone: bool,
    tun_is_gone: bool,
    receiver: Option<Waker>,
    sender: Option<Waker>,
    taker: Option<Waker>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// Returns a TUN and the peer that plays its kernel.
pub fn pair(limits: Limits) -> (Memory, MemoryPeer) {
    let state = Arc::new(Mutex::new(State {
        limits,
        outbound: VecDeque::new(),
        inbound: VecDeque::new(),
        taken: 0,
        is_accepting: true,
        peer_is_gone: false,
        tun_is_gone: false,
        receiver: None,
        sender: None,
        taker: None,
    }));
    let (home, free) = mpsc::unbounded_channel();
    let hasher = FlowHasher::random();
    for _ in 0..limits.slabs {
        // The receiver exists, so sending cannot fail.
        let _ = home.send((0, Slab::new(2 * (MAX_PACKET + TAILROOM), hasher)));
    }
    let memory = Memory {
        state: Arc::clone(&state),
        home,
        free,
        slab: PlainSlab::new(4 * MAX_PACKET),
        staged: Vec::new(),
        stats: Arc::new(TunStats::new(1)),
    };
    (memory, MemoryPeer { state })
}

/// The TUN of a pair. It is gone once its [`MemoryPeer`] was dropped and every injected packet was received.
#[derive(Debug)]
pub struct Memory {
    state: Arc<Mutex<State>>,
    home: mpsc::UnboundedSender<(u16, Slab)>,
    free: mpsc::UnboundedReceiver<(u16, Slab)>,
    slab: PlainSlab,
    staged: Vec<Plaintext>,
    stats: Arc<TunStats>,
}

impl Memory {
    /// Returns the counters of the device. Segments are not counted: a super-packet counts once.
    pub fn stats(&self) -> &Arc<TunStats> {
        &self.stats
    }
}

impl Tun for Memory {
    fn poll_recv_many(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut VecDeque<TunBatch>,
        max_bytes: usize,
    ) -> Poll<io::Result<usize>> {
        let max_bytes = max_bytes.max(1);
        let mut state = lock(&self.state);
        let mut taken = 0;
        while taken < max_bytes && !state.outbound.is_empty() {
            let Poll::Ready(Some((_, mut slab))) = self.free.poll_recv(cx) else { break };
            while let Some((packet, offload)) = state.outbound.front()
                && taken + slab.bytes() < max_bytes
            {
                let spare = slab.spare_mut();
                if spare.len() < packet.len() + TAILROOM {
                    break;
                }
                spare[..packet.len()].copy_from_slice(packet);
                slab.commit(0, packet.len(), *offload);
                state.outbound.pop_front();
            }
            taken += slab.bytes();
            let packets = slab.packets() as u64;
            self.stats.add_outbound(packets, packets, slab.bytes() as u64);
            out.push_back(TunBatch::new(slab, 0, self.home.clone()));
        }
        if taken > 0 || (state.peer_is_gone && state.outbound.is_empty()) {
            return Poll::Ready(Ok(taken));
        }
        state.receiver = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_send_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = lock(&self.state);
        if state.is_accepting && state.inbound.len() < state.limits.inbound_packets {
            return Poll::Ready(Ok(()));
        }
        state.sender = Some(cx.waker().clone());
        Poll::Pending
    }

    fn packets_taken(&self) -> u64 {
        lock(&self.state).taken
    }

    fn plain_slab(&mut self) -> &mut PlainSlab {
        &mut self.slab
    }

    fn send(&mut self, packet: Plaintext) -> io::Result<()> {
        self.staged.push(packet);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut state = lock(&self.state);
        for packet in self.staged.drain(..) {
            self.stats.add_inbound(1, 1, u64::from(packet.len));
            state.inbound.push_back(self.slab.get(packet).to_vec());
        }
        self.slab.clear();
        wake(&mut state.taker);
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.tun_is_gone = true;
        wake(&mut state.taker);
    }
}

/// The kernel's side of a pair.
#[derive(Debug)]
pub struct MemoryPeer {
    state: Arc<Mutex<State>>,
}

impl MemoryPeer {
    /// Injects an outbound packet into the TUN.
    pub fn inject(&self, packet: &[u8], offload: Offload) -> Result<(), Refused> {
        let mut state = lock(&self.state);
        let is_full = state.outbound.len() >= state.limits.outbound_packets;
        if is_full || state.tun_is_gone || packet.is_empty() || packet.len() > MAX_PACKET {
            return Err(Refused);
        }
        state.outbound.push_back((packet.to_vec(), offload));
        wake(&mut state.receiver);
        Ok(())
    }

    /// Returns the number of injected packets that were not received yet.
    pub fn outbound_len(&self) -> usize {
        lock(&self.state).outbound.len()
    }

    /// Takes the next inbound packet; `None` if no packet waits.
    pub fn take(&self) -> Option<Vec<u8>> {
        let mut state = lock(&self.state);
        let packet = state.inbound.pop_front()?;
        state.taken += 1;
        if state.is_accepting {
            wake(&mut state.sender);
        }
        Some(packet)
    }

    /// Polls for the next inbound packet; `None` once the TUN was dropped and everything was taken.
    pub fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        if let Some(packet) = self.take() {
            return Poll::Ready(Some(packet));
        }
        let mut state = lock(&self.state);
        if state.tun_is_gone && state.inbound.is_empty() {
            return Poll::Ready(None);
        }
        state.taker = Some(cx.waker().clone());
        if !state.inbound.is_empty() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Waits for the next inbound packet, as [`Self::poll_take`].
    pub async fn recv(&self) -> Option<Vec<u8>> {
        std::future::poll_fn(|cx| self.poll_take(cx)).await
    }

    /// Sets whether the TUN reports that it is ready for inbound packets; `false` stalls it.
    pub fn set_accepting(&self, is_accepting: bool) {
        let mut state = lock(&self.state);
        state.is_accepting = is_accepting;
        if is_accepting {
            wake(&mut state.sender);
        }
    }
}

impl Drop for MemoryPeer {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.peer_is_gone = true;
        wake(&mut state.receiver);
    }
}
