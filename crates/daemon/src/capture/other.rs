//! Rights of a new file: those that its folder gives.

use std::fs::OpenOptions;

/// Nothing to say.
pub(super) fn for_the_owner(_: &mut OpenOptions) {}
