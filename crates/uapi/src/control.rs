//! The calls that a server makes to the interface that it serves.

use weft_config::device::{DeviceChange, DeviceState};

/// Why a request to the control thread failed. A failed change has no effect.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Another program uses the new UDP port.
    #[error("{0}")]
    PortInUse(String),
    /// The system refused a part of the change.
    #[error("{0}")]
    Refused(String),
    /// The interface is being taken down.
    #[error("the interface is being taken down")]
    Ended,
}

/// Reads and changes the interface. Calls block until the control thread answers.
pub trait Control: Send + Sync + 'static {
    /// Returns the current state of the interface and its peers.
    fn get(&self) -> Result<DeviceState, ControlError>;

    /// Applies a change completely or not at all.
    fn set(&self, change: DeviceChange) -> Result<(), ControlError>;
}
