//! Packets of flows with much to send: as many bytes of each in its turn, and each flow in its order.
//!
//! Deficit round robin (Shreedhar and Varghese, 1996), as the bulk of FQ-CoDel (RFC 8290, section 4.2): a flow that fills
//! what may be read ahead delays the others by its turn, not by all that it has there.

use std::collections::VecDeque;

use super::{BUCKETS, Waiting};

/// Bytes of a turn: a super-packet, which a GSO batch takes whole.
const QUANTUM: i64 = 64 * 1024;
/// No further packet.
const NONE: u32 = u32::MAX;

struct Node {
    waiting: Waiting,
    /// The next one of the flow, or of those that are free.
    next: u32,
}

/// What waits of the flows that share a bucket.
#[derive(Clone, Copy)]
struct Queue {
    first: u32,
    last: u32,
    /// Bytes left of its turn; below 0, what it had too much of.
    credit: i64,
}

/// The packets, a queue for each bucket.
pub(super) struct Bulk {
    /// Of all queues, and those that are free.
    nodes: Vec<Node>,
    free: u32,
    queues: Box<[Queue; BUCKETS]>,
    /// The buckets that have something; the first has its turn.
    turns: VecDeque<u16>,
}

impl Bulk {
    pub(super) fn new() -> Self {
        let queue = Queue { first: NONE, last: NONE, credit: 0 };
        Self { nodes: Vec::new(), free: NONE, queues: Box::new([queue; BUCKETS]), turns: VecDeque::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Whether something waits of the flows of a bucket.
    pub(super) fn has(&self, bucket: u16) -> bool {
        self.queues[usize::from(bucket)].first != NONE
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        let node = Node { waiting, next: NONE };
        let place = if self.free == NONE {
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        } else {
            let place = self.free;
            self.free = std::mem::replace(&mut self.nodes[place as usize], node).next;
            place
        };
        let queue = &mut self.queues[usize::from(waiting.bucket)];
        if queue.first == NONE {
            *queue = Queue { first: place, last: place, credit: QUANTUM };
            self.turns.push_back(waiting.bucket);
        } else {
            self.nodes[queue.last as usize].next = place;
            queue.last = place;
        }
    }

    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let mut bucket = *self.turns.front()?;
        while self.queues[usize::from(bucket)].credit <= 0 {
            self.queues[usize::from(bucket)].credit += QUANTUM;
            self.turns.rotate_left(1);
            bucket = *self.turns.front()?;
        }
        let queue = &mut self.queues[usize::from(bucket)];
        let place = queue.first;
        let node = &mut self.nodes[place as usize];
        let waiting = node.waiting;
        queue.first = std::mem::replace(&mut node.next, self.free);
        self.free = place;
        queue.credit -= i64::from(waiting.bytes);
        if queue.first == NONE {
            self.turns.pop_front();
        }
        Some(waiting)
    }
}
