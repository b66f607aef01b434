//! State that a daemon leaves to its successor and that the configuration file does not contain: changes made
//! at run time, addresses of roaming peers, times of the latest handshakes.
//!
//! `state.rs` defines what is written, `text.rs` how keys are written, and `merge.rs` how the state is merged
//! with a file that was edited in the meantime. No I/O here.

mod merge;
mod state;
mod text;

pub use merge::PeerAddress;
pub use state::{AtHandover, Base, CarriedPeer, FilePeer, FormatError, OwnKey, State};
