//! Keeps the order of a flow that the kernel moves from one queue to another, between the readers and the
//! packet thread.
//!
//! The kernel forgets after 3 s which queue a flow was written to, and then delivers it to the queue of its
//! own hash. An older packet may still be unread in the old queue. Packets of such a flow are held until the
//! old queue has been empty once. All other flows proceed, so two queues that flows move between never wait
//! for each other. A move is rare: it may cost a copy and system calls.
//!
//! The kernel learns the queue of a new flow when the first packet written for it has been delivered. What
//! answers before that is in the queue of the kernel's hash, which may be any.

use std::collections::VecDeque;
use std::ops::Range;

use rustc_hash::FxHashMap;
use weft_sched::PacketBatch;
use weft_sched::flow::{FlowHash, FlowTable};

use crate::batch::{Slab, SlabHome, TunBatch};

/// Bytes that may be held. Rings of the usual length do not hold that much without super-packets. Beyond it,
/// packets are forwarded out of order to save memory.
const MAX_HELD_BYTES: usize = 16 << 20;

/// The readers and writers of the queues of a device: threads, or the runtime itself.
pub(crate) trait Pipelines {
    /// Reports whether no packet is left in the queue, in its reader, or on the way from the reader to the
    /// packet thread, which has taken `taken` batches of the queue.
    fn is_drained(&self, queue: u16, taken: u64) -> bool;
    /// Returns a number of packets, counted from the first packet ever read from the queue, that certainly
    /// includes every packet that is in the kernel now.
    fn packets_until_now(&self, queue: u16) -> u64;
    /// Returns how many of these packets need not be waited for any more. `offered` packets of the queue were
    /// offered to the guard.
    fn packets_passed(&self, _queue: u16, offered: u64) -> u64 {
        offered
    }
    /// Returns the number of items that the writer has completed.
    fn completed(&self, writer: u16) -> u64;
}

/// Batches and packets that have come from one queue.
#[derive(Clone, Copy, Default)]
struct Progress {
    batches: u64,
    packets: u64,
}

/// A queue that may hold older packets, until it was empty once or `packets` packets have come from it.
struct Blocker {
    queue: u16,
    packets: u64,
}

/// A flow that moved, with its held packets from the queues that it moved to, in order.
struct Moved {
    /// The queue that it was last read from.
    queue: u16,
    /// The queues that it was read from before, or may have been put into before. Packets from these queues
    /// are older. They are not held, but those of a queue of which earlier packets are held.
    blockers: Vec<Blocker>,
    packets: Vec<(u16, Slab)>,
}

impl Moved {
    /// Returns where the next packet from the queue belongs among those that are held, if it has to wait.
    fn place_of(&self, queue: u16) -> Option<usize> {
        if queue == self.queue {
            return Some(self.packets.len());
        }
        // The flow moved to this queue and on to another: the packet is older than those from there.
        self.packets.iter().rposition(|(from, _)| *from == queue).map(|last| last + 1)
    }
}

/// Whether a queue was empty when it was checked during one batch.
#[derive(Clone, Copy, Default)]
enum Check {
    #[default]
    NotYet,
    Drained,
    Busy,
}

/// Keeps the order of the flows across queues.
pub(super) struct ReorderGuard {
    progress: Vec<Progress>,
    moved: FxHashMap<u64, Moved>,
    held_bytes: usize,
    /// The flow of each packet of the current batch, and whether it has to wait.
    flows: Vec<FlowHash>,
    waits: Vec<bool>,
    checks: Vec<Check>,
}

impl ReorderGuard {
    pub(super) fn new(queues: usize) -> Self {
        Self {
            progress: vec![Progress::default(); queues],
            moved: FxHashMap::default(),
            held_bytes: 0,
            flows: Vec::new(),
            waits: Vec::new(),
            checks: vec![Check::NotYet; queues],
        }
    }

    /// Reports whether any packet is held.
    pub(super) fn holds_any(&self) -> bool {
        !self.moved.is_empty()
    }

