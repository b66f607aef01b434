//! Clients that have gone. Their connections say so by their end; an end is also what a client sends that
//! only reads from then on, so connections that are open go on.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};
use weft_network::{Connection, Later};

/// How long what is under way for a client may take without progress after the client has ended its side.
pub(crate) const LINGER: Duration = Duration::from_secs(20);

/// Does something for a client that nothing is sent to meanwhile. `None`: the client has ended its side, and
/// this has taken too long since.
pub(crate) async fn unless_gone<T>(ended: Later<'static, ()>, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = async { ended.await; sleep(LINGER).await } => None,
    }
}

/// Watches the client of a relay.
pub(crate) struct Watch {
    /// `None`: it has ended.
    ended: Option<Later<'static, ()>>,
    failed: Later<'static, ()>,
    deadline: Pin<Box<Sleep>>,
    /// What the remote had taken when the deadline was set.
    taken: u64,
}

impl Watch {
    pub(crate) fn new(client: &dyn Connection) -> Self {
        let (ended, failed) = (Some(client.ended()), client.failed());
        Self { ended, failed, deadline: Box::pin(sleep(LINGER)), taken: 0 }
    }

    /// Ready once the client has gone: its connection has failed after its end, or the remote takes nothing
    /// of what it sent before. `taken` is what it took, and `None` once it has all.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        taken: Option<u64>,
        remote: &dyn Connection,
    ) -> Poll<()> {
        if let Some(ended) = &mut self.ended {
            ready!(ended.as_mut().poll(cx));
            self.ended = None;
            // What is in buffers of the kernel by then.
            remote.give_up_after(LINGER);
            self.expect_progress(taken);
        }
        if self.failed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        while taken.is_some() {
            ready!(self.deadline.as_mut().poll(cx));
            if taken == Some(self.taken) {
                return Poll::Ready(());
            }
            self.expect_progress(taken);
        }
        Poll::Pending
    }

    fn expect_progress(&mut self, taken: Option<u64>) {
        self.taken = taken.unwrap_or_default();
        self.deadline.as_mut().reset(Instant::now() + LINGER);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_done_for_a_client_ends_a_while_after_it_has_gone() {
        let late = || Box::pin(sleep(Duration::from_secs(3600)));
        assert_eq!(unless_gone(Box::pin(ready(())), sleep(LINGER / 2)).await, Some(()));
        let begin = Instant::now();
        assert_eq!(unless_gone(late(), pending::<()>()).await, None);
        assert_eq!(begin.elapsed(), Duration::from_secs(3600) + LINGER);
    }
}
