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
