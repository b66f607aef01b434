//! Platforms where weft does not forbid core dumps yet.

pub(super) fn forbid_core_dumps() {}
