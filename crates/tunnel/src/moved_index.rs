//! The receiver indices of peers that moved between shards.

use std::time::Instant;

use crate::peer_id::PeerId;

/// An index of a peer that moved away from this shard, while messages may still carry it.
#[derive(Debug)]
pub(crate) struct MovedIndex {
    pub(crate) until: Instant,
    pub(crate) peer: PeerId,
    pub(crate) index: u32,
}
