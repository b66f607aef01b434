//! Places for clients, and the choice of the client that gives way when all are taken.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::Source;

/// How long a client keeps its place without progress while it sends a request or receives an answer. A
/// client that does not pause is done in milliseconds.
const GRACE: Duration = Duration::from_millis(250);
/// Clients that are not admitted give way before admitted ones, and before those that are served, while they
/// have one place in this many. If they always did, clients that do nothing would leave one place to all
/// others.
const STRANGERS_SHARE: usize = 4;
/// A served client may be asked for its place when nothing has moved ([`Place::moved`]) for this time,
/// though the server has bytes for it or of it. It may have closed: behind bytes that are not read, its end
/// does not arrive.
const STUCK: Duration = Duration::from_secs(20);
/// The same where neither end has sent anything.
const IDLE: Duration = Duration::from_secs(60);
/// How often that is looked at while a client waits for a place: it is told by no signal.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A fixed number of places for clients.
///
/// When all are taken and another client connects, one client gives way: the client that the server has
/// waited for longest, among those of the source with the most places, of the owner with the most. A client
/// keeps its place while its request is served, unless it has ended its connection, or its half of it, or
/// nothing has moved for a while, or it waits for another place and a source with fewer needs this one; one
/// in a tunnel gives way also while something moves, since a peer that lets a little move on each of its
/// connections would keep all others out. Where clients have to be admitted, as by a password, those that are
/// not give way before those that are, and what they send wins them no time.
#[derive(Debug)]
pub struct Places {
    count: usize,
    begin: Instant,
    taken: Mutex<Taken>,
    /// Signals that a place is free, or may be asked for.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    clients: BTreeMap<u64, Client>,
    /// Each is shared by the clients of a source or an owner, which counts them.
    sources: HashMap<Source, Weak<Source>>,
    /// The clients that wait for a place, by number.
    waiting: BTreeMap<u64, Source>,
    /// A new client waits: the first client that may be asked for its place is asked at once.
    is_awaited: bool,
}

#[derive(Debug)]
struct Client {
    owner: Arc<Source>,
    source: Arc<Source>,
    turn: Turn,
    has_ended: bool,
    standing: Standing,
    shared: Arc<Shared>,
}

/// What a client and its place share. The scan of all clients takes no lock for it.
#[derive(Debug, Default)]
struct Shared {
    wanted: Notify,
    /// When something moved last, in milliseconds since the places were made. 0: the server does not tell.
    moved: AtomicU64,
    has_bytes: AtomicBool,
}

/// What the server has found out about a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It has sent nothing.
    Silent,
    /// It has sent something, and no request of it was served. It has no more time than it had then.
    Unknown,
    /// A request of it was served.
    Served,
    /// It has shown that it may be served: by a password.
    Admitted,
}

/// What a client or the server does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The server serves its request.
    Server,
    /// The server has waited since `since` for the client to send or receive. The client may be asked for its
    /// place after `grace`.
    Client { since: Instant, grace: Duration },
    /// The client has waited since then for a place among others. It gives way to sources with fewer places.
    Queued { since: Instant },
    /// The client was asked for its place.
    Asked,
}

/// A client's place. Dropping it frees the place.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
    source: Source,
    shared: Arc<Shared>,
}

