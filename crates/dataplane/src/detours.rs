//! Inbound packets of peers that just moved here: in order, though they come on two ways.
//!
//! Messages of the sessions from before the move arrive at the packet thread that had the peer, which hands
//! them over. Messages of the next session arrive here, and could overtake. So they wait here, from the first
//! of them on, until the other thread has handed over everything that it had received by then: it is asked to
//! say so ([`Siblings::ask_flush`]), and its answer comes behind the last of these messages.
//!
//! If the kernel cannot choose a socket for each message, those of the sessions from before the move may
//! arrive here as well, or at a third thread, while earlier ones are with the thread that had the peer. They
//! wait in the same way, until its first answer.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use weft_tunnel::{PublicKey, RecvMeta, Tunnel};

use crate::siblings::{Data, HandedOver, Siblings};

/// How long messages wait for the answer. A thread that runs gives it earlier: after a second it drops what a
/// TUN does not take. Later messages of the sessions before the move are dropped then, so that the order
/// holds.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes that may wait.
const MAX_HELD_BYTES: usize = 8 << 20;
/// Messages that may wait to be opened, after they were handed over.
const MAX_READY: usize = 4096;
/// Bytes of a message without a packet.
const KEEPALIVE_BYTES: usize = 32;
/// When the sessions from before the move have ended (Reject-After-Time).
const OVER: Duration = Duration::from_secs(180);

/// The session of a message: one from before the move, or one since then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Before,
    Next,
}

/// What the other thread is asked for.
#[derive(Debug)]
enum State {
    /// Nothing: no message waits.
    Idle,
    /// Messages wait for its answer.
    Holds { held: VecDeque<(Age, HandedOver)>, until: Instant, is_asked: bool },
    /// It did not answer in time. A message of this age was opened since. Once that is one of the next
    /// session, an answer says nothing about it: it may have been given before. The move then lasts until its
    /// end, and later messages of the sessions before it are dropped.
    Late(Age),
}

/// A peer that moved here.
#[derive(Debug)]
struct Detour {
    peer: PublicKey,
    /// The packet thread that had the peer.
    from: u16,
    /// The receiver indices of its sessions and handshakes at the time of the move.
    before: Vec<u32>,
    /// Whether everything that the other thread had of these sessions at the time of the move is here.
    is_flushed: bool,
    state: State,
    over_at: Instant,
}

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    /// Open it.
    Open,
    /// It waits; it was copied.
    Waits,
    /// There is no memory for it, or newer messages of the peer were opened: drop it.
    Drop,
}

/// What became of what another packet thread handed over.
#[derive(Debug)]
pub(super) enum Taken {
    Done,
    /// It is a message of another peer.
    Other(HandedOver),
    /// It has to be counted as dropped.
    Dropped,
}

/// The peers that moved here, until their next session is in use.
#[derive(Debug, Default)]
pub(super) struct Detours {
    each: Vec<Detour>,
    /// What comes before anything else that was received.
    ready: VecDeque<HandedOver>,
    held_bytes: usize,
}

impl Detours {
    /// Reports whether any message has to be looked at.
    pub(super) fn are_any(&self) -> bool {
        !self.each.is_empty() || !self.ready.is_empty()
    }

    pub(super) fn has(&self, peer: &PublicKey) -> bool {
        self.each.iter().any(|detour| detour.peer == *peer)
    }

    /// Records that a peer moved here from packet thread `from`, with sessions of these receiver indices.
    pub(super) fn begin(&mut self, peer: PublicKey, from: u16, before: Vec<u32>, now: Instant) {
        if !before.is_empty() {
            let (is_flushed, state, over_at) = (false, State::Idle, now + OVER);
            self.each.push(Detour { peer, from, before, is_flushed, state, over_at });
        }
    }

