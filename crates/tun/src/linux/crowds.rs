//! Who shares a queue; which queues one flow fills beyond what the kernel keeps, and where others go instead.
//!
//! The kernel delivers a flow to the queue that it was written to last. So what answers an inbound packet need not wait, nor be
//! thrown away, behind what somebody else sends without a pause, if the packet was written to another queue.

use crate::distinct::Distinct;
use crate::flow::FlowHash;
use crate::heaviest::Heaviest;

/// Bytes out of a queue, most of them of one flow, after which the kernel is asked for the first time whether it threw packets
/// away: soon enough for a flood.
const FIRST_LOOK: u64 = 1 << 20;
/// The same for a flow of which nothing new is learned since long, so that what it costs cannot be measured.
const LAST_LOOK: u64 = 16 << 20;

#[derive(Clone)]
struct Crowd {
    flows: Distinct,
    heaviest: Heaviest<u64>,
    /// Bytes out of the queue until the next look.
    look: u64,
    /// Whose most of them were at the last one.
    most: Option<u64>,
    /// The flow that fills the queue.
    by: Option<u64>,
}

/// The queues of a device.
pub(super) struct Crowds {
    queues: Box<[Crowd]>,
    /// How many have a flow that fills them.
    filled: usize,
    /// Packets of the device that the kernel had thrown away at the last look; of one that was taken over, some from before.
    dropped: Option<u64>,
}

impl Crowds {
    pub(super) fn new(queues: usize) -> Self {
        let crowd = Crowd {
            flows: Distinct::default(),
            heaviest: Heaviest::default(),
            look: FIRST_LOOK,
            most: None,
            by: None,
        };
        Self { queues: vec![crowd; queues].into(), filled: 0, dropped: None }
    }

    /// A packet came out of a queue.
    #[inline]
    pub(super) fn saw(&mut self, queue: u16, flow: FlowHash, bytes: usize) {
        let crowd = &mut self.queues[usize::from(queue)];
        crowd.flows.saw(flow.value, bytes);
        crowd.heaviest.saw(flow.value, bytes);
    }

    /// About how many flows share a queue, at least 1.
    pub(super) fn flows(&self, queue: u16) -> usize {
        self.queues[usize::from(queue)].flows.count()
    }

    /// Looks whether a flow fills a queue, if it is time to. `dropped` gives the packets of the device that the kernel has
    /// thrown away: a queue may be busy and lose nothing.
    pub(super) fn look(&mut self, queue: u16, dropped: impl FnOnce() -> u64) {
        let crowd = &mut self.queues[usize::from(queue)];
        if crowd.heaviest.bytes() < crowd.look {
            return;
        }
        let most = crowd.heaviest.take();
        let by = most.filter(|_| {
            let now = dropped();
            self.dropped.replace(now).is_some_and(|before| now > before)
        });
        let is_as_before = most.is_some() && most == crowd.most && by == crowd.by;
        crowd.look = if is_as_before { LAST_LOOK.min(2 * crowd.look) } else { FIRST_LOOK };
        crowd.most = most;
        let before = std::mem::replace(&mut crowd.by, by);
        self.filled = self.filled + usize::from(by.is_some()) - usize::from(before.is_some());
    }

    /// The queue to write a packet of `flow` to, for which `queue` was meant: another one if some other flow fills that, as
    /// long as there is one that nobody fills.
    #[inline]
    pub(super) fn instead_of(&self, queue: u16, flow: FlowHash) -> u16 {
        if self.filled == 0 { queue } else { self.choose(queue, flow) }
    }

    fn choose(&self, queue: u16, flow: FlowHash) -> u16 {
        let by = |queue: usize| self.queues[queue].by;
        if by(usize::from(queue)).is_none_or(|by| by == flow.value) {
            return queue;
        }
        // The low bits have chosen the queue: others spread those that meet in it.
        let count = self.queues.len();
        let first = (flow.value >> 32) as usize % count;
        let mut others = (first..first + count).map(|other| other % count);
        others.find(|other| by(*other).is_none()).map_or(queue, |other| other as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(value: u64) -> FlowHash {
        FlowHash { value, has_ports: true }
    }

    /// Lets packets of `flow` come out of a queue until the next look, at which the device has dropped so many.
    fn fill(crowds: &mut Crowds, queue: u16, value: u64, dropped: u64) {
        for _ in 0..LAST_LOOK / 60_000 + 1 {
            crowds.saw(queue, flow(value), 60_000);
            crowds.saw(queue, flow(99), 100);
        }
        crowds.look(queue, || dropped);
    }

    #[test]
    fn others_go_elsewhere_while_one_flow_fills_a_queue() {
        let mut crowds = Crowds::new(4);
        fill(&mut crowds, 2, 7, 50);
        assert_eq!(crowds.instead_of(2, flow(8)), 2, "that may be from before");
        fill(&mut crowds, 2, 7, 51);
        assert_eq!(crowds.instead_of(2, flow(7)), 2, "who fills it stays");
        assert!((0..64).all(|other| crowds.instead_of(2, flow(other << 32)) != 2));
        let spread: std::collections::HashSet<_> =
            (0..64).map(|other| crowds.instead_of(2, flow(other << 32))).collect();
        assert_eq!(spread.len(), 3);
        assert_eq!(crowds.instead_of(1, flow(8)), 1);
        for sent in 0..LAST_LOOK / 1000 + 1 {
            crowds.saw(2, flow(sent), 1000);
        }
        crowds.look(2, || 100);
        assert_eq!(crowds.instead_of(2, flow(8)), 2, "nobody fills it any more");
    }

    #[test]
    fn a_busy_queue_that_loses_nothing_is_as_good_as_any() {
        let mut crowds = Crowds::new(4);
        fill(&mut crowds, 2, 7, 0);
        fill(&mut crowds, 2, 7, 10);
        assert_ne!(crowds.instead_of(2, flow(8)), 2, "10 more than before");
        fill(&mut crowds, 2, 7, 10);
        assert_eq!(crowds.instead_of(2, flow(8)), 2, "no more than before");
    }

    #[test]
    fn a_flow_that_loses_nothing_is_looked_at_ever_more_seldom() {
        let (mut crowds, mut looks) = (Crowds::new(1), 0);
        for _ in 0..128 << 4 {
            crowds.saw(0, flow(7), 1 << 16);
            crowds.look(0, || {
                looks += 1;
                0
            });
        }
        // After 1, 2, 4 and 8 MiB, and then every 16 of the rest of 128.
        assert_eq!(looks, 1 + 1 + 1 + 1 + 1 + (128 - 1 - 1 - 2 - 4 - 8) / 16);
    }

    #[test]
    fn where_all_are_filled_each_stays_where_it_is() {
        let mut crowds = Crowds::new(3);
        fill(&mut crowds, 0, 7, 0);
        for queue in 0..3 {
            fill(&mut crowds, queue, 7 + u64::from(queue), 1 + u64::from(queue));
        }
        for queue in 0..3 {
            assert_eq!(crowds.instead_of(queue, flow(1)), queue);
        }
    }
}
