//! Extends the start timeout while a start waits for names: such a start does not hang.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use weft_confine::EndProcessOnPanic;

use super::notify;

/// The extension that each message requests.
const EXTENSION: Duration = Duration::from_secs(30);
/// Well before the last extension ends.
const INTERVAL: Duration = Duration::from_secs(10);

/// Extends the start timeout until it is dropped. The holder has to limit its own waiting.
#[derive(Debug)]
pub struct Starting {
    _end: mpsc::Sender<()>,
}

impl Starting {
    /// Shows what the start waits for, and starts the thread that extends the timeout. A start that completes
    /// within 10 s requests no extension.
    pub fn waiting_for(what: &str) -> Option<Self> {
        if !notify::is_present() {
            return None;
        }
        notify::status(what);
        let (end, ended) = mpsc::channel();
        let body = move || {
            let _guard = EndProcessOnPanic;
            while matches!(ended.recv_timeout(INTERVAL), Err(RecvTimeoutError::Timeout)) {
                notify::extend_timeout(EXTENSION);
            }
        };
        let started = thread::Builder::new().name("weft-starting".to_owned()).spawn(body);
        started
            .inspect_err(|error| tracing::debug!(%error, "cannot ask the service manager for more time"))
            .ok()?;
        Some(Self { _end: end })
    }
}
