//! Decides when to look up the names of endpoints again, and what an answer changes. Pure: reads no clock,
//! makes no lookups.
//!
//! A peer with successful handshakes keeps its endpoint: it may have roamed there, and its name may be stale.
//! A peer that fell silent follows its name, and tries the addresses of the name in turn if there are
//! several.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use weft_config::Endpoint;
use weft_tunnel::PublicKey;

use super::{DEFAULT_RETRIES, Retries};

/// The pause after a successful lookup of a name. It doubles while the name's peers stay silent.
const FIRST_PAUSE: Duration = Duration::from_secs(75);
/// The pause after a failed lookup of a name. It doubles with each failure.
const FIRST_PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(30);
/// The longest pause between two lookups of a name that is needed.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// How long an address is tried for a handshake before the next address is tried.
const DWELL: Duration = Duration::from_secs(30);
/// The number of unanswered initiations (90 s) after which a peer that roamed away from its name's addresses
/// follows its name again. A shorter silence says nothing about where the peer is.
const ROAMED_INITIATIONS: u32 = 18;
/// The wait after a change of the network: changes come in bursts (an address, then its routes, then name
/// servers).
const SETTLE: Duration = Duration::from_secs(1);
/// The least time between two lookups of a name while the network keeps changing.
const RESTLESS_PAUSE: Duration = Duration::from_secs(5);

/// A name to look up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    pub host: String,
    /// The UDP port that goes with its addresses.
    pub port: u16,
}

/// A peer with an endpoint that may be a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// The public key of the peer.
    pub peer: PublicKey,
    /// The endpoint as configured; a peer with an address as its endpoint is not watched.
    pub endpoint: Endpoint,
    /// The address that the tunnel sends to now; `None`: the name is not resolved yet.
    pub current: Option<SocketAddr>,
}

/// The names of peers' endpoints, with the state of their lookups and of their peers.
#[derive(Debug)]
pub struct Names {
    names: HashMap<Name, Lookup>,
    /// The names that wait for a lookup, by when it is due.
    schedule: Schedule,
    peers: HashMap<PublicKey, Peer>,
    changes: VecDeque<(PublicKey, SocketAddr)>,
    jitter: u32,
}

#[derive(Debug, Default)]
struct Schedule(BTreeSet<(Instant, Name)>);

#[derive(Debug, Default)]
struct Lookup {
    peers: Vec<PublicKey>,
    /// When to look the name up, if a lookup is wanted.
    due: Option<Instant>,
    is_under_way: bool,
    /// Answers while one of its peers was silent, since a peer was last heard or the network changed.
    answers_in_vain: u32,
    failures: u32,
    last_begun: Option<Instant>,
    not_before: Option<Instant>,
    /// The network changed, and no lookup that began after that has succeeded or is under way.
    network_changed: bool,
    /// The network changed before the lookup under way, and no earlier lookup has succeeded since.
    asked_for_new_network: bool,
    /// The addresses of the last successful lookup.
    addresses: Vec<SocketAddr>,
}

#[derive(Debug)]
struct Peer {
    name: Name,
    current: Option<SocketAddr>,
    /// `current` is an address of the name, and not one that the peer roamed to.
    is_from_name: bool,
    is_silent: bool,
    since: Option<Instant>,
    /// Addresses that were tried without a handshake.
    tried: Vec<SocketAddr>,
    /// Whether the peer was last heard at an IPv4 address; `None`: it was not heard yet.
    prefers_ipv4: Option<bool>,
}

impl Names {
    /// Makes an empty set of names. The seed makes the pauses of two machines differ.
    pub fn new(seed: u32) -> Self {
        Self {
            names: HashMap::new(),
            schedule: Schedule::default(),
            peers: HashMap::new(),
            changes: VecDeque::new(),
            jitter: seed | 1,
        }
    }

    /// Replaces the watched peers. A peer that stays, under the same name, keeps its state.
    pub fn set_peers(&mut self, peers: Vec<Watched>, now: Instant) {
        let mut known = std::mem::take(&mut self.peers);
        for lookup in self.names.values_mut() {
            lookup.peers.clear();
        }
        for Watched { peer, endpoint, current } in peers {
            let Endpoint::Name { host, port } = endpoint else { continue };
            let name = Name { host, port };
            let lookup = self.names.entry(name.clone()).or_default();
            lookup.peers.push(peer);
            let mut state = known.remove(&peer).filter(|known| known.name == name).unwrap_or(Peer {
                name,
                current,
                is_from_name: current.is_some(),
                is_silent: false,
                since: None,
                tried: Vec::new(),
                prefers_ipv4: None,
            });
            if current.is_some() && current != state.current {
                state.current = current;
                state.is_from_name = current.is_some_and(|current| lookup.addresses.contains(&current));
            }
            if state.current.is_none() {
                self.schedule.change(&state.name, lookup, |lookup| lookup.want(now));
            }
            self.peers.insert(peer, state);
        }
        let schedule = &mut self.schedule;
        self.names.retain(|name, lookup| {
            let is_watched = !lookup.peers.is_empty();
            if !is_watched {
                schedule.change(name, lookup, |lookup| lookup.due = None);
            }
            is_watched
        });
    }

