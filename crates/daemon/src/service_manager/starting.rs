//! A start that waits for names is no start that hangs.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use weft_tun::thread_guard::EndProcessOnPanic;

use super::notify;

/// What is asked for each time.
const EXTENSION: Duration = Duration::from_secs(30);
/// Well before the last extension is over.
const INTERVAL: Duration = Duration::from_secs(10);

/// Asks the service manager for patience until it is dropped. Whoever holds it has bounds of his own.
#[derive(Debug)]
pub struct Starting {
    _end: mpsc::Sender<()>,
}

impl Starting {
    /// Begins, and shows what the start waits for. A start that is through within a few seconds asks for nothing.
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
        started.inspect_err(|error| tracing::debug!(%error, "cannot ask for patience")).ok()?;
        Some(Self { _end: end })
    }
}
