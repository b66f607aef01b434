//! Atomics of what packet threads tell each other. The test of their interleavings has these types from
//! shuttle.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
