//! weft and wireguard-go, or the kernel's WireGuard, are given the same, at random, and have to come to the
//! same outcome.
//!
//! What they are given follows from a seed. WEFT_DIFFERENTIAL_SEEDS is a range of seeds, `7000..8000`, in the
//! place of those that run otherwise; the message of a failure names its seed. A difference that is meant has
//! a name where it is allowed, and a row in docs/COMPATIBILITY.md.

use std::ops::Range;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use weft_lab::here;

use crate::wireguard_go::{can_run, program};

mod datagrams;
mod packets;
mod requests;

/// The weft of this build, as a program.
const WEFT: &str = env!("CARGO_BIN_EXE_weft");
const SEEDS: &str = "WEFT_DIFFERENTIAL_SEEDS";

/// Addresses of which prefixes and packets are made.
const V4: [&str; 8] = [
    "0.0.0.0",
    "10.0.0.0",
    "10.1.2.3",
    "10.1.2.128",
    "192.168.0.1",
    "127.0.0.1",
    "224.0.0.1",
    "255.255.255.255",
];
const V6: [&str; 8] = [
    "::",
    "fd00::",
    "fd00:1:2:3:4:5:6:7",
    "FD00:1::",
    "2001:db8::1",
    "::ffff:10.1.2.3",
    "fe80::1",
    "ff02::1",
];

/// The seeds to run: `usual`, unless the environment names others.
fn seeds(usual: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var(SEEDS) else { return usual };
    let (first, end) = text.split_once("..").unwrap_or_else(|| panic!("{SEEDS} is not like 7000..8000"));
    first.parse().unwrap()..end.parse().unwrap()
}

/// Whether weft can be compared with what takes the place of wireguard-go here: with wireguard-go itself, or
/// with the kernel's WireGuard where `and_kernel`; where it cannot, says why.
fn can_compare(and_kernel: bool) -> bool {
    let is_comparable = program() == "wireguard-go" || and_kernel && is_kernel();
    if !is_comparable {
        here::not_run(&format!("weft is not compared with {}", program()));
    }
    is_comparable && can_run()
}

fn is_kernel() -> bool {
    program().ends_with("kernel-wireguard")
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A prefix of few networks, so that they overlap, which may have host bits.
    fn prefix(&mut self) -> String {
        if self.percent(50) {
            return format!("{}/{}", self.pick(&V4), self.pick(&[0, 1, 8, 9, 16, 24, 25, 31, 32]));
        }
        format!("{}/{}", self.pick(&V6), self.pick(&[0, 1, 7, 8, 48, 63, 64, 65, 96, 127, 128]))
    }
}
