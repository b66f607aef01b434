//! Waits for what the kernel reports over descriptors, which the platform reads.

use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::platform::Source;
use super::{NetworkChange, WatchError};
use crate::routes::Link;

/// The descriptors of the platform, and one that ends the waiting.
pub(super) struct Events {
    source: Source,
    stopped: UnixStream,
}

/// Ends the waiting.
#[derive(Debug)]
pub(super) struct Stop(UnixStream);

impl Stop {
    pub(super) fn stop(&mut self) {
        // The write fails only if the thread has ended already.
        let _ = self.0.write(&[0]);
    }
}

impl Events {
    pub(super) fn open(device: Option<&Link>) -> Result<(Stop, Self), WatchError> {
        let source = Source::open(device)?;
        let refused = |source| WatchError::Refused { what: "make a pair of sockets", source };
        let (stop, stopped) = UnixStream::pair().map_err(refused)?;
        Ok((Stop(stop), Self { source, stopped }))
    }

    /// Waits for changes, at most until `due`. Returns whether the watch has ended.
    pub(super) fn wait(&mut self, due: Option<Instant>, note: impl FnMut(NetworkChange)) -> io::Result<bool> {
        let timeout = match due {
            None => PollTimeout::NONE,
            Some(due) => {
                // Rounded up, so as not to come back too early.
                let millis = due.saturating_duration_since(Instant::now()).as_millis() + 1;
                PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
            }
        };
        let descriptors = [self.stopped.as_fd()].into_iter().chain(self.source.descriptors());
        let mut ready: Vec<_> = descriptors.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut ready, timeout) {
            Err(Errno::EINTR) => return Ok(false),
            other => other?,
        };
        let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        let ready: Vec<bool> = ready.iter().map(is_ready).collect();
        let [end, ready @ ..] = &ready[..] else { return Ok(true) };
        if *end {
            return Ok(true);
        }
        self.source.read(ready, note)?;
        Ok(false)
    }
}
