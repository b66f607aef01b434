//! The thread of an emulated link: reads frames from one end, keeps them as long as the link does, and writes them to
//! the other.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::EventFd;
use nix::sys::time::TimeSpec;

use super::pipe::{Pipe, PipeCounters};
use super::tap::{HEADER, Tap};

/// The shortest time between two wake-ups, so that at high rates each of them moves several frames.
const REST: Duration = Duration::from_micros(100);
/// So many frames of one direction are read before anything else has its turn.
const BATCH: usize = 256;

/// Figures of a running pump, and the way to end it.
#[derive(Debug)]
pub(super) struct Shared {
    /// By direction.
    counters: Mutex<[PipeCounters; 2]>,
    /// The ID of the pump's thread; 0 before it runs.
    pub(super) thread: AtomicI32,
    stop: AtomicBool,
    wake: EventFd,
}

impl Shared {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            counters: Mutex::default(),
            thread: AtomicI32::new(0),
            stop: AtomicBool::new(false),
            wake: EventFd::new()?,
        })
    }

    /// Ends the pump.
    pub(super) fn stop(&self) {
        self.stop.store(true, Relaxed);
        // It can only fail when the pump was woken 2^64 times.
        let _ = self.wake.write(1);
    }

    pub(super) fn counters(&self) -> [PipeCounters; 2] {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, counters: [PipeCounters; 2]) {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner) = counters;
    }
}

/// A frame with the kernel's header before it.
#[derive(Debug)]
pub(super) struct Frame {
    buffer: Box<[u8]>,
    len: usize,
}

/// Both directions: what is read from one end goes through the pipe of the same place to the other end.
#[derive(Debug)]
pub(super) struct Pump {
    ends: [Tap; 2],
    pipes: [Pipe<Frame>; 2],
    /// Buffers that no frame uses.
    free: Vec<Box<[u8]>>,
    room: usize,
    shared: Arc<Shared>,
}

impl Pump {
    /// `room`: what the longest frame takes with its header.
    pub(super) fn new(ends: [Tap; 2], pipes: [Pipe<Frame>; 2], room: usize, shared: Arc<Shared>) -> Self {
        Self { ends, pipes, free: Vec::new(), room, shared }
    }

    /// Pumps until it is stopped, or until an end is gone.
    pub(super) fn run(mut self) {
        self.shared.thread.store(nix::unistd::gettid().as_raw(), Relaxed);
        be_punctual();
        while !self.shared.stop.load(Relaxed) {
            let woken = Instant::now();
            let Ok(more) = self.take() else { return };
            self.give();
            self.shared.publish([self.pipes[0].counters(), self.pipes[1].counters()]);
            if !more && self.rest(woken).is_err() {
                return;
            }
        }
    }

    /// Reads what the ends send, and says whether there may be more.
    fn take(&mut self) -> io::Result<bool> {
        let mut more = false;
        for (end, pipe) in self.ends.iter_mut().zip(&mut self.pipes) {
            let mut left = BATCH;
            while left > 0 {
                let mut buffer = self.free.pop().unwrap_or_else(|| vec![0; self.room].into());
                let Some(len) = end.read(&mut buffer)? else {
                    self.free.push(buffer);
                    break;
                };
                left -= 1;
                let frame = Frame { buffer, len };
                if let Err((_, frame)) = pipe.enqueue(Instant::now(), len.saturating_sub(HEADER), frame) {
                    self.free.push(frame.buffer);
                }
            }
            more |= left == 0;
        }
        Ok(more)
    }

    /// Writes what has arrived.
    fn give(&mut self) {
        for (place, pipe) in self.pipes.iter_mut().enumerate() {
            // Only what has arrived by one moment: writing takes time, in which more arrives.
            let now = Instant::now();
            while let Some(frame) = pipe.due(now) {
                // An interface that is down takes nothing, as a cable that is pulled out.
                let _ = self.ends[1 - place].write(&frame.buffer[..frame.len]);
                self.free.push(frame.buffer);
            }
        }
    }

    /// Waits until there is something to do, but not less than [`REST`] after the last time.
    fn rest(&self, woken: Instant) -> io::Result<()> {
        std::thread::sleep(REST.saturating_sub(woken.elapsed()));
        let deadline = self.pipes.iter().filter_map(Pipe::next_deadline).min();
        let timeout = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Ok(());
        }
        let [a, b] = &self.ends;
        let mut files =
            [a.as_fd(), b.as_fd(), self.shared.wake.as_fd()].map(|file| PollFd::new(file, PollFlags::POLLIN));
        match ppoll(&mut files, timeout.map(TimeSpec::from_duration), None) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// A link does not wait for a processor: as far as this is allowed, the calling thread comes before all others that are
/// not as urgent, and its timers are exact.
fn be_punctual() {
    // SAFETY: it has nothing but numbers, more of them with musl, and zero is one.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = 1;
    // SAFETY: the kernel reads one sched_param, which lives until the call returns; 0 is the calling thread.
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const parameters)
    };
    // Without privileges the thread is an ordinary one: then this brings most.
    let _ = nix::sys::prctl::set_timerslack(1);
}
