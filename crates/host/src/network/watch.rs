//! The thread that watches the network. The platform reads what the kernel reports.

use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use weft_tun::thread_guard::EndProcessOnPanic;

use super::coalesce::Coalescer;
use super::platform::Source;
use super::{Change, WatchError};
use crate::routes::Link;

/// A thread that watches the network until it is dropped.
#[derive(Debug)]
pub struct Watch {
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches the network from now on, on Linux that of the namespace of this thread. `device` is weft's device:
    /// changes of its routes and addresses are not reported. `on_change` is called on the watching thread, at most
    /// once in 200 ms, and at most a second after the change; it should only pass the change on.
    ///
    /// # Errors
    /// When the system refuses a socket, a timer or a thread.
    pub fn start(
        device: Option<&Link>,
        on_change: impl FnMut(Change) + Send + 'static,
    ) -> Result<Self, WatchError> {
        let refused = |what| move |source| WatchError::Refused { what, source };
        let source = Source::open(device)?;
        let (stop, stopped) = UnixStream::pair().map_err(refused("make a pair of sockets"))?;
        let thread = std::thread::Builder::new()
            .name("weft-network".to_owned())
            .spawn(move || {
                let _guard = EndProcessOnPanic;
                if let Err(error) = watch(source, &stopped, on_change) {
                    tracing::warn!(%error, "cannot watch the network any more: its changes go unnoticed");
                }
            })
            .map_err(refused("start a thread"))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The write fails only if the thread has ended already.
        let _ = self.stop.write(&[0]);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // The guard ends the process on a panic, so there is none to pass on.
            let _ = thread.join();
        }
    }
}

fn watch(mut source: Source, stopped: &UnixStream, mut on_change: impl FnMut(Change)) -> io::Result<()> {
    let mut coalescer = Coalescer::default();
    loop {
        let timeout = match coalescer.due() {
            None => PollTimeout::NONE,
            Some(due) => {
                // Rounded up, so as not to come back too early.
                let millis = due.saturating_duration_since(Instant::now()).as_millis() + 1;
                PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
            }
        };
        let descriptors = [stopped.as_fd()].into_iter().chain(source.descriptors());
        let mut ready: Vec<_> = descriptors.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut ready, timeout) {
            Err(Errno::EINTR) => continue,
            other => other?,
        };
        let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        let ready: Vec<bool> = ready.iter().map(is_ready).collect();
        let [end, ready @ ..] = &ready[..] else { return Ok(()) };
        if *end {
            return Ok(());
        }
        source.read(ready, |change| coalescer.note(change, Instant::now()))?;
        if let Some(change) = coalescer.take(Instant::now()) {
            tracing::debug!(?change, "the network changed");
            on_change(change);
        }
    }
}
