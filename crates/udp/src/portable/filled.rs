//! The result of a receive, of the sockets of every system.

/// What a receive filled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    pub(super) buffers: usize,
    /// Whether the socket has nothing more.
    pub(super) is_empty_now: bool,
}
