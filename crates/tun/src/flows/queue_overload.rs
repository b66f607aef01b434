//! Queues that one flow overloads, so that the kernel drops packets, and the queues that other flows are
//! moved to.
//!
//! The kernel delivers a flow to the queue that it was last written to. If inbound packets are written to
//! another queue, the answers neither wait behind the flow that fills the queue nor are dropped with it.

use std::ops::Range;

use weft_sched::LinearCounter;
use weft_sched::MajorityVote;
use weft_sched::flow::FlowHash;

/// Bytes read from a queue, most of them of one flow, before the kernel is first asked whether it dropped
/// packets: soon enough for a flood.
const FIRST_CHECK: u64 = 1 << 20;
/// The longest interval between two checks, in bytes read. The interval doubles while the state does not
/// change, up to this length, at which the cost of checks cannot be measured.
const LAST_CHECK: u64 = 16 << 20;

#[derive(Clone)]
struct QueueLoad {
    flows: LinearCounter,
    vote: MajorityVote<u64>,
    /// Bytes read from the queue until the next check.
    check_after: u64,
    /// The flow with most of the bytes at the last check.
    majority: Option<u64>,
    /// The flow that overloads the queue.
    overloaded_by: Option<u64>,
}

/// The queues of a device.
pub(super) struct QueueOverload {
    queues: Box<[QueueLoad]>,
    /// The queues that this packet thread reads, so that it knows their load.
    own: Range<u16>,
    /// The number of overloaded queues.
    overloaded: usize,
    /// The drop counter of the device at the last check; `None` before the first check, because the counter
    /// of an adopted device includes earlier drops.
    dropped: Option<u64>,
}

impl QueueOverload {
    pub(super) fn new(queues: usize, own: Range<u16>) -> Self {
        let load = QueueLoad {
            flows: LinearCounter::default(),
            vote: MajorityVote::default(),
            check_after: FIRST_CHECK,
            majority: None,
            overloaded_by: None,
        };
        Self { queues: vec![load; queues].into(), own, overloaded: 0, dropped: None }
    }

    /// Counts a packet that was read from a queue.
    #[inline]
    pub(super) fn observe(&mut self, queue: u16, flow: FlowHash, bytes: usize) {
        let load = &mut self.queues[usize::from(queue)];
        load.flows.observe(flow.value, bytes);
        load.vote.observe(flow.value, bytes);
    }

    /// Estimates the number of flows in a queue, at least 1.
    pub(super) fn flows(&self, queue: u16) -> usize {
        self.queues[usize::from(queue)].flows.count()
    }

    /// Checks at intervals whether one flow overloads a queue. `dropped` returns the number of packets that
    /// the kernel has dropped of the device: a queue may be busy and lose nothing.
    pub(super) fn poll_drops(&mut self, queue: u16, dropped: impl FnOnce() -> u64) {
        let load = &mut self.queues[usize::from(queue)];
        if load.vote.bytes() < load.check_after {
            return;
        }
        let majority = load.vote.take();
        let overloaded_by = majority.filter(|_| {
            let now = dropped();
            self.dropped.replace(now).is_some_and(|before| now > before)
        });
        let is_as_before =
            majority.is_some() && majority == load.majority && overloaded_by == load.overloaded_by;
        load.check_after = if is_as_before { LAST_CHECK.min(2 * load.check_after) } else { FIRST_CHECK };
        load.majority = majority;
        let before = std::mem::replace(&mut load.overloaded_by, overloaded_by);
        self.overloaded =
            self.overloaded + usize::from(overloaded_by.is_some()) - usize::from(before.is_some());
    }

    /// Returns the queue to write a packet of `flow` to: `queue`, unless another flow overloads `queue` and
    /// there is a queue without overload.
    #[inline]
    pub(super) fn instead_of(&self, queue: u16, flow: FlowHash) -> u16 {
        if self.overloaded == 0 { queue } else { self.choose(queue, flow) }
    }

