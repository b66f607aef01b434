//! The index of a peer, by which the parts of the tunnel refer to it.

/// Index of a peer in the tunnel's table. It is reused after the peer was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(u32);

impl PeerId {
    pub(crate) fn new(place: usize) -> Self {
        Self(place as u32)
    }

    pub(crate) fn place(self) -> usize {
        self.0 as usize
    }

    #[cfg(test)]
    pub(crate) fn for_test(id: u32) -> Self {
        Self(id)
    }
}
