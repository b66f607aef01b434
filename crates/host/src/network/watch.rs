//! The thread that watches the network. The platform waits for what the system reports.

use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weft_confine::EndProcessOnPanic;

use super::coalesce::Coalescer;
use super::events::{Events, Stop};
use super::{NetworkChange, WatchError};
use crate::routes::Link;

/// A pause after each event, in which further ones gather: a router changes thousands of routes in a row, and
/// to wake up for each of them takes most of a processor.
const PAUSE: Duration = Duration::from_millis(10);

/// A thread that watches the network until it is dropped.
#[derive(Debug)]
pub struct Watch {
    pub(super) stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches the network from now on, on Linux that of the namespace of this thread. `device` is weft's
    /// device: changes of its routes and addresses are not reported. `on_change` is called on the watching
    /// thread, at most once in 200 ms, and at most a second after the change; it should only pass the change
    /// on.
    ///
    /// # Errors
    /// When the system refuses a socket, a timer, a notification or a thread.
    pub fn start(
        device: Option<&Link>,
        on_change: impl FnMut(NetworkChange) + Send + 'static,
    ) -> Result<Self, WatchError> {
        let (stop, events) = Events::open(device)?;
        let thread = std::thread::Builder::new()
            .name("weft-network".to_owned())
            .spawn(move || {
                let _guard = EndProcessOnPanic;
                weft_confine::thread(weft_confine::Role::Service);
                if let Err(error) = watch(events, on_change) {
                    tracing::warn!(%error, "cannot watch the network any more: its changes go unnoticed");
                }
            })
            .map_err(|source| WatchError::Refused { what: "start a thread", source })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            weft_confine::join(thread);
        }
    }
}

fn watch(mut events: Events, mut on_change: impl FnMut(NetworkChange)) -> io::Result<()> {
    let mut coalescer = Coalescer::default();
    loop {
        let mut has_event = false;
        let is_over = events.wait(coalescer.due(), |change| {
            has_event = true;
            coalescer.note(change, Instant::now());
        })?;
        if is_over {
            return Ok(());
        }
        if has_event {
            std::thread::sleep(PAUSE);
        }
        if let Some(change) = coalescer.take(Instant::now()) {
            tracing::debug!(?change, "the network changed");
            on_change(change);
        }
    }
}
