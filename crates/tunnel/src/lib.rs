//! The WireGuard state machine of weft, without I/O: no sockets, no threads, no clock of its own.
//!
//! *Outbound* always means TUN → UDP, *inbound* always means UDP → TUN.
#![forbid(unsafe_code)]

mod config;
mod drop_reason;
pub mod ip;
mod key;
mod offload;
mod packet;
mod peer;
mod transmit;

pub use config::PeerConfig;
pub use drop_reason::{DropCounters, DropReason};
pub use key::{InvalidKey, PresharedKey, PrivateKey, PublicKey};
pub use offload::Offload;
pub use packet::{MAX_PACKET, PacketMut, PlainSlab, Plaintext, TAILROOM};
pub use peer::PeerId;
pub use transmit::{
    Batch, ControlMessage, ControlQueue, Ecn, MAX_BATCH_BYTES, MAX_BATCH_SEGMENTS, MAX_CONTROL_MESSAGE, Path, RecvMeta,
    Transmit, TransmitQueue,
};

/// Whether the clock is the one that only tests advance. A daemon must not be built with it.
pub const MOCK_CLOCK: bool = cfg!(feature = "mock-instant");
