//! Platforms where weft does not do it yet.

pub(super) fn forbid_core_dumps() {}
