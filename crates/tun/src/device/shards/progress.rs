//! What a packet thread publishes of packets that are under way between it and the others.
//!
//! A packet is under way from the moment that it is read until it is put into the inbox of its owner, and
//! there until the owner takes it. The order of the calls is what makes [`Progress::has_all_of`] true only
//! when nothing is under way, and wakes a thread that waits for that.

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// A packet thread, as the others see it.
#[derive(Debug)]
pub(super) struct Progress {
    /// Messages put into the inbox.
    pushed: AtomicU64,
    /// Messages taken from the inbox.
    taken: AtomicU64,
    /// Whether the thread has nothing that it read and that may be for another thread.
    is_idle: AtomicBool,
    /// Whether it waits until others are idle.
    wants_wake: AtomicBool,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            pushed: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            is_idle: AtomicBool::new(true),
            wants_wake: AtomicBool::new(false),
        }
    }

    /// Announces that the thread may read packets of others from now on, until [`Self::settle`].
    pub(super) fn begin(&self) {
        self.is_idle.store(false, Ordering::SeqCst);
    }

    /// Counts a message that is about to be put into the inbox of this thread.
    pub(super) fn push(&self) {
        self.pushed.fetch_add(1, Ordering::SeqCst);
    }

    /// Announces that everything that was read is in the inboxes. Threads that wait for that have to be woken
    /// after the call ([`Self::take_wish`]).
    pub(super) fn settle(&self) {
        self.is_idle.store(true, Ordering::SeqCst);
    }

    /// Counts a message that was taken from the inbox of this thread.
    pub(super) fn take(&self) {
        self.taken.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::SeqCst)
    }

    /// Reports whether everything that was put into the inbox has been taken.
    pub(super) fn inbox_is_empty(&self) -> bool {
        self.pushed.load(Ordering::SeqCst) == self.taken()
    }

    /// Reports whether nothing read by thread `reader` is on its way to this one. Check before that no packet
    /// can be read from the queue.
    pub(super) fn has_all_of(&self, reader: &Self) -> bool {
        // The order matters. A packet that left the queue before the check for packets was read by its
        // thread, which is not idle from then on until it has put the packet into the inbox and counted it
        // there.
        reader.is_idle.load(Ordering::SeqCst) && self.inbox_is_empty()
    }

    /// Makes every other thread wake this one when it is idle next. Check after the call what they are to be
    /// idle for: a thread that became idle before it wakes no other.
    pub(super) fn want_wake(&self) {
        self.wants_wake.store(true, Ordering::SeqCst);
    }

    /// Reports whether this thread is to be woken, and forgets it.
    pub(super) fn take_wish(&self) -> bool {
        self.wants_wake.load(Ordering::SeqCst) && self.wants_wake.swap(false, Ordering::SeqCst)
    }
}
