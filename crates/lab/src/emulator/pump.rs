//! The thread of an emulated link: reads frames from one end, holds each for the link's delay, and writes it
//! to the other end.

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

/// The shortest time between two wake-ups, so that at high rates each wake-up moves several frames.
const REST: Duration = Duration::from_micros(100);
/// Frames that are read of one direction before the other direction and the writes get a turn.
const BATCH: usize = 256;

/// Counters of a running pump, and the means to stop it.
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

    /// Stops the pump.
    pub(super) fn stop(&self) {
        self.stop.store(true, Relaxed);
        // The write fails only after 2^64 wake-ups.
        let _ = self.wake.write(1);
    }

    pub(super) fn counters(&self) -> [PipeCounters; 2] {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, counters: [PipeCounters; 2]) {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner) = counters;
    }
}

/// A frame, preceded by the kernel's virtio header.
#[derive(Debug)]
pub(super) struct Frame {
    buffer: Box<[u8]>,
    len: usize,
}

/// Both directions: frames read from `ends[i]` pass through `pipes[i]` to the other end.
#[derive(Debug)]
pub(super) struct Pump {
    ends: [Tap; 2],
    pipes: [Pipe<Frame>; 2],
    /// Unused buffers.
    free: Vec<Box<[u8]>>,
    room: usize,
    shared: Arc<Shared>,
}

impl Pump {
    /// Creates a pump. `room` is the length of the longest frame with its virtio header.
    pub(super) fn new(ends: [Tap; 2], pipes: [Pipe<Frame>; 2], room: usize, shared: Arc<Shared>) -> Self {
        Self { ends, pipes, free: Vec::new(), room, shared }
    }

    /// Moves frames until [`Shared::stop`] is called or an end is removed.
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

    /// Reads frames from both ends, and reports whether more may be pending.
    fn take(&mut self) -> io::Result<bool> {
        let mut more = false;
        for (end, pipe) in self.ends.iter_mut().zip(&mut self.pipes) {
            let mut budget = BATCH;
            while budget > 0 {
                let mut buffer = self.free.pop().unwrap_or_else(|| vec![0; self.room].into());
                let Some(len) = end.read(&mut buffer)? else {
                    self.free.push(buffer);
                    break;
                };
                budget -= 1;
                let frame = Frame { buffer, len };
                if let Err((_, frame)) = pipe.enqueue(Instant::now(), len.saturating_sub(HEADER), frame) {
                    self.free.push(frame.buffer);
                }
            }
            more |= budget == 0;
        }
        Ok(more)
    }

    /// Writes the frames that have arrived.
    fn give(&mut self) {
        for (place, pipe) in self.pipes.iter_mut().enumerate() {
            // Only frames that arrived by one instant: further ones arrive while these are written.
            let now = Instant::now();
            while let Some(frame) = pipe.due(now) {
                // An interface that is down refuses the frame, as if its cable were unplugged.
                let _ = self.ends[1 - place].write(&frame.buffer[..frame.len]);
                self.free.push(frame.buffer);
            }
        }
    }

    /// Sleeps at least until [`REST`] after `woken`, then until a frame is due, an end is readable or the
    /// pump is stopped.
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

/// Raises the calling thread to real-time priority, as far as this is permitted, and makes its timers exact:
/// a link must not wait for a processor.
fn be_punctual() {
    // SAFETY: `sched_param` holds only integers (more of them with musl), for which zero is a valid value.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = 1;
    // SAFETY: the kernel reads one sched_param, which lives until the call returns; 0 is the calling thread.
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const parameters)
    };
    // Without privileges the thread keeps its normal priority; then the timer slack is the main improvement.
    let _ = nix::sys::prctl::set_timerslack(1);
}
