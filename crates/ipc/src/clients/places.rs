//! Places for clients, and which client gives way when there is none left.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::Source;

/// How long a client that sends a request or takes an answer keeps its place without progress. What a client
/// sends or takes at once is through in milliseconds.
const GRACE: Duration = Duration::from_millis(250);

/// As many places as there may be clients.
///
/// When all are taken and another client comes, one gives way: of the source that has most places, the client
/// that the server has waited for longest. A client whose request is being served keeps its place.
#[derive(Debug)]
pub struct Places {
    count: usize,
    taken: Mutex<Taken>,
    /// A place is free, or may be asked for.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    clients: BTreeMap<u64, Client>,
    /// The first client that may be asked for its place is to be asked at once.
    is_awaited: bool,
}

#[derive(Debug)]
struct Client {
    source: Source,
    turn: Turn,
    wanted: Arc<Notify>,
}

/// What happens next with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The server serves its request.
    Server,
    /// The client sends or takes something. It is waited for since then, and may be asked for its place after
    /// `grace`.
    Client { since: Instant, grace: Duration },
    /// It gives way.
    Asked,
}

/// A client's place, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
    wanted: Arc<Notify>,
}

impl Places {
    /// Places for `count` clients, all free.
    pub fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { count, taken: Mutex::default(), changed: Notify::new() })
    }

    /// A place for a client that has sent nothing yet. If there is none, another client is asked for its
    /// place, now or as soon as one may be asked. To be called by one task only.
    pub async fn take(self: &Arc<Self>, source: Source) -> Place {
        loop {
            let earliest = match self.try_take(source) {
                Ok(place) => return place,
                Err(earliest) => earliest,
            };
            let changed = self.changed.notified();
            match earliest {
                Some(earliest) => drop(timeout_at(earliest, changed).await),
                None => changed.await,
            }
        }
    }

    /// A place, or when the next client may be asked for its place, if time alone brings that.
    fn try_take(self: &Arc<Self>, source: Source) -> Result<Place, Option<Instant>> {
        let mut taken = self.lock();
        if taken.clients.len() < self.count {
            taken.is_awaited = false;
            taken.next += 1;
            let (number, wanted) = (taken.next, Arc::<Notify>::default());
            let turn = Turn::Client { since: Instant::now(), grace: Duration::ZERO };
            taken.clients.insert(number, Client { source, turn, wanted: Arc::clone(&wanted) });
            return Ok(Place { places: Arc::clone(self), number, wanted });
        }
        if taken.clients.values().any(|client| client.turn == Turn::Asked) {
            return Err(None);
        }
        let (longest, earliest) = taken.longest_awaited(Instant::now());
        match longest.and_then(|number| taken.clients.get_mut(&number)) {
            Some(client) => {
                client.ask();
                Err(None)
            }
            None => {
                taken.is_awaited = true;
                Err(earliest)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// The client that gives way, and when the next one may be asked.
    fn longest_awaited(&self, now: Instant) -> (Option<u64>, Option<Instant>) {
        let places_of = |source| self.clients.values().filter(|client| client.source == source).count();
        let awaited = self.clients.iter().filter_map(|(number, client)| match client.turn {
            Turn::Client { since, grace } => Some((*number, client.source, since, since + grace)),
            Turn::Server | Turn::Asked => None,
        });
        let longest = awaited
            .clone()
            .filter(|(.., from)| *from <= now)
            .max_by_key(|(number, source, since, _)| (places_of(*source), Reverse((*since, *number))));
        (longest.map(|(number, ..)| number), awaited.map(|(.., from)| from).min())
    }
}

impl Client {
    fn ask(&mut self) {
        self.turn = Turn::Asked;
        self.wanted.notify_one();
    }
}

impl Place {
    /// The client has not begun its next request: its place may be asked for at once.
    pub fn expect_request(&self) {
        self.turn(Turn::Client { since: Instant::now(), grace: Duration::ZERO });
    }

    /// The client has begun its request, or has taken a part of its answer: it has a moment for the rest.
    pub fn expect_progress(&self) {
        self.turn(Turn::Client { since: Instant::now(), grace: GRACE });
    }

    /// The request is complete. The place is not asked for until the client is to send or take something.
    pub fn begin_serving(&self) {
        self.turn(Turn::Server);
    }

    /// Waits until another client needs the place.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    fn turn(&self, turn: Turn) {
        let mut taken = self.places.lock();
        let is_awaited = taken.is_awaited;
        let Some(client) = taken.clients.get_mut(&self.number) else { return };
        match turn {
            // One that was asked has no second request: others wait.
            _ if client.turn == Turn::Asked => {}
            Turn::Client { grace: Duration::ZERO, .. } if is_awaited => {
                client.ask();
                taken.is_awaited = false;
            }
            turn => {
                client.turn = turn;
                if is_awaited {
                    self.places.changed.notify_one();
                }
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().clients.remove(&self.number);
        self.places.changed.notify_one();
    }
}

#[cfg(test)]
#[path = "places/tests.rs"]
mod tests;
