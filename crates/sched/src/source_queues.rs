//! Received messages that wait to be opened, in a queue for each source: FQ-CoDel (RFC 8290).
//!
//! A source that sends more than can be opened delays and loses only its own messages. Sources that sent
//! authentic datagrams are *known*, and have queues apart from all others: addresses and ports cost a sender
//! nothing, so everything from unknown sources together counts as one known source.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::time::Instant;

use rustc_hash::FxBuildHasher;

use crate::codel::CoDel;

/// Number of queues of unknown sources, which are the first.
const UNKNOWN: usize = 8;
/// Number of queues of known sources. Two sources in one queue cost fairness, but not order.
const KNOWN: usize = 256;
/// Cost that a queue of a known source may take in its turn: about one message that the kernel joined.
const QUANTUM: i64 = 64 << 10;
/// Cost that a queue may take at once when it becomes busy, before all queues that are busy already: a few
/// messages of a sparse source.
const SPARSE_QUANTUM: i64 = 4 << 10;
/// Number of known sources after which the sources that were known before them are forgotten.
const GENERATION: usize = 8192;

/// A message that waits.
#[derive(Debug)]
struct Waiting<T> {
    item: T,
    source: u64,
    cost: usize,
    may_be_shed: bool,
    since: Instant,
}

/// The list of busy queues that a queue is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum List {
    #[default]
    None,
    New,
    Old,
}

#[derive(Debug)]
struct Queue<T> {
    waiting: VecDeque<Waiting<T>>,
    cost: usize,
    deficit: i64,
    list: List,
    codel: CoDel,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), cost: 0, deficit: 0, list: List::default(), codel: CoDel::default() }
    }
}

/// A message to open.
#[derive(Debug, PartialEq, Eq)]
pub struct Next<T> {
    /// The message.
    pub item: T,
    /// Whether its first datagram is to be dropped, because its queue waits too long.
    pub sheds_first: bool,
}

/// Messages that wait, by source.
#[derive(Debug)]
pub struct SourceQueues<T> {
    queues: Box<[Queue<T>]>,
    /// Queues that became busy, in this order, and queues that used up their first share.
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    len: usize,
    /// Keyed, so that no sender can choose the queue of another source.
    hasher: RandomState,
    /// Hashes of known sources: those recorded last, and those before them.
    recent: HashSet<u64, FxBuildHasher>,
    older: HashSet<u64, FxBuildHasher>,
    /// Waits count from here.
    resumed_at: Option<Instant>,
}

impl<T> SourceQueues<T> {
    /// Returns empty queues.
    pub fn new() -> Self {
        Self {
            queues: (0..UNKNOWN + KNOWN).map(|_| Queue::default()).collect(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            len: 0,
            hasher: RandomState::new(),
            recent: HashSet::default(),
            older: HashSet::default(),
            resumed_at: None,
        }
    }

    /// Returns the number of messages that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Reports whether no message waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a message. `cost` is more than 0. Returns whether the source was recorded as authentic recently,
    /// so that it need not be recorded again.
    pub fn push(
        &mut self,
        source: SocketAddr,
        item: T,
        cost: usize,
        may_be_shed: bool,
        now: Instant,
    ) -> bool {
        let source = self.hasher.hash_one(source);
        let is_recent = self.recent.contains(&source);
        let number = number(source, is_recent || self.older.contains(&source));
        self.push_to(number, Waiting { item, source, cost, may_be_shed, since: now });
        is_recent
    }

    fn push_to(&mut self, number: usize, waiting: Waiting<T>) {
        let queue = &mut self.queues[number];
        self.len += 1;
        queue.cost += waiting.cost;
        queue.waiting.push_back(waiting);
        if queue.list == List::None {
            queue.list = List::New;
            queue.deficit = SPARSE_QUANTUM;
            self.new.push_back(number);
        }
    }

    /// Removes the message to open next.
    pub fn pop(&mut self, now: Instant) -> Option<Next<T>> {
        loop {
            let list = if self.new.is_empty() { &mut self.old } else { &mut self.new };
            let number = *list.front()?;
            let queue = &mut self.queues[number];
            if queue.deficit <= 0 || queue.waiting.is_empty() {
                list.pop_front();
                // A queue that ran empty while it was new passes through the old ones, otherwise it could
                // stay in front of them by being empty often (RFC 8290, section 4.2).
                if queue.waiting.is_empty() && queue.list == List::Old {
                    queue.list = List::None;
                    continue;
                }
                if queue.deficit <= 0 {
                    queue.deficit += if number < UNKNOWN { QUANTUM / UNKNOWN as i64 } else { QUANTUM };
                }
                queue.list = List::Old;
                self.old.push_back(number);
                continue;
            }
            let waiting = self.take_first(number)?;
            let since = self.resumed_at.map_or(waiting.since, |resumed_at| resumed_at.max(waiting.since));
            let queue = &mut self.queues[number];
            queue.deficit -= waiting.cost as i64;
            let wait = now.saturating_duration_since(since);
            let sheds_first = number >= UNKNOWN
                && waiting.may_be_shed
                && queue.codel.sheds(wait, queue.waiting.is_empty(), now);
            return Some(Next { item: waiting.item, sheds_first });
        }
    }

    /// Removes the oldest message of the longest queue. A queue of unknown sources counts as longer, by their
    /// number of queues.
    pub fn pop_longest(&mut self) -> Option<T> {
        let cost = |number: usize| self.queues[number].cost * if number < UNKNOWN { UNKNOWN } else { 1 };
        let longest = self.new.iter().chain(&self.old).copied().max_by_key(|number| cost(*number))?;
        self.take_first(longest).map(|waiting| waiting.item)
    }

    fn take_first(&mut self, number: usize) -> Option<Waiting<T>> {
        let queue = &mut self.queues[number];
        let waiting = queue.waiting.pop_front()?;
        queue.cost -= waiting.cost;
        self.len -= 1;
        Some(waiting)
    }

    /// Records that a source sent authentic datagrams: it is known.
    pub fn record_authentic(&mut self, source: SocketAddr) {
        let source = self.hasher.hash_one(source);
        if self.recent.len() >= GENERATION {
            self.older = std::mem::take(&mut self.recent);
        }
        if !self.recent.insert(source) || self.older.contains(&source) {
            return;
        }
        // The messages of the source move with it, so that they stay in order.
        let before = number(source, false);
        for _ in 0..self.queues[before].waiting.len() {
            if let Some(waiting) = self.take_first(before) {
                let to = if waiting.source == source { number(source, true) } else { before };
                self.push_to(to, waiting);
            }
        }
    }

    /// Lets waits count from now on: until now, nothing could be opened.
    pub fn resume(&mut self, now: Instant) {
        self.resumed_at = Some(now);
    }
}

impl<T> Default for SourceQueues<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the number of the queue of a source, by its hash.
fn number(source: u64, is_known: bool) -> usize {
    if is_known { UNKNOWN + source as usize % KNOWN } else { source as usize % UNKNOWN }
}

#[cfg(test)]
mod tests;
