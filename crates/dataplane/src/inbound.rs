//! Inbound, UDP → TUN: received datagrams are opened into the TUN's slab and handed to its writers.
//!
//! Before: `weft_udp`. In the middle: `weft_tunnel`. After: `weft_tun`'s writers.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use weft_tun::Tun;
use weft_tunnel::{Change, DropReason, MAX_PACKET, PlainSlab, Tunnel};
use weft_udp::{RecvBuffers, Udp, cost_of};

use crate::DataplaneError;
use crate::parts::{Observer, Parts, Turn};
use crate::siblings::{HandedOver, Message};
use crate::timing::Stage;

/// Cost in bytes of the datagrams that one turn opens, with a fixed cost per datagram. The other direction
/// waits no longer than this takes, or than one slab takes.
const BUDGET: usize = 96 * 1024;
/// Bytes that one turn receives, and calls for them. More than it opens: what all sources have sent is seen,
/// and the packets of a sparse source do not wait behind the others.
const RECEIVED: usize = 2 * BUDGET;
const MAX_CALLS: usize = 8;
/// Maximum number of receive calls that fail one after the other: an error usually concerns one datagram, and
/// the socket keeps working.
const MAX_FAILED_CALLS: u32 = 1000;
/// How long a TUN may accept nothing before data for it is dropped, so that handshakes continue.
const STALL: Duration = Duration::from_secs(1);

/// Maximum number of handshake messages per turn; most messages of a flood are refused within a microsecond.
const HANDSHAKES: usize = 256;
/// How long handshake messages stay in their sockets under load.
const HANDSHAKE_PATIENCE: Duration = Duration::from_millis(1);

/// The inbound direction.
pub(super) struct Inbound {
    buffers: RecvBuffers,
    /// Messages from the handshake sockets.
    handshakes: RecvBuffers,
    /// Time of the next check whether there is time for handshakes.
    handshakes_at: Option<Instant>,
    /// While the TUN has no room: since when it has taken nothing, and how many packets before.
    waiting: Option<(Instant, u64)>,
    stalled: bool,
    failures: Failures,
    handshake_failures: Failures,
    /// A slab without room for data: it only serves handshakes while the TUN is stalled.
    no_plain: PlainSlab,
}

impl Inbound {
    /// `socket_bytes`: the receive buffer of a socket.
    pub(super) fn new(socket_bytes: usize) -> Self {
        Self {
            buffers: RecvBuffers::new(socket_bytes),
            handshakes: RecvBuffers::for_handshakes(),
            handshakes_at: None,
            waiting: None,
            stalled: false,
            failures: Failures::default(),
            handshake_failures: Failures::default(),
            no_plain: PlainSlab::new(0),
        }
    }

