//! Whether a figure grows.

/// Fewer values say nothing about growth.
const FEWEST: usize = 8;

/// Returns by how much a figure grew over the span of its values, evenly spaced: the median of the slopes of
/// all pairs (Theil and Sen), which a few outliers do not change. `None` for too few values.
pub(super) fn growth(values: &[f64]) -> Option<f64> {
    if values.len() < FEWEST {
        return None;
    }
    let mut slopes = Vec::with_capacity(values.len() * (values.len() - 1) / 2);
    for (place, earlier) in values.iter().enumerate() {
        for (distance, later) in (1..).zip(&values[place + 1..]) {
            slopes.push((later - earlier) / f64::from(distance));
        }
    }
    slopes.sort_by(f64::total_cmp);
    Some(slopes[slopes.len() / 2] * (values.len() - 1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leak_is_growth_and_noise_and_outliers_are_not() {
        let leak: Vec<f64> = (0..60).map(|minute| 40.0 + f64::from(minute) * 0.1).collect();
        assert!((growth(&leak).unwrap() - 5.9).abs() < 1e-9);
        let noise: Vec<f64> = (0..60).map(|minute| 40.0 + f64::from(minute * 7 % 5)).collect();
        assert!(growth(&noise).unwrap().abs() < 0.5);
        let mut flat = vec![40.0; 60];
        flat[50..59].fill(90.0);
        assert_eq!(growth(&flat), Some(0.0));
        assert_eq!(growth(&[1.0; FEWEST - 1]), None);
    }
}
