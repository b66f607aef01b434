//! SVG plots. Text stays text, so no font is needed here, and the viewer's fonts are used.

use std::path::Path;

use anyhow::{Context as _, Result};
use plotters::style::RGBColor;

mod axis;
mod bars;
mod lines;

pub(crate) use bars::{Bar, Bars, Row, Scale};
pub(crate) use lines::{Line, Lines, Panel};

const FONT: &str = "sans-serif";
const TITLE_SIZE: u32 = 19;
const TEXT_SIZE: u32 = 13;
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(215, 215, 215);

/// Colours that remain distinct with colour blindness (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(110, 110, 110),
];

fn colour(place: usize) -> RGBColor {
    COLOURS[place % COLOURS.len()]
}

/// Writes a plot, and creates the directories above it.
pub(crate) fn write(path: &Path, svg: &str) -> Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    directory
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(path, svg))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Converts an error of the drawing library.
fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("cannot draw: {error}")
}

/// Returns round numbers from zero to `most` or a little above it, and the last of them.
fn ticks(maximum: f64) -> (Vec<f64>, f64) {
    const COUNT: f64 = 5.0;
    if maximum <= 0.0 {
        return (vec![0.0, 1.0], 1.0);
    }
    let rough = maximum / COUNT;
    let magnitude = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|factor| factor * magnitude >= rough);
    let step = factor.unwrap_or(10.0) * magnitude;
    let count = (maximum / step).ceil().max(1.0) as u32;
    let ticks: Vec<f64> = (0..=count).map(|tick| f64::from(tick) * step).collect();
    (ticks, f64::from(count) * step)
}

/// Formats a tick without trailing zeros.
fn tick_text(value: f64) -> String {
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
