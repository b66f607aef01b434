//! Inbound packets of peers that just moved here: in order, though they come on two ways.
//!
//! Messages of the sessions from before the move arrive at the packet thread that had the peer, which hands
//! them over. Messages of the next session arrive here, and could overtake. So they wait here, from the first
//! of them on, until the other thread has handed over everything that it had received by then: it is asked to
//! say so ([`Siblings::ask_flush`]), and its answer comes behind the last of these messages.

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

/// How far the change to the next session has come.
#[derive(Debug)]
enum State {
    /// No message of the next session has arrived.
    Before,
    /// Messages of the next session wait.
    Holds { held: VecDeque<HandedOver>, until: Instant, is_asked: bool },
    /// The other thread did not answer in time.
    Late,
}

/// A peer that moved here.
#[derive(Debug)]
struct Detour {
    peer: PublicKey,
    /// The packet thread that had the peer.
    from: u16,
    /// The receiver indices of its sessions and handshakes at the time of the move.
    before: Vec<u32>,
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
            self.each.push(Detour { peer, from, before, state: State::Before, over_at: now + OVER });
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
                if let Some(first) = held.front().filter(|_| !*is_asked) {
                    let source = first.meta.source;
                    *is_asked = siblings.ask_flush(detour.from, detour.peer, source);
                    is_done &= *is_asked;
                }
                if now >= *until {
                    tracing::debug!(peer = %detour.peer, "the packet thread that had the peer does not answer");
                    release(held, ready, held_bytes);
                    detour.state = State::Late;
                    is_done = false;
                }
            }
            now < detour.over_at
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
                if let Some(place) = self.each.iter().position(|detour| detour.peer == peer) {
                    let mut detour = self.each.swap_remove(place);
                    if let State::Holds { held, .. } = &mut detour.state {
                        release(held, &mut self.ready, &mut self.held_bytes);
                    }
                }
                Taken::Done
            }
            Data::Datagram { from, datagram } => {
                let Some((detour, is_next)) = find(&mut self.each, tunnel, &datagram.bytes) else {
                    return Taken::Other(datagram);
                };
                // What came through the thread that had the peer is in order.
                let passage = if is_next && from != detour.from {
                    hold(detour, &mut self.held_bytes, &datagram.meta, &datagram.bytes, now)
                } else if !is_next && matches!(detour.state, State::Late) {
                    Passage::Drop
                } else {
                    Passage::Open
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
            Some((detour, true)) => hold(detour, &mut self.held_bytes, meta, datagram, now),
            _ => Passage::Open,
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

/// Returns the move of the peer that a message is for, and whether it is a message of a session since then.
fn find<'a>(each: &'a mut [Detour], tunnel: &Tunnel, datagram: &[u8]) -> Option<(&'a mut Detour, bool)> {
    if each.is_empty() {
        return None;
    }
    // A keepalive has no place among packets: it may be sent before data that was sealed earlier.
    let (peer, index) = tunnel.receiver_of_data(datagram).filter(|_| datagram.len() > KEEPALIVE_BYTES)?;
    let detour = each.iter_mut().find(|detour| detour.peer == peer)?;
    let is_next = !detour.before.contains(&index);
    Some((detour, is_next))
}

/// Copies a message of the next session, unless these need not wait any longer.
fn hold(
    detour: &mut Detour,
    held_bytes: &mut usize,
    meta: &RecvMeta,
    datagram: &[u8],
    now: Instant,
) -> Passage {
    if matches!(detour.state, State::Before) {
        let (held, until) = (VecDeque::new(), now + PATIENCE);
        detour.state = State::Holds { held, until, is_asked: false };
    }
    let State::Holds { held, .. } = &mut detour.state else { return Passage::Open };
    if *held_bytes + datagram.len() > MAX_HELD_BYTES {
        return Passage::Drop;
    }
    *held_bytes += datagram.len();
    held.push_back(HandedOver::new(meta, datagram));
    Passage::Waits
}

fn release(held: &mut VecDeque<HandedOver>, ready: &mut VecDeque<HandedOver>, held_bytes: &mut usize) {
    *held_bytes -= held.iter().map(|datagram| datagram.bytes.len()).sum::<usize>();
    ready.append(held);
}
