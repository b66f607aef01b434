//! Places for clients. A client that asks for nothing keeps its place until another one needs it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// As many places as there may be clients.
pub(super) struct Places {
    free: Arc<Semaphore>,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    next: u64,
    idle: HashMap<u64, (Instant, Arc<Notify>)>,
    /// Somebody waits for the first place whose client becomes idle.
    is_awaited: bool,
}

/// A client's place, until it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    wanted: Arc<Notify>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Places {
    pub(super) fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), taken: Mutex::default() }
    }

    /// A place, once there is one. If there is none, the client that has been idle for longest is asked for its, or
    /// the first that becomes idle.
    pub(super) async fn take(self: &Arc<Self>) -> Place {
        if self.free.available_permits() == 0 {
            self.ask_the_longest_idle();
        }
        // It is never closed.
        let permit = Arc::clone(&self.free).acquire_owned().await.ok();
        let mut taken = self.lock();
        taken.is_awaited = false;
        taken.next += 1;
        let (places, number) = (Arc::clone(self), taken.next);
        Place { places, number, wanted: Arc::default(), _permit: permit }
    }

    fn ask_the_longest_idle(&self) {
        let mut taken = self.lock();
        let longest = taken.idle.iter().min_by_key(|(_, (since, _))| *since).map(|(number, _)| *number);
        match longest.and_then(|number| taken.idle.remove(&number)) {
            Some((_, wanted)) => wanted.notify_one(),
            None => taken.is_awaited = true,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// From now on, until [`Self::is_busy`], the place may be asked for.
    pub(super) fn is_idle(&self) {
        let mut taken = self.places.lock();
        if std::mem::take(&mut taken.is_awaited) {
            self.wanted.notify_one();
        } else {
            taken.idle.insert(self.number, (Instant::now(), Arc::clone(&self.wanted)));
        }
    }

    /// The client has something to do.
    pub(super) fn is_busy(&self) {
        self.places.lock().idle.remove(&self.number);
    }

    /// Waits until somebody asks for the place.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.is_busy();
    }
}
