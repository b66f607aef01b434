//! The flows of a device with several queues: the queue of each flow, and its order while it moves between
//! queues. Used on the packet thread, which takes batches from the queues and stages packets for them.

use std::collections::VecDeque;
use std::ops::Range;

use weft_sched::flow::{FlowHash, FlowTable};

use crate::batch::TunBatch;

mod queue_overload;
mod reorder_guard;

use queue_overload::QueueOverload;
pub(crate) use reorder_guard::Pipelines;
use reorder_guard::ReorderGuard;

/// The queue of each flow that a packet thread knows, for another one that its flows move to.
#[derive(Debug)]
pub struct FlowQueues(FlowTable);

/// The flows of a device.
pub(crate) struct Flows {
    table: FlowTable,
    guard: ReorderGuard,
    overload: QueueOverload,
}

impl Flows {
    /// Returns the flows of a device with `queues` queues, of which this packet thread reads `own`; `None`
    /// with one queue, where no flow can move.
    pub(crate) fn across(queues: usize, own: Range<u16>) -> Option<Self> {
        (queues > 1).then(|| {
            let (table, guard) = (FlowTable::new(own.clone()), ReorderGuard::new(queues));
            Self { table, guard, overload: QueueOverload::new(queues, own) }
        })
    }

    /// Reports whether packets of moved flows are held.
    pub(crate) fn holds_any(&self) -> bool {
        self.guard.holds_any()
    }

    /// Reports whether packets are held that may be those of another packet thread.
    ///
    /// This thread sees the flows of the others in its own queues only, so what waits for the queue of
    /// another thread is its own. If that counted too, two threads could wait for each other.
    pub(crate) fn holds_for_others(&self, own: &Range<u16>) -> bool {
        self.guard.holds_behind(own)
    }

    /// Forwards the next batch that was read to `out`, except for packets of moved flows that have to wait.
    /// Returns the number of bytes forwarded.
    pub(crate) fn offer(
        &mut self,
        batch: TunBatch,
        pipelines: &impl Pipelines,
        out: &mut VecDeque<TunBatch>,
    ) -> usize {
        let Self { table, guard, overload, .. } = self;
        let queue = batch.queue();
        guard.offer(batch, table, pipelines, out, |flow, bytes| overload.observe(queue, flow, bytes))
    }

    /// Estimates the number of flows in a queue, at least 1.
    pub(crate) fn count_in(&self, queue: u16) -> usize {
        self.overload.flows(queue)
    }

    /// Checks after a batch whether one flow overloads the queue, as [`QueueOverload::poll_drops`].
    pub(crate) fn poll_drops(&mut self, queue: u16, dropped: impl FnOnce() -> u64) {
        self.overload.poll_drops(queue, dropped);
    }

    /// Forwards packets that need not wait any longer. Returns the number of bytes forwarded.
    pub(crate) fn release(&mut self, pipelines: &impl Pipelines, out: &mut VecDeque<TunBatch>) -> usize {
        if self.guard.holds_any() { self.guard.release(pipelines, out) } else { 0 }
    }

    /// Forwards every held packet: nothing more will be read. Returns the number of bytes forwarded.
    pub(crate) fn release_all(&mut self, out: &mut VecDeque<TunBatch>) -> usize {
        self.guard.release_all(out)
    }

    /// Returns the queue to write the next packet of the flow to. `next_item` and `completed` are those of
    /// [`FlowTable::stage`].
    #[inline]
    pub(crate) fn stage(
        &mut self,
        flow: FlowHash,
        next_item: impl Fn(u16) -> u64,
        completed: impl Fn(u16) -> u64,
    ) -> u16 {
        let Self { table, guard, overload } = self;
        let choose = |wanted| match overload.instead_of(wanted, flow) {
            // Where it was held back it stays until that is over: one move at a time.
            other if other != wanted && guard.holds(flow) => wanted,
            other => other,
        };
        table.stage(flow, choose, next_item, completed)
    }

    /// Returns the queues of the flows.
    pub(crate) fn queues(&self) -> FlowQueues {
        FlowQueues(self.table.clone())
    }

    /// Takes over the queues of the flows of another packet thread, as [`FlowTable::inherit`].
    pub(crate) fn inherit(&mut self, queues: &FlowQueues, completed: impl Fn(u16) -> u64) {
        self.table.inherit(&queues.0, completed);
    }

