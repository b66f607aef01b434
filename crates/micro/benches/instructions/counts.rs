//! The committed file: a name and the instructions per packet on each line, sorted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Instructions per packet by name.
pub(crate) type Counts = BTreeMap<String, f64>;

/// Tolerance of a count in per cent.
pub(crate) const TOLERANCE: f64 = 3.0;

const HEADING: &str = "# Instructions per packet, without the C library's and ring's; see docs/BENCHMARKS.md. Written by\n#   cargo bench -p weft-micro --bench instructions -- --write\n\n";

/// Returns the path of the file.
pub(crate) fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.toml")
}

/// Rounds to a tenth of an instruction, as in the file.
pub(crate) fn per_packet(instructions: u64, packets: u64) -> f64 {
    (instructions as f64 / packets as f64 * 10.0).round() / 10.0
}

pub(crate) fn to_text(counts: &Counts) -> String {
    let mut text = HEADING.to_owned();
    for (name, count) in counts {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} = {count:.1}");
    }
    text
}

pub(crate) fn parse(text: &str) -> Result<Counts> {
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let count = line.split_once('=').and_then(|(name, count)| {
                Some((name.trim().to_owned(), count.trim().parse().ok().filter(|count| *count >= 0.0)?))
            });
            count.with_context(|| format!("`{line}` is not a name, = and a number"))
        })
        .collect()
}

/// A difference between the file and a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    /// More instructions than the tolerance allows.
    More { committed: f64, counted: f64 },
    /// Fewer instructions by more than the tolerance.
    Fewer { committed: f64, counted: f64 },
    /// Not in the file.
    New { counted: f64 },
    /// Only in the file.
    Gone { committed: f64 },
}

impl Change {
    pub(crate) fn is_bad(&self) -> bool {
        !matches!(self, Self::Fewer { .. })
    }

    pub(crate) fn line(&self, name: &str) -> String {
        match self {
            Self::More { committed, counted } | Self::Fewer { committed, counted } => {
                let percent = (counted / committed - 1.0) * 100.0;
                format!(
                    "{name}: {committed:.1} instructions a packet are committed, {counted:.1} counted ({percent:+.1} %)"
                )
            }
            Self::New { counted } => {
                format!("{name}: no count is committed, {counted:.1} instructions a packet counted")
            }
            Self::Gone { committed } => {
                format!(
                    "{name}: {committed:.1} instructions a packet are committed, and nothing has this name"
                )
            }
        }
    }
}

pub(crate) fn compare(committed: &Counts, counted: &Counts) -> Vec<(String, Change)> {
    let names: BTreeSet<_> = committed.keys().chain(counted.keys()).collect();
    let changes = names.into_iter().filter_map(|name| {
        let change = match (committed.get(name).copied(), counted.get(name).copied()) {
            (Some(committed), Some(counted)) => {
                let percent = (counted - committed) * 100.0;
                if percent > committed * TOLERANCE {
                    Change::More { committed, counted }
                } else if percent < -committed * TOLERANCE {
                    Change::Fewer { committed, counted }
                } else {
                    return None;
                }
            }
            (None, Some(counted)) => Change::New { counted },
            (Some(committed), None) => Change::Gone { committed },
            (None, None) => return None,
        };
        Some((name.clone(), change))
    });
    changes.collect()
}
