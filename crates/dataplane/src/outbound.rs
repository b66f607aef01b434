//! Outbound, TUN → UDP: batches from the TUN are sealed into the transmit queue and sent.
//!
//! Before: the readers of `weft_tun` and the [`FlowQueue`] of `weft_sched`. In the middle: `weft_tunnel`.
//! After: `weft_udp`.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use weft_sched::FlowQueue;
use weft_tun::{Tun, TunBatch};
use weft_tunnel::{DropReason, Shard, TransmitQueue};
use weft_udp::Udp;

use crate::parts::{Observer, Parts, Turn};
use crate::timing::Stage;
use crate::{DataplaneError, QueueDepths};

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
    handed_over_bytes: u64,
}

impl Outbound {
    pub(super) fn new() -> Self {
        Self {
            batches: VecDeque::new(),
            ahead: FlowQueue::new(),
            queue: TransmitQueue::new(TRANSMIT_BATCHES),
            blocked: false,
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
        parts: &mut Parts<'_, impl Tun, impl Udp, impl Observer>,
    ) -> Result<Turn, DataplaneError> {
        let mut budget = BUDGET;
        let mut has_read = false;
        loop {
            parts.clock.begin_stage();
            self.blocked = self.send(cx, parts).is_pending();
            if self.blocked {
                // Nothing is read from the TUN while the socket is full: the kernel's queue of the TUN fills
                // and pushes back on the senders.
                return Ok(Turn::Idle);
            }
            if parts.tunnel.has_ready_staged() {
                let _ = parts.tunnel.flush_staged(parts.now, &mut self.queue);
                parts.clock.end_stage(Stage::Encrypt);
                continue;
            }
            if budget == 0 {
                return Ok(Turn::Busy);
            }
            if !has_read && self.ahead.room() > 0 {
                has_read = true;
                match parts.tun.poll_recv_many(cx, &mut self.batches, self.ahead.room()) {
                    Poll::Ready(Ok(0)) => return Err(DataplaneError::DeviceGone),
                    Poll::Ready(Ok(bytes)) => {
                        budget = budget.saturating_sub(self.hand_over(parts, bytes));
                        self.ahead.extend(&mut self.batches);
                        parts.clock.end_stage(Stage::Read);
                    }
                    Poll::Ready(Err(error)) => return Err(DataplaneError::Tun(error)),
                    Poll::Pending if self.ahead.is_empty() => return Ok(Turn::Idle),
                    Poll::Pending => {}
                }
            }
            self.seal(&mut budget, parts);
            has_read &= !self.ahead.is_empty();
        }
    }

    /// Hands packets for peers of other packet threads to these. Returns the cost, for `bytes` bytes that
    /// were read.
    fn hand_over(&mut self, parts: &mut Parts<'_, impl Tun, impl Udp, impl Observer>, bytes: usize) -> usize {
        let Parts { tunnel, tun, .. } = parts;
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

    /// Seals packets that were read, until there is enough to send.
    fn seal(&mut self, budget: &mut usize, parts: &mut Parts<'_, impl Tun, impl Udp, impl Observer>) {
        let before = *budget;
        while *budget > 0 && self.queue.len() < SEND_AT && self.queue.has_room_for_super_packet() {
            let Some(mut packet) = self.ahead.next() else { break };
            *budget = budget.saturating_sub(packet.bytes().len() + PACKET_COST);
            parts.seal(&mut packet, &mut self.queue);
        }
        if *budget < before {
            parts.clock.end_stage(Stage::Encrypt);
        }
    }

    /// Sends all sealed batches in order. Returns `Pending` when the socket is full.
    fn send(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, impl Tun, impl Udp, impl Observer>,
    ) -> Poll<()> {
        while let Some(mut batch) = self.queue.pop() {
            let peer = batch.path().peer;
            loop {
                let Poll::Ready(sent) = parts.send(cx, Some(peer), &batch.unsent()) else {
                    self.queue.unpop(batch);
                    return Poll::Pending;
                };
                let Some(sent) = sent else { break };
                if sent.source_unusable {
                    parts.tunnel.forget_source(peer);
                    batch.forget_source();
                }
                if let Some(mtu) = sent.path_mtu {
                    tracing::debug!(destination = %batch.unsent().destination, mtu, "the path has a small MTU");
                    parts.tunnel.limit_path(peer, mtu, parts.now);
                }
                if batch.advance(sent.bytes) {
                    break;
                }
            }
            self.queue.recycle(batch);
            parts.clock.end_stage(Stage::Send);
        }
        Poll::Ready(())
    }
}
