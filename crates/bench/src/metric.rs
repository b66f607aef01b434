//! The result of a measurement: named figures, each with its unit and the direction that is better.

use std::collections::BTreeMap;

use serde::Serialize;

/// One kind of figure. Its JSON name is the variant in snake case, which includes the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    /// Payload received per second.
    GbitPerSecond,
    /// Datagrams received per second.
    PacketsPerSecond,
    /// Share of datagrams sent that did not arrive.
    LossPercent,
    /// CPU time of the whole machine, sender, receiver and kernel included.
    CpuSecondsPerGbit,
    /// Segments that TCP retransmitted.
    Retransmits,
    /// Segments that arrived out of order at either end: after a loss, or reordered.
    OutOfOrder,
    /// How often a sending TCP found its segments reordered rather than lost.
    Reorderings,
    /// Round-trip time of a ping, median.
    PingP50Ms,
    /// Round-trip time of a ping, 99th percentile.
    PingP99Ms,
    /// Round-trip time of the slowest answered ping.
    PingMaxMs,
    /// Unanswered pings.
    PingsLost,
    /// Peak resident memory of a daemon; the larger of both ends.
    PeakRssMib,
    /// CPU time of a daemon without traffic, in per cent of one core; the larger of both ends.
    IdleCpuPercent,
    /// Voluntary context switches of a daemon per second; the larger of both ends.
    WakeUpsPerSecond,
    /// Bytes of the slowest of many connections divided by those of the fastest.
    Fairness,
    FailedConnections,
    /// Duration of a transfer from connecting to the confirmation of its last byte.
    TransferMs,
    /// How often HyStart (of cubic) ended a slow start, rather than a loss.
    HystartExits,
    /// CPU time of the daemon at the client's end.
    NearCpuSecondsPerGbit,
    /// CPU time of the daemon at the other end.
    FarCpuSecondsPerGbit,
    /// Voluntary context switches of both daemons' threads.
    VoluntarySwitchesPerGbit,
    /// Involuntary context switches of both daemons' threads.
    InvoluntarySwitchesPerGbit,
    /// System calls of both daemons.
    SystemCallsPerGbit,
    /// Packets that the kernel dropped because a TUN's queue was full.
    QueueOverflowsPerGbit,
    /// Datagrams that the kernel dropped because a receive buffer was full: of the daemons, and of the
    /// measured programs.
    ReceiveOverflowsPerGbit,
}

/// Which direction of a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Higher,
    Lower,
}

/// How a metric is presented.
struct Description {
    title: &'static str,
    decimals: usize,
    better: Better,
}

impl Metric {
    /// Figures that explain how the daemons worked rather than how well; shown in a separate table.
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

    /// Returns the title in tables and plots, with the unit.
    pub(crate) fn title(self) -> &'static str {
        self.describe().title
    }

    /// Returns which direction is better.
    pub(crate) fn better(self) -> Better {
        self.describe().better
    }

    /// Formats a value for tables.
    pub(crate) fn format(self, value: f64) -> String {
        format!("{value:.*}", self.describe().decimals)
    }
}

/// The figures of one measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct Sample(BTreeMap<Metric, f64>);

impl Sample {
    /// Adds a figure. A value that is not finite, such as 0/0, is left out.
    pub(crate) fn with(mut self, metric: Metric, value: f64) -> Self {
        if value.is_finite() {
            self.0.insert(metric, value);
        }
        self
    }

    /// Returns a figure; `None` if it was not measured.
    pub(crate) fn get(&self, metric: Metric) -> Option<f64> {
        self.0.get(&metric).copied()
    }

    /// Returns the kinds of figures in the sample.
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
