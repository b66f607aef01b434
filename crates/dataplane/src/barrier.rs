//! How the event loops of an interface agree to do something at the same time, while no outbound packet is
//! under way in one of them or between them.
//!
//! All of them stop reading, hand over and send what they have read. Then one of them, the leader, passes the
//! barrier for all. No thread waits for another one longer than a few milliseconds: until the leader has
//! passed, each of them may call it off. Meanwhile a loop takes turns without pause, and goes on with inbound
//! packets, handshakes and commands. Nothing is dropped: the queues of the kernel hold what is not read.

use std::task::Waker;
use std::time::{Duration, Instant};

use crate::sync::{Arc, AtomicU8, AtomicUsize, Mutex, Ordering, PoisonError};

/// How long to wait until every event loop takes part. Packets move meanwhile.
const GATHER: Duration = Duration::from_secs(1);
/// How long an event loop reads nothing from its queues at most: a short queue of the kernel holds the
/// packets of this time.
pub(crate) const DRAIN: Duration = Duration::from_millis(5);

const PENDING: u8 = 0;
const PASSED: u8 = 1;
const CALLED_OFF: u8 = 2;

/// A barrier that all event loops of an interface share, and a place for what the leader hands to another
/// one.
#[derive(Debug)]
pub struct Barrier<T> {
    /// Number of event loops, and how many of them have come how far.
    count: usize,
    leader: u16,
    gathered: AtomicUsize,
    /// Those that hand nothing over any more.
    settled: AtomicUsize,
    /// Those that have nothing left.
    drained: AtomicUsize,
    outcome: AtomicU8,
    /// The event loops that wait until all take part.
    gathering: Mutex<Vec<Waker>>,
    cargo: Mutex<Option<T>>,
}

impl<T> Barrier<T> {
    /// Returns a barrier for `count` event loops, which event loop `leader` passes for all.
    pub(crate) fn new(count: usize, leader: u16) -> Self {
        Self {
            count,
            leader,
            gathered: AtomicUsize::new(0),
            settled: AtomicUsize::new(0),
            drained: AtomicUsize::new(0),
            outcome: AtomicU8::new(PENDING),
            gathering: Mutex::new(Vec::new()),
            cargo: Mutex::new(None),
        }
    }

    /// Reports whether the barrier was passed. If it was not, it is not passed later.
    pub(crate) fn conclude(&self) -> bool {
        self.end(CALLED_OFF);
        self.outcome.load(Ordering::SeqCst) == PASSED
    }

    fn end(&self, outcome: u8) -> bool {
        let ended = self.outcome.compare_exchange(PENDING, outcome, Ordering::SeqCst, Ordering::SeqCst);
        if ended.is_ok() && outcome == CALLED_OFF {
            self.wake();
        }
        ended.is_ok()
    }

    fn wake(&self) {
        let mut gathering = self.gathering.lock().unwrap_or_else(PoisonError::into_inner);
        gathering.drain(..).for_each(Waker::wake);
    }

    fn are_all(&self, of: &AtomicUsize) -> bool {
        of.load(Ordering::SeqCst) == self.count
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Waits until all take part.
    Gather,
    /// Reads nothing from its own queues, and hands over what it holds.
    Settle,
    /// Seals and sends what is left.
    Drain,
    /// Waits for the others.
    Wait,
}

/// What an event loop has left of outbound packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    /// In the device: handed over by others, or held back.
    pub(crate) in_device: bool,
    /// Taken from the device, and not sent.
    pub(crate) in_loop: bool,
}

impl Left {
    fn is_none(self) -> bool {
        !self.in_device && !self.in_loop
    }
}

/// What an event loop does in its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// As always.
    GoOn,
    /// Reads no queue of the device.
    ReadNothing,
    /// Leaves the device and outbound packets alone.
    Halt,
    /// As [`Self::Halt`], and calls [`Participant::pass`] if nothing else is against it.
    Lead,
    /// The barrier is passed: does what was agreed, and goes on.
    Passed,
    /// Goes on.
    CalledOff,
}

/// One event loop at a barrier.
#[derive(Debug)]
pub(crate) struct Participant<T> {
    barrier: Arc<Barrier<T>>,
    number: u16,
    step: Step,
    deadline: Instant,
}

impl<T> Participant<T> {
    /// Takes part as event loop `number`, which `waker` wakes.
    pub(crate) fn new(barrier: Arc<Barrier<T>>, number: u16, now: Instant, waker: Waker) -> Self {
        barrier.gathering.lock().unwrap_or_else(PoisonError::into_inner).push(waker);
        barrier.gathered.fetch_add(1, Ordering::SeqCst);
        if barrier.are_all(&barrier.gathered) {
            barrier.wake();
        }
        Self { barrier, number, step: Step::Gather, deadline: now + GATHER }
    }

    /// Returns when to go on at the latest; `None` if the event loop has to take turns without pause.
    pub(crate) fn waits_until(&self) -> Option<Instant> {
        let barrier = &*self.barrier;
        let waits = self.step == Step::Gather
            && barrier.outcome.load(Ordering::SeqCst) == PENDING
            && !barrier.are_all(&barrier.gathered);
        waits.then_some(self.deadline)
    }

    pub(crate) fn call_off(&self) {
        self.barrier.end(CALLED_OFF);
    }

    /// Goes as far as it can. `left` is called after what other event loops have done was read: what they
    /// handed over before is in its answer.
    pub(crate) fn advance(&mut self, now: Instant, left: impl Fn() -> Left) -> Next {
        let barrier = &*self.barrier;
        if now >= self.deadline {
            barrier.end(CALLED_OFF);
        }
        match barrier.outcome.load(Ordering::SeqCst) {
            PENDING => {}
            PASSED => return Next::Passed,
            _ => return Next::CalledOff,
        }
        if self.step == Step::Gather {
            if !barrier.are_all(&barrier.gathered) {
                return Next::GoOn;
            }
            (self.step, self.deadline) = (Step::Settle, now + DRAIN);
            // Others may still read, and hand over to this one.
            return Next::ReadNothing;
        }
        if self.step == Step::Settle && !left().in_device {
            // Packets that other threads hand over from now on are this thread's own.
            barrier.settled.fetch_add(1, Ordering::SeqCst);
            self.step = Step::Drain;
        }
        if self.step == Step::Drain && barrier.are_all(&barrier.settled) && left().is_none() {
            barrier.drained.fetch_add(1, Ordering::SeqCst);
            self.step = Step::Wait;
        }
        match self.step {
            Step::Wait if self.number == barrier.leader && barrier.are_all(&barrier.drained) => Next::Lead,
            Step::Wait => Next::Halt,
            _ => Next::ReadNothing,
        }
    }

    /// Passes the barrier for all event loops, unless one of them has called it off: then what it was to hand
    /// on is returned.
    pub(crate) fn pass(&self, cargo: Option<T>) -> Result<(), Option<T>> {
        // The others look for it once the barrier is passed.
        let mut place = self.barrier.cargo.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.barrier.end(PASSED) {
            return Err(cargo);
        }
        *place = cargo;
        Ok(())
    }

    /// Takes what the leader handed on when it passed.
    pub(crate) fn take_cargo(&self) -> Option<T> {
        self.barrier.cargo.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
