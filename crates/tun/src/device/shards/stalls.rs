//! Packet threads that take nothing from their inboxes, as another thread sees them. It watches them only
//! while one of its queues waits for a slab: otherwise there is room for what they do not take.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use super::ShardEnd;

/// How long a thread may take nothing. Then it gets nothing more until it does.
const STALL: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    /// Messages that it had taken from its inbox at the last check.
    taken: u64,
    is_stalled: bool,
}

#[derive(Debug)]
pub(super) struct Stalls {
    each: Box<[Watched]>,
    /// Whether any thread is stalled.
    any: bool,
    /// The time until the next check.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stalls {
    pub(super) fn new(shards: usize) -> Self {
        Self { each: vec![Watched::default(); shards].into(), any: false, timer: None }
    }

    /// Returns the stalled threads.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        let each: &[Watched] = if self.any { &self.each } else { &[] };
        each.iter().enumerate().filter(|(_, watched)| watched.is_stalled).map(|(number, _)| number)
    }

    pub(super) fn is_stalled(&self, shard: usize) -> bool {
        self.any && self.each[shard].is_stalled
    }

    /// Finds out which of the stalled threads take packets again.
    pub(super) fn refresh(&mut self, shards: &[ShardEnd]) {
        if !self.any {
            return;
        }
        self.any = false;
        for (number, (watched, seen)) in self.each.iter_mut().zip(shards).enumerate() {
            if watched.is_stalled && seen.progress.taken() != watched.taken {
                watched.is_stalled = false;
                tracing::info!("packet thread {number} takes packets of the others again");
            }
            self.any |= watched.is_stalled;
        }
    }

    /// Checks the other threads than `own` while a queue of that waits for a slab. Returns whether one more
    /// is stalled. If not, `cx` is woken for the next check.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, own: u16, shards: &[ShardEnd]) -> bool {
        let timer = self.timer.as_mut().map(|timer| timer.as_mut().poll(cx));
        if timer.is_some_and(|timer| timer.is_pending()) {
            return false;
        }
        let is_time = timer.is_some();
        self.refresh(shards);
        let mut found = false;
        for (number, (watched, seen)) in self.each.iter_mut().zip(shards).enumerate() {
            if number == usize::from(own) {
                continue;
            }
            let taken = seen.progress.taken();
            let is_waited_for = !seen.progress.inbox_is_empty();
            if is_time && is_waited_for && taken == watched.taken && !watched.is_stalled {
                watched.is_stalled = true;
                found = true;
                tracing::warn!(
                    "packet thread {number} has taken nothing for a second; dropping packets for it until it does"
                );
            }
            watched.taken = taken;
            if !is_waited_for {
                // It may hold slabs that it has taken, or sleep: this wakes it to take the message.
                seen.wake(own);
            }
        }
        self.any |= found;
        let timer = self.timer.insert(Box::pin(tokio::time::sleep(STALL)));
        if let Poll::Ready(()) = timer.as_mut().poll(cx) {
            cx.waker().wake_by_ref();
        }
        found
    }
}
