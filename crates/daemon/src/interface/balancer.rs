//! Looks every few seconds whether the packet threads have equal work. With one packet thread it does not
//! exist.

use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use weft_confine::EndProcessOnPanic;
use weft_control::Handle;

/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(2);

/// The thread that moves peers between packet threads. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Balancer {
    end: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Balancer {
    /// Starts the thread if there are several packet threads. If it cannot be started, peers stay where they
    /// are.
    pub(super) fn start(handle: &Handle) -> Option<Self> {
        if handle.packet_threads() < 2 {
            return None;
        }
        let (end, ended) = mpsc::sync_channel(0);
        let handle = handle.clone();
        let body = move || {
            let _guard = EndProcessOnPanic;
            while matches!(ended.recv_timeout(INTERVAL), Err(RecvTimeoutError::Timeout)) {
                // The packet threads have ended.
                if handle.balance().is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("weft-balance".to_owned()).spawn(body);
        let thread = thread
            .inspect_err(|error| tracing::error!(%error, "cannot start a thread: peers stay with their packet threads"))
            .ok()?;
        Some(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            weft_confine::join(thread);
        }
    }
}
