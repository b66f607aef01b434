//! What is measured, shared by the instruction counts and the micro-benchmarks: each piece of work repeats
//! exactly, and says how many packets it is.

mod packets;
mod queues;
mod routes;
mod split;
#[cfg(target_os = "linux")]
mod tun;
mod tunnel;

/// A piece of work that can be repeated for ever.
pub(crate) trait Work {
    /// Brings everything back to where the next [`Self::run`] begins. Not measured.
    fn prepare(&mut self) {}

    /// What is measured.
    fn run(&mut self);
}

/// Packets of a run where nothing else decides: a look at the clock must not be what is measured.
const PACKETS: usize = 44;

/// A piece of work that leaves everything as it was.
impl<F: FnMut()> Work for F {
    fn run(&mut self) {
        self();
    }
}

/// One line of the result.
pub(crate) struct Workload {
    /// Its name: lower-case words and digits with hyphens between them.
    pub(crate) name: &'static str,
    /// Packets, as the wire sees them, that one run handles.
    pub(crate) packets: u64,
    /// Whether the same instructions are run on every processor, outside of the parts that are left out.
    #[allow(dead_code, reason = "the micro-benchmarks measure everything")]
    pub(crate) countable: bool,
    /// The work.
    pub(crate) work: Box<dyn Work>,
}

impl Workload {
    fn new(name: &'static str, packets: u64, work: impl Work + 'static) -> Self {
        Self { name, packets, countable: true, work: Box::new(work) }
    }

    /// For what is little more than the cipher, which is another one on each processor.
    fn uncountable(self) -> Self {
        Self { countable: false, ..self }
    }
}

/// Everything.
pub(crate) fn all() -> Vec<Workload> {
    let mut all = Vec::new();
    all.extend(routes::workloads());
    all.extend(split::workloads());
    all.extend(queues::workloads());
    #[cfg(target_os = "linux")]
    all.extend(tun::workloads());
    all.extend(tunnel::workloads());
    all
}