    /// Reports whether packets of the flow are held.
    pub(super) fn holds(&self, flow: FlowHash) -> bool {
        self.moved.contains_key(&flow.value)
    }

    /// Reports whether packets are held that wait for queues in `own` only.
    pub(super) fn holds_behind(&self, own: &Range<u16>) -> bool {
        let is_own = |blocker: &Blocker| own.contains(&blocker.queue);
        self.moved.values().any(|moved| moved.blockers.iter().all(is_own))
    }

    /// Forwards the next batch that was read to `out`, except for packets that have to wait. Returns the
    /// number of bytes forwarded. `observe` gets the flow and the length of each packet.
    pub(super) fn offer(
        &mut self,
        mut batch: TunBatch,
        table: &mut FlowTable,
        pipelines: &impl Pipelines,
        out: &mut VecDeque<TunBatch>,
        mut observe: impl FnMut(FlowHash, usize),
    ) -> usize {
        let queue = batch.queue();
        let progress = &mut self.progress[usize::from(queue)];
        progress.batches += 1;
        progress.packets += batch.packets() as u64;
        self.flows.clear();
        self.flows.extend(PacketBatch::remaining(&batch).map(|packet| {
            observe(packet.flow, packet.bytes as usize);
            packet.flow
        }));
        self.waits.clear();
        self.checks.fill(Check::NotYet);
        table.tick();
        let mut waits_any = false;
        for place in 0..self.flows.len() {
            let waits = self.has_to_wait(self.flows[place], queue, table, pipelines);
            self.waits.push(waits);
            waits_any |= waits;
        }
        let mut bytes = 0;
        if waits_any {
            for (place, slab) in batch.take_out(&self.waits) {
                self.held_bytes += slab.bytes();
                if let Some(moved) = self.moved.get_mut(&self.flows[place].value) {
                    let place = moved.place_of(queue).unwrap_or(moved.packets.len());
                    moved.packets.insert(place, (queue, slab));
                }
            }
            if self.held_bytes > MAX_HELD_BYTES {
                tracing::debug!(
                    bytes = self.held_bytes,
                    "too many bytes of moved flows are held: forwarding them out of order"
                );
                bytes += self.release_all(out);
            }
        }
        if batch.packets() > 0 {
            bytes += batch.bytes();
            out.push_back(batch);
        }
        bytes
    }

    /// Reports whether a packet of `flow` that was read from `queue` may be newer than a packet that is still
    /// in another queue.
    fn has_to_wait(
        &mut self,
        flow: FlowHash,
        queue: u16,
        table: &mut FlowTable,
        pipelines: &impl Pipelines,
    ) -> bool {
        let blocker = |queue| Blocker { queue, packets: pipelines.packets_until_now(queue) };
        if let Some(moved) = self.moved.get_mut(&flow.value) {
            if moved.place_of(queue).is_some() {
                return true;
            }
            if moved.blockers.iter().any(|blocker| blocker.queue == queue) {
                return false;
            }
            moved.blockers.push(blocker(moved.queue));
            moved.queue = queue;
        } else {
            let earlier = match table.read_queue(flow) {
                Some(old) => old..old + 1,
                None if table.is_first_answer(flow, queue) => 0..self.progress.len() as u16,
                None => queue..queue + 1,
            };
            let is_busy = |old: &u16| *old != queue && !self.is_drained_now(*old, pipelines);
            let blockers: Vec<Blocker> = earlier.filter(is_busy).map(blocker).collect();
            if blockers.is_empty() {
                table.note_read(flow, queue, |writer| pipelines.completed(writer));
                return false;
            }
            self.moved.insert(flow.value, Moved { queue, blockers, packets: Vec::new() });
        }
        // Recorded at once: packets that are written for the flow from now on must not move it back.
        table.note_read(flow, queue, |writer| pipelines.completed(writer));
        true
    }

