//! The result of one turn of a part of the event loop.

/// Result of a turn of one direction, or of the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing to do, or no room to do it: a waker is registered.
    Idle,
    /// The budget is used up: call again.
    Busy,
}