    /// Returns when the loop has to run again without other events: to detect that the TUN is stalled, or
    /// because there may be time for handshakes again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let stall = self.waiting.filter(|_| !self.stalled).map(|(since, _)| since + STALL);
        [stall, self.handshakes_at].into_iter().flatten().min()
    }

    /// Handles messages from the handshake sockets, and those that other packet threads handed over: neither
    /// data nor a TUN without room delays them. While there is no time for them they stay where they are;
    /// only these places overflow.
    pub(super) fn handshakes(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, impl Tun, impl Udp, impl Observer>,
    ) -> Result<Turn, DataplaneError> {
        let now = parts.now;
        if self.handshakes_at.is_some_and(|at| now < at) {
            return Ok(Turn::Idle);
        }
        self.handshakes_at = None;
        if !parts.tunnel.has_time_for_handshakes(now) {
            self.handshakes_at = Some(now + HANDSHAKE_PATIENCE);
            return Ok(Turn::Idle);
        }
        parts.clock.begin_stage();
        let Self { handshakes, buffers, no_plain, handshake_failures, .. } = self;
        let mut messages = 0;
        while messages < HANDSHAKES && parts.tunnel.has_time_for_handshakes(now) {
            if let Some(siblings) = &mut parts.siblings
                && let Poll::Ready(Some(message)) = siblings.poll_message(cx)
            {
                messages += 1;
                match message {
                    Message::Handshake(HandedOver { meta, bytes }) => {
                        // The tunnel counts drops.
                        let _ = parts.tunnel.handle_handed_over(&meta, &bytes, now, parts.control);
                    }
                    Message::Endpoint { peer, endpoint } => {
                        let _void = parts.tunnel.apply(Change::Endpoint { peer, endpoint }, now);
                    }
                }
                continue;
            }
            let Some(mut received) = handshakes.next_datagram() else {
                let received = parts.udp.poll_recv_handshakes(cx, handshakes);
                match handshake_failures.count(received)? {
                    Poll::Ready(Some(_)) => continue,
                    Poll::Ready(None) => return Ok(Turn::Busy),
                    Poll::Pending if messages == 0 => return Ok(Turn::Idle),
                    Poll::Pending => break,
                }
            };
            messages += 1;
            let meta = received.meta;
            parts.tunnel.count_drop(DropReason::TruncatedDatagram, u64::from(received.truncated));
            let datagram = received.whole();
            // The kernel may have joined data to a handshake message (GRO); data has to wait for the TUN.
            if !Tunnel::is_data(datagram) || !buffers.push_copy(&meta, datagram) {
                parts.handle_control(&meta, datagram, no_plain);
            }
        }
        parts.clock.end_stage(Stage::Handshakes);
        if parts.tunnel.handshake_load(now).since.is_some() {
            // Many messages at once take less time in total than each message on arrival.
            self.handshakes_at = Some(now + HANDSHAKE_PATIENCE);
        }
        Ok(Turn::Busy)
    }

    pub(super) fn turn(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, impl Tun, impl Udp, impl Observer>,
    ) -> Result<Turn, DataplaneError> {
        let now = parts.now;
        let mut budget = BUDGET;
        let (mut has_received, mut is_empty) = (false, false);
        while budget > 0 {
            match parts.tun.poll_send_ready(cx) {
                Poll::Ready(Ok(())) => {
                    self.end_stall();
                    if self.waiting.take().is_some() {
                        self.buffers.begin_turn(now);
                        self.buffers.resume();
                    }
                }
                Poll::Ready(Err(error)) => return Err(DataplaneError::Tun(error)),
                Poll::Pending => {
                    let taken = parts.tun.packets_taken();
                    // A slow TUN may have no room for long, and takes one packet after the other.
                    let waiting = self.waiting.filter(|(_, before)| *before == taken);
                    let (since, _) = *self.waiting.insert(waiting.unwrap_or((now, taken)));
                    if now.duration_since(since) < STALL {
                        self.end_stall();
                        return Ok(Turn::Idle);
                    }
                    if !std::mem::replace(&mut self.stalled, true) {
                        tracing::warn!(
                            "the TUN has taken nothing for a second; dropping data for it until it does"
                        );
                    }
                }
            }
            parts.clock.begin_stage();
            if !has_received {
                has_received = true;
                is_empty = self.receive(cx, now, parts.udp)?;
                if parts.siblings.is_some() {
                    is_empty &= self.take_data(cx, parts)?;
                }
                parts.clock.end_stage(Stage::Receive);
            }
            if self.buffers.is_done() {
                return Ok(if is_empty { Turn::Idle } else { Turn::Busy });
            }
            if self.stalled {
                self.buffers.resume();
                self.drop_data(parts);
                budget = 0;
            } else {
                budget = budget.saturating_sub(self.open(budget, parts)?);
            }
            parts.tunnel.count_drop(DropReason::Overload, self.buffers.take_dropped());
        }
        Ok(Turn::Busy)
    }

    fn end_stall(&mut self) {
        if std::mem::take(&mut self.stalled) {
            tracing::info!("the TUN takes packets again");
        }
    }

    /// Receives until the sockets are empty, or the turn has received its share. Returns whether the sockets
    /// are empty, and the waker is registered.
    fn receive(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        udp: &mut impl Udp,
    ) -> Result<bool, DataplaneError> {
        self.buffers.begin_turn(now);
        for _ in 0..MAX_CALLS {
            if self.buffers.received_bytes() >= RECEIVED || !self.buffers.make_room() {
                break;
            }
            let received = udp.poll_recv(cx, &mut self.buffers);
            if self.failures.count(received)?.is_pending() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes data that other packet threads handed over into free buffers. What is of a session from before
    /// its peer moved here comes before everything that was received here, and is opened at once. Returns
    /// whether no more waits, and the waker is registered.
    #[inline(never)]
    fn take_data(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, impl Tun, impl Udp, impl Observer>,
    ) -> Result<bool, DataplaneError> {
        let mut cost = 0;
        let mut is_empty = false;
        while self.buffers.make_room()
            && cost < BUDGET
            && (self.stalled || parts.tun.plain_slab().room() >= MAX_PACKET)
        {
            let next = parts.siblings.as_mut().map(|siblings| siblings.poll_data(cx));
            let Some(Poll::Ready(Some(HandedOver { meta, mut bytes }))) = next else {
                is_empty = true;
                break;
            };
            match parts.tunnel.accept_handed_over(&mut bytes) {
                Ok(true) if self.stalled => parts.tunnel.count_drop(DropReason::TunStalled, 1),
                Ok(true) => {
                    cost += cost_of(bytes.len(), 1);
                    parts.open(&meta, &mut bytes)?;
                }
                Ok(false) => {
                    let is_full = !self.buffers.push_copy(&meta, &bytes);
                    parts.tunnel.count_drop(DropReason::Overload, u64::from(is_full));
                }
                // It is counted.
                Err(_) => {}
            }
        }
        if cost > 0 {
            parts.tun.flush().map_err(DataplaneError::Tun)?;
        }
        Ok(is_empty)
    }

    /// Opens received datagrams, as far as budget and slab allow, and hands the packets to the writers.
    /// Returns the cost.
    fn open(
        &mut self,
        budget: usize,
        parts: &mut Parts<'_, impl Tun, impl Udp, impl Observer>,
    ) -> Result<usize, DataplaneError> {
        let mut cost = 0;
        while cost < budget && parts.tun.plain_slab().room() >= MAX_PACKET {
            let Some(mut received) = self.buffers.next() else { break };
            let (meta, is_recorded) = (received.meta, received.is_authentic);
            parts.tunnel.count_drop(DropReason::TruncatedDatagram, u64::from(received.truncated));
            let mut is_authentic = false;
            for datagram in received.whole().chunks_mut(meta.stride) {
                cost += cost_of(datagram.len(), 1);
                if parts.open(&meta, datagram)? {
                    is_authentic = true;
                } else if !Tunnel::is_data(datagram) && !parts.tunnel.has_time_for_handshakes(parts.now) {
                    // Without handshake sockets, handshakes arrive here, and one costs as much as hundreds
                    // of datagrams.
                    cost = budget;
                }
            }
            if is_authentic && !is_recorded {
                self.buffers.record_authentic(meta.source);
            }
        }
        parts.clock.end_stage(Stage::Decrypt);
        parts.tun.flush().map_err(DataplaneError::Tun)?;
        parts.clock.end_stage(Stage::Write);
        Ok(cost)
    }

    fn drop_data(&mut self, parts: &mut Parts<'_, impl Tun, impl Udp, impl Observer>) {
        while let Some(mut received) = self.buffers.next() {
            let meta = received.meta;
            for datagram in received.whole().chunks_mut(meta.stride) {
                if Tunnel::is_data(datagram) {
                    parts.drop_datagram(&meta, datagram, DropReason::TunStalled);
                } else {
                    parts.handle_control(&meta, datagram, &mut self.no_plain);
                }
            }
        }
    }
}

/// The receive calls of a socket that failed one after the other.
#[derive(Debug, Default)]
struct Failures(u32);

impl Failures {
    /// Counts a call if it failed, and returns `None` in place of its error. A call that finds nothing to
    /// receive has not failed.
    ///
    /// # Errors
    /// More than [`MAX_FAILED_CALLS`] failed: the socket does not work any more.
    fn count(
        &mut self,
        received: Poll<std::io::Result<usize>>,
    ) -> Result<Poll<Option<usize>>, DataplaneError> {
        let Poll::Ready(Err(error)) = received else {
            self.0 = 0;
            return Ok(received.map(Result::ok));
        };
        tracing::debug!(%error, "cannot receive");
        self.0 += 1;
        if self.0 > MAX_FAILED_CALLS { Err(DataplaneError::Udp(error)) } else { Ok(Poll::Ready(None)) }
    }
}
