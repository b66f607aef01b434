//! A link with a rate, a delay, a queue, losses and reordering between two namespaces, for kernels without netem.
//!
//! ```text
//!   a  eth0 ── TAP ──┐                          ┌── TAP ── eth0  b
//!                    ├─ queue ─ rate ─ delay ──►│
//!                    │◄─ delay ─ rate ─ queue ──┤
//!                    └──── one thread: pump ────┘
//! ```
//!
//! The interfaces take no segmentation offload: what a sender gives away as a super-packet is cut by its kernel, and
//! every frame goes over the link by itself. Checksums are not computed, as on a veth. A receiver gets frames one by
//! one, as from a network card without GRO.
//!
//! How exact it is: a frame is never early. It is late by up to 0.1 ms where it is taken and as much where it is given,
//! because the thread rests that long between two wake-ups, and by what else has the processor; as root the thread
//! runs with a real-time priority and waits for nobody. [`PipeCounters::greatest_lateness`] tells the worst of a run.
//! The rate does not suffer from it, since the transmitter has a clock of its own.

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

/// A running link. Both interfaces go when it is dropped, and what is on its way is lost.
#[derive(Debug)]
pub struct Emulator {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Emulator {
    /// Joins two namespaces by a link like `spec`, both ends up and with their addresses: what [`link::join`] does
    /// with a veth.
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

    /// What has happened so far, from the first namespace to the second and back.
    pub fn counters(&self) -> [PipeCounters; 2] {
        self.shared.counters()
    }

    /// CPU time that its thread has used so far, what the kernel does in it for the receivers included.
    pub fn cpu_time(&self) -> Option<Duration> {
        cpu::thread_time(self.shared.thread.load(Relaxed))
    }

    /// Whether its thread still runs. It ends by itself when an interface is removed.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // A panic has been printed by then.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
