//! A link with a rate, a delay, a queue, losses and reordering between two namespaces, for kernels without
//! netem.
//!
//! ```text
//!   a  eth0 ── TAP ──┐                          ┌── TAP ── eth0  b
//!                    ├─ queue ─ rate ─ delay ──►│
//!                    │◄─ delay ─ rate ─ queue ──┤
//!                    └──── one thread: pump ────┘
//! ```
//!
//! The interfaces have no segmentation offload: the sender's kernel segments a super-packet, and each frame
//! crosses the link by itself. Checksums are not computed, as on a veth. A receiver gets single frames, as
//! from a network card without GRO.
//!
//! Accuracy: a frame is never early. It can be up to 0.1 ms late when it is read and again when it is
//! written, because the thread sleeps that long between two wake-ups, and later still when other work has the
//! processor; as root the thread runs with a real-time priority and is not delayed that way.
//! [`PipeCounters::greatest_lateness`] is the maximum over a run. Lateness does not change the rate, since
//! the transmitter has a virtual clock.

mod pipe;
mod pump;
mod spec;
mod tap;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

pub use pipe::{Fate, Pipe, PipeCounters};
pub use spec::{InvalidLink, Limit, LinkSpec, Queue};

use super::link::{self, LinkOptions};
use super::{Namespace, cpu};
use pump::{Pump, Shared};
use tap::Tap;

/// A running link. Dropping it removes both interfaces and loses the frames in flight.
#[derive(Debug)]
pub struct Emulator {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Emulator {
    /// Joins two namespaces by a link with the properties of `spec`, both ends up and with their addresses,
    /// as [`link::join`] does with a veth.
    pub fn between(a: &Namespace, b: &Namespace, options: &LinkOptions, spec: &LinkSpec) -> io::Result<Self> {
        let ends = [Tap::open(a, &options.name_a, options.mtu)?, Tap::open(b, &options.name_b, options.mtu)?];
        let pipes = [Pipe::new(spec, 0), Pipe::new(spec, 1)];
        let shared = Arc::new(Shared::new()?);
        let pump = Pump::new(ends, pipes, Tap::room(options.mtu), shared.clone());
        let thread = std::thread::Builder::new().name("lab-link".to_owned()).spawn(move || pump.run())?;
        let emulator = Self { shared, thread: Some(thread) };
        link::bring_up(a, b, options)?;
        Ok(emulator)
    }

    /// Returns the counters so far: from the first namespace to the second, and back.
    pub fn counters(&self) -> [PipeCounters; 2] {
        self.shared.counters()
    }

    /// Returns the CPU time that the link's thread has used so far. It includes the receivers' kernel work
    /// that runs in this thread.
    pub fn cpu_time(&self) -> Option<Duration> {
        cpu::thread_time(self.shared.thread.load(Relaxed))
    }

    /// Reports whether the link's thread still runs. It ends by itself when an interface is removed.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // The thread's panic message is printed already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
