//! What the errors of writes mean, whatever the system.

/// Why a packet was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The queue is full. Its descriptor becomes writable when there is room.
    Full,
    /// The queue is full, and nothing announces room: the write has to be repeated after a pause.
    FullUnannounced,
    /// The system cannot take a packet of this form. As several single packets it may.
    Invalid,
    /// The system refuses the packet.
    Refused,
}
