//! A running interface, as all threads except the packet threads see it: its configuration, and which packet
//! thread serves which peer. It sends [`weft_dataplane::Command`]s to the event loops, starts no thread and
//! does no I/O.

use weft_dataplane::DataplaneError;

mod balance;
mod controller;
mod handle;
mod model;
mod placement;

pub use controller::{Configured, Controller};
pub use handle::Handle;
pub use model::Model;

/// The packet thread did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the packet thread has ended")]
pub struct Ended;

impl From<Ended> for DataplaneError {
    fn from(_: Ended) -> Self {
        Self::Ended
    }
}
