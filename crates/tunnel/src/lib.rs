//! The WireGuard state machine of weft, without I/O: no sockets and no threads, and the caller passes the
//! time.
//!
//! *Outbound* always means TUN → UDP, *inbound* always means UDP → TUN.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod allowed_ips;
#[cfg(feature = "bench-internals")]
#[doc(hidden)]
pub mod bench;
mod bucket;
mod budget;
mod change;
mod clean_stack;
mod config;
mod control_queue;
mod cookie;
mod drop_reason;
mod ecn;
mod endpoints;
mod event;
mod foreign;
mod foreign_peers;
mod gate;
mod icmp;
mod icmp_answers;
mod inbound;
mod initiations;
mod inspect;
pub mod ip;
mod key;
mod limits;
mod mac;
mod moved_index;
mod moved_peer;
mod offload;
mod outbound;
mod packet;
mod path;
mod path_limit;
mod peer;
mod peer_id;
mod peer_index;
mod peer_timers;
mod refusals;
mod restore;
mod session;
mod shard;
mod sources;
mod split;
mod staging;
#[cfg(test)]
#[cfg(not(feature = "mock-instant"))]
mod test_pair;
mod timers;
mod transmit;
mod tunnel;

pub use change::Change;
pub use clean_stack::with_clean_stack;
pub use config::{PeerConfig, PeerSettings};
pub use control_queue::{ControlMessage, ControlQueue};
pub use cookie::CookieRoot;
pub use drop_reason::{DropCounters, DropReason};
pub use event::Event;
pub use inbound::Inbound;
pub use inspect::each_segment;
pub use key::{InvalidKey, PresharedKey, PrivateKey, PublicKey, exercise_x25519};
pub use limits::{PeerLimits, Rate};
pub use moved_peer::MovedPeer;
pub use offload::Offload;
pub use outbound::Outbound;
pub use packet::{MAX_PACKET, PacketMut, PlainSlab, Plaintext, TAILROOM};
pub use peer::{Arrivals, PeerSnapshot};
pub use peer_id::PeerId;
pub use peer_timers::WakeReason;
pub use restore::Remembered;
pub use session::REJECT_AFTER_TIME;
pub use shard::Shard;
pub use transmit::{
    Batch, Ecn, MAX_BATCH_BYTES, MAX_BATCH_SEGMENTS, MAX_CONTROL_MESSAGE, Path, RecvMeta, Transmit,
    TransmitQueue,
};

pub use tunnel::{HandshakeLoad, KeyTaken, Progress, Tunnel, TunnelConfig, TunnelStats};

/// Whether boringtun runs on a mock clock that only tests advance (feature `mock-instant`). A daemon must not
/// be built with it.
pub const MOCK_CLOCK: bool = cfg!(feature = "mock-instant");
