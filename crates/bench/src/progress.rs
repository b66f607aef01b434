//! Lines that say how far it is, on a terminal only.

use std::io::IsTerminal as _;

use crate::iperf::Sample;

/// Counts the measurements.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
    done: usize,
    total: usize,
}

impl Progress {
    pub(crate) fn new(total: usize) -> Self {
        Self { shown: std::io::stderr().is_terminal(), done: 0, total }
    }

    /// Something that takes a moment begins.
    pub(crate) fn say(&self, text: &str) {
        if self.shown {
            eprintln!("{text}");
        }
    }

    /// A measurement is through.
    pub(crate) fn measured(&mut self, case: &str, implementation: &str, sample: &Sample) {
        self.done += 1;
        let (done, total, speed) = (self.done, self.total, sample.gbit_per_second);
        self.say(&format!("{done:>4}/{total}  {case:<24} {implementation:<16} {speed:>6.2} Gbit/s"));
    }
}
