//! What threads share. The test of all interleavings has these types from shuttle.

pub(crate) use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Mutex, PoisonError};
