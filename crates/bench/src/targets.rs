//! weft's performance targets, case by case: ratios to the newest wireguard-go in the same run, or absolute
//! values.

use serde::Serialize;

use crate::case::{Case, Direction, LARGE};
use crate::metric::Metric;
use crate::stats::Summary;

/// The target of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wanted {
    /// Lower bound of the median ratio of weft's figure to the other's.
    RatioAtLeast(f64),
    /// Upper bound of the median ratio of weft's figure to the other's.
    RatioAtMost(f64),
    /// Upper bound of the figure itself, in every round.
    AtMost(f64),
}

impl Wanted {
    /// Formats the target for tables.
    pub(crate) fn text(self, metric: Metric) -> String {
        match self {
            Self::RatioAtLeast(ratio) => format!("≥ {ratio:.2}×"),
            Self::RatioAtMost(ratio) => format!("≤ {ratio:.2}×"),
            Self::AtMost(value) => format!("≤ {}", metric.format(value)),
        }
    }

    /// Reports whether the ratio or the figure meets the target; `None` if it needs a ratio and there is
    /// none.
    pub(crate) fn held_by(self, ratio: Option<Summary>, value: Summary) -> Option<bool> {
        match self {
            Self::RatioAtLeast(least) => ratio.map(|ratio| ratio.median >= least),
            Self::RatioAtMost(most) => ratio.map(|ratio| ratio.median <= most),
            Self::AtMost(most) => Some(value.highest <= most),
        }
    }

    /// Reports whether the target is absolute: about weft alone.
    pub(crate) fn is_absolute(self) -> bool {
        matches!(self, Self::AtMost(_))
    }
}

/// Returns the targets of a case, by figure.
pub(crate) fn of(case: Case) -> Vec<(Metric, Wanted)> {
    use Wanted::{AtMost, RatioAtLeast, RatioAtMost};
    match case {
        Case::Tcp { streams: 1, .. } | Case::Tcp { streams: 4, direction: Direction::Forward } => {
            vec![(Metric::GbitPerSecond, RatioAtLeast(1.7)), (Metric::CpuSecondsPerGbit, RatioAtMost(0.6))]
        }
        Case::UdpFlood { bytes: LARGE } => vec![(Metric::GbitPerSecond, RatioAtLeast(4.0))],
        Case::UdpFlood { bytes: 64 } => vec![(Metric::PacketsPerSecond, RatioAtLeast(3.5))],
        Case::UdpRate => vec![(Metric::GbitPerSecond, RatioAtLeast(3.0))],
        Case::Ping => vec![(Metric::PingP50Ms, RatioAtMost(0.5)), (Metric::PingsLost, AtMost(0.0))],
        Case::PingLoaded => vec![
            (Metric::PingP50Ms, RatioAtMost(1.0 / 6.0)),
            (Metric::PingP99Ms, RatioAtMost(1.0 / 3.0)),
            (Metric::PingsLost, AtMost(0.0)),
        ],
        Case::Connections { .. } => vec![(Metric::FailedConnections, AtMost(0.0))],
        Case::Memory => vec![(Metric::PeakRssMib, AtMost(64.0))],
        Case::Idle => vec![(Metric::IdleCpuPercent, AtMost(0.1))],
        Case::Tcp { .. } | Case::UdpFlood { .. } | Case::ColdStart { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::ALL;

    fn around(median: f64) -> Summary {
        Summary { median, lowest: median - 0.5, highest: median + 0.5 }
    }

    #[test]
    fn ratios_count_by_their_median_and_values_by_their_worst() {
        let none = around(0.0);
        assert_eq!(Wanted::RatioAtLeast(1.7).held_by(Some(around(1.7)), none), Some(true));
        assert_eq!(Wanted::RatioAtLeast(1.7).held_by(Some(around(1.6)), none), Some(false));
        assert_eq!(Wanted::RatioAtMost(0.6).held_by(Some(around(0.7)), none), Some(false));
        assert_eq!(Wanted::RatioAtMost(0.6).held_by(None, none), None);
        assert_eq!(Wanted::AtMost(64.0).held_by(None, around(63.0)), Some(true));
        assert_eq!(Wanted::AtMost(64.0).held_by(None, around(63.6)), Some(false));
    }

    #[test]
    fn what_is_wanted_is_shown_and_compared() {
        for (case, (metric, wanted)) in
            ALL.into_iter().flat_map(|case| of(case).into_iter().map(move |w| (case, w)))
        {
            let shown = if wanted.is_absolute() { case.columns() } else { case.compared() };
            assert!(shown.contains(&metric), "{case}: {metric:?}");
        }
        assert_eq!(Wanted::RatioAtMost(1.0 / 6.0).text(Metric::PingP50Ms), "≤ 0.17×");
    }
}