impl Places {
    /// Creates `count` places, all free.
    pub fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { count, begin: Instant::now(), taken: Mutex::default(), changed: Notify::new() })
    }

    /// Returns a place for a client that has sent nothing yet. If none is free, asks another client for its
    /// place, now or as soon as one may be asked. Of several that wait, one of the source with the fewest
    /// places is next.
    pub async fn take(self: &Arc<Self>, source: Source) -> Place {
        self.take_as(source, Arc::default()).await
    }

    /// Returns a place for the client of a place among others. When it is asked for this one,
    /// [`wanted`](Place::wanted) of that one returns too. Until it has this one, the server serves it no
    /// further.
    pub async fn take_also(self: &Arc<Self>, client: &Place) -> Place {
        client.turn(Turn::Queued { since: Instant::now() });
        let place = self.take_as(client.source, Arc::clone(&client.shared)).await;
        client.begin_serving();
        place
    }

    /// Reports whether a client waits for a place, and none may be asked for it yet.
    pub(super) fn is_awaited(&self) -> bool {
        self.lock().is_awaited
    }

    /// Returns a measure of the places that the owner of this source has, and the source.
    pub(super) fn share(&self, source: Source) -> (usize, usize) {
        self.lock().share(source)
    }

    async fn take_as(self: &Arc<Self>, source: Source, shared: Arc<Shared>) -> Place {
        let number = self.lock().number();
        let waiting = Waiting { places: self, number };
        self.lock().waiting.insert(number, source);
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            match self.try_take(&waiting, &shared) {
                Ok(place) => return place,
                Err(Some(earliest)) => drop(timeout_at(earliest, changed).await),
                Err(None) => changed.await,
            }
        }
    }

    /// Returns a place if one is free. Else asks a client for its place, or returns the time from which a
    /// client may be asked; `None` if that depends on a change first.
    fn try_take(
        self: &Arc<Self>,
        waiting: &Waiting<'_>,
        shared: &Arc<Shared>,
    ) -> Result<Place, Option<Instant>> {
        let mut taken = self.lock();
        let number = waiting.number;
        let Some(source) =
            taken.waiting.get(&number).copied().filter(|_| taken.next_waiting() == Some(number))
        else {
            return Err(None);
        };
        if taken.clients.len() < self.count {
            taken.is_awaited = false;
            let client = Client {
                owner: taken.counted(source.owner()),
                source: taken.counted(source),
                turn: Turn::Client { since: Instant::now(), grace: Duration::ZERO },
                has_ended: false,
                standing: Standing::Silent,
                shared: Arc::clone(shared),
            };
            taken.clients.insert(number, client);
            return Ok(Place { places: Arc::clone(self), number, source, shared: Arc::clone(shared) });
        }
        if taken.clients.values().any(|client| client.turn == Turn::Asked) {
            return Err(None);
        }
        let (longest, earliest) = taken.longest_awaited(source, Instant::now(), self.begin);
        match longest.and_then(|number| taken.clients.get_mut(&number)) {
            Some(client) => {
                client.ask();
                taken.is_awaited = false;
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

/// A client that waits for a place. Dropping it lets the next one have it.
struct Waiting<'a> {
    places: &'a Places,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.waiting.remove(&self.number);
        taken.is_awaited &= !taken.waiting.is_empty();
        self.places.changed.notify_waiters();
    }
}

/// The places of a client's owner and its source, and since when it is waited for.
type Rank = ((usize, usize), Reverse<(Instant, u64)>);

/// The client that gives way among some, and the earliest time at which any of them may be asked.
#[derive(Default)]
struct Choice {
    longest: Option<Rank>,
    earliest: Option<Instant>,
}

impl Choice {
    fn consider(
        &mut self,
        client: &Client,
        since: Instant,
        number: u64,
        is_asked_from: Instant,
        now: Instant,
    ) {
        self.earliest = Some(self.earliest.map_or(is_asked_from, |earliest| earliest.min(is_asked_from)));
        if is_asked_from <= now {
            let places = (Arc::strong_count(&client.owner), Arc::strong_count(&client.source));
            self.longest = self.longest.max(Some((places, Reverse((since, number)))));
        }
    }
}

impl Taken {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns the client that has the next place.
    fn next_waiting(&self) -> Option<u64> {
        let like = |source: Source| self.waiting.values().filter(|waiting| **waiting == source).count();
        let waiting = self.waiting.iter();
        waiting.min_by_key(|(_, source)| (self.share(**source), like(**source))).map(|(number, _)| *number)
    }

    fn share(&self, source: Source) -> (usize, usize) {
        let places = |of: &Source| self.sources.get(of).map_or(0, Weak::strong_count);
        (places(&source.owner()), places(&source))
    }

    /// Returns the count of a source or an owner, for one more client.
    fn counted(&mut self, source: Source) -> Arc<Source> {
        let known = self.sources.entry(source).or_default();
        known.upgrade().unwrap_or_else(|| {
            let new = Arc::new(source);
            *known = Arc::downgrade(&new);
            new
        })
    }

    fn remove(&mut self, number: u64) {
        let Some(client) = self.clients.remove(&number) else { return };
        let shared = [*client.owner, *client.source];
        drop(client);
        for source in shared {
            if self.sources.get(&source).is_some_and(|clients| clients.strong_count() == 0) {
                self.sources.remove(&source);
            }
        }
    }

    /// Returns the client that gives way to `source` at `now`, and the earliest time at which any client may
    /// be asked. It looks at each client once, since every new client may need it.
    fn longest_awaited(
        &self,
        source: Source,
        now: Instant,
        begin: Instant,
    ) -> (Option<u64>, Option<Instant>) {
        let (of_owner, of_source) = self.share(source);
        let (mut all, mut of_strangers) = (Choice::default(), Choice::default());
        let mut strangers = 0;
        for (number, client) in &self.clients {
            let is_stranger = client.standing != Standing::Admitted && client.turn != Turn::Server;
            strangers += usize::from(is_stranger);
            let (has, wants) = if *client.owner == source.owner() {
                (Arc::strong_count(&client.source), of_source)
            } else {
                (Arc::strong_count(&client.owner), of_owner)
            };
            let (since, is_asked_from) = match client.turn {
                // Its request may be on the way: a source with more places does not take it at once.
                Turn::Client { since, grace } if has < wants && !client.has_ended => {
                    (since, since + grace.max(GRACE))
                }
                Turn::Client { since, grace } => (since, since + grace),
                // A client of an address counts twice. One is not thrown out for another that only takes
                // over.
                Turn::Queued { since } if has > wants + 2 => (since, since),
                Turn::Queued { .. } => continue,
                Turn::Server => match client.shared.still(begin) {
                    Some((since, _)) if client.source.gives_way_while_moving() => (since, since),
                    Some((since, from)) if from <= now => (since, from),
                    Some((since, from)) => (since, from.min(now + LOOK_AGAIN)),
                    None => continue,
                },
                Turn::Asked => continue,
            };
            all.consider(client, since, *number, is_asked_from, now);
            if is_stranger {
                of_strangers.consider(client, since, *number, is_asked_from, now);
            }
        }
        let strangers_first = strangers * STRANGERS_SHARE >= self.clients.len();
        // Also one that still has a moment.
        let has_stranger = strangers_first && of_strangers.earliest.is_some();
        let Choice { longest, earliest } = if has_stranger { of_strangers } else { all };
        (longest.map(|(_, Reverse((_, number)))| number), earliest)
    }
}

impl Shared {
    /// Returns since when nothing has moved, and from when the place may be asked for if that lasts.
    fn still(&self, begin: Instant) -> Option<(Instant, Instant)> {
        let moved = Some(self.moved.load(Relaxed)).filter(|moved| *moved > 0)?;
        let since = begin + Duration::from_millis(moved);
        Some((since, since + if self.has_bytes.load(Relaxed) { STUCK } else { IDLE }))
    }
}

impl Client {
    fn ask(&mut self) {
        self.turn = Turn::Asked;
        self.shared.wanted.notify_one();
    }
}

impl Place {
    /// Returns the source of the client.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Records that the client has not begun its next request: its place may be asked for at once.
    pub fn expect_request(&self) {
        self.turn(Turn::Client { since: Instant::now(), grace: Duration::ZERO });
    }

    /// Records that the client has begun its request or received a part of its answer: it keeps its place for
    /// `GRACE`.
    pub fn expect_progress(&self) {
        self.turn(Turn::Client { since: Instant::now(), grace: GRACE });
    }

    /// Records that the client receives the whole of an answer now: its place may be asked for after this
    /// time, though it makes progress.
    pub fn expect_end(&self, within: Duration) {
        self.turn(Turn::Client { since: Instant::now(), grace: within });
    }

    /// Records that the request is complete, and that the client may make it. The place is not asked for
    /// until the client has to send or receive.
    pub fn begin_serving(&self) {
        self.turn(Turn::Server);
    }

    /// Records that the client has shown that it may be served, for as long as it is connected. Only for
    /// servers that turn others away.
    pub fn admit(&self) {
        if let Some(client) = self.places.lock().clients.get_mut(&self.number) {
            client.standing = Standing::Admitted;
        }
    }

    /// Records that the client sends nothing more: it has closed its connection, or its half of it. Its place
    /// may be asked for from now on, whatever is done for it.
    pub fn end(&self) {
        self.turn(Turn::Client { since: Instant::now(), grace: Duration::ZERO });
        if let Some(client) = self.places.lock().clients.get_mut(&self.number) {
            client.has_ended = true;
        }
    }

    /// Records that something of the client, or for it, has moved just now. A client of which a server tells
    /// this gives way also while it is served, when nothing has moved for a while.
    pub fn moved(&self) {
        let moved = u64::try_from(self.places.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.shared.moved.store(moved.max(1), Relaxed);
    }

    /// Records whether the server has bytes of the client or for it that it cannot get rid of.
    pub fn hold(&self, has_bytes: bool) {
        self.shared.has_bytes.store(has_bytes, Relaxed);
    }

    /// Reports whether another client needs this place, and not one that was taken beside it.
    pub(super) fn is_asked(&self) -> bool {
        self.places.lock().clients.get(&self.number).is_some_and(|client| client.turn == Turn::Asked)
    }

    /// Waits until another client needs the place.
    pub async fn wanted(&self) {
        self.shared.wanted.notified().await;
    }

    fn turn(&self, turn: Turn) {
        let mut taken = self.places.lock();
        let is_awaited = taken.is_awaited;
        let Some(client) = taken.clients.get_mut(&self.number) else { return };
        match turn {
            // A client that was asked for its place gets no second request: another client waits.
            _ if client.turn == Turn::Asked || client.has_ended => {}
            // Wrong requests would let it keep its place for as long as it sends them.
            Turn::Client { .. } if client.standing == Standing::Unknown => {}
            // An admitted one gives way only if it is chosen.
            Turn::Client { grace: Duration::ZERO, .. }
                if is_awaited && client.standing != Standing::Admitted =>
            {
                client.ask();
                taken.is_awaited = false;
            }
            turn => {
                client.standing = match (client.standing, turn) {
                    (Standing::Admitted, _) => Standing::Admitted,
                    (_, Turn::Server) => Standing::Served,
                    (Standing::Silent, Turn::Client { grace, .. }) if !grace.is_zero() => Standing::Unknown,
                    (standing, _) => standing,
                };
                client.turn = turn;
                if is_awaited {
                    self.places.changed.notify_waiters();
                }
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().remove(self.number);
        self.places.changed.notify_waiters();
    }
}

#[cfg(test)]
#[path = "places/tests.rs"]
mod tests;