    /// Returns how many names there are.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// Reports whether this is the name of a watched peer.
    pub fn has(&self, name: &Name) -> bool {
        self.names.contains_key(name)
    }

    /// Handles a peer that does not answer handshakes while there is something to send: its handshake failed,
    /// or the last one is older than a session lasts.
    pub fn handle_stale(&mut self, peer: &PublicKey, now: Instant) {
        let Some(state) = self.peers.get_mut(peer) else { return };
        let Some(lookup) = self.names.get_mut(&state.name) else { return };
        state.is_silent = true;
        self.schedule.change(&state.name, lookup, |lookup| lookup.want(now));
        // If a lookup is under way or due, its answer decides. Else the last answer is used.
        if !lookup.is_under_way && lookup.due.is_some_and(|due| due > now) {
            self.changes.extend(state.next_address(&lookup.addresses, now).map(|address| (*peer, address)));
        }
    }

    /// Handles a peer that has not answered `initiations` initiations in a row, sent 5 s apart.
    pub fn handle_unanswered(&mut self, peer: &PublicKey, initiations: u32, now: Instant) {
        let Some(state) = self.peers.get(peer) else { return };
        if state.is_from_name || initiations >= ROAMED_INITIATIONS {
            self.handle_stale(peer, now);
        }
    }

    /// Handles an authenticated message of the peer: a handshake, or a message from another address than
    /// before (`from`).
    pub fn handle_heard(&mut self, peer: &PublicKey, from: Option<SocketAddr>) {
        let Some(state) = self.peers.get_mut(peer) else { return };
        let Some(lookup) = self.names.get_mut(&state.name) else { return };
        if from.is_some() && from != state.current {
            state.current = from;
            state.is_from_name = from.is_some_and(|from| lookup.addresses.contains(&from));
        }
        state.is_silent = false;
        state.tried.clear();
        state.prefers_ipv4 = state.current.map(|current| current.is_ipv4());
        lookup.answers_in_vain = 0;
        let earliest = lookup.last_begun.map(|last| last + FIRST_PAUSE);
        lookup.not_before = lookup.not_before.min(earliest).or(earliest);
        if lookup.due.is_some()
            && !lookup.network_changed
            && !needs_address(&lookup.peers, &self.peers)
            && let Some(state) = self.peers.get(peer)
        {
            self.schedule.change(&state.name, lookup, |lookup| lookup.due = None);
        }
    }

    /// Handles a change of this machine's addresses, routes or name servers: names may resolve to other
    /// addresses, or resolve at last.
    pub fn handle_network_change(&mut self, now: Instant) {
        for (name, lookup) in &mut self.names {
            lookup.network_changed = true;
            lookup.failures = 0;
            lookup.answers_in_vain = 0;
            let settled = now + SETTLE;
            let due = lookup.last_begun.map_or(settled, |last| settled.max(last + RESTLESS_PAUSE));
            lookup.not_before = Some(due);
            self.schedule.change(name, lookup, |lookup| lookup.due = Some(due));
        }
    }

    /// Returns when [`Self::poll_lookup`] has the next lookup.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.schedule.0.first().map(|(due, _)| *due)
    }

    /// Returns a name to look up now; the answer goes to [`Self::handle_answer`].
    pub fn poll_lookup(&mut self, now: Instant) -> Option<Name> {
        self.schedule.0.first().filter(|(due, _)| *due <= now)?;
        let (_, name) = self.schedule.0.pop_first()?;
        let lookup = self.names.get_mut(&name)?;
        lookup.due = None;
        lookup.is_under_way = true;
        lookup.last_begun = Some(now);
        lookup.asked_for_new_network = std::mem::take(&mut lookup.network_changed);
        Some(name)
    }

    /// Handles the answer to a lookup: addresses in the order of preference. An empty answer means that the
    /// lookup failed, or that the name has no address.
    pub fn handle_answer(&mut self, name: &Name, addresses: &[SocketAddr], now: Instant) {
        let Some(lookup) = self.names.get_mut(name) else { return };
        let new_network = std::mem::take(&mut lookup.asked_for_new_network);
        self.schedule.change(name, lookup, |lookup| lookup.is_under_way = false);
        if addresses.is_empty() {
            lookup.network_changed |= new_network;
            lookup.failures += 1;
            let unresolved = is_unresolved(&lookup.peers, &self.peers);
            let urgent = unresolved || lookup.network_changed;
            let pause = jittered(&mut self.jitter, pause_after_failure(lookup.failures, urgent));
            lookup.not_before = Some(now + pause);
            if lookup.due.is_some() || urgent || needs_address(&lookup.peers, &self.peers) {
                self.schedule.change(name, lookup, |lookup| lookup.due = Some(now + pause));
            }
            return;
        }
        lookup.failures = 0;
        lookup.addresses = addresses.to_vec();
        let mut is_in_vain = false;
        for peer in &lookup.peers {
            let Some(state) = self.peers.get_mut(peer) else { continue };
            is_in_vain |= state.is_silent;
            let is_listed = state.current.is_some_and(|current| addresses.contains(&current));
            let left_behind = new_network && state.is_from_name && !is_listed;
            if state.current.is_none() || state.is_silent || left_behind {
                self.changes.extend(state.next_address(addresses, now).map(|address| (*peer, address)));
            } else {
                state.is_from_name |= is_listed;
            }
        }
        let pause = doubled(FIRST_PAUSE, if is_in_vain { lookup.answers_in_vain } else { 0 });
        lookup.answers_in_vain += u32::from(is_in_vain);
        let earliest = now + jittered(&mut self.jitter, pause);
        if !lookup.network_changed {
            lookup.not_before = Some(earliest);
            let later = |lookup: &mut Lookup| lookup.due = lookup.due.map(|due| due.max(earliest));
            self.schedule.change(name, lookup, later);
        }
    }

    /// Reports whether [`Self::poll_change`] has a change.
    pub fn has_change(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Returns a peer and the address to send to from now on.
    pub fn poll_change(&mut self) -> Option<(PublicKey, SocketAddr)> {
        self.changes.pop_front()
    }
}

