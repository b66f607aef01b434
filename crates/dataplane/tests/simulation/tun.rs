//! The TUN of a node.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use weft_sched::flow::FlowHasher;
use weft_tun::{Slab, SlabHome, Tun, TunBatch};
use weft_tunnel::{MAX_PACKET, PlainSlab, Plaintext, TAILROOM};

use crate::kernel::{Given, Wait};
use crate::network::Network;
use crate::packet::Label;
use crate::threads::{Threads, interleave};

/// Bytes of a slab of packets that were read.
const SLAB: usize = 2 * (MAX_PACKET + TAILROOM);

pub(crate) struct SimulatedTun {
    network: Rc<RefCell<Network>>,
    node: usize,
    thread: usize,
    threads: Weak<Threads>,
    hasher: FlowHasher,
    plain: PlainSlab,
    staged: Vec<Plaintext>,
}

impl SimulatedTun {
    /// Returns the TUN of a packet thread. All of a node have the same hasher.
    pub(crate) fn new(
        network: Rc<RefCell<Network>>,
        node: usize,
        thread: usize,
        threads: Weak<Threads>,
        hasher: FlowHasher,
    ) -> Self {
        let plain = PlainSlab::new(4 * MAX_PACKET);
        Self { network, node, thread, threads, hasher, plain, staged: Vec::new() }
    }
}

impl SimulatedTun {
    fn take_handed_over(&self, out: &mut VecDeque<TunBatch>, max_bytes: usize) -> usize {
        let inbox = &mut self.network.borrow_mut().kernels[self.node].ends[self.thread].inbox;
        let mut bytes = 0;
        while bytes < max_bytes
            && let Some(batch) = inbox.pop_front()
        {
            bytes += batch.bytes();
            out.push_back(batch);
        }
        bytes
    }
}

impl Tun for SimulatedTun {
    fn poll_recv_many(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut VecDeque<TunBatch>,
        max_bytes: usize,
    ) -> Poll<io::Result<usize>> {
        interleave(&self.threads, &self.network, self.node);
        let taken = self.take_handed_over(out, max_bytes);
        if taken > 0 {
            return Poll::Ready(Ok(taken));
        }
        let mut network = self.network.borrow_mut();
        // A batch may end before the queue does.
        let most = if network.chance.happens(10) { 1 } else { usize::MAX };
        let kernel = &mut network.kernels[self.node];
        let mut slab = Slab::new(SLAB, self.hasher);
        let mut bytes = 0;
        while bytes < max_bytes && slab.packets() < most {
            let Some(Given { bytes: packet, offload, segments }) = kernel.ends[self.thread].given.front()
            else {
                break;
            };
            let len = packet.len();
            if slab.spare_mut().len() < len + TAILROOM {
                break;
            }
            slab.spare_mut()[..len].copy_from_slice(packet);
            slab.commit(0, len, *offload);
            kernel.books.packets_read += segments;
            kernel.ends[self.thread].given.pop_front();
            bytes += len;
        }
        if bytes == 0 {
            kernel.wait(self.thread, Wait::Packets, cx.waker());
            return Poll::Pending;
        }
        kernel.books.turn.bytes_read += bytes;
        out.push_back(TunBatch::new(slab, self.thread as u16, SlabHome::None));
        Poll::Ready(Ok(bytes))
    }

    fn hand_over(
        &mut self,
        batches: &mut VecDeque<TunBatch>,
        mut shard_of: impl FnMut(&[u8]) -> Option<u16>,
    ) -> u64 {
        interleave(&self.threads, &self.network, self.node);
        let mut network = self.network.borrow_mut();
        let kernel = &mut network.kernels[self.node];
        // What others read for this thread is not handed on.
        for batch in batches.iter_mut().filter(|batch| usize::from(batch.queue()) == self.thread) {
            let owners: Vec<_> = batch.remaining().map(&mut shard_of).collect();
            let wanted: Vec<_> = owners.iter().map(Option::is_some).collect();
            for (place, slab) in batch.take_out(&wanted) {
                let owner = usize::from(owners[place].unwrap());
                kernel.ends[owner].inbox.push_back(TunBatch::new(slab, self.thread as u16, SlabHome::None));
                kernel.wake(owner, Wait::Packets);
            }
        }
        batches.retain(|batch| !batch.is_done());
        0
    }

    fn poll_send_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        interleave(&self.threads, &self.network, self.node);
        let kernel = &mut self.network.borrow_mut().kernels[self.node];
        if kernel.tun_is_full {
            kernel.wait(self.thread, Wait::TunRoom, cx.waker());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn packets_taken(&self) -> u64 {
        self.network.borrow().kernels[self.node].books.packets_written
    }

    fn plain_slab(&mut self) -> &mut PlainSlab {
        &mut self.plain
    }

    fn send(&mut self, packet: Plaintext) -> io::Result<()> {
        self.staged.push(packet);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        interleave(&self.threads, &self.network, self.node);
        let mut network = self.network.borrow_mut();
        for packet in self.staged.drain(..) {
            let bytes = self.plain.get(packet);
            network.kernels[self.node].books.turn.bytes_written += bytes.len();
            let Some(label) = Label::of(bytes) else {
                network.answer(self.node, bytes);
                continue;
            };
            // A kernel refuses a packet now and then, for lack of memory.
            let errors = network.kernels[self.node].errors_percent;
            if network.chance.happens(errors) {
                network.kernels[self.node].tun_stats.write_failures += 1;
                continue;
            }
            network.kernels[self.node].books.packets_written += 1;
            network.arrive(self.node, label, bytes);
        }
        self.plain.clear();
        Ok(())
    }
}
