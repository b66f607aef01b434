//! Waiting for room where the system says that a queue is full (ENOBUFS), but not when it has room again.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// The first pause, and the longest. tokio rounds each up to its clock of milliseconds.
const FIRST: Duration = Duration::from_micros(100);
const LONGEST: Duration = Duration::from_millis(1);

/// A pause between two attempts to send. While it lasts there is no attempt.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// Made by the first pause, then used again.
    timer: Option<Pin<Box<Sleep>>>,
    is_running: bool,
    last: Option<Duration>,
}

impl Pause {
    /// Returns `Ready` if no pause is running, otherwise registers the waker.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_running
            && let Some(timer) = &mut self.timer
        {
            ready!(timer.as_mut().poll(cx));
        }
        self.is_running = false;
        Poll::Ready(())
    }

    /// Begins a pause: twice as long as the one before, if nothing was sent since.
    pub(super) fn begin(&mut self) {
        let pause = self.last.map_or(FIRST, |last| (2 * last).min(LONGEST));
        self.last = Some(pause);
        self.is_running = true;
        match &mut self.timer {
            Some(timer) => timer.as_mut().reset(Instant::now() + pause),
            None => self.timer = Some(Box::pin(tokio::time::sleep(pause))),
        }
    }

    /// Lets the next pause be a short one: there was room.
    pub(super) fn end(&mut self) {
        self.last = None;
    }
}
