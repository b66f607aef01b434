//! weft and wireguard-go are given the same, at random, and have to come to the same outcome.
//!
//! What they are given follows from a seed. WEFT_DIFFERENTIAL_SEEDS is a range of seeds, `7000..8000`, in the
//! place of those that run otherwise; the message of a failure names its seed. A difference that is meant has
//! a name where it is allowed, and a row in docs/COMPATIBILITY.md.

use std::ops::Range;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

mod requests;

/// The weft of this build, as a program.
const WEFT: &str = env!("CARGO_BIN_EXE_weft");
const SEEDS: &str = "WEFT_DIFFERENTIAL_SEEDS";

/// The seeds to run: `usual`, unless the environment names others.
fn seeds(usual: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var(SEEDS) else { return usual };
    let (first, end) = text.split_once("..").unwrap_or_else(|| panic!("{SEEDS} is not like 7000..8000"));
    first.parse().unwrap()..end.parse().unwrap()
}

/// Choices that follow from a seed.
struct Random(StdRng);

impl Random {
    fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end)
    }

    fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}
