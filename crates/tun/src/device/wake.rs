//! Ends a wait in poll(2) from another thread.

use std::os::fd::{AsFd, BorrowedFd};

#[cfg_attr(all(target_os = "linux", not(feature = "portable")), path = "wake/eventfd.rs")]
#[cfg_attr(any(not(target_os = "linux"), feature = "portable"), path = "wake/socket_pair.rs")]
mod descriptor;

/// A descriptor that becomes readable when another thread asks for it.
#[derive(Debug)]
pub(super) struct Wake(descriptor::Descriptor);

impl Wake {
    pub(super) fn new() -> std::io::Result<Self> {
        descriptor::Descriptor::new().map(Self)
    }

    /// Makes the descriptor readable, which it may be already.
    pub(super) fn wake(&self) -> std::io::Result<()> {
        self.0.wake()
    }

    /// Makes the descriptor wait for the next wake-up.
    pub(super) fn clear(&self) {
        self.0.clear();
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::is_readable;
    use super::*;

    #[test]
    fn a_descriptor_is_readable_from_the_first_wake_up_until_it_is_cleared() {
        let wake = Wake::new().unwrap();
        for _ in 0..2 {
            assert!(!is_readable(wake.as_fd()));
            // More than a socket holds: a thread that is stuck does not clear them.
            (0..10_000).for_each(|_| wake.wake().unwrap());
            assert!(is_readable(wake.as_fd()));
            wake.clear();
        }
        assert!(!is_readable(wake.as_fd()));
    }
}
