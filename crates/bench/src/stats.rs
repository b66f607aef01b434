//! Statistics over several measurements of the same figure.

use serde::Serialize;

/// Median and range of several values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

impl Summary {
    /// Summarizes values; `None` without values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (lowest, highest) = (*values.first()?, *values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median: f64::midpoint(low, high), lowest, highest })
    }
}

/// Returns the smallest value that at least `part` of the values do not exceed (nearest rank); `None` without
/// values.
pub(crate) fn percentile(sorted: &[f64], part: f64) -> Option<f64> {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

/// Summarizes `ours / theirs`, pair by pair: the two values of a pair were measured one after the other, so
/// that changes of the machine during a run affect both.
pub(crate) fn ratios(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Summary> {
    let pairs = pairs.into_iter().filter(|(_, theirs)| *theirs > 0.0);
    Summary::of(pairs.map(|(ours, theirs)| ours / theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_in_the_middle() {
        let summary = |values: &[f64]| Summary::of(values.iter().copied());
        assert_eq!(summary(&[]), None);
        assert_eq!(summary(&[2.0]), Some(Summary { median: 2.0, lowest: 2.0, highest: 2.0 }));
        assert_eq!(summary(&[9.0, 1.0, 2.0]), Some(Summary { median: 2.0, lowest: 1.0, highest: 9.0 }));
        assert_eq!(summary(&[4.0, 1.0, 2.0, 9.0]).map(|summary| summary.median), Some(3.0));
    }

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        // A machine that becomes twice as fast midway changes no ratio.
        let ratio = ratios([(2.0, 1.0), (4.0, 2.0), (4.0, 2.0)]);
        assert_eq!(ratio, Some(Summary { median: 2.0, lowest: 2.0, highest: 2.0 }));
        assert_eq!(ratios([(1.0, 0.0)]), None);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        let parts = [0.0, 0.5, 0.99, 1.0].map(|part| percentile(&values, part));
        assert_eq!(parts, [Some(1.0), Some(100.0), Some(198.0), Some(200.0)]);
        assert_eq!(percentile(&[7.0], 0.5), Some(7.0));
        assert_eq!(percentile(&[], 0.5), None);
    }
}
