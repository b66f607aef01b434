//! Ends a wait in poll(2) from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::queue::{Until, Woken};

#[cfg_attr(all(target_os = "linux", not(feature = "portable")), path = "wake/eventfd.rs")]
#[cfg_attr(any(not(target_os = "linux"), feature = "portable"), path = "wake/socket_pair.rs")]
mod descriptor;

/// A descriptor that becomes readable when another thread asks for it.
#[derive(Debug)]
pub(super) struct Wake(descriptor::Descriptor);

impl Wake {
    pub(super) fn new() -> io::Result<Self> {
        descriptor::Descriptor::new().map(Self)
    }

    /// Makes the descriptor readable, which it may be already.
    pub(super) fn wake(&self) -> io::Result<()> {
        self.0.wake()
    }

    /// Makes the descriptor wait for the next wake-up.
    fn clear(&self) {
        self.0.clear();
    }
}

impl Wake {
    /// Waits for the queue, until another thread ends the wait.
    pub(super) fn wait(&self, queue: &impl AsFd, until: Until) -> io::Result<Woken> {
        let events = match until {
            Until::Readable => PollFlags::POLLIN,
            Until::Writable => PollFlags::POLLOUT,
        };
        loop {
            let mut wait = [PollFd::new(queue.as_fd(), events), PollFd::new(self.as_fd(), PollFlags::POLLIN)];
            match poll(&mut wait, PollTimeout::NONE) {
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let [queue, event] = wait.map(|wait| wait.revents().unwrap_or(PollFlags::empty()));
            if !event.is_empty() {
                self.clear();
                return Ok(Woken::Asked);
            }
            if queue.intersects(events) {
                return Ok(Woken::Ready);
            }
            if !queue.is_empty() {
                return Ok(Woken::Gone);
            }
        }
    }

    /// Waits for this time at most. `Thread::unpark` ends it.
    #[allow(clippy::unused_self, reason = "Windows waits for the event")]
    pub(super) fn park(&self, time: Duration) {
        thread::park_timeout(time);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::descriptor::is_readable;
    use super::*;

    #[test]
    fn a_descriptor_is_readable_from_the_first_wake_up_until_it_is_cleared() {
        let wake = Wake::new().unwrap();
        for _ in 0..2 {
            assert!(!is_readable(&wake));
            // More than a socket holds: a thread that is stuck does not clear them.
            (0..10_000).for_each(|_| wake.wake().unwrap());
            assert!(is_readable(&wake));
            wake.clear();
        }
        assert!(!is_readable(&wake));
    }
}
