//! The axes of plots.

/// Returns round numbers from zero to `maximum` or a little above it, and the last of them.
pub fn ticks(maximum: f64) -> (Vec<f64>, f64) {
    const COUNT: f64 = 5.0;
    if maximum <= 0.0 {
        return (vec![0.0, 1.0], 1.0);
    }
    let rough = maximum / COUNT;
    let magnitude = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0].into_iter().find(|factor| factor * magnitude >= rough);
    let step = factor.unwrap_or(10.0) * magnitude;
    let count = (maximum / step).ceil().max(1.0) as u32;
    let ticks: Vec<f64> = (0..=count).map(|tick| f64::from(tick) * step).collect();
    (ticks, f64::from(count) * step)
}

/// Formats a tick without trailing zeros.
pub fn tick_text(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_beyond_the_largest() {
        assert_eq!(ticks(6.9), (vec![0.0, 2.0, 4.0, 6.0, 8.0], 8.0));
        assert_eq!(ticks(0.45).1, 0.5);
        assert_eq!(ticks(0.0), (vec![0.0, 1.0], 1.0));
        assert_eq!([2.5, 0.0, 20.0, 0.125].map(tick_text), ["2.5", "0", "20", "0.125"]);
    }
}
