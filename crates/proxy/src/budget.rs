//! A budget for what clients of a proxy take together: bytes that wait for something slow (heads and requests
//! of HTTP, datagrams for a name, and what a relay has read for its receiver), or UDP sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes that may wait, or sockets that may be open, of all clients together.
#[derive(Debug)]
pub(crate) struct Budget {
    most: usize,
    used: AtomicUsize,
    /// The most that was used since [`Self::has_shrunk`] was true.
    peak: AtomicUsize,
}

/// The part of one user of a [`Budget`]. It may have as much as it leaves to the others (dynamic thresholds,
/// Choudhury and Hahne 1998), so that none takes everything.
#[derive(Debug)]
pub(crate) struct Account {
    budget: Arc<Budget>,
    used: AtomicUsize,
}

/// Bytes or sockets of an account, until they are dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

/// What the allocator may keep without being asked for it back.
const KEPT: usize = 1 << 20;

impl Budget {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, used: AtomicUsize::new(0), peak: AtomicUsize::new(0) })
    }

    pub(crate) fn account(self: &Arc<Self>) -> Arc<Account> {
        Arc::new(Account { budget: Arc::clone(self), used: AtomicUsize::new(0) })
    }

    /// Reports whether much waited and does not any more, once for each time.
    pub(crate) fn has_shrunk(&self) -> bool {
        let (used, peak) = (self.used.load(Relaxed), self.peak.load(Relaxed));
        let has_shrunk = peak > KEPT && used < peak / 2;
        if has_shrunk {
            self.peak.store(used, Relaxed);
        }
        has_shrunk
    }
}

impl Account {
    /// Returns the bytes that this account may still take.
    pub(crate) fn free(&self) -> usize {
        let left = self.budget.most.saturating_sub(self.budget.used.load(Relaxed));
        left.saturating_sub(self.used.load(Relaxed))
    }

    /// Takes bytes; `None` if there are not as many. All accounts of a budget are used by one thread.
    pub(crate) fn charge(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        if bytes > self.free() {
            return None;
        }
        self.used.fetch_add(bytes, Relaxed);
        let used = self.budget.used.fetch_add(bytes, Relaxed) + bytes;
        self.budget.peak.fetch_max(used, Relaxed);
        Some(Charge { account: Arc::clone(self), bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.used.fetch_sub(self.bytes, Relaxed);
        self.account.budget.used.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_leaves_as_much_as_it_takes() {
        let budget = Budget::new(1200);
        let (greedy, other) = (budget.account(), budget.account());
        let mut held: Vec<_> = std::iter::from_fn(|| greedy.charge(100)).collect();
        assert_eq!(held.len(), 6);
        let others: Vec<_> = std::iter::from_fn(|| other.charge(100)).collect();
        assert_eq!(others.len(), 3);
        held.truncate(1);
        assert_eq!(greedy.free(), 1200 - 400 - 100);
        drop((held, others));
        assert_eq!((greedy.free(), other.free()), (1200, 1200));
    }

    #[test]
    fn what_waited_is_given_back_once() {
        let budget = Budget::new(4 * KEPT);
        let account = budget.account();
        let held = account.charge(2 * KEPT);
        assert!(held.is_some() && !budget.has_shrunk());
        drop(held);
        assert!(budget.has_shrunk() && !budget.has_shrunk());
        drop(account.charge(KEPT));
        assert!(!budget.has_shrunk(), "little");
    }
}