    /// Forwards packets that need not wait any longer. Returns the number of bytes forwarded.
    pub(super) fn release(&mut self, pipelines: &impl Pipelines, out: &mut VecDeque<TunBatch>) -> usize {
        self.checks.fill(Check::NotYet);
        let mut held = std::mem::take(&mut self.moved);
        let mut bytes = 0;
        held.retain(|_, moved| {
            moved.blockers.retain(|blocker| {
                pipelines.packets_passed(blocker.queue, self.progress[usize::from(blocker.queue)].packets)
                    < blocker.packets
                    && !self.is_drained_now(blocker.queue, pipelines)
            });
            let waits = !moved.blockers.is_empty();
            if !waits {
                bytes += forward(moved, out);
            }
            waits
        });
        self.moved = held;
        self.held_bytes -= bytes;
        bytes
    }

    /// Forwards every held packet: nothing more will be read. Returns the number of bytes forwarded.
    pub(super) fn release_all(&mut self, out: &mut VecDeque<TunBatch>) -> usize {
        self.held_bytes = 0;
        self.moved.drain().map(|(_, mut moved)| forward(&mut moved, out)).sum()
    }

    /// Reports whether the queue was empty when it was first checked during the current batch or release.
    fn is_drained_now(&mut self, queue: u16, pipelines: &impl Pipelines) -> bool {
        let check = &mut self.checks[usize::from(queue)];
        if matches!(check, Check::NotYet) {
            let drained = pipelines.is_drained(queue, self.progress[usize::from(queue)].batches);
            *check = if drained { Check::Drained } else { Check::Busy };
        }
        matches!(check, Check::Drained)
    }
}

