//! What packet threads agree on through atomics, under many interleavings: the modules of the product as they
//! are, with atomics and locks of shuttle, and a small model of what calls them.

#![cfg(test)]
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "the modules have more than the models call; these are tests"
)]

#[path = "../../crates/dataplane/src/barrier.rs"]
mod barrier;
#[path = "../../crates/dataplane/src/detours.rs"]
mod detours_of_product;
#[path = "../../crates/dataplane/src/flushes.rs"]
mod flushes;
#[path = "../../crates/tun/src/device/shards/progress.rs"]
mod progress;

mod detours;
mod hand_over;
mod siblings;
mod stand_in;
mod standstill;

// The modules of the product name these crates.
extern crate self as tracing;
extern crate self as weft_tunnel;
use stand_in::{PublicKey, RecvMeta, Tunnel, debug};

/// What `crate::sync` is in the product.
mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use shuttle::sync::{Arc, Mutex};
    pub(crate) use std::sync::PoisonError;
}

/// Runs a model under many random interleavings, and under some with few changes of threads, which find what
/// depends on the order of two steps (probabilistic concurrency testing).
fn explore(model: impl Fn() + Send + Sync + Copy + 'static) {
    shuttle::check_random(model, 100_000);
    shuttle::check_pct(model, 20_000, 3);
}
