//! The slabs of a device without threads. They bound the packets that are read and not sealed yet. With
//! several queues, no queue can use all of them.

use std::ops::Range;
use std::task::{Context, Poll};

use tokio::sync::mpsc as channel;
use weft_sched::flow::FlowHasher;

use super::super::reader;
use super::super::shards::SLABS;
use crate::batch::{Slab, TunBatch};

/// The free slabs, and the channel through which the others return.
pub(super) struct Slabs {
    free: Vec<Slab>,
    /// Number of the first queue.
    first: u16,
    /// Whether each queue has its own number of slabs: a packet thread that takes nothing then stops only the
    /// queues whose packets it holds.
    are_separate: bool,
    home: channel::UnboundedSender<(u16, Slab)>,
    back: channel::UnboundedReceiver<(u16, Slab)>,
    hasher: FlowHasher,
    /// For each queue, the number of slabs with packets of it.
    out: Box<[usize]>,
    /// Number of queues without such a slab.
    without: usize,
    /// Number of slabs, but for those that take the place of slabs of stalled packet threads.
    count: usize,
}

impl Slabs {
    /// Allocates as many slabs as one queue may use: for each queue if they are separate, otherwise once, and
    /// one more for each further queue.
    pub(super) fn new(own: Range<u16>, are_separate: bool, hasher: FlowHasher) -> Self {
        let (home, back) = channel::unbounded_channel();
        let queues = own.len();
        let count = if are_separate { SLABS * queues } else { SLABS + queues - 1 };
        Self {
            free: (0..count).map(|_| Slab::new(reader::SLAB_BYTES, hasher)).collect(),
            first: own.start,
            are_separate,
            home,
            back,
            hasher,
            out: vec![0; queues].into(),
            without: queues,
            count,
        }
    }

    /// Returns a slab to read `queue` into. `None` means that the free slabs are reserved for queues without
    /// a slab, and that `cx` is woken when a slab returns. The queue may have more slabs in place of its
    /// `stalled` ones.
    pub(super) fn take(&mut self, cx: &mut Context<'_>, queue: usize, stalled: usize) -> Option<Slab> {
        // A slab is always reserved for each queue without a slab, so that a flood cannot keep the other
        // queues from being read.
        while self.must_wait(queue, stalled) {
            // `home` is a sender of the channel, so the channel never closes.
            let Poll::Ready(Some((from, slab))) = self.back.poll_recv(cx) else { return None };
            self.put_back(usize::from(from - self.first), slab);
        }
        let slab = self.free.pop().unwrap_or_else(|| Slab::new(reader::SLAB_BYTES, self.hasher));
        self.without -= usize::from(self.out[queue] == 0);
        self.out[queue] += 1;
        Some(slab)
    }

    fn must_wait(&self, queue: usize, stalled: usize) -> bool {
        match self.are_separate {
            true => self.out[queue] >= SLABS + stalled,
            false => self.out[queue] > 0 && self.free.len() <= self.without,
        }
    }

    /// Returns the batch of the packets that were read into a slab of `queue`. Without packets the slab is
    /// free again, and the result is `None`.
    pub(super) fn batch(&mut self, queue: usize, slab: Slab) -> Option<TunBatch> {
        if slab.is_empty() {
            self.put_back(queue, slab);
            return None;
        }
        Some(TunBatch::new(slab, self.first + queue as u16, self.home.clone()))
    }

    fn put_back(&mut self, queue: usize, slab: Slab) {
        if self.free.len() < self.count {
            self.free.push(slab);
        }
        self.out[queue] -= 1;
        self.without += usize::from(self.out[queue] == 0);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use weft_tunnel::Offload;

    use super::*;

    /// Takes a slab for `queue`, with a packet in it.
    fn read(slabs: &mut Slabs, queue: usize) -> Option<TunBatch> {
        let mut slab = slabs.take(&mut Context::from_waker(Waker::noop()), queue, 0)?;
        assert!(slab.commit(0, 20, Offload::None));
        slabs.batch(queue, slab)
    }

    fn read_all(slabs: &mut Slabs, queue: usize) -> Vec<TunBatch> {
        std::iter::from_fn(|| read(slabs, queue)).collect()
    }

    #[test]
    fn one_queue_has_every_slab() {
        let mut slabs = Slabs::new(0..1, false, FlowHasher::random());
        for _ in 0..3 {
            assert_eq!(read_all(&mut slabs, 0).len(), SLABS);
        }
    }

    #[test]
    fn there_is_a_slab_for_each_queue_whatever_the_others_have() {
        let mut slabs = Slabs::new(0..4, false, FlowHasher::random());
        let flood = read_all(&mut slabs, 2);
        assert_eq!(flood.len(), SLABS);
        let others: Vec<_> = [0, 1, 3].map(|queue| read(&mut slabs, queue).unwrap()).into();
        for queue in 0..4 {
            assert!(read(&mut slabs, queue).is_none());
        }
        drop(others);
        assert!(read(&mut slabs, 2).is_none(), "those are the others'");
        drop(flood);
        let second = read_all(&mut slabs, 3);
        assert_eq!(second.len(), SLABS, "a queue with much to read gets every slab that is not reserved");
        assert!([0, 1, 2].into_iter().all(|queue| read(&mut slabs, queue).is_some()));
    }

    #[test]
    fn a_slab_without_packets_is_free_at_once() {
        let mut slabs = Slabs::new(0..2, false, FlowHasher::random());
        for _ in 0..3 * SLABS {
            let slab = slabs.take(&mut Context::from_waker(Waker::noop()), 1, 0).unwrap();
            assert!(slabs.batch(1, slab).is_none());
        }
    }
}
