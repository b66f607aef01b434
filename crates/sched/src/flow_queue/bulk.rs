//! Bulk flows in deficit round robin (Shreedhar and Varghese, 1996; RFC 8290, section 4.2). A flow that fills
//! the queue delays the others by one quantum, not by all of its packets.

use std::collections::VecDeque;

use super::{BUCKETS, Waiting};

/// Bytes that a flow sends before the next flow: a super-packet, which fits one GSO batch.
const QUANTUM: i64 = 64 * 1024;
/// Marks the end of a list of nodes.
const NONE: u32 = u32::MAX;

struct Node {
    waiting: Waiting,
    /// The next packet of the flow, or the next free node.
    next: u32,
}

/// The packets of the flows that share a bucket.
#[derive(Clone, Copy)]
struct Queue {
    first: u32,
    last: u32,
    /// Bytes left of the quantum; negative after a packet that exceeded it.
    deficit: i64,
}

/// The bulk flows: a queue for each bucket.
pub(super) struct BulkFlows {
    /// The packets of all queues, and free nodes.
    nodes: Vec<Node>,
    free: u32,
    queues: Box<[Queue; BUCKETS]>,
    /// The buckets that are not empty, in sending order.
    active: VecDeque<u16>,
}

impl BulkFlows {
    pub(super) fn new() -> Self {
        let queue = Queue { first: NONE, last: NONE, deficit: 0 };
        Self { nodes: Vec::new(), free: NONE, queues: Box::new([queue; BUCKETS]), active: VecDeque::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Reports whether a packet of this bucket waits.
    pub(super) fn contains(&self, bucket: u16) -> bool {
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
            *queue = Queue { first: place, last: place, deficit: QUANTUM };
            self.active.push_back(waiting.bucket);
        } else {
            self.nodes[queue.last as usize].next = place;
            queue.last = place;
        }
    }

    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let mut bucket = *self.active.front()?;
        while self.queues[usize::from(bucket)].deficit <= 0 {
            self.queues[usize::from(bucket)].deficit += QUANTUM;
            self.active.rotate_left(1);
            bucket = *self.active.front()?;
        }
        let queue = &mut self.queues[usize::from(bucket)];
        let place = queue.first;
        let node = &mut self.nodes[place as usize];
        let waiting = node.waiting;
        queue.first = std::mem::replace(&mut node.next, self.free);
        self.free = place;
        queue.deficit -= i64::from(waiting.bytes);
        if queue.first == NONE {
            self.active.pop_front();
        }
        Some(waiting)
    }
}
