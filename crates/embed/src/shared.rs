//! The endpoint, and the tasks that wait for it, under one lock.

use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use weft_endpoint::{Endpoint, Event, ListenerId, StreamError, StreamId, UdpId};
use weft_sched::LogLimit;

/// The least time between two lines about connections that gave way.
const GAVE_WAY_INTERVAL: Duration = Duration::from_secs(60);

/// What the packet thread and the applications share.
pub(crate) struct Shared {
    state: Mutex<State>,
}

/// The endpoint and who waits for it.
pub(crate) struct State {
    pub(crate) endpoint: Endpoint,
    pub(crate) streams: Slots<StreamId>,
    pub(crate) listeners: Slots<ListenerId>,
    pub(crate) udp: Slots<UdpId>,
    /// The packet thread, if it waits for packets.
    pub(crate) packets: Option<Waker>,
    /// When it wakes up by itself.
    pub(crate) armed_for: Option<Instant>,
    /// Whether the packet thread has ended: nothing moves any more.
    pub(crate) is_gone: bool,
    /// Connections that gave way and were not told of.
    gave_way: u64,
    gave_way_limit: LogLimit,
}

impl Shared {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        let state = State {
            endpoint,
            streams: Slots::default(),
            listeners: Slots::default(),
            udp: Slots::default(),
            packets: None,
            armed_for: None,
            is_gone: false,
            gave_way: 0,
            gave_way_limit: LogLimit::new(GAVE_WAY_INTERVAL),
        };
        Self { state: Mutex::new(state) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panics ends the process.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the endpoint for an application. Afterwards wakes the packet thread if there is something to
    /// send, and every task for which something happened.
    pub(crate) fn call<T>(&self, call: impl FnOnce(&mut State) -> T) -> T {
        let mut woken = Vec::new();
        let mut state = self.lock();
        let result = call(&mut state);
        state.collect(&mut woken);
        if state.packets.is_some() && (state.endpoint.has_output() || state.has_earlier_timeout()) {
            woken.extend(state.packets.take());
        }
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        result
    }

    /// The same for a call that may have to wait: `Pending` if the result is `None`, after `wait` has kept
    /// the waker. Fails when nothing moves any more.
    pub(crate) fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        call: impl FnOnce(&mut State) -> io::Result<Option<T>>,
        place: impl FnOnce(&mut State) -> Option<&mut Option<Waker>>,
    ) -> Poll<io::Result<T>> {
        // A task for which something is always there leaves the thread to others too.
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        let result = self.call(|state| {
            if state.is_gone {
                return Poll::Ready(Err(gone()));
            }
            match call(state) {
                Ok(Some(result)) => Poll::Ready(Ok(result)),
                Err(error) => Poll::Ready(Err(error)),
                Ok(None) => {
                    let Some(waker) = place(state) else { return Poll::Ready(Err(gone())) };
                    match waker {
                        Some(waker) => waker.clone_from(cx.waker()),
                        none => *none = Some(cx.waker().clone()),
                    }
                    Poll::Pending
                }
            }
        });
        if result.is_ready() {
            budget.made_progress();
        }
        result
    }

    /// Waits until `has_come` says so of a connection, or until that is no more.
    pub(crate) fn poll_watch(
        &self,
        cx: &Context<'_>,
        id: StreamId,
        has_come: fn(&Endpoint, StreamId) -> bool,
    ) -> Poll<()> {
        let mut state = self.lock();
        if state.is_gone || has_come(&state.endpoint, id) {
            return Poll::Ready(());
        }
        let Some(slot) = state.streams.of(id) else { return Poll::Ready(()) };
        if !slot.watchers.iter().any(|waker| waker.will_wake(cx.waker())) {
            slot.watchers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the tunnel has ended")
}

impl State {
    /// Moves the tasks for which something happened to `woken`.
    pub(crate) fn collect(&mut self, woken: &mut Vec<Waker>) {
        let mut gave_way = None;
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::GaveWay(peer) => {
                    gave_way = Some(peer);
                    self.gave_way += 1;
                }
                Event::Readable(id) => woken.extend(self.streams.of(id).and_then(|slot| slot.read.take())),
                Event::Writable(id) => woken.extend(self.streams.of(id).and_then(|slot| slot.write.take())),
                Event::Ended(id) => {
                    woken.extend(self.streams.of(id).into_iter().flat_map(|slot| slot.watchers.drain(..)));
                }
                Event::Connected(id) => self.opened(id, Ok(()), woken),
                Event::Failed(id, error) => self.opened(id, Err(error), woken),
                Event::Acceptable(id) => {
                    woken.extend(self.listeners.of(id).and_then(|slot| slot.read.take()));
                }
                Event::Datagram(id) => woken.extend(self.udp.of(id).and_then(|slot| slot.read.take())),
                Event::UdpWritable(id) => woken.extend(self.udp.of(id).and_then(|slot| slot.write.take())),
            }
        }
        if let Some(peer) = gave_way {
            self.tell_of(peer);
        }
    }

