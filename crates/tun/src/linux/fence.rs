//! Keeps the order of a flow that the kernel moves from one queue to another: between the channel of the readers
//! and the packet thread.
//!
//! The kernel forgets where a flow was written after 3 s, and then delivers it to the queue of its own hash: an
//! older packet may still sit unread in the old queue. A batch with such a flow is held back, and what follows
//! from the same queue behind it, until the old queue was seen empty. It is rare, so it may cost system calls.

use std::collections::VecDeque;

use crate::batch::TunBatch;
use crate::flow::{FlowHash, FlowHasher, FlowTable};

/// What the fence has to know about the threads of a device.
pub(super) trait Pipelines {
    /// Whether nothing is left in the queue, in its reader, nor in the channel, out of which `taken` batches of
    /// this queue have come.
    fn is_drained(&self, queue: u16, taken: u64) -> bool;
    /// A number of packets of the queue that certainly includes every one that is in the kernel now, counted
    /// from the first one ever read.
    fn packets_until_now(&self, queue: u16) -> u64;
    /// Items that the writer is through with.
    fn completed(&self, writer: u16) -> u64;
}

/// Batches of one queue that wait, and for what.
#[derive(Default)]
struct Lane {
    /// Batches and packets that came out of the channel, and packets that were let through.
    batches_taken: u64,
    packets_delivered: u64,
    held: VecDeque<TunBatch>,
    blockers: Vec<Blocker>,
}

/// Another queue that may hold older packets: until it was seen empty, or has delivered `packets` packets.
struct Blocker {
    queue: u16,
    packets: u64,
}

/// The order of the flows across queues.
pub(super) struct Fence {
    hasher: FlowHasher,
    lanes: Vec<Lane>,
    flows: Vec<FlowHash>,
}

impl Fence {
    pub(super) fn new(hasher: FlowHasher, queues: usize) -> Self {
        Self { hasher, lanes: (0..queues).map(|_| Lane::default()).collect(), flows: Vec::new() }
    }

