//! How the event loops of an interface agree that a peer moves from one of them to another, without losing or
//! overtaking one of its packets.
//!
//! The packets of a peer are read by all packet threads. So all of them stop reading, hand over and send what
//! they have read, and only then the peer changes hands. No thread waits for another one longer than a few
//! milliseconds: until the peer was taken, each of them may call it off. Meanwhile a loop takes turns without
//! pause, and goes on with inbound packets, handshakes and commands. Nothing is dropped: the queues of the
//! kernel hold what is not read.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::Waker;
use std::time::{Duration, Instant};

use weft_tun::FlowQueues;
use weft_tunnel::{MovedPeer, PublicKey};

/// How long to wait until every event loop takes part. Packets move meanwhile.
const GATHER: Duration = Duration::from_secs(1);
/// How long an event loop reads nothing from its queues at most: a short queue of the kernel holds the
/// packets of this time.
const DRAIN: Duration = Duration::from_millis(5);

const PENDING: u8 = 0;
const TAKEN: u8 = 1;
const CALLED_OFF: u8 = 2;

/// The move of one peer. All event loops of the interface share it.
#[derive(Debug)]
pub struct Relocation {
    peer: PublicKey,
    from: u16,
    to: u16,
    /// Number of event loops, and how many of them have come how far.
    count: usize,
    gathered: AtomicUsize,
    /// Those that hand nothing over any more.
    settled: AtomicUsize,
    /// Those that have nothing left.
    drained: AtomicUsize,
    outcome: AtomicU8,
    /// The event loops that wait until all take part.
    gathering: Mutex<Vec<Waker>>,
    cargo: Mutex<Option<Cargo>>,
}

/// What moves.
#[derive(Debug)]
pub(super) struct Cargo {
    pub(super) peer: MovedPeer,
    /// The queues of its flows, and of all others of the packet thread.
    pub(super) flows: Option<FlowQueues>,
}

impl Relocation {
    pub(super) fn new(peer: PublicKey, from: u16, to: u16, count: usize) -> Self {
        Self {
            peer,
            from,
            to,
            count,
            gathered: AtomicUsize::new(0),
            settled: AtomicUsize::new(0),
            drained: AtomicUsize::new(0),
            outcome: AtomicU8::new(PENDING),
            gathering: Mutex::new(Vec::new()),
            cargo: Mutex::new(None),
        }
    }

    /// Reports whether the peer has changed hands. If it has not, it does not do so later.
    pub(super) fn conclude(&self) -> bool {
        self.end(CALLED_OFF);
        self.outcome.load(Ordering::SeqCst) == TAKEN
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
pub(super) struct Left {
    /// In the device: handed over by others, or held back.
    pub(super) in_device: bool,
    /// Taken from the device, and not sent.
    pub(super) in_loop: bool,
}

/// What an event loop does in its next turn.
#[derive(Debug)]
pub(super) enum Next {
    /// As always.
    GoOn,
    /// Reads no queue of the device.
    ReadNothing,
    /// Leaves the device and outbound packets alone.
    Halt,
    /// Takes the peer out, if everything that was opened for it is written, and calls
    /// [`Participant::hand_out`].
    Take,
    /// Adopts the peer, and goes on.
    Adopt(Cargo),
    /// Records that the peer moved, and goes on.
    Record,
    /// Goes on: the peer has moved, or it is called off.
    Done,
}

/// One event loop in the move of a peer.
#[derive(Debug)]
pub(super) struct Participant {
    relocation: Arc<Relocation>,
    number: u16,
    step: Step,
    deadline: Instant,
    answer: mpsc::SyncSender<()>,
}

impl Participant {
    /// Takes part as event loop `number`, which `waker` wakes. `answer` is notified at the end.
    pub(super) fn new(
        relocation: Arc<Relocation>,
        number: u16,
        now: Instant,
        answer: mpsc::SyncSender<()>,
        waker: Waker,
    ) -> Self {
        relocation.gathering.lock().unwrap_or_else(PoisonError::into_inner).push(waker);
        relocation.gathered.fetch_add(1, Ordering::SeqCst);
        if relocation.are_all(&relocation.gathered) {
            relocation.wake();
        }
        Self { relocation, number, step: Step::Gather, deadline: now + GATHER, answer }
    }

    pub(super) fn peer(&self) -> PublicKey {
        self.relocation.peer
    }

    pub(super) fn from(&self) -> u16 {
        self.relocation.from
    }

    pub(super) fn to(&self) -> u16 {
        self.relocation.to
    }

    /// Reports whether this event loop has the peer.
    pub(super) fn is_source(&self) -> bool {
        self.number == self.relocation.from
    }

    /// Returns when to go on at the latest; `None` if the event loop has to take turns without pause.
    pub(super) fn waits_until(&self) -> Option<Instant> {
        let relocation = &*self.relocation;
        let waits = self.step == Step::Gather
            && relocation.outcome.load(Ordering::SeqCst) == PENDING
            && !relocation.are_all(&relocation.gathered);
        waits.then_some(self.deadline)
    }

    pub(super) fn call_off(&self) {
        self.relocation.end(CALLED_OFF);
    }

    /// Goes as far as it can.
    pub(super) fn advance(&mut self, now: Instant, left: Left) -> Next {
        let relocation = &*self.relocation;
        if now >= self.deadline {
            relocation.end(CALLED_OFF);
        }
        match relocation.outcome.load(Ordering::SeqCst) {
            PENDING => {}
            TAKEN if self.number == relocation.to => {
                let cargo = relocation.cargo.lock().unwrap_or_else(PoisonError::into_inner).take();
                return cargo.map_or(Next::Halt, Next::Adopt);
            }
            TAKEN if self.number != relocation.from => return Next::Record,
            _ => return Next::Done,
        }
        if self.step == Step::Gather {
            if !relocation.are_all(&relocation.gathered) {
                return Next::GoOn;
            }
            (self.step, self.deadline) = (Step::Settle, now + DRAIN);
            // Others may still read, and hand over to this one.
            return Next::ReadNothing;
        }
        if self.step == Step::Settle && !left.in_device {
            // Packets that other threads hand over from now on are this thread's own.
            relocation.settled.fetch_add(1, Ordering::SeqCst);
            self.step = Step::Drain;
        }
        if self.step == Step::Drain
            && relocation.are_all(&relocation.settled)
            && !left.in_device
            && !left.in_loop
        {
            relocation.drained.fetch_add(1, Ordering::SeqCst);
            self.step = Step::Wait;
        }
        match self.step {
            Step::Wait if self.is_source() && relocation.are_all(&relocation.drained) => Next::Take,
            Step::Wait => Next::Halt,
            _ => Next::ReadNothing,
        }
    }

    /// Hands the peer out, unless another event loop has called it off: then it is returned.
    pub(super) fn hand_out(&self, cargo: Cargo) -> Result<(), Cargo> {
        // The others look for it once it is taken.
        let mut place = self.relocation.cargo.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.relocation.end(TAKEN) {
            return Err(cargo);
        }
        *place = Some(cargo);
        Ok(())
    }

    /// Answers the control thread.
    pub(super) fn answer(self) {
        let _ = self.answer.try_send(());
    }
}

#[cfg(test)]
mod tests;
