//! What both directions of a turn work with, and the places where packets enter and leave the tunnel.

use std::task::{Context, Poll, ready};
use std::time::Instant;

use weft_tun::Tun;
use weft_tunnel::{
    ControlQueue, DropReason, Inbound as Handled, PacketMut, PeerId, PlainSlab, Plaintext, RecvMeta,
    Transmit, TransmitQueue, Tunnel,
};
use weft_udp::{Sent, Udp};

use crate::junk_filter::JunkFilter;
use crate::siblings::Siblings;
use crate::timing::{Stage, TurnClock};
use crate::{DataplaneError, SendFailure};

/// Result of a turn of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing to do, or no room to do it: a waker is registered.
    Idle,
    /// The budget is used up: call again.
    Busy,
}

/// Sees the packets of a turn. `()` sees none: a turn without a capture has no instruction for it.
pub(super) trait Observer {
    /// Sees a packet from the device, before it is sealed or refused.
    fn read(&mut self, _tunnel: &mut Tunnel, _packet: &PacketMut<'_>) {}

    /// Sees a packet for the device: from a peer, or an ICMP error made by weft (`is_own`).
    fn written(&mut self, _tunnel: &mut Tunnel, _tun: &mut impl Tun, _packet: Plaintext, _is_own: bool) {}

    /// Sees the datagrams that the socket accepted: the first `bytes` of `transmit`.
    fn sent(&mut self, _tunnel: &Tunnel, _peer: Option<PeerId>, _transmit: &Transmit<'_>, _bytes: usize) {}

    /// Sees a received datagram, after the tunnel handled it.
    fn received(&mut self, _tunnel: &Tunnel, _meta: &RecvMeta, _datagram: &[u8]) {}
}

impl Observer for () {}

/// What both directions work with.
pub(super) struct Parts<'a, T, U, O> {
    pub(super) now: Instant,
    pub(super) clock: &'a mut TurnClock,
    pub(super) tunnel: &'a mut Tunnel,
    pub(super) tun: &'a mut T,
    pub(super) udp: &'a mut U,
    pub(super) control: &'a mut ControlQueue,
    pub(super) siblings: Option<&'a mut Siblings>,
    pub(super) send_failure: &'a mut Option<SendFailure>,
    pub(super) observer: &'a mut O,
}

impl<T: Tun, U: Udp, O: Observer> Parts<'_, T, U, O> {
    /// Seals a packet from the TUN. The tunnel counts drops.
    pub(super) fn seal(&mut self, packet: &mut PacketMut<'_>, out: &mut TransmitQueue) {
        self.observer.read(self.tunnel, packet);
        let _ = self.tunnel.handle_tun_packet(packet, self.now, out);
    }

    /// Sends the datagrams of one transmit, as [`Udp::poll_send`]. `None` if they can never be sent, which is
    /// counted.
    pub(super) fn send(
        &mut self,
        cx: &mut Context<'_>,
        peer: Option<PeerId>,
        transmit: &Transmit<'_>,
    ) -> Poll<Option<Sent>> {
        Poll::Ready(match ready!(self.udp.poll_send(cx, transmit)) {
            Ok(sent) => {
                self.observer.sent(self.tunnel, peer, transmit, sent.bytes);
                Some(sent)
            }
            Err(error) => {
                let destination = transmit.destination;
                self.tunnel.count_drop(error.drop_reason(), transmit.segments() as u64);
                *self.send_failure = Some(SendFailure::new(destination, &error, self.now));
                tracing::debug!(%destination, %error, "cannot send");
                None
            }
        })
    }

    /// Sends handshakes and keepalives. They wait only for the socket, never behind data.
    pub(super) fn send_control(&mut self, cx: &mut Context<'_>, junk_filter: &mut JunkFilter) {
        if !self.control.is_empty() {
            junk_filter.refresh(self.tunnel, self.udp);
        }
        while let Some(message) = self.control.pop() {
            if self.send(cx, None, &message.transmit()).is_pending() {
                return self.control.unpop(message);
            }
        }
    }

