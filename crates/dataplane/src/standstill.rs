//! What the event loops of an interface do while no outbound packet is under way: a peer moves from one of
//! them to another, or addresses change from peers of one of them to those of another.
//!
//! The packets of a peer are read by all packet threads, and may be with any of them. While none is
//! ([`Barrier`]), a change loses and overtakes none.

use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::time::Instant;

use weft_tun::{FlowQueues, Tun};
use weft_tunnel::{Change, MovedPeer, PublicKey, Tunnel};

use crate::barrier::{Barrier, Left, Next, Participant};
use crate::inbound::Inbound;
use crate::outbound::Outbound;

/// The move of one peer. All event loops of the interface share it.
#[derive(Clone, Debug)]
pub struct Relocation {
    peer: PublicKey,
    from: u16,
    to: u16,
    barrier: Arc<Barrier<Cargo>>,
}

/// What moves.
#[derive(Debug)]
pub struct Cargo {
    peer: MovedPeer,
    /// The queues of its flows, and of all others of the packet thread.
    flows: Option<FlowQueues>,
}

impl Relocation {
    pub(super) fn new(peer: PublicKey, from: u16, to: u16, count: usize) -> Self {
        Self { peer, from, to, barrier: Arc::new(Barrier::new(count, from)) }
    }

    /// Reports whether the peer has changed hands. If it has not, it does not do so later.
    pub(super) fn conclude(&self) -> bool {
        self.barrier.conclude()
    }
}

/// What an event loop does while no packet is under way.
#[derive(Debug)]
enum Purpose {
    /// Its part of the move of a peer.
    Move { relocation: Relocation, answer: mpsc::SyncSender<()> },
    /// Changes of its tunnel. They are sent back if they were not made.
    Change { changes: Vec<Change>, answer: mpsc::SyncSender<Vec<Change>> },
}

/// How a turn goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The turn is as always, but for queues that are not read.
    GoesOn,
    /// The TUN and outbound packets are to be left alone.
    Halts,
    /// The standstill is over.
    IsOver,
}

/// One event loop in a standstill of all.
#[derive(Debug)]
pub(super) struct Standstill {
    participant: Participant<Cargo>,
    purpose: Purpose,
}

impl Standstill {
    /// Takes part in the move of a peer. `answer` is notified at the end.
    pub(super) fn to_move(
        cx: &Context<'_>,
        now: Instant,
        relocation: Relocation,
        answer: mpsc::SyncSender<()>,
        tunnel: &Tunnel,
        inbound: &mut Inbound,
    ) -> Self {
        let number = tunnel.shard().number();
        let barrier = Arc::clone(&relocation.barrier);
        let participant = Participant::new(barrier, number, now, cx.waker().clone());
        // Its last move is not over as long as its session from before is in use.
        let may_move = tunnel.has_peer(&relocation.peer) && !inbound.detours().has(&relocation.peer);
        if number == relocation.from && !may_move {
            participant.call_off();
        }
        Self { participant, purpose: Purpose::Move { relocation, answer } }
    }

    /// Takes part in changes that all make at the same time. `answer` gets those that were not made.
    pub(super) fn to_change(
        cx: &Context<'_>,
        now: Instant,
        barrier: Arc<Barrier<Cargo>>,
        changes: Vec<Change>,
        answer: mpsc::SyncSender<Vec<Change>>,
        tunnel: &Tunnel,
    ) -> Self {
        let participant = Participant::new(barrier, tunnel.shard().number(), now, cx.waker().clone());
        Self { participant, purpose: Purpose::Change { changes, answer } }
    }

    /// As [`Participant::waits_until`].
    pub(super) fn waits_until(&self) -> Option<Instant> {
        self.participant.waits_until()
    }

    /// Goes on with it.
    pub(super) fn turn(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        tunnel: &mut Tunnel,
        tun: &mut impl Tun,
        inbound: &mut Inbound,
        outbound: &mut Outbound,
    ) -> Standing {
        let left = || Left {
            in_device: !tun.is_drained(),
            in_loop: !outbound.is_empty() || tunnel.has_ready_staged(),
        };
        match self.participant.advance(now, left) {
            Next::GoOn => return Standing::GoesOn,
            Next::ReadNothing => {
                outbound.pause(true);
                return Standing::GoesOn;
            }
            Next::Halt => return Standing::Halts,
            Next::Lead => {
                // The next turn goes on.
                self.lead(cx, now, tunnel, tun);
                return Standing::Halts;
            }
            Next::Passed if !self.take_effect(now, tunnel, tun, inbound) => return Standing::Halts,
            Next::Passed | Next::CalledOff => {}
        }
        outbound.pause(false);
        Standing::IsOver
    }

    /// Passes the barrier, if nothing is against it.
    fn lead(&self, cx: &mut Context<'_>, now: Instant, tunnel: &mut Tunnel, tun: &mut impl Tun) {
        let Purpose::Move { relocation, .. } = &self.purpose else {
            let _is_called_off = self.participant.pass(None);
            return;
        };
        // What was opened for the peer has to be in the kernel.
        if let Poll::Ready(Ok(())) = tun.poll_send_ready(cx)
            && let Some(peer) = tunnel.take_peer(&relocation.peer, relocation.to, now)
        {
            let cargo = Cargo { peer, flows: tun.flow_queues() };
            if let Err(Some(Cargo { peer, .. })) = self.participant.pass(Some(cargo)) {
                tunnel.adopt_peer(peer, now);
            }
        }
    }

    /// Does what was agreed. Returns false if the peer that moves is not there yet.
    fn take_effect(
        &mut self,
        now: Instant,
        tunnel: &mut Tunnel,
        tun: &mut impl Tun,
        inbound: &mut Inbound,
    ) -> bool {
        let own = tunnel.shard().number();
        match &mut self.purpose {
            Purpose::Change { changes, .. } => {
                for change in changes.drain(..) {
                    let _void = tunnel.apply(change, now);
                }
            }
            Purpose::Move { relocation: Relocation { peer, from, to, .. }, .. } if own == *to => {
                let Some(Cargo { peer: moved, flows }) = self.participant.take_cargo() else { return false };
                inbound.detours().begin(*peer, *from, moved.receiver_indices().collect(), now);
                tunnel.adopt_peer(moved, now);
                if let Some(flows) = flows {
                    tun.inherit_flow_queues(&flows);
                }
            }
            // The thread that had the peer knows it.
            Purpose::Move { relocation: Relocation { from, .. }, .. } if own == *from => {}
            Purpose::Move { relocation: Relocation { peer, to, .. }, .. } => {
                tunnel.foreign_peer_moved(peer, *to);
            }
        }
        true
    }

    /// Calls it off, and answers: this event loop cannot take part now.
    pub(super) fn refuse(self) {
        self.participant.call_off();
        self.answer();
    }

    /// Answers the control thread.
    pub(super) fn answer(self) {
        match self.purpose {
            Purpose::Move { answer, .. } => drop(answer.try_send(())),
            Purpose::Change { changes, answer } => drop(answer.try_send(changes)),
        }
    }
}

#[cfg(test)]
mod tests;
