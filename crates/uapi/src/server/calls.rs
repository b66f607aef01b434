//! Calls of the interface, which block: other threads make them. Clients share reads of the state.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::Mutex;
use tokio::time::Instant;
use weft_config::device::DeviceState;

use crate::{Control, ControlError};

/// Reads the state once for all clients that wait for it: with many peers it takes the control thread long,
/// and the copies take memory.
#[derive(Default)]
pub(super) struct Reads {
    /// How many clients wait for a state.
    waiting: AtomicUsize,
    /// When the last read began, and its state for as long as a client waits: it contains keys.
    last: Mutex<Option<(Instant, Arc<DeviceState>)>>,
}

impl Reads {
    /// Returns a state that is read after this call.
    pub(super) async fn get(&self, control: &Arc<dyn Control>) -> Result<Arc<DeviceState>, ControlError> {
        let asked = Instant::now();
        let _waiting = Waiting::new(self);
        // Held during the read: clients that ask meanwhile share the next one.
        let mut last = self.last.lock().await;
        if let Some((began, state)) = &*last
            && *began > asked
        {
            return Ok(Arc::clone(state));
        }
        let began = Instant::now();
        let state = Arc::new(call(control, |control| control.get()).await?);
        *last = Some((began, Arc::clone(&state)));
        Ok(state)
    }
}

/// A client that waits, also if it gives way to another.
struct Waiting<'a>(&'a Reads);

impl<'a> Waiting<'a> {
    fn new(reads: &'a Reads) -> Self {
        reads.waiting.fetch_add(1, Relaxed);
        Self(reads)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, Relaxed) == 1
            && let Ok(mut last) = self.0.last.try_lock()
        {
            *last = None;
        }
    }
}

/// Calls the interface on another thread.
pub(super) async fn call<T: Send + 'static>(
    control: &Arc<dyn Control>,
    call: impl FnOnce(&dyn Control) -> Result<T, ControlError> + Send + 'static,
) -> Result<T, ControlError> {
    let control = Arc::clone(control);
    match tokio::task::spawn_blocking(move || call(control.as_ref())).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_cancelled) => Err(ControlError::Ended),
        },
    }
}