    /// Opens a datagram, and stages its packet for the TUN. Returns whether there is one.
    #[inline]
    pub(super) fn open(&mut self, meta: &RecvMeta, datagram: &mut [u8]) -> Result<bool, DataplaneError> {
        let Self { tunnel, tun, control, now, .. } = self;
        let opened = tunnel.handle_datagram(meta, datagram, *now, tun.plain_slab(), control);
        let Some(packet) = self.conclude(opened, meta, datagram) else { return Ok(false) };
        self.write(packet, false)?;
        Ok(true)
    }

    /// Handles a datagram that is no data. `no_plain` is a slab without room.
    pub(super) fn handle_control(&mut self, meta: &RecvMeta, datagram: &mut [u8], no_plain: &mut PlainSlab) {
        let handled = self.tunnel.handle_datagram(meta, datagram, self.now, no_plain, self.control);
        self.conclude(handled, meta, datagram);
    }

    /// Drops a received datagram.
    pub(super) fn drop_datagram(&mut self, meta: &RecvMeta, datagram: &[u8], reason: DropReason) {
        self.tunnel.count_drop(reason, 1);
        self.observer.received(self.tunnel, meta, datagram);
    }

    /// Returns the packet of a datagram that was handled, if it has one. A datagram for a peer of another
    /// packet thread goes there. The tunnel has counted what it dropped.
    #[inline]
    fn conclude(
        &mut self,
        handled: Result<Handled, DropReason>,
        meta: &RecvMeta,
        datagram: &[u8],
    ) -> Option<Plaintext> {
        self.observer.received(self.tunnel, meta, datagram);
        match handled {
            Ok(Handled::Packet(packet)) => return Some(packet),
            Ok(Handled::Elsewhere(shard)) => self.hand_over(shard, meta, datagram),
            Ok(Handled::Consumed) | Err(_) => {}
        }
        None
    }

    /// Hands a datagram to the packet thread that serves its peer.
    #[cold]
    fn hand_over(&mut self, shard: u16, meta: &RecvMeta, datagram: &[u8]) {
        if let Some(Err(reason)) =
            self.siblings.as_ref().map(|siblings| siblings.hand_over(shard, meta, datagram))
        {
            self.tunnel.count_drop(reason, 1);
        }
    }

    /// Writes the waiting ICMP errors, which answer packets from the TUN that could not be forwarded, as far
    /// as the TUN accepts them; otherwise registers the waker with the TUN.
    pub(super) fn write_answers(&mut self, cx: &mut Context<'_>) -> Result<(), DataplaneError> {
        if !self.tunnel.has_answers() {
            return Ok(());
        }
        let Poll::Ready(ready) = self.tun.poll_send_ready(cx) else { return Ok(()) };
        ready.map_err(DataplaneError::Tun)?;
        // A free slab holds all of them.
        while let Some(answer) = self.tunnel.pop_answer() {
            let Some(packet) = self.tun.plain_slab().push(&answer) else { break };
            self.write(packet, true)?;
        }
        self.tun.flush().map_err(DataplaneError::Tun)
    }

    #[inline]
    fn write(&mut self, packet: Plaintext, is_own: bool) -> Result<(), DataplaneError> {
        self.observer.written(self.tunnel, self.tun, packet, is_own);
        self.tun.send(packet).map_err(DataplaneError::Tun)
    }

    /// Handles the timers that are due.
    pub(super) fn timers(&mut self) {
        if self.has_timers_due() {
            self.clock.begin_stage();
            // It stops if the control queue is full; once the queue is sent, the loop comes back here.
            let _ = self.tunnel.handle_timeout(self.now, self.control);
            self.clock.end_stage(Stage::Handshakes);
        }
    }

    /// Reports whether timers are still due that did not fit into the control queue, and nothing else wakes
    /// the loop. While messages wait in the control queue, the socket wakes the loop.
    pub(super) fn has_timers_left(&self) -> bool {
        self.control.is_empty() && self.has_timers_due()
    }

    fn has_timers_due(&self) -> bool {
        self.tunnel.poll_timeout().is_some_and(|(at, _)| at <= self.now)
    }
}
