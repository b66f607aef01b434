//! What packet threads agree on through atomics, under many interleavings: the module of the product as it is,
//! with atomics and locks of shuttle, and a small model of what calls it.

#![cfg(test)]
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "the module has more than the model calls; these are tests"
)]

#[path = "../../crates/tun/src/device/shards/progress.rs"]
mod progress;

mod hand_over;

/// What `crate::sync` is in the product.
mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

/// Runs a model under many random interleavings, and under some with few changes of threads, which find what
/// depends on the order of two steps (probabilistic concurrency testing).
fn explore(model: impl Fn() + Send + Sync + Copy + 'static) {
    shuttle::check_random(model, 100_000);
    shuttle::check_pct(model, 20_000, 3);
}
