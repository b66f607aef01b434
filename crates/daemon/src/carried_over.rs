//! What a daemon leaves to the one that takes its place, and that a configuration file does not say: changes that were
//! made while it ran, where peers have roamed to, when they last shook hands.
//!
//! `state.rs` is what is written, `text.rs` how keys are written, and `merge.rs` the rule for a file that was edited
//! meanwhile. No I/O here.

mod merge;
mod state;
mod text;

pub use merge::Place;
pub use state::{AtHandover, Base, BasePeer, FormatError, OwnKey, State, StatePeer};