impl Schedule {
    /// Changes when a lookup is due, or whether it is under way.
    fn change(&mut self, name: &Name, lookup: &mut Lookup, change: impl FnOnce(&mut Lookup)) {
        let before = lookup.waits_until();
        change(lookup);
        let after = lookup.waits_until();
        if before == after {
            return;
        }
        if let Some(due) = before {
            self.0.remove(&(due, name.clone()));
        }
        self.0.extend(after.map(|due| (due, name.clone())));
    }
}

impl Lookup {
    /// Returns when the name has to be looked up. The answer to a lookup under way comes first.
    fn waits_until(&self) -> Option<Instant> {
        self.due.filter(|_| !self.is_under_way)
    }

    /// Makes the lookup due as soon as its pause allows.
    fn want(&mut self, now: Instant) {
        let earliest = self.not_before.map_or(now, |earliest| earliest.max(now));
        self.due = Some(self.due.map_or(earliest, |due| due.min(earliest)));
    }
}

impl Peer {
    /// Switches to the next address if there is one, and the current address was tried for [`DWELL`].
    fn next_address(&mut self, addresses: &[SocketAddr], now: Instant) -> Option<SocketAddr> {
        let is_listed = self.current.is_some_and(|current| addresses.contains(&current));
        if is_listed && self.since.is_some_and(|since| now < since + DWELL) {
            return None;
        }
        self.tried.extend(self.current.filter(|current| !self.tried.contains(current)));
        let next = match self.best(addresses) {
            Some(next) => next,
            // All were tried: begin with the first again.
            None => {
                self.tried = self.current.into_iter().collect();
                self.best(addresses)?
            }
        };
        self.current = Some(next);
        self.is_from_name = true;
        self.since = Some(now);
        Some(next)
    }

    fn best(&self, addresses: &[SocketAddr]) -> Option<SocketAddr> {
        let untried = || addresses.iter().filter(|address| !self.tried.contains(address));
        let of_family =
            self.prefers_ipv4.and_then(|ipv4| untried().find(|address| address.is_ipv4() == ipv4));
        of_family.or_else(|| untried().next()).copied()
    }
}

/// Reports whether one of these peers has no address yet.
fn is_unresolved(peers: &[PublicKey], states: &HashMap<PublicKey, Peer>) -> bool {
    peers.iter().any(|peer| states.get(peer).is_some_and(|state| state.current.is_none()))
}

/// Reports whether one of these peers is silent or has no address.
fn needs_address(peers: &[PublicKey], states: &HashMap<PublicKey, Peer>) -> bool {
    peers.iter().any(|peer| states.get(peer).is_some_and(|state| state.is_silent || state.current.is_none()))
}

/// Returns the pause after a failed lookup. An urgent lookup is retried sooner: a machine that starts or
/// changes networks has no name servers at first.
fn pause_after_failure(failures: u32, urgent: bool) -> Duration {
    match Retries::default().pause_after(failures) {
        Some(pause) if urgent => pause,
        None if urgent => doubled(FIRST_PAUSE_AFTER_FAILURE, failures - DEFAULT_RETRIES - 1),
        _ => doubled(FIRST_PAUSE_AFTER_FAILURE, failures.saturating_sub(1)),
    }
}

fn doubled(pause: Duration, times: u32) -> Duration {
    pause.saturating_mul(2_u32.saturating_pow(times)).min(LONGEST_PAUSE)
}

/// Lengthens a pause by up to a quarter, so that machines that lost the same server do not come back
/// together.
fn jittered(state: &mut u32, pause: Duration) -> Duration {
    // Marsaglia's xorshift.
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    pause + pause * (*state % 256) / 1024
}

#[cfg(test)]
#[path = "names/tests.rs"]
mod tests;