    /// Returns when [`Self::turn`] has to be called again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let deadline = |detour: &Detour| match detour.state {
            State::Holds { until, .. } => until,
            _ => detour.over_at,
        };
        self.each.iter().map(deadline).min()
    }

    /// Asks the other threads, and ends waits that took too long. Returns false if it has to be called again
    /// at once.
    pub(super) fn turn(&mut self, now: Instant, siblings: &Siblings) -> bool {
        let Self { each, ready, held_bytes } = self;
        let mut is_done = true;
        each.retain_mut(|detour| {
            if let State::Holds { held, until, is_asked } = &mut detour.state {
                if let Some((_, first)) = held.front().filter(|_| !*is_asked) {
                    let source = first.meta.source;
                    *is_asked = siblings.ask_flush(detour.from, detour.peer, source);
                    is_done &= *is_asked;
                }
                if now >= *until {
                    tracing::debug!(peer = %detour.peer, "the packet thread that had the peer does not answer");
                    // If nothing waits, the thread was perhaps not asked, and no answer would come.
                    let newest = held.back().map(|(age, _)| *age);
                    release(held.drain(..), ready, held_bytes);
                    detour.state = newest.map_or(State::Idle, State::Late);
                    is_done = false;
                }
            }
            // What waits is not forgotten.
            now < detour.over_at || matches!(detour.state, State::Holds { .. })
        });
        is_done
    }

    /// Reports whether more of what was handed over may be taken.
    pub(super) fn have_room(&self) -> bool {
        self.ready.len() < MAX_READY
    }

    /// Takes what another packet thread handed over, unless it is a message of a peer that did not just move
    /// here.
    pub(super) fn take(&mut self, tunnel: &Tunnel, data: Data, now: Instant) -> Taken {
        match data {
            Data::Flushed(peer) => {
                if let Some(place) = self.each.iter().position(|detour| detour.peer == peer)
                    && self.each[place].flushed(&mut self.ready, &mut self.held_bytes, now)
                {
                    self.each.swap_remove(place);
                }
                Taken::Done
            }
            Data::Datagram { from, datagram } => {
                let Some((detour, age)) = find(&mut self.each, tunnel, &datagram.bytes) else {
                    return Taken::Other(datagram);
                };
                // What came through the thread that had the peer is in order.
                let passage = if from == detour.from {
                    detour.passage_of_handed_over(age)
                } else {
                    detour.passage(age, &mut self.held_bytes, &datagram.meta, &datagram.bytes, now)
                };
                match passage {
                    Passage::Drop => return Taken::Dropped,
                    Passage::Open => self.ready.push_back(datagram),
                    Passage::Waits => {}
                }
                Taken::Done
            }
        }
    }

    /// Returns the next message that comes before anything else that was received.
    pub(super) fn next_ready(&mut self) -> Option<HandedOver> {
        self.ready.pop_front()
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Decides on a message that was received here.
    pub(super) fn passage(
        &mut self,
        tunnel: &Tunnel,
        meta: &RecvMeta,
        datagram: &[u8],
        now: Instant,
    ) -> Passage {
        match find(&mut self.each, tunnel, datagram) {
            Some((detour, age)) => detour.passage(age, &mut self.held_bytes, meta, datagram, now),
            None => Passage::Open,
        }
    }

    /// Drops everything that waits, and returns how many messages that are.
    pub(super) fn drop_all(&mut self) -> u64 {
        let held = self.each.iter_mut().filter_map(|detour| match &mut detour.state {
            State::Holds { held, .. } => Some(held.drain(..).count()),
            _ => None,
        });
        let dropped = held.sum::<usize>() + self.ready.drain(..).count();
        self.held_bytes = 0;
        dropped as u64
    }
}

impl Detour {
    fn age_of(&self, index: u32) -> Age {
        if self.before.contains(&index) { Age::Before } else { Age::Next }
    }

    /// Decides on a message that the thread that had the peer handed over.
    fn passage_of_handed_over(&self, age: Age) -> Passage {
        let is_late = age == Age::Before && matches!(self.state, State::Late(_));
        if is_late { Passage::Drop } else { Passage::Open }
    }

    /// Decides on any other message, and copies it if it waits.
    fn passage(
        &mut self,
        age: Age,
        held_bytes: &mut usize,
        meta: &RecvMeta,
        datagram: &[u8],
        now: Instant,
    ) -> Passage {
        if matches!(self.state, State::Idle) && (age == Age::Next || !self.is_flushed) {
            self.state = holds(VecDeque::new(), now);
        }
        match &mut self.state {
            State::Idle => Passage::Open,
            State::Holds { held, .. } => {
                if *held_bytes + datagram.len() > MAX_HELD_BYTES {
                    return Passage::Drop;
                }
                *held_bytes += datagram.len();
                held.push_back((age, HandedOver::new(meta, datagram)));
                Passage::Waits
            }
            State::Late(Age::Next) if age == Age::Before => Passage::Drop,
            State::Late(opened) => {
                *opened = age;
                Passage::Open
            }
        }
    }

    /// Takes the answer of the thread that had the peer. Returns whether the move is over: messages of the
    /// next session have waited for this answer.
    fn flushed(&mut self, ready: &mut VecDeque<HandedOver>, held_bytes: &mut usize, now: Instant) -> bool {
        self.is_flushed = true;
        if matches!(self.state, State::Late(Age::Next)) {
            return false;
        }
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle | State::Late(_) => false,
            State::Holds { mut held, .. } => {
                let is_over = held.front().is_some_and(|(age, _)| *age == Age::Next);
                let next = held.iter().position(|(age, _)| *age == Age::Next).filter(|_| !is_over);
                let count = next.unwrap_or(held.len());
                release(held.drain(..count), ready, held_bytes);
                // Those of the next session came after the question, as did others that the thread has now.
                if !held.is_empty() {
                    self.state = holds(held, now);
                }
                is_over
            }
        }
    }
}

fn holds(held: VecDeque<(Age, HandedOver)>, now: Instant) -> State {
    State::Holds { held, until: now + PATIENCE, is_asked: false }
}

/// Returns the move of the peer that a message is for, and the age of its session.
fn find<'a>(each: &'a mut [Detour], tunnel: &Tunnel, datagram: &[u8]) -> Option<(&'a mut Detour, Age)> {
    if each.is_empty() {
        return None;
    }
    // A keepalive has no place among packets: it may be sent before data that was sealed earlier.
    let (peer, index) = tunnel.receiver_of_data(datagram).filter(|_| datagram.len() > KEEPALIVE_BYTES)?;
    let detour = each.iter_mut().find(|detour| detour.peer == peer)?;
    let age = detour.age_of(index);
    Some((detour, age))
}

/// Lets messages that waited come before anything else that was received.
fn release(
    held: impl Iterator<Item = (Age, HandedOver)>,
    ready: &mut VecDeque<HandedOver>,
    held_bytes: &mut usize,
) {
    for (_, datagram) in held {
        *held_bytes -= datagram.bytes.len();
        ready.push_back(datagram);
    }
}
