//! Overwrites the part of the stack that a computation with secrets used: what it moved, spilled or returned
//! leaves copies there, which no destructor wipes.

use std::hint::black_box;

/// Bytes that are overwritten: more than boringtun uses when it makes its state of a peer, which has 25 KB
/// and is moved twice where the compiler does not optimise.
const DEPTH: usize = if cfg!(debug_assertions) { 256 << 10 } else { 96 << 10 };

/// Returns what `work` returns, after the stack that it used was overwritten. Costs a few microseconds.
pub fn with_clean_stack<T>(work: impl FnOnce() -> T) -> T {
    let result = separately(work);
    overwrite();
    result
}

/// Runs `work` in a separate frame, below that of the caller.
#[inline(never)]
fn separately<T>(work: impl FnOnce() -> T) -> T {
    work()
}

#[inline(never)]
fn overwrite() {
    let mut zeros = [0u8; DEPTH];
    black_box(&mut zeros);
}
