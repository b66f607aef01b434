//! Outbound, TUN → UDP: batches from the TUN are sealed into the transmit queue and sent.
//!
//! Before: the readers of `weft_tun` and the [`FlowQueue`] of `weft_sched`. In the middle: `weft_tunnel`.
//! After: `weft_udp`.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use weft_sched::FlowQueue;
use weft_tun::{Tun, TunBatch};
use weft_tunnel::{DropReason, Shard, TransmitQueue, Tunnel};
use weft_udp::Udp;

use crate::capture::Captures;
use crate::timing::{Stage, TurnClock};
use crate::turn::Turn;
use crate::{DataplaneError, QueueDepths, SendFailure};

/// Maximum number of sealed batches that wait for the socket: 512 KiB, about a millisecond at 4 Gbit/s.
const TRANSMIT_BATCHES: usize = 8;
/// Bytes that one turn seals: a full GSO batch and the packets ahead of it. Then the TUN is polled again, so
/// that a sparse flow waits no longer than one turn.
const BUDGET: usize = 96 * 1024;
/// The fixed cost of a packet, in bytes: encrypting this many bytes takes as long.
const PACKET_COST: usize = 512;
/// Reading and handing over a packet costs this share of sealing it.
const HAND_OVER_SHARE: usize = 8;
/// Number of sealed batches at which sending goes first: the older batch grows no more.
const SEND_AT: usize = 2;

/// The outbound direction.
pub(super) struct Outbound {
    /// The batches of the last read; empty between turns.
    batches: VecDeque<TunBatch>,
    ahead: FlowQueue<TunBatch>,
    queue: TransmitQueue,
    blocked: bool,
    send_failure: Option<SendFailure>,
    handed_over_bytes: u64,
}

impl Outbound {
    pub(super) fn new() -> Self {
        Self {
            batches: VecDeque::new(),
            ahead: FlowQueue::new(),
            queue: TransmitQueue::new(TRANSMIT_BATCHES),
            blocked: false,
            send_failure: None,
            handed_over_bytes: 0,
        }
    }

    /// Reports whether the socket accepted nothing more in the last turn.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Returns the sealed messages that wait for the socket.
    pub(super) fn queue(&mut self) -> &mut TransmitQueue {
        &mut self.queue
    }

    /// Returns the newest datagram that could not be sent.
    pub(super) fn send_failure(&self) -> Option<SendFailure> {
        self.send_failure
    }

    /// Returns the bytes that were read for peers of other packet threads.
    pub(super) fn handed_over_bytes(&self) -> u64 {
        self.handed_over_bytes
    }

    /// Returns the queue depths of this direction.
    pub(super) fn depths(&self) -> QueueDepths {
        QueueDepths {
            transmit: self.queue.len(),
            read_ahead_bytes: self.ahead.bytes(),
            ..QueueDepths::default()
        }
    }

    pub(super) fn turn(
        &mut self,
        cx: &mut Context<'_>,
        clock: &mut TurnClock,
        tunnel: &mut Tunnel,
        tun: &mut impl Tun,
        udp: &mut impl Udp,
        captures: &mut Captures,
    ) -> Result<Turn, DataplaneError> {
        let now = clock.now();
        let mut budget = BUDGET;
        let mut has_read = false;
        loop {
            clock.begin_stage();
            if self.send(cx, clock, tunnel, udp, captures).is_pending() {
                // Nothing is read from the TUN while the socket is full: the kernel's queue of the TUN fills
                // and pushes back on the senders.
                self.blocked = true;
                return Ok(Turn::Idle);
            }
            self.blocked = false;
            if tunnel.has_ready_staged() {
                let _ = tunnel.flush_staged(now, &mut self.queue);
                clock.end_stage(Stage::Encrypt);
                continue;
            }
            if budget == 0 {
                return Ok(Turn::Busy);
            }
            if !has_read && self.ahead.room() > 0 {
                has_read = true;
                match tun.poll_recv_many(cx, &mut self.batches, self.ahead.room()) {
                    Poll::Ready(Ok(0)) => return Err(DataplaneError::DeviceGone),
                    Poll::Ready(Ok(bytes)) => {
                        budget = budget.saturating_sub(self.hand_over(tunnel, tun, bytes));
                        self.ahead.extend(&mut self.batches);
                        clock.end_stage(Stage::Read);
                    }
                    Poll::Ready(Err(error)) => return Err(DataplaneError::Tun(error)),
                    Poll::Pending if self.ahead.is_empty() => return Ok(Turn::Idle),
                    Poll::Pending => {}
                }
            }
            if captures.is_on() {
                self.seal::<true>(clock, tunnel, &mut budget, captures);
            } else {
                self.seal::<false>(clock, tunnel, &mut budget, captures);
            }
            has_read &= !self.ahead.is_empty();
        }
    }

