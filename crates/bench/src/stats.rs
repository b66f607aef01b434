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
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values = sorted(values);
        let (lowest, highest) = (*values.first()?, *values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median: f64::midpoint(low, high), lowest, highest })
    }
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the smallest value that at least `part` of the values do not exceed (nearest rank); `None` without
/// values.
pub(crate) fn percentile(values: &[f64], part: f64) -> Option<f64> {
    let rank = (part * values.len() as f64).ceil() as usize;
    sorted(values.iter().copied()).get(rank.clamp(1, values.len().max(1)) - 1).copied()
}

/// Summarizes `ours / theirs`, pair by pair: the two values of a pair were measured one after the other, so
/// that changes of the machine during a run affect both.
pub(crate) fn ratios(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Summary> {
    let pairs = pairs.into_iter().filter(|(_, theirs)| *theirs > 0.0);
    Summary::of(pairs.map(|(ours, theirs)| ours / theirs))
}

/// Computes Jain's index of fairness: 1 when all shares are equal, 1/n when one has everything.
pub(crate) fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
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
    fn figures_of_several_rounds_are_summed_up_as_the_documentation_says() {
        let median = |values: &[f64]| Summary::of(values.iter().copied()).map(|of| of.median);
        assert_eq!(
            (median(&[]), median(&[9.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 9.0])),
            (None, Some(2.0), Some(3.0))
        );
        // A machine that becomes twice as fast midway changes no ratio.
        let same = Some(Summary { median: 2.0, lowest: 2.0, highest: 2.0 });
        assert_eq!(ratios([(2.0, 1.0), (4.0, 2.0), (4.0, 2.0), (1.0, 0.0)]), same);
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(
            [0.5, 0.99, 1.0].map(|part| percentile(&values, part)),
            [Some(100.0), Some(198.0), Some(200.0)]
        );
        assert_eq!((jain(&[5, 5, 5]), jain(&[8, 0, 0, 0]), jain(&[])), (1.0, 0.25, 0.0));
        let leak: Vec<f64> = (0..60).map(|minute| 40.0 + f64::from(minute) * 0.1).collect();
        let noise: Vec<f64> = (0..60).map(|minute| 40.0 + f64::from(minute * 7 % 5)).collect();
        assert!((growth(&leak).unwrap() - 5.9).abs() < 1e-9 && growth(&noise).unwrap().abs() < 0.5);
    }
}
