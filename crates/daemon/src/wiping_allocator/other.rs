//! Allocators that give memory back by themselves.

/// Does nothing.
pub(super) fn keep_little() {}

/// Does nothing.
pub(super) fn give_back() {}