    /// Whether anything is held back.
    pub(super) fn holds_any(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.held.is_empty())
    }

    /// Takes the next batch out of the channel: to `out`, or behind the fence. Gives the bytes let through.
    pub(super) fn offer(
        &mut self,
        batch: TunBatch,
        table: &mut FlowTable,
        pipelines: &impl Pipelines,
        out: &mut VecDeque<TunBatch>,
    ) -> usize {
        let lane = &mut self.lanes[usize::from(batch.queue())];
        lane.batches_taken += 1;
        if lane.held.is_empty() {
            return self.admit(batch, table, pipelines, out);
        }
        lane.held.push_back(batch);
        0
    }

    /// Lets through what need not wait any longer. Gives the bytes let through.
    pub(super) fn release(
        &mut self,
        table: &mut FlowTable,
        pipelines: &impl Pipelines,
        out: &mut VecDeque<TunBatch>,
    ) -> usize {
        let mut bytes = 0;
        for number in 0..self.lanes.len() {
            if self.lanes[number].held.is_empty() {
                continue;
            }
            let mut blockers = std::mem::take(&mut self.lanes[number].blockers);
            blockers.retain(|blocker| {
                let lane = &self.lanes[usize::from(blocker.queue)];
                lane.packets_delivered < blocker.packets && !self.is_drained(blocker.queue, pipelines)
            });
            if blockers.is_empty() {
                let mut rest = std::mem::take(&mut self.lanes[number].held).into_iter();
                if let Some(first) = rest.next() {
                    bytes += self.deliver(first, table, pipelines, out);
                }
                for batch in rest {
                    if self.lanes[number].held.is_empty() {
                        bytes += self.admit(batch, table, pipelines, out);
                    } else {
                        self.lanes[number].held.push_back(batch);
                    }
                }
            } else {
                self.lanes[number].blockers = blockers;
            }
        }
        bytes
    }

    /// Lets everything through: the readers have ended.
    pub(super) fn release_all(
        &mut self,
        table: &mut FlowTable,
        pipelines: &impl Pipelines,
        out: &mut VecDeque<TunBatch>,
    ) -> usize {
        (0..self.lanes.len()).map(|number| self.release_lane(number, table, pipelines, out)).sum()
    }

    fn admit(
        &mut self,
        batch: TunBatch,
        table: &mut FlowTable,
        pipelines: &impl Pipelines,
        out: &mut VecDeque<TunBatch>,
    ) -> usize {
        let mut blockers: Vec<Blocker> = Vec::new();
        let mut drained = None;
        self.hash(&batch);
        for flow in &self.flows {
            let Some(old) = table.read_queue(*flow) else { continue };
            if old == batch.queue()
                || drained == Some(old)
                || blockers.iter().any(|blocker| blocker.queue == old)
            {
                continue;
            }
            if self.is_drained(old, pipelines) {
                drained = Some(old);
            } else {
                blockers.push(Blocker { queue: old, packets: pipelines.packets_until_now(old) });
            }
        }
        if blockers.is_empty() {
            return self.let_through(batch, table, pipelines, out);
        }
        // A queue that waits itself is not waited for, or two might wait for each other.
        let mut bytes = 0;
        for blocker in &blockers {
            bytes += self.release_lane(usize::from(blocker.queue), table, pipelines, out);
        }
        let lane = &mut self.lanes[usize::from(batch.queue())];
        lane.blockers = blockers;
        lane.held.push_back(batch);
        bytes
    }

    fn release_lane(
        &mut self,
        number: usize,
        table: &mut FlowTable,
        pipelines: &impl Pipelines,
        out: &mut VecDeque<TunBatch>,
    ) -> usize {
        self.lanes[number].blockers.clear();
        let held = std::mem::take(&mut self.lanes[number].held);
        held.into_iter().map(|batch| self.deliver(batch, table, pipelines, out)).sum()
    }

    fn hash(&mut self, batch: &TunBatch) {
        self.flows.clear();
        self.flows.extend(batch.remaining().map(|packet| self.hasher.hash(packet)));
    }

    fn deliver(
        &mut self,
        batch: TunBatch,
        table: &mut FlowTable,
        pipelines: &impl Pipelines,
        out: &mut VecDeque<TunBatch>,
    ) -> usize {
        self.hash(&batch);
        self.let_through(batch, table, pipelines, out)
    }

    /// Lets a batch through whose flows are in `flows`.
    fn let_through(
        &mut self,
        batch: TunBatch,
        table: &mut FlowTable,
        pipelines: &impl Pipelines,
        out: &mut VecDeque<TunBatch>,
    ) -> usize {
        let queue = batch.queue();
        table.tick();
        for flow in &self.flows {
            table.note_read(*flow, queue, |writer| pipelines.completed(writer));
        }
        self.lanes[usize::from(queue)].packets_delivered += batch.packets() as u64;
        let bytes = batch.bytes();
        out.push_back(batch);
        bytes
    }

    fn is_drained(&self, queue: u16, pipelines: &impl Pipelines) -> bool {
        let lane = &self.lanes[usize::from(queue)];
        lane.held.is_empty() && pipelines.is_drained(queue, lane.batches_taken)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::mpsc;

    use weft_tunnel::Offload;

    use super::*;
    use crate::batch::Slab;

    /// Queues that are empty or not, each with a ring of 10 packets.
    #[derive(Default)]
    struct Queues {
        busy: HashSet<u16>,
    }

    impl Pipelines for Queues {
        fn is_drained(&self, queue: u16, _: u64) -> bool {
            !self.busy.contains(&queue)
        }

        fn packets_until_now(&self, _: u16) -> u64 {
            10
        }

        fn completed(&self, _: u16) -> u64 {
            0
        }
    }

    struct Bench {
        fence: Fence,
        table: FlowTable,
        queues: Queues,
        out: VecDeque<TunBatch>,
    }

    impl Bench {
        fn new() -> Self {
            let fence = Fence::new(FlowHasher::random(), 3);
            Self { fence, table: FlowTable::new(3), queues: Queues::default(), out: VecDeque::new() }
        }

        fn offer(&mut self, queue: u16, flow: u8) -> usize {
            let mut packet = [0; 28];
            packet[0] = 0x45;
            packet[3] = 28;
            packet[9] = 17;
            packet[21] = flow;
            let mut slab = Slab::new(100);
            slab.spare_mut()[..28].copy_from_slice(&packet);
            assert!(slab.commit(0, 28, Offload::None));
            let batch = TunBatch::new(slab, queue, mpsc::channel().0);
            self.fence.offer(batch, &mut self.table, &self.queues, &mut self.out)
        }

        fn release(&mut self) -> usize {
            self.fence.release(&mut self.table, &self.queues, &mut self.out)
        }

        fn delivered(&mut self) -> Vec<u16> {
            self.out.drain(..).map(|batch| batch.queue()).collect()
        }
    }

    #[test]
    fn a_flow_that_stays_is_never_held() {
        let mut bench = Bench::new();
        bench.queues.busy.extend([0, 1, 2]);
        assert_eq!((bench.offer(0, 1), bench.offer(1, 2), bench.offer(0, 1)), (28, 28, 28));
        assert_eq!(bench.delivered(), [0, 1, 0]);
    }

    #[test]
    fn a_flow_that_moved_waits_until_its_old_queue_is_empty() {
        let mut bench = Bench::new();
        bench.offer(0, 1);
        bench.queues.busy.insert(0);
        assert_eq!(bench.offer(1, 1), 0);
        assert_eq!(bench.offer(1, 2), 0, "what follows in the queue waits behind it");
        assert_eq!(bench.release(), 0);
        assert_eq!(bench.offer(0, 1), 28);
        bench.queues.busy.clear();
        assert_eq!(bench.release(), 56);
        assert_eq!(bench.delivered(), [0, 0, 1, 1]);
        assert!(!bench.fence.holds_any());
    }

    #[test]
    fn a_flow_that_moved_from_an_empty_queue_does_not_wait() {
        let mut bench = Bench::new();
        bench.offer(0, 1);
        assert_eq!(bench.offer(1, 1), 28);
    }

    #[test]
    fn a_queue_that_never_runs_empty_is_waited_for_no_longer_than_its_ring() {
        let mut bench = Bench::new();
        bench.offer(0, 1);
        bench.queues.busy.insert(0);
        bench.offer(1, 1);
        for _ in 0..8 {
            bench.offer(0, 3);
            assert_eq!(bench.release(), 0);
        }
        bench.offer(0, 3);
        assert_eq!(bench.release(), 28);
    }

    #[test]
    fn two_queues_never_wait_for_each_other() {
        let mut bench = Bench::new();
        bench.offer(0, 1);
        bench.offer(1, 2);
        bench.queues.busy.extend([0, 1]);
        assert_eq!(bench.offer(1, 1), 0);
        assert_eq!(bench.offer(0, 2), 28, "queue 1 is let go on, and waited for");
        bench.queues.busy.clear();
        assert_eq!(bench.release(), 28);
        assert_eq!(bench.delivered(), [0, 1, 1, 0]);
    }

    #[test]
    fn nothing_stays_held_when_the_readers_have_ended() {
        let mut bench = Bench::new();
        bench.offer(0, 1);
        bench.queues.busy.insert(0);
        bench.offer(1, 1);
        let Bench { fence, table, queues, out } = &mut bench;
        assert_eq!(fence.release_all(table, queues, out), 28);
    }
}
