//! The control side of a running interface: handles requests over sockets and from the command line.
//!
//! Everything here runs on the control thread or beside it, never on the packet thread: peers are built here
//! (each costs an X25519), reach the event loop in slices, and counters come back as snapshots.

mod managed;
pub mod socket;

pub use managed::{Managed, Phase};
