//! How long each flow went without progress.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::worker::Worker;

const TICK: Duration = Duration::from_millis(50);

/// A counter that rises while a flow makes progress.
type Counter = Box<dyn Fn() -> u64 + Send>;

/// A thread that watches counters. It ends when this is dropped.
pub(super) struct Watch {
    longest: Arc<Mutex<BTreeMap<&'static str, Duration>>>,
    _worker: Worker<()>,
}

impl Watch {
    pub(super) fn start(counters: Vec<(&'static str, Counter)>) -> Result<Self> {
        let longest = Arc::<Mutex<_>>::default();
        let told = Arc::clone(&longest);
        let _worker = Worker::start("watch", move |stop| watch(&counters, &told, stop))?;
        Ok(Self { longest, _worker })
    }

    /// Returns the longest pause of each flow since the last call, pauses that still last included.
    pub(super) fn take(&self) -> BTreeMap<&'static str, Duration> {
        std::mem::take(&mut *self.longest.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn watch(
    counters: &[(&'static str, Counter)],
    longest: &Mutex<BTreeMap<&'static str, Duration>>,
    stop: &AtomicBool,
) {
    let mut last: Vec<(u64, Instant)> = counters.iter().map(|(_, read)| (read(), Instant::now())).collect();
    while !stop.load(Relaxed) {
        std::thread::sleep(TICK);
        let now = Instant::now();
        let mut longest = longest.lock().unwrap_or_else(PoisonError::into_inner);
        for ((name, read), (value, since)) in counters.iter().zip(&mut last) {
            let pause = longest.entry(name).or_default();
            *pause = (*pause).max(now - *since);
            let current = read();
            if current != *value {
                (*value, *since) = (current, now);
            }
        }
    }
}