fn forward(moved: &mut Moved, out: &mut VecDeque<TunBatch>) -> usize {
    let packets = moved.packets.drain(..).map(|(queue, slab)| TunBatch::new(slab, queue, SlabHome::None));
    let mut bytes = 0;
    out.extend(packets.inspect(|batch| bytes += batch.bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::mpsc;

    use weft_sched::flow::FlowHasher;
    use weft_tunnel::Offload;

    use super::*;

    /// Queues that are empty or not, each with a ring of 10 packets and a reader.
    #[derive(Default)]
    struct Queues {
        busy: HashSet<u16>,
        /// Batches that each reader has sent.
        sent: [u64; 3],
    }

    impl Pipelines for Queues {
        fn is_drained(&self, queue: u16, taken: u64) -> bool {
            !self.busy.contains(&queue) && self.sent[usize::from(queue)] == taken
        }

        fn packets_until_now(&self, _: u16) -> u64 {
            10
        }

        fn completed(&self, _: u16) -> u64 {
            0
        }
    }

    struct Bench {
        hasher: FlowHasher,
        guard: ReorderGuard,
        table: FlowTable,
        queues: Queues,
        out: VecDeque<TunBatch>,
    }

    fn packet(flow: u8, len: usize) -> Vec<u8> {
        let mut packet = vec![0; len];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        packet[9] = 17;
        packet[21] = flow;
        packet
    }

    impl Bench {
        fn new() -> Self {
            let guard = ReorderGuard::new(3);
            let hasher = FlowHasher::random();
            Self {
                hasher,
                guard,
                table: FlowTable::new(0..3),
                queues: Queues::default(),
                out: VecDeque::new(),
            }
        }

        fn offer_packets(&mut self, queue: u16, packets: &[Vec<u8>]) -> usize {
            let mut slab = Slab::new(packets.iter().map(|packet| packet.len() + 15).sum(), self.hasher);
            for packet in packets {
                slab.spare_mut()[..packet.len()].copy_from_slice(packet);
                assert!(slab.commit(0, packet.len(), Offload::None));
            }
            self.queues.sent[usize::from(queue)] += 1;
            let batch = TunBatch::new(slab, queue, mpsc::channel().0);
            self.guard.offer(batch, &mut self.table, &self.queues, &mut self.out, |_, _| {})
        }

        fn offer(&mut self, queue: u16, flow: u8) -> usize {
            self.offer_packets(queue, &[packet(flow, 28)])
        }

        fn release(&mut self) -> usize {
            self.guard.release(&self.queues, &mut self.out)
        }

        /// Returns the queue and the flow of every forwarded packet.
        fn delivered(&mut self) -> Vec<(u16, u8)> {
            self.out
                .drain(..)
                .flat_map(|mut batch| {
                    let mut packets = Vec::new();
                    while let Some(packet) = batch.next_packet() {
                        packets.push(packet.bytes()[21]);
                    }
                    let queue = batch.queue();
                    packets.into_iter().map(move |flow| (queue, flow))
                })
                .collect()
        }
    }

    #[test]
    fn a_flow_that_stays_is_never_held() {
        let mut bench = Bench::new();
        bench.queues.busy.extend([0, 1, 2]);
        assert_eq!((bench.offer(0, 1), bench.offer(1, 2), bench.offer(0, 1)), (28, 28, 28));
        assert_eq!(bench.delivered(), [(0, 1), (1, 2), (0, 1)]);
    }

    #[test]
    fn a_flow_that_moved_waits_until_its_old_queue_is_empty_and_others_do_not() {
        let mut bench = Bench::new();
        bench.offer(0, 1);
        bench.queues.busy.insert(0);
        assert_eq!(bench.offer_packets(1, &[packet(2, 28), packet(1, 28), packet(3, 28)]), 56);
        assert_eq!(bench.release(), 0);
        assert_eq!(bench.offer(0, 1), 28, "what still comes out of the old queue is older");
        assert_eq!(bench.offer(1, 1), 0);
        assert_eq!(bench.out.len(), 3, "a batch that is held as a whole leaves nothing behind");
        assert!(bench.guard.holds_any());
        bench.queues.busy.clear();
        assert_eq!(bench.release(), 56);
        assert_eq!(bench.delivered(), [(0, 1), (1, 2), (1, 3), (0, 1), (1, 1), (1, 1)]);
        assert!(!bench.guard.holds_any());
        assert_eq!(bench.offer(1, 1), 28);
    }

    #[test]
    fn a_flow_that_moved_from_an_empty_queue_does_not_wait() {
        let mut bench = Bench::new();
        bench.offer(0, 1);
        assert_eq!(bench.offer(1, 1), 28);
    }

    #[test]
    fn a_batch_between_its_reader_and_the_packet_thread_is_waited_for() {
        let mut bench = Bench::new();
        bench.offer(0, 1);
        bench.queues.sent[0] += 1;
        assert_eq!(bench.offer(1, 1), 0);
        bench.queues.sent[0] -= 1;
        assert_eq!(bench.release(), 28);
    }

    #[test]
    fn packet_threads_do_not_wait_for_what_each_holds_behind_the_queues_of_the_other() {
        let mut bench = Bench::new();
        bench.offer(0, 1);
        assert!(!bench.guard.holds_behind(&(0..1)), "nothing is held");
        bench.queues.busy.extend([0, 1]);
        bench.offer(1, 1);
        assert!(bench.guard.holds_behind(&(0..1)) && !bench.guard.holds_behind(&(1..3)));
        bench.offer(2, 1);
        assert!(bench.guard.holds_behind(&(0..2)) && !bench.guard.holds_behind(&(0..1)), "both are busy");
    }

    #[test]
    fn what_was_answered_before_the_kernel_knew_the_queue_of_the_flow_stays_in_order() {
        let mut bench = Bench::new();
        let flow = bench.hasher.hash(&packet(1, 28));
        assert_eq!(bench.table.stage(flow, |_| 1, |_| 1, |_| 0), 1);
        bench.queues.busy.extend([0, 2]);
        assert_eq!(bench.offer(1, 1), 0, "the first answer may be in any queue");
        assert_eq!((bench.offer(0, 1), bench.release()), (28, 0));
        bench.queues.busy.clear();
        assert_eq!(bench.release(), 28);
        assert_eq!(bench.delivered(), [(0, 1), (1, 1)]);
    }

    #[test]
    fn a_late_first_answer_waits_for_no_queue() {
        let mut bench = Bench::new();
        let flow = bench.hasher.hash(&packet(1, 28));
        assert_eq!(bench.table.stage(flow, |_| 1, |_| 1, |_| 0), 1);
        bench.queues.busy.extend([0, 2]);
        (0..30).for_each(|_| bench.table.tick());
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
    fn flows_that_change_places_keep_their_order_and_do_not_wait_for_each_other() {
        let mut bench = Bench::new();
        bench.offer(0, 1);
        bench.offer(1, 2);
        bench.queues.busy.extend([0, 1]);
        assert_eq!((bench.offer(1, 1), bench.offer(0, 2)), (0, 0));
        assert_eq!((bench.offer(0, 1), bench.offer(1, 2)), (28, 28));
        bench.queues.busy.remove(&0);
        assert_eq!(bench.release(), 28);
        bench.queues.busy.clear();
        assert_eq!(bench.release(), 28);
        assert_eq!(bench.delivered(), [(0, 1), (1, 2), (0, 1), (1, 2), (1, 1), (0, 2)]);
    }

    #[test]
    fn a_flow_that_moves_on_while_it_waits_waits_for_both_queues() {
        let mut bench = Bench::new();
        bench.offer(0, 1);
        bench.queues.busy.extend([0, 1]);
        assert_eq!((bench.offer(1, 1), bench.offer(2, 1)), (0, 0));
        bench.queues.busy.remove(&0);
        assert_eq!(bench.release(), 0);
        assert_eq!(bench.offer(0, 1), 0, "back in a queue that was seen empty it is newer");
        bench.queues.busy.clear();
        assert_eq!(bench.release(), 84);
        assert_eq!(bench.delivered(), [(0, 1), (1, 1), (2, 1), (0, 1)]);
    }

    #[test]
    fn what_follows_in_a_queue_that_a_held_flow_has_left_stays_behind_what_is_held() {
        let mut bench = Bench::new();
        bench.offer(0, 1);
        bench.queues.busy.extend([0, 1]);
        assert_eq!((bench.offer(1, 1), bench.offer(2, 1)), (0, 0));
        assert_eq!(bench.offer_packets(1, &[packet(1, 29), packet(2, 28)]), 28, "another flow goes on");
        assert_eq!(bench.offer(0, 1), 28, "what is in the first queue is older than all");
        bench.queues.busy.clear();
        assert_eq!(bench.release(), 28 + 29 + 28);
        assert_eq!(bench.delivered(), [(0, 1), (1, 2), (0, 1), (1, 1), (1, 1), (2, 1)]);
    }

    #[test]
    fn what_is_held_is_bounded() {
        let mut bench = Bench::new();
        bench.offer(0, 1);
        bench.queues.busy.insert(0);
        let long = packet(1, 60_000);
        let offers = MAX_HELD_BYTES / long.len() + 1;
        for _ in 1..offers {
            assert_eq!(bench.offer_packets(1, std::slice::from_ref(&long)), 0);
        }
        assert_eq!(bench.offer_packets(1, std::slice::from_ref(&long)), offers * long.len());
        assert!(!bench.guard.holds_any());

        // What went on takes no room any more.
        for _ in 0..3 {
            bench.offer(2, 1);
            bench.queues.busy.insert(2);
            for _ in 0..offers / 2 {
                assert_eq!(bench.offer_packets(1, std::slice::from_ref(&long)), 0);
            }
            bench.queues.busy.clear();
            assert_eq!(bench.release(), offers / 2 * long.len());
        }
    }

    #[test]
    fn nothing_stays_held_when_the_readers_have_ended() {
        let mut bench = Bench::new();
        bench.offer(0, 1);
        bench.queues.busy.insert(0);
        bench.offer(1, 1);
        assert_eq!(bench.guard.release_all(&mut bench.out), 28);
    }
}
