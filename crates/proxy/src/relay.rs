//! Carries bytes between two connections, both ways.
//!
//! A relay reads only what it can write: while one side takes nothing, the other side is not read, and TCP
//! slows its sender down. Between the two there is at most one read of [`BUFFER`] bytes each way, and nothing
//! while the connection is idle: buffers belong to the thread. What waits is charged to the budget of the
//! proxy. The less is left of it, the less is read at once.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::ReadBuf;
use weft_network::Connection;

use crate::budget::{Account, Charge};
use crate::gone::Watch;

/// Bytes read at once. Reads of 64 KiB take a fifth more processor time, and splice(2) as much.
pub(crate) const BUFFER: usize = 256 * 1024;
/// The least that is read at once, when nothing is left of the budget.
const SMALL: usize = 8 * 1024;
/// A read takes at most this share of what is left of the budget.
const SHARE: usize = 16;
/// Reads of one direction before other tasks of the thread continue: less than a millisecond.
const READS_A_TURN: usize = 4;
/// Unused buffers that a thread keeps.
const SPARE_BUFFERS: usize = 4;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

fn take_buffer() -> Vec<u8> {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; BUFFER])
}

fn return_buffer(buffer: Vec<u8>) {
    SPARE.with_borrow_mut(|spare| {
        if buffer.len() == BUFFER && spare.len() < SPARE_BUFFERS {
            spare.push(buffer);
        }
    });
}

/// One direction of a relay.
#[derive(Debug, Default)]
struct Direction {
    /// Has what was read and not written yet, from `start` to `end`. Empty if there is nothing.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// The bytes of the buffer while it waits.
    charge: Option<Charge>,
    state: State,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// The source has ended; the sink is told after the rest.
    Ending,
    /// The sink was told.
    Ended,
    /// The sink takes nothing more.
    Broken,
}

/// Bytes that a relay carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) to_remote: u64,
    pub(crate) to_client: u64,
}

/// Carries bytes between both connections until both directions have ended. `first` was read from the client
/// already.
///
/// The end of one direction is passed on while the other one continues, unless the client has gone. A reset
/// is passed on as a reset, and so is the end of a relay that is dropped, for another client: the other end
/// must not take what it got for all that there was, and the kernel need not keep what it has not taken.
pub(crate) async fn relay(
    client: Box<dyn Connection>,
    remote: Box<dyn Connection>,
    first: Vec<u8>,
    account: &Arc<Account>,
) -> (Carried, io::Result<()>) {
    let mut out = Direction { end: first.len(), buffer: first, ..Direction::default() };
    let mut back = Direction::default();
    let mut ends = Ends { client, remote, is_aborted: true };
    let Ends { client, remote, .. } = &mut ends;
    let mut watch = Watch::new(&**client);
    let result = poll_fn(|cx| {
        let carried = out.poll(cx, client.as_mut(), remote.as_mut(), account)?;
        let returned = back.poll(cx, remote.as_mut(), client.as_mut(), account)?;
        if carried.is_ready() && returned.is_ready() {
            return Poll::Ready(Ok(()));
        }
        let taken = carried.is_pending().then_some(out.bytes);
        watch.poll(cx, taken, &**remote).map(|()| Err(io::ErrorKind::ConnectionAborted.into()))
    })
    .await;
    let is_broken = [&out, &back].iter().any(|direction| direction.state == State::Broken);
    ends.is_aborted = result.is_err() || is_broken;
    (Carried { to_remote: out.bytes, to_client: back.bytes }, result)
}

/// Both ends of a relay, until it is dropped.
struct Ends {
    client: Box<dyn Connection>,
    remote: Box<dyn Connection>,
    is_aborted: bool,
}

impl Drop for Ends {
    fn drop(&mut self) {
        if self.is_aborted {
            self.client.abort();
            self.remote.abort();
        }
    }
}

impl Direction {
    /// Carries what is there. Ready once nothing more will be carried.
    ///
    /// # Errors
    /// When the source fails. A sink that fails only ends this direction: what it sent before is still read.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut dyn Connection,
        to: &mut dyn Connection,
        account: &Arc<Account>,
    ) -> Poll<io::Result<()>> {
        for _ in 0..READS_A_TURN {
            if matches!(self.state, State::Ended | State::Broken) {
                return Poll::Ready(Ok(()));
            }
            match self.poll_write(cx, to) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => {
                    self.state = State::Broken;
                    self.release();
                    continue;
                }
                Poll::Pending => {
                    self.hold(account);
                    return Poll::Pending;
                }
            }
            if self.state == State::Ending {
                // The other end may have gone already.
                let _ = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                self.state = State::Ended;
                continue;
            }
            if self.poll_read(cx, from, account)?.is_pending() {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes what was read.
    fn poll_write(&mut self, cx: &mut Context<'_>, to: &mut dyn Connection) -> Poll<io::Result<()>> {
        while self.start < self.end {
            let count = ready!(Pin::new(&mut *to).poll_write(cx, &self.buffer[self.start..self.end]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.start += count;
            self.bytes += count as u64;
        }
        self.release();
        Poll::Ready(Ok(()))
    }

    /// Keeps what was read until the sink takes it.
    fn hold(&mut self, account: &Arc<Account>) {
        if self.charge.is_some() {
            return;
        }
        self.charge = account.charge(self.buffer.len());
        if self.charge.is_none() {
            let rest = self.buffer[self.start..self.end].to_vec();
            return_buffer(std::mem::replace(&mut self.buffer, rest));
            (self.start, self.end) = (0, self.buffer.len());
            // Without a charge if it is one of the smallest.
            self.charge = account.charge(self.buffer.len());
        }
    }

    fn release(&mut self) {
        self.charge = None;
        if !self.buffer.is_empty() {
            return_buffer(std::mem::take(&mut self.buffer));
        }
    }

    /// Reads once.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut dyn Connection,
        account: &Account,
    ) -> Poll<io::Result<()>> {
        let mut bytes = take_buffer();
        let limit = (account.free() / SHARE).clamp(SMALL, BUFFER);
        let mut buffer = ReadBuf::new(&mut bytes[..limit]);
        let read = Pin::new(from).poll_read(cx, &mut buffer);
        let count = buffer.filled().len();
        if !matches!(read, Poll::Ready(Ok(()))) || count == 0 {
            return_buffer(bytes);
            ready!(read)?;
            self.state = State::Ending;
            return Poll::Ready(Ok(()));
        }
        (self.buffer, self.start, self.end) = (bytes, 0, count);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
#[path = "relay/tests.rs"]
mod tests;
