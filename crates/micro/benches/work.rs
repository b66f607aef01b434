//! The measured work, shared by the instruction counts and the micro-benchmarks. Each piece of work repeats
//! exactly and has a fixed number of packets.

mod packets;
mod queues;
mod routes;
#[cfg(target_os = "linux")]
mod shards;
mod split;
#[cfg(target_os = "linux")]
mod tun;
mod tunnel;

/// A piece of work that can be repeated indefinitely.
pub(crate) trait Work {
    /// Restores the state in which the next [`Self::run`] begins. Not measured.
    fn prepare(&mut self) {}

    /// Runs the measured work.
    fn run(&mut self);
}

/// Packets per run unless the work determines it: enough that reading the clock does not dominate.
const PACKETS: usize = 44;

/// A piece of work that does not need to restore state.
impl<F: FnMut()> Work for F {
    fn run(&mut self) {
        self();
    }
}

/// One line of the result.
pub(crate) struct Workload {
    /// Its name: lower-case words and digits with hyphens between them.
    pub(crate) name: &'static str,
    /// Packets on the wire that one run handles.
    pub(crate) packets: u64,
    /// Whether every processor executes the same instructions, outside of the excluded parts.
    #[allow(dead_code, reason = "the micro-benchmarks measure everything")]
    pub(crate) countable: bool,
    pub(crate) work: Box<dyn Work>,
}

impl Workload {
    fn new(name: &'static str, packets: u64, work: impl Work + 'static) -> Self {
        Self { name, packets, countable: true, work: Box::new(work) }
    }

    /// Marks work that is mostly the cipher, which differs by processor.
    fn uncountable(self) -> Self {
        Self { countable: false, ..self }
    }
}

/// Returns all workloads.
pub(crate) fn all() -> Vec<Workload> {
    let mut all = Vec::new();
    all.extend(routes::workloads());
    all.extend(split::workloads());
    all.extend(queues::workloads());
    #[cfg(target_os = "linux")]
    all.extend(tun::workloads());
    #[cfg(target_os = "linux")]
    all.extend(shards::workloads());
    all.extend(tunnel::workloads());
    all
}
