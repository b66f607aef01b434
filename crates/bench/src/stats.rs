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

/// Summarizes the middle half of the values: the median, and the quartiles as range. What other work
/// disturbed is excluded. `None` without values.
pub(crate) fn middle(values: &[f64]) -> Option<Summary> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let quarter = values.len() / 4;
    Summary::of(values.get(quarter..values.len() - quarter)?.iter().copied())
}

/// Computes Jain's index of fairness: 1 when all shares are equal, 1/n when one has everything.
pub(crate) fn jain(shares: &[u64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), &share| {
        let share = share as f64;
        (sum + share, squares + share * share)
    });
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// Returns by how much a figure grew over the span of its values, evenly spaced: the median of the slopes of
/// all pairs (Theil and Sen), which a few outliers do not change. `None` for too few values.
pub(crate) fn growth(values: &[f64]) -> Option<f64> {
    /// Fewer values say nothing about growth.
    const FEWEST: usize = 8;
    if values.len() < FEWEST {
        return None;
    }
    let slopes = values.iter().enumerate().flat_map(|(place, earlier)| {
        (1..).zip(&values[place + 1..]).map(move |(distance, later)| (later - earlier) / f64::from(distance))
    });
    Some(Summary::of(slopes)?.median * (values.len() - 1) as f64)
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

    #[test]
    fn the_middle_half_leaves_out_what_was_disturbed() {
        let summary = middle(&[12.0, 10.0, 900.0, 11.0]);
        assert_eq!(summary, Some(Summary { median: 11.5, lowest: 11.0, highest: 12.0 }));
        assert_eq!(middle(&[]), None);
    }

    #[test]
    fn jains_index_is_one_for_equals_and_a_share_for_one_of_many() {
        assert_eq!((jain(&[5, 5, 5]), jain(&[8, 0, 0, 0]), jain(&[])), (1.0, 0.25, 0.0));
    }

    #[test]
    fn a_leak_is_growth_and_noise_and_outliers_are_not() {
        let leak: Vec<f64> = (0..60).map(|minute| 40.0 + f64::from(minute) * 0.1).collect();
        assert!((growth(&leak).unwrap() - 5.9).abs() < 1e-9);
        let noise: Vec<f64> = (0..60).map(|minute| 40.0 + f64::from(minute * 7 % 5)).collect();
        assert!(growth(&noise).unwrap().abs() < 0.5);
        let mut flat = vec![40.0; 60];
        flat[50..59].fill(90.0);
        assert_eq!(growth(&flat), Some(0.0));
        assert_eq!(growth(&[1.0; 7]), None);
    }
}