    /// Starts a new batch of packets to write: flows used in earlier batches count as older.
    pub(crate) fn tick(&mut self) {
        self.table.tick();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use weft_sched::flow::FlowHasher;
    use weft_tunnel::Offload;

    use super::*;
    use crate::batch::Slab;

    /// Queues with long rings, of which one may be busy.
    struct Queues {
        busy: Option<u16>,
    }

    impl Pipelines for Queues {
        fn is_drained(&self, queue: u16, _: u64) -> bool {
            self.busy != Some(queue)
        }

        fn packets_until_now(&self, _: u16) -> u64 {
            1 << 20
        }

        fn completed(&self, _: u16) -> u64 {
            1
        }
    }

    /// A device with two queues.
    struct Bench {
        hasher: FlowHasher,
        flows: Flows,
        queues: Queues,
        out: VecDeque<TunBatch>,
    }

    fn packet(flow: u8) -> [u8; 28] {
        let mut packet = [0; 28];
        (packet[0], packet[3], packet[9], packet[21]) = (0x45, 28, 17, flow);
        packet
    }

    impl Bench {
        fn new() -> Self {
            let (hasher, flows) = (FlowHasher::random(), Flows::across(2, 0..2).unwrap());
            Self { hasher, flows, queues: Queues { busy: None }, out: VecDeque::new() }
        }

        fn hash(&self, flow: u8) -> FlowHash {
            self.hasher.hash(&packet(flow))
        }

        /// Reads a packet of a flow from a queue. Returns the bytes that go on.
        fn read(&mut self, queue: u16, flow: u8) -> usize {
            let mut slab = Slab::new(100, self.hasher);
            slab.spare_mut()[..28].copy_from_slice(&packet(flow));
            assert!(slab.commit(0, 28, Offload::None));
            let batch = TunBatch::new(slab, queue, mpsc::channel().0);
            self.flows.offer(batch, &self.queues, &mut self.out)
        }

        fn release(&mut self) -> usize {
            self.flows.release(&self.queues, &mut self.out)
        }

        /// Returns the queue that an answer is written to, when what was staged before is written.
        fn answer(&mut self, flow: u8) -> u16 {
            let flow = self.hash(flow);
            self.flows.stage(flow, |_| 1, |_| 1)
        }
    }

    #[test]
    fn a_flow_that_moved_is_held_until_its_old_queue_is_empty_and_answered_in_its_new_one() {
        let mut bench = Bench::new();
        for old in [0, 1] {
            let (new, flow) = (1 - old, 1 + old as u8);
            assert_eq!((bench.read(old, flow), bench.answer(flow)), (28, old));
            bench.queues.busy = Some(old);
            assert_eq!((bench.read(new, flow), bench.release()), (0, 0));
            assert!(bench.flows.holds_any());
            bench.queues.busy = None;
            assert_eq!((bench.release(), bench.answer(flow)), (28, new));
            assert!(!bench.flows.holds_any());
        }
        assert_eq!(bench.out.len(), 4);
    }

    #[test]
    fn a_held_flow_stays_in_its_queue_though_another_flow_overloads_it() {
        let mut bench = Bench::new();
        assert_eq!((bench.read(0, 1), bench.answer(1)), (28, 0));
        bench.queues.busy = Some(0);
        assert_eq!(bench.read(1, 1), 0);
        for dropped in [0, 1] {
            bench.flows.overload.observe(1, bench.hash(2), 32 << 20);
            bench.flows.poll_drops(1, || dropped);
        }
        assert_eq!(bench.answer(3), 0, "others avoid it");
        assert_eq!(bench.answer(1), 1, "its next packets would pass those that are held");
        bench.queues.busy = None;
        assert_eq!((bench.release(), bench.answer(1)), (28, 0));
    }

    #[test]
    fn what_waits_for_the_queue_of_another_packet_thread_is_not_of_that_thread() {
        let mut bench = Bench::new();
        bench.read(0, 1);
        bench.queues.busy = Some(0);
        bench.read(1, 1);
        assert!(bench.flows.holds_for_others(&(0..1)));
        assert!(!bench.flows.holds_for_others(&(1..2)));
    }

    #[test]
    fn nothing_stays_held_when_nothing_more_is_read() {
        let mut bench = Bench::new();
        bench.read(0, 1);
        bench.queues.busy = Some(0);
        bench.read(1, 1);
        assert_eq!(bench.flows.release_all(&mut bench.out), 28);
        assert_eq!((bench.out.len(), bench.flows.holds_any()), (2, false));
    }

    #[test]
    fn an_answer_long_after_the_first_packet_that_was_written_waits_for_no_queue() {
        for (batches, goes_on) in [(0, 0), (100, 28)] {
            let mut bench = Bench::new();
            let flow = bench.hash(1);
            let queue = bench.flows.stage(flow, |_| 1, |_| 0);
            (0..batches).for_each(|_| bench.flows.tick());
            bench.queues.busy = Some(1 - queue);
            assert_eq!(bench.read(queue, 1), goes_on, "after {batches} batches");
        }
    }

    #[test]
    fn a_flow_keeps_its_queue_when_its_peer_moves_to_another_packet_thread() {
        for queue in [0, 1] {
            let (mut before, mut after) = (Bench::new(), Flows::across(2, 1 - queue..2 - queue).unwrap());
            before.read(queue, 1);
            after.inherit(&before.flows.queues(), |_| 0);
            assert_eq!(after.stage(before.hash(1), |_| 1, |_| 0), queue);
        }
    }

    #[test]
    fn queues_have_the_share_of_their_flows() {
        let mut bench = Bench::new();
        for flow in 0..=200 {
            bench.read(0, flow);
        }
        for _ in 0..=200 {
            bench.read(1, 201);
        }
        assert!(bench.flows.count_in(0) > 100);
        assert_eq!(bench.flows.count_in(1), 1);
    }
}