    fn choose(&self, queue: u16, flow: FlowHash) -> u16 {
        let overloaded_by = |queue: usize| self.queues[queue].overloaded_by;
        if overloaded_by(usize::from(queue)).is_none_or(|other| other == flow.value) {
            return queue;
        }
        // The low bits have chosen the queue: the high bits spread the flows that share it.
        let own = usize::from(self.own.start)..usize::from(self.own.end);
        let first = (flow.value >> 32) as usize % own.len();
        let mut others = (first..first + own.len()).map(|other| own.start + other % own.len());
        others.find(|other| overloaded_by(*other).is_none()).map_or(queue, |other| other as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(value: u64) -> FlowHash {
        FlowHash { value, has_ports: true }
    }

    /// Reads packets of a flow from a queue until the next check, at which the device has dropped `dropped`
    /// packets.
    fn fill(overload: &mut QueueOverload, queue: u16, value: u64, dropped: u64) {
        for _ in 0..LAST_CHECK / 60_000 + 1 {
            overload.observe(queue, flow(value), 60_000);
            overload.observe(queue, flow(99), 100);
        }
        overload.poll_drops(queue, || dropped);
    }

    #[test]
    fn others_go_elsewhere_while_one_flow_fills_a_queue() {
        let mut overload = QueueOverload::new(4, 0..4);
        fill(&mut overload, 2, 7, 50);
        assert_eq!(overload.instead_of(2, flow(8)), 2, "that may be from before");
        fill(&mut overload, 2, 7, 51);
        assert_eq!(overload.instead_of(2, flow(7)), 2, "the flow that overloads it stays");
        assert!((0..64).all(|other| overload.instead_of(2, flow(other << 32)) != 2));
        let spread: std::collections::HashSet<_> =
            (0..64).map(|other| overload.instead_of(2, flow(other << 32))).collect();
        assert_eq!(spread.len(), 3);
        assert_eq!(overload.instead_of(1, flow(8)), 1);
        for sent in 0..LAST_CHECK / 1000 + 1 {
            overload.observe(2, flow(sent), 1000);
        }
        overload.poll_drops(2, || 100);
        assert_eq!(overload.instead_of(2, flow(8)), 2, "no flow overloads it any more");
    }

    #[test]
    fn a_busy_queue_that_loses_nothing_is_as_good_as_any() {
        let mut overload = QueueOverload::new(4, 0..4);
        fill(&mut overload, 2, 7, 0);
        fill(&mut overload, 2, 7, 10);
        assert_ne!(overload.instead_of(2, flow(8)), 2, "10 more than before");
        fill(&mut overload, 2, 7, 10);
        assert_eq!(overload.instead_of(2, flow(8)), 2, "no more than before");
    }

    #[test]
    fn a_flow_that_loses_nothing_is_looked_at_ever_more_seldom() {
        let (mut overload, mut looks) = (QueueOverload::new(1, 0..1), 0);
        for _ in 0..128 << 4 {
            overload.observe(0, flow(7), 1 << 16);
            overload.poll_drops(0, || {
                looks += 1;
                0
            });
        }
        // At intervals of 1, 1, 2, 4 and 8 MiB, then of 16 MiB for the rest of 128 MiB.
        assert_eq!(looks, 1 + 1 + 1 + 1 + 1 + (128 - 1 - 1 - 2 - 4 - 8) / 16);
    }

    #[test]
    fn where_all_are_filled_each_stays_where_it_is() {
        let mut overload = QueueOverload::new(3, 0..3);
        fill(&mut overload, 0, 7, 0);
        for queue in 0..3 {
            fill(&mut overload, queue, 7 + u64::from(queue), 1 + u64::from(queue));
        }
        for queue in 0..3 {
            assert_eq!(overload.instead_of(queue, flow(1)), queue);
        }
    }
}
