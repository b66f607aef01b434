//! What a server asks of the interface that it serves.

use weft_config::device::{DeviceChange, DeviceState};

/// Why a request to the control thread failed. A change that failed changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The new UDP port belongs to another program.
    #[error("{0}")]
    PortInUse(String),
    /// The system refused a part of the change.
    #[error("{0}")]
    Refused(String),
    /// The interface is being taken down.
    #[error("the interface is being taken down")]
    Ended,
}

/// What sockets and commands ask of the interface. Calls wait for the control thread's answer.
pub trait Control: Send + Sync + 'static {
    /// The interface and its peers as they are now.
    fn get(&self) -> Result<DeviceState, ControlError>;

    /// Applies a change, all of it or nothing.
    fn set(&self, change: DeviceChange) -> Result<(), ControlError>;
}