    /// Says, once a minute at most, that connections gave way, the last one of this peer.
    fn tell_of(&mut self, peer: IpAddr) {
        if self.gave_way_limit.allow(Instant::now()).is_some() {
            let count = std::mem::take(&mut self.gave_way);
            tracing::warn!(
                count,
                "the memory of the tunnel's connections is taken; some gave way to others, the last one of {peer}"
            );
        }
    }

    fn opened(&mut self, id: StreamId, outcome: Result<(), StreamError>, woken: &mut Vec<Waker>) {
        if let Some(slot) = self.streams.of(id) {
            slot.outcome.get_or_insert(outcome);
            woken.append(&mut slot.watchers);
            woken.extend(slot.read.take());
            woken.extend(slot.write.take());
        }
    }

    fn has_earlier_timeout(&self) -> bool {
        let Some(at) = self.endpoint.poll_timeout() else { return false };
        self.armed_for.is_none_or(|armed| at < armed)
    }

    /// Takes every waker: nothing moves any more.
    pub(crate) fn end(&mut self, woken: &mut Vec<Waker>) {
        self.is_gone = true;
        self.streams.end(woken);
        self.listeners.end(woken);
        self.udp.end(woken);
    }
}

/// The number of a socket in the endpoint.
pub(crate) trait Id: Copy + PartialEq {
    fn index(self) -> usize;
}

macro_rules! ids {
    ($($id:ty)*) => { $(impl Id for $id {
        fn index(self) -> usize {
            <$id>::index(self)
        }
    })* };
}
ids!(StreamId ListenerId UdpId);

/// The tasks that wait for a socket.
pub(crate) struct Slot<I> {
    id: I,
    pub(crate) read: Option<Waker>,
    pub(crate) write: Option<Waker>,
    /// The tasks that wait for the end or the failure of a connection.
    watchers: Vec<Waker>,
    /// Whether a connection was opened, once that is settled.
    pub(crate) outcome: Option<Result<(), StreamError>>,
}

/// The tasks that wait for sockets of a kind, by the numbers of these.
pub(crate) struct Slots<I> {
    slots: Vec<Option<Slot<I>>>,
}

impl<I> Default for Slots<I> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<I: Id> Slots<I> {
    /// Makes room for a new socket.
    pub(crate) fn add(&mut self, id: I) {
        let place = id.index();
        if self.slots.len() <= place {
            self.slots.resize_with(place + 1, || None);
        }
        self.slots[place] = Some(Slot { id, read: None, write: None, watchers: Vec::new(), outcome: None });
    }

    /// Returns those of a socket that was added and not removed.
    pub(crate) fn of(&mut self, id: I) -> Option<&mut Slot<I>> {
        self.slots.get_mut(id.index())?.as_mut().filter(|slot| slot.id == id)
    }

    /// Removes a socket. Returns the tasks that wait for its end.
    pub(crate) fn remove(&mut self, id: I) -> Vec<Waker> {
        if self.of(id).is_none() {
            return Vec::new();
        }
        self.slots[id.index()].take().map(|slot| slot.watchers).unwrap_or_default()
    }

    fn end(&mut self, woken: &mut Vec<Waker>) {
        for slot in self.slots.iter_mut().flatten() {
            woken.extend(slot.read.take());
            woken.extend(slot.write.take());
            woken.append(&mut slot.watchers);
        }
    }
}
