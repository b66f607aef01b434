//! Outbound, TUN → UDP: batches from the TUN are sealed into the transmit queue and sent.
//!
//! Before: `weft_tun`'s readers. In the middle: `weft_tunnel`. After: `udp.rs`.

use std::collections::VecDeque;
use std::task::{Context, Poll};
use std::time::Instant;

use weft_tun::{Tun, TunBatch};
use weft_tunnel::{TransmitQueue, Tunnel};

use super::DataplaneError;
use super::event_loop::Turn;
use crate::udp::Udp;

/// Sealed batches that may wait for the socket: 512 KiB, about a millisecond at 4 Gbit/s.
const TRANSMIT_BATCHES: usize = 8;
/// Bytes taken from the TUN in one turn.
const BUDGET_BYTES: usize = 256 * 1024;
/// Sealed batches at which sending goes first: the older one grows no more.
const SEND_AT: usize = 2;

/// The outbound direction.
pub(super) struct Outbound {
    batches: VecDeque<TunBatch>,
    queue: TransmitQueue,
    blocked: bool,
}

impl Outbound {
    pub(super) fn new() -> Self {
        Self { batches: VecDeque::new(), queue: TransmitQueue::new(TRANSMIT_BATCHES), blocked: false }
    }

    /// Whether the socket took nothing more at the last turn.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    pub(super) fn turn(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        tunnel: &mut Tunnel,
        tun: &mut impl Tun,
        udp: &mut impl Udp,
    ) -> Result<Turn, DataplaneError> {
        let mut budget = BUDGET_BYTES;
        loop {
            if self.send(cx, tunnel, udp).is_pending() {
                // Nothing is read from the TUN while the socket takes nothing: the kernel's queue fills, and
                // senders feel it.
                self.blocked = true;
                return Ok(Turn::Idle);
            }
            self.blocked = false;
            if tunnel.has_ready_staged() {
                let _ = tunnel.flush_staged(now, &mut self.queue);
                continue;
            }
            if self.batches.is_empty() {
                if budget == 0 {
                    return Ok(Turn::Busy);
                }
                match tun.poll_recv_many(cx, &mut self.batches, budget) {
                    Poll::Ready(Ok(0)) => return Err(DataplaneError::DeviceGone),
                    Poll::Ready(Ok(bytes)) => budget = budget.saturating_sub(bytes),
                    Poll::Ready(Err(error)) => return Err(DataplaneError::Tun(error)),
                    Poll::Pending => return Ok(Turn::Idle),
                }
            }
            self.seal(now, tunnel);
        }
    }

    /// Seals what was read, until it is worth a send.
    fn seal(&mut self, now: Instant, tunnel: &mut Tunnel) {
        while let Some(batch) = self.batches.front_mut() {
            while self.queue.len() < SEND_AT && self.queue.has_room_for_super_packet() {
                let Some(mut packet) = batch.next_packet() else { break };
                // Counted by the tunnel.
                let _ = tunnel.handle_tun_packet(&mut packet, now, &mut self.queue);
            }
            if !batch.is_done() {
                return;
            }
            self.batches.pop_front();
        }
    }

    /// Sends everything that is sealed, in order; `Pending` when the socket takes no more.
    fn send(&mut self, cx: &mut Context<'_>, tunnel: &mut Tunnel, udp: &mut impl Udp) -> Poll<()> {
        while let Some(mut batch) = self.queue.pop() {
            loop {
                match udp.poll_send(cx, &batch.unsent()) {
                    Poll::Ready(Ok(sent)) => {
                        if sent.source_unusable {
                            tunnel.forget_source(batch.path().peer);
                            batch.forget_source();
                        }
                        if batch.advance(sent.bytes) {
                            break;
                        }
                    }
                    Poll::Ready(Err(error)) => {
                        tunnel.count_drop(error.drop_reason(), batch.unsent().segments() as u64);
                        tracing::debug!(destination = %batch.unsent().destination, %error, "cannot send");
                        break;
                    }
                    Poll::Pending => {
                        self.queue.unpop(batch);
                        return Poll::Pending;
                    }
                }
            }
            self.queue.recycle(batch);
        }
        Poll::Ready(())
    }
}
