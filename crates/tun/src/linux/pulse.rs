//! Reaches a TUN thread wherever it waits (for packets, for room, for a slab, for a batch): to end it, and to hear that
//! it still works. A thread that is stuck in a call, or turns in circles, does not answer.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::queue::Queue;
use super::writer::Order;
use crate::batch::Slab;

/// Why [`Line::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// The queue is ready for what was waited for.
    Ready,
    /// The device does not exist any more.
    Gone,
    /// The device is being stopped.
    Stopped,
}

/// Rung by a thread that has answered.
#[derive(Debug, Default)]
pub(super) struct Bell {
    lock: Mutex<()>,
    rung: Condvar,
}

/// A line to one thread.
#[derive(Debug)]
pub(super) struct Line {
    name: String,
    /// Ends a wait in poll(2).
    event: EventFd,
    is_stopped: AtomicBool,
    /// The number of the latest question, and of the latest one that was answered.
    asked: AtomicU64,
    answered: AtomicU64,
    /// A question lies in the thread's channel, where it ends a wait for a slab or a batch.
    is_queued: AtomicBool,
    bell: Arc<Bell>,
}

impl Line {
    pub(super) fn new(name: String, bell: &Arc<Bell>) -> io::Result<Self> {
        Ok(Self {
            name,
            event: EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            is_stopped: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            is_queued: AtomicBool::new(false),
            bell: Arc::clone(bell),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Tells the thread to end, unless it waits for its channel.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Called by the thread whenever it is through with something: one load, as long as nobody asks.
    pub(super) fn answer(&self) {
        let asked = self.asked.load(Ordering::SeqCst);
        if asked != self.answered.load(Ordering::Relaxed) {
            self.answered.store(asked, Ordering::SeqCst);
            drop(self.bell.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.bell.rung.notify_all();
        }
    }

    /// The thread found a question in its channel.
    pub(super) fn answer_queued(&self) {
        self.is_queued.store(false, Ordering::SeqCst);
        self.answer();
    }

    /// Waits until the queue is ready for `events`, or the stop; answers meanwhile.
    pub(super) fn wait(&self, queue: &Queue, events: PollFlags) -> Wait {
        loop {
            // Before the wait: what woke an earlier one is not there any more.
            if self.is_stopped() {
                return Wait::Stopped;
            }
            let mut wait =
                [PollFd::new(queue.as_fd(), events), PollFd::new(self.event.as_fd(), PollFlags::POLLIN)];
            match poll(&mut wait, PollTimeout::NONE) {
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(errno) => {
                    tracing::error!(error = errno.desc(), "cannot wait for the TUN");
                    return Wait::Gone;
                }
            }
            let [queue, event] = wait.map(|wait| wait.revents().unwrap_or(PollFlags::empty()));
            if !event.is_empty() {
                // Nothing there: it was read before.
                let _ = self.event.read();
                self.answer();
                if self.is_stopped() {
                    return Wait::Stopped;
                }
            }
            if queue.intersects(events) {
                return Wait::Ready;
            }
            if !queue.is_empty() {
                return Wait::Gone;
            }
        }
    }

    fn wake(&self) {
        if let Err(errno) = self.event.write(1) {
            tracing::error!(error = errno.desc(), thread = self.name, "cannot wake a TUN thread");
        }
    }

    fn has_answered(&self, number: u64) -> bool {
        self.is_stopped() || self.answered.load(Ordering::SeqCst) >= number
    }
}

/// The channel that a thread may wait for.
#[derive(Clone, Debug)]
pub(super) enum Channel {
    Reader(mpsc::Sender<Slab>),
    Writer(mpsc::Sender<Order>),
}

/// One thread, for who asks.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) line: Arc<Line>,
    pub(super) channel: Channel,
}

impl Asked {
    fn ask(&self, number: u64) {
        self.line.asked.store(number, Ordering::SeqCst);
        self.line.wake();
        // Never two in the channel: a thread that waits in poll(2) leaves it there.
        if !self.line.is_queued.swap(true, Ordering::SeqCst) {
            // A thread that has ended needs no question.
            match &self.channel {
                Channel::Reader(slabs) => drop(slabs.send(Slab::new(0))),
                Channel::Writer(orders) => drop(orders.send(Order::Answer)),
            }
        }
    }
}

/// Asks the threads of a device whether they work. It does not keep the device open.
#[derive(Clone, Debug, Default)]
pub struct Pulse {
    threads: Arc<[Asked]>,
    bell: Arc<Bell>,
    /// The latest question. Locked for as long as its answers are waited for.
    number: Arc<Mutex<u64>>,
}

impl Pulse {
    pub(super) fn new(threads: &[Asked], bell: &Arc<Bell>) -> Self {
        Self { threads: threads.into(), bell: Arc::clone(bell), number: Arc::default() }
    }

    /// The names of the threads that do not answer within `patience`. A thread that waits for something answers at
    /// once, one that is busy when it is through with a batch; a device without threads has none that could be silent.
    pub fn silent(&self, patience: Duration) -> Vec<String> {
        let mut number = self.number.lock().unwrap_or_else(PoisonError::into_inner);
        *number += 1;
        for thread in self.threads.iter() {
            thread.ask(*number);
        }
        let is_silent = |thread: &&Asked| !thread.line.has_answered(*number);
        let deadline = Instant::now() + patience;
        let mut guard = self.bell.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.threads.iter().any(|thread| is_silent(&thread)) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            (guard, _) = self.bell.rung.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner);
        }
        self.threads.iter().filter(is_silent).map(|thread| thread.line.name().to_owned()).collect()
    }
}