    /// Hands packets for peers of other packet threads to these. Returns the cost, for `bytes` bytes that
    /// were read.
    fn hand_over(&mut self, tunnel: &mut Tunnel, tun: &mut impl Tun, bytes: usize) -> usize {
        if tunnel.shard() == Shard::ONLY {
            return 0;
        }
        let stalled = tun.hand_over(&mut self.batches, |packet| tunnel.shard_of(packet));
        tunnel.count_drop(DropReason::PacketThreadStalled, stalled);
        let own: usize = self.batches.iter().map(TunBatch::bytes).sum();
        let handed_over = bytes.saturating_sub(own);
        self.handed_over_bytes += handed_over as u64;
        handed_over / HAND_OVER_SHARE
    }

    /// Seals packets that were read, until there is enough to send. `CAPTURED` is true while a capture runs;
    /// without a capture, packets do not pay for the check.
    fn seal<const CAPTURED: bool>(
        &mut self,
        clock: &mut TurnClock,
        tunnel: &mut Tunnel,
        budget: &mut usize,
        captures: &mut Captures,
    ) {
        let (now, before) = (clock.now(), *budget);
        while *budget > 0 && self.queue.len() < SEND_AT && self.queue.has_room_for_super_packet() {
            let Some(mut packet) = self.ahead.next() else { break };
            *budget = budget.saturating_sub(packet.bytes().len() + PACKET_COST);
            if CAPTURED {
                captures.read(tunnel, &packet);
            }
            // The tunnel counts drops.
            let _ = tunnel.handle_tun_packet(&mut packet, now, &mut self.queue);
        }
        if *budget < before {
            clock.end_stage(Stage::Encrypt);
        }
    }

    /// Sends all sealed batches in order. Returns `Pending` when the socket is full.
    fn send(
        &mut self,
        cx: &mut Context<'_>,
        clock: &mut TurnClock,
        tunnel: &mut Tunnel,
        udp: &mut impl Udp,
        captures: &mut Captures,
    ) -> Poll<()> {
        let now = clock.now();
        while let Some(mut batch) = self.queue.pop() {
            loop {
                match udp.poll_send(cx, &batch.unsent()) {
                    Poll::Ready(Ok(sent)) => {
                        if captures.is_on() {
                            captures.sent(tunnel, Some(batch.path().peer), &batch.unsent(), sent.bytes);
                        }
                        if sent.source_unusable {
                            tunnel.forget_source(batch.path().peer);
                            batch.forget_source();
                        }
                        if let Some(mtu) = sent.path_mtu {
                            tracing::debug!(destination = %batch.unsent().destination, mtu, "the path has a small MTU");
                            tunnel.limit_path(batch.path().peer, mtu, now);
                        }
                        if batch.advance(sent.bytes) {
                            break;
                        }
                    }
                    Poll::Ready(Err(error)) => {
                        let destination = batch.unsent().destination;
                        tunnel.count_drop(error.drop_reason(), batch.unsent().segments() as u64);
                        self.send_failure = Some(SendFailure::new(destination, &error, now));
                        tracing::debug!(%destination, %error, "cannot send");
                        break;
                    }
                    Poll::Pending => {
                        self.queue.unpop(batch);
                        return Poll::Pending;
                    }
                }
            }
            self.queue.recycle(batch);
            clock.end_stage(Stage::Send);
        }
        Poll::Ready(())
    }
}
