//! What a measurement says: named figures, each with its unit and the direction that is better.

use std::collections::BTreeMap;

use serde::Serialize;

/// One kind of figure. JSON calls it by its name in snake case, which has the unit in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    /// Payload that arrived, a second.
    GbitPerSecond,
    /// Datagrams that arrived, a second.
    PacketsPerSecond,
    /// Datagrams that were sent and did not arrive.
    LossPercent,
    /// CPU time of the whole machine, sender, receiver and kernel included.
    CpuSecondsPerGbit,
    /// Segments that TCP sent again.
    Retransmits,
    /// Segments that arrived ahead of their turn at either end: after a loss, or reordered.
    OutOfOrder,
    /// Times that a sending TCP found its segments reordered rather than lost.
    Reorderings,
    /// Half of the pings came back within this time.
    PingP50Ms,
    /// 99 of 100 pings came back within this time.
    PingP99Ms,
    /// The slowest ping that came back.
    PingMaxMs,
    /// Pings without an answer.
    PingsLost,
    /// The largest part of memory that a daemon ever had in use; of both, the larger.
    PeakRssMib,
    /// CPU time of a daemon without traffic, of one core; of both, the larger.
    IdleCpuPercent,
    /// Times that a daemon went to sleep and was woken, a second; of both, the larger.
    WakeUpsPerSecond,
    /// What the slowest of many connections got by what the fastest got.
    Fairness,
    /// Connections that failed, or brought something wrong.
    FailedConnections,
    /// From the first packet of a connection to the confirmation of its last byte.
    TransferMs,
    /// Times that a slow start ended because of delay and not because of loss (HyStart of cubic).
    HystartExits,
    /// CPU time of the daemon at the end where the client is.
    NearCpuSecondsPerGbit,
    /// CPU time of the daemon at the other end.
    FarCpuSecondsPerGbit,
    /// Times that a thread of either daemon went to sleep.
    VoluntarySwitchesPerGbit,
    /// Times that the kernel took the processor from a thread of either daemon.
    InvoluntarySwitchesPerGbit,
    /// System calls of both daemons.
    SystemCallsPerGbit,
    /// Packets that the kernel threw away because the queue of a TUN was full.
    QueueOverflowsPerGbit,
    /// Datagrams that the kernel threw away because a receive buffer was full: of the daemons, and of what is measured.
    ReceiveOverflowsPerGbit,
}

/// Which direction of a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Higher,
    Lower,
}

/// What a program that reads JSON and people who read tables call one thing.
struct Description {
    title: &'static str,
    decimals: usize,
    better: Better,
}

impl Metric {
    /// What tells how the daemons worked, and not how well: shown in a table of its own.
    pub(crate) const CONTEXT: [Self; 7] = [
        Self::NearCpuSecondsPerGbit,
        Self::FarCpuSecondsPerGbit,
        Self::VoluntarySwitchesPerGbit,
        Self::InvoluntarySwitchesPerGbit,
        Self::SystemCallsPerGbit,
        Self::QueueOverflowsPerGbit,
        Self::ReceiveOverflowsPerGbit,
    ];

    fn describe(self) -> Description {
        let of = |title, decimals, better| Description { title, decimals, better };
        match self {
            Self::GbitPerSecond => of("Gbit/s", 2, Better::Higher),
            Self::PacketsPerSecond => of("packets/s", 0, Better::Higher),
            Self::LossPercent => of("lost %", 1, Better::Lower),
            Self::CpuSecondsPerGbit => of("CPU s/Gbit", 3, Better::Lower),
            Self::Retransmits => of("retransmits", 0, Better::Lower),
            Self::OutOfOrder => of("out of order", 0, Better::Lower),
            Self::Reorderings => of("reorderings", 0, Better::Lower),
            Self::PingP50Ms => of("p50 ms", 3, Better::Lower),
            Self::PingP99Ms => of("p99 ms", 3, Better::Lower),
            Self::PingMaxMs => of("max ms", 2, Better::Lower),
            Self::PingsLost => of("pings lost", 0, Better::Lower),
            Self::PeakRssMib => of("peak RSS MiB", 1, Better::Lower),
            Self::IdleCpuPercent => of("idle CPU %", 3, Better::Lower),
            Self::WakeUpsPerSecond => of("wake-ups/s", 1, Better::Lower),
            Self::Fairness => of("slowest/fastest", 2, Better::Higher),
            Self::FailedConnections => of("failed", 0, Better::Lower),
            Self::TransferMs => of("ms", 1, Better::Lower),
            Self::HystartExits => of("HyStart exits", 0, Better::Lower),
            Self::NearCpuSecondsPerGbit => of("near daemon CPU s", 3, Better::Lower),
            Self::FarCpuSecondsPerGbit => of("far daemon CPU s", 3, Better::Lower),
            Self::VoluntarySwitchesPerGbit => of("voluntary switches", 0, Better::Lower),
            Self::InvoluntarySwitchesPerGbit => of("involuntary switches", 0, Better::Lower),
            Self::SystemCallsPerGbit => of("system calls", 0, Better::Lower),
            Self::QueueOverflowsPerGbit => of("TUN overflows", 0, Better::Lower),
            Self::ReceiveOverflowsPerGbit => of("UDP overflows", 0, Better::Lower),
        }
    }

    /// How tables and plots call it, with the unit.
    pub(crate) fn title(self) -> &'static str {
        self.describe().title
    }

    /// Which direction is better.
    pub(crate) fn better(self) -> Better {
        self.describe().better
    }

    /// A value of it for people.
    pub(crate) fn format(self, value: f64) -> String {
        format!("{value:.*}", self.describe().decimals)
    }
}

/// The figures of one measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct Sample(BTreeMap<Metric, f64>);

impl Sample {
    /// With this figure too. One that is no number (nothing by nothing) is left out.
    pub(crate) fn with(mut self, metric: Metric, value: f64) -> Self {
        if value.is_finite() {
            self.0.insert(metric, value);
        }
        self
    }

    /// A figure; nothing if it was not measured.
    pub(crate) fn get(&self, metric: Metric) -> Option<f64> {
        self.0.get(&metric).copied()
    }

    /// The kinds of figures in it.
    pub(crate) fn metrics(&self) -> impl Iterator<Item = Metric> {
        self.0.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_its_figures_by_names_with_units_and_no_infinity() {
        let sample = Sample::default()
            .with(Metric::GbitPerSecond, 2.5)
            .with(Metric::PingP50Ms, 0.1)
            .with(Metric::CpuSecondsPerGbit, 1.0 / 0.0);
        assert_eq!(serde_json::to_string(&sample).unwrap(), r#"{"gbit_per_second":2.5,"ping_p50_ms":0.1}"#);
        assert_eq!(sample.get(Metric::CpuSecondsPerGbit), None);
        assert_eq!(Metric::GbitPerSecond.format(2.456), "2.46");
    }
}
