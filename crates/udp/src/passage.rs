//! How a datagram is sent that the system refused as too long for its path.

/// How such a datagram passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// Fragments are permitted.
    InPieces,
    /// As the socket sends, but regardless of what the kernel has learnt of the path.
    Whole,
}

/// What to do with such a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Advice {
    pub(crate) passage: Passage,
    /// The MTU of the path, if it is smaller than the datagrams and is to be reported.
    pub(crate) mtu: Option<u16>,
}

impl Advice {
    pub(crate) const IN_PIECES: Self = Self { passage: Passage::InPieces, mtu: None };
}
