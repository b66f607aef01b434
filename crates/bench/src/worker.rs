//! Threads that work beside a measurement.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow};

/// A thread that works until it is told to end. Dropping this tells it so, and waits for it.
pub(crate) struct Worker<T> {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Worker<T> {
    pub(crate) fn start(
        name: &str,
        work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::<AtomicBool>::default();
        let flag = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&flag))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Ends the work, and returns its result.
    pub(crate) fn finish(mut self) -> Result<T> {
        self.stop.store(true, Relaxed);
        let result = self.thread.take().map(JoinHandle::join);
        result.and_then(std::thread::Result::ok).ok_or_else(|| anyhow!("a thread panicked"))
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
