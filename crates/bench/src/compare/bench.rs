//! What a measurement of a case gets, and what it returns.

use std::time::Duration;

use crate::interrupt::Interrupt;
use crate::report::Sample;
use crate::topology::Tunnel;

/// The tunnel, the duration and the means to interrupt a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bench<'a> {
    pub(super) tunnel: &'a Tunnel,
    pub(super) secs: u32,
    pub(super) interrupt: &'a Interrupt,
    /// The congestion control of TCP, unless it is that of the namespace.
    pub(super) control: Option<&'a str>,
}

impl Bench<'_> {
    pub(super) fn span(&self) -> Duration {
        Duration::from_secs(self.secs.into())
    }
}

/// The result of a case.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) sample: Sample,
    /// Gigabits carried, by which the cost is divided; zero for a case without cost figures.
    pub(super) gbit: f64,
    /// What each Gbit cost the daemons.
    pub(super) cost: Sample,
}

impl Outcome {
    pub(super) fn new(sample: Sample, gbit: f64) -> Self {
        Self { sample, gbit, cost: Sample::default() }
    }
}
