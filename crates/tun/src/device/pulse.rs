//! Reaches a TUN thread wherever it waits (for packets, for room, for a slab, for a batch), to end it or to
//! check that it still works. A thread that is stuck in a call or in an endless loop does not answer.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, mpsc};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::descriptor::Pollable;
use super::plain_batch::PlainBatch;
use super::queue::{Until, Woken};
use super::wake::Wake;
use crate::batch::Slab;

/// Why [`Line::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// The queue is readable or writable.
    Ready,
    /// The device does not exist any more.
    Gone,
    /// The device is being stopped.
    Stopped,
}

/// Wakes [`Pulse::silent`] when a thread has answered.
#[derive(Debug, Default)]
pub(super) struct Bell {
    lock: Mutex<()>,
    rung: Condvar,
}

/// The connection to one thread, through which it is asked and stopped.
#[derive(Debug)]
pub(super) struct Line {
    name: String,
    /// Ends a wait for the queue.
    event: Wake,
    /// The thread itself, once it has paused.
    paused: OnceLock<Thread>,
    is_stopped: AtomicBool,
    /// Number of the latest question, and of the latest answered question.
    asked: AtomicU64,
    answered: AtomicU64,
    /// Whether a question is in the thread's channel, where it ends a wait for a slab or a batch.
    is_queued: AtomicBool,
    bell: Arc<Bell>,
}

impl Line {
    pub(super) fn new(name: String, bell: &Arc<Bell>) -> io::Result<Self> {
        Ok(Self {
            name,
            event: Wake::new()?,
            paused: OnceLock::new(),
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

    /// Makes the thread end. A thread that waits for its channel also needs a message there.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Answers the latest question. The thread calls this whenever it has completed something. Without a
    /// question it costs two atomic loads.
    pub(super) fn answer(&self) {
        let asked = self.asked.load(Ordering::SeqCst);
        if asked != self.answered.load(Ordering::Relaxed) {
            self.answered.store(asked, Ordering::SeqCst);
            drop(self.bell.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.bell.rung.notify_all();
        }
    }

    /// Answers the question that the thread found in its channel.
    pub(super) fn answer_queued(&self) {
        self.is_queued.store(false, Ordering::SeqCst);
        self.answer();
    }

    /// Waits until the queue is readable or writable, until the device is gone, or until the stop. Answers
    /// questions meanwhile.
    pub(super) fn wait(&self, queue: &impl Pollable, until: Until) -> Wait {
        loop {
            // Checked before the wait, because an earlier wait may have read the event of the stop.
            if self.is_stopped() {
                return Wait::Stopped;
            }
            match self.event.wait(queue, until) {
                Ok(Woken::Ready) => return Wait::Ready,
                Ok(Woken::Gone) => return Wait::Gone,
                Ok(Woken::Asked) => self.answer(),
                Err(error) => {
                    tracing::error!(%error, "cannot wait for the TUN");
                    return Wait::Gone;
                }
            }
        }
    }

    /// Waits for this time or until the stop. Answers questions meanwhile.
    pub(super) fn pause(&self, pause: Duration) -> Wait {
        self.paused.get_or_init(thread::current);
        let until = Instant::now() + pause;
        loop {
            self.answer();
            if self.is_stopped() {
                return Wait::Stopped;
            }
            let remaining = until.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Wait::Ready;
            }
            self.event.park(remaining);
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.paused.get() {
            thread.unpark();
        }
        if let Err(error) = self.event.wake() {
            tracing::error!(%error, thread = self.name, "cannot wake a TUN thread");
        }
    }

    fn has_answered(&self, number: u64) -> bool {
        self.is_stopped() || self.answered.load(Ordering::SeqCst) >= number
    }
}

/// A message to a writer thread.
#[derive(Debug)]
pub(super) enum Order {
    /// Write the packets that are staged for the queue.
    Write(Arc<PlainBatch>),
    /// Answer a question of [`Pulse`].
    Answer,
    /// End.
    End,
}

/// The sending end of the channel that a thread may wait for.
#[derive(Clone, Debug)]
pub(super) enum Channel {
    Reader(mpsc::Sender<Slab>),
    Writer(mpsc::Sender<Order>),
}

/// A thread that can be asked.
#[derive(Clone, Debug)]
pub(super) struct WatchedThread {
    pub(super) line: Arc<Line>,
    pub(super) channel: Channel,
}

impl WatchedThread {
    fn ask(&self, number: u64) {
        self.line.asked.store(number, Ordering::SeqCst);
        self.line.wake();
        // There is at most one question in the channel: a thread that waits for its queue does not read it.
        if !self.line.is_queued.swap(true, Ordering::SeqCst) {
            // Sending fails only if the thread has ended. Then it needs no question.
            match &self.channel {
                Channel::Reader(slabs) => drop(slabs.send(Slab::message())),
                Channel::Writer(orders) => drop(orders.send(Order::Answer)),
            }
        }
    }
}

/// Asks the threads of a device whether they work. Does not keep the device open.
#[derive(Clone, Debug, Default)]
pub struct Pulse {
    threads: Arc<[WatchedThread]>,
    bell: Arc<Bell>,
    /// Number of the latest question. Locked while its answers are awaited.
    number: Arc<Mutex<u64>>,
}

impl Pulse {
    pub(super) fn new(threads: &[WatchedThread], bell: &Arc<Bell>) -> Self {
        Self { threads: threads.into(), bell: Arc::clone(bell), number: Arc::default() }
    }

    /// Returns the names of the threads that do not answer within `patience`. A waiting thread answers at
    /// once, a busy thread after its batch. For a device without threads the result is empty.
    pub fn silent(&self, patience: Duration) -> Vec<String> {
        let mut number = self.number.lock().unwrap_or_else(PoisonError::into_inner);
        *number += 1;
        for thread in self.threads.iter() {
            thread.ask(*number);
        }
        let is_silent = |thread: &&WatchedThread| !thread.line.has_answered(*number);
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
