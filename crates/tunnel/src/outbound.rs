//! Outbound: finds the peer of a packet from the TUN, and splits and seals the packet into the transmit
//! queue, or stages it until there is a session.
//!
//! Before: the event loop took the packet from a batch. After: `split.rs`, `session.rs`, `transmit.rs`.

use std::net::IpAddr;
use std::time::Instant;

use rustc_hash::FxHashMap;

use crate::drop_reason::DropReason;
use crate::ecn;
use crate::initiations::Cause;
use crate::ip::IpHeader;
use crate::packet::PacketMut;
use crate::peer::Peer;
use crate::peer_id::PeerId;
use crate::session::DATA_OVERHEAD;
use crate::split;
use crate::staging::Staged;
use crate::transmit::TransmitQueue;
use crate::tunnel::{Progress, Tunnel, TunnelStats};

/// Returns the reason to drop a packet to an address that no peer has in its allowed-ips.
fn for_nobody(destination: IpAddr) -> DropReason {
    let is_of_link = match destination {
        IpAddr::V4(address) => address.is_multicast() || address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_multicast() || address.is_unicast_link_local(),
    };
    if is_of_link { DropReason::LinkLocal } else { DropReason::NoPeer }
}

/// What [`Tunnel::handle_tun_packet`] did with an outbound packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outbound {
    /// The segments of the packet are in the transmit queue.
    Sealed,
    /// The packet is staged with its peer, in order; or staging had no room and dropped it, as counted under
    /// [`DropReason::StagingFull`]. Without a session a handshake is due: call [`Tunnel::handle_timeout`].
    /// With a session, call [`Tunnel::flush_staged`].
    Staged,
}

impl Tunnel {
    /// Seals or stages one packet from the TUN. The caller makes sure of
    /// [`TransmitQueue::has_room_for_super_packet`].
    ///
    /// # Errors
    /// The packet was dropped, and is counted under the reason that is returned.
    pub fn handle_tun_packet(
        &mut self,
        packet: &mut PacketMut<'_>,
        now: Instant,
        out: &mut TransmitQueue,
    ) -> Result<Outbound, DropReason> {
        let result = self.route(packet, now, out);
        if let Err(reason) = result {
            self.refuse(packet, reason, now);
        }
        result
    }

    fn route(
        &mut self,
        packet: &mut PacketMut<'_>,
        now: Instant,
        out: &mut TransmitQueue,
    ) -> Result<Outbound, DropReason> {
        let header = IpHeader::parse(packet.bytes()).ok_or(DropReason::MalformedPacket)?;
        let id =
            self.allowed_ips.peer_of(header.destination).ok_or_else(|| for_nobody(header.destination))?;
        let mtu = usize::from(self.config.mtu);
        let peer =
            self.peers.get_mut(id.place()).and_then(Option::as_deref_mut).ok_or(DropReason::PeerMoved)?;
        if peer.endpoint.is_none() {
            return Err(DropReason::NoEndpoint);
        }
        if packet.bytes().len() > peer.path_limit.bytes()
            && peer.path_limit.refuses(packet.bytes(), split::longest_segment(packet, &header), now)
        {
            return Err(DropReason::PacketTooBig);
        }
        if let Some(limits) = &mut peer.limits
            && let Some(limit) = &mut limits.to_peer
            && !limit.admits(split::bytes_of_segments(packet, &header), now)
        {
            limit.dropped += packet.segments();
            return Err(DropReason::OverRateToPeer);
        }
        let session = peer.in_use(now).wants_rekey(now);
        let Some(wants_rekey) = session.filter(|_| peer.staging.is_empty()) else {
            let cause = self.cause_of(&header);
            self.stage(id, packet, cause);
            if session.is_some() {
                self.make_ready(id);
            } else {
                self.want_handshake(id, now, true, cause);
            }
            return Ok(Outbound::Staged);
        };
        seal(peer, id, packet, &header, mtu, now, out, &mut self.stats)?;
        self.reschedule_after_data(id);
        if wants_rekey {
            self.want_handshake(id, now, false, Cause::Renewal);
        }
        Ok(Outbound::Sealed)
    }

    /// Seals staged packets whose session is now there. Call it before taking new packets from the TUN, until
    /// it returns [`Progress::Done`].
    pub fn flush_staged(&mut self, now: Instant, out: &mut TransmitQueue) -> Progress {
        let mtu = usize::from(self.config.mtu);
        while let Some(id) = self.ready.front().copied() {
            let Some(peer) = self.peers.get_mut(id.place()).and_then(Option::as_deref_mut) else {
                self.ready.pop_front();
                continue;
            };
            while peer.in_use(now).can_seal(now) && peer.endpoint.is_some() {
                if !out.has_room_for_super_packet() {
                    return Progress::Blocked;
                }
                let Some(mut staged) = peer.staging.pop() else { break };
                let cause = staged.cause;
                let Some(mut packet) = staged.packet() else { continue };
                let segments = packet.segments();
                self.stats.staged_bytes -= packet.bytes().len();
                self.stats.staged_segments -= segments;
                give_back(&mut self.staged, cause, packet.bytes().len());
                let result = IpHeader::parse(packet.bytes())
                    .ok_or(DropReason::MalformedPacket)
                    .and_then(|header| seal(peer, id, &mut packet, &header, mtu, now, out, &mut self.stats));
                if let Err(reason) = result {
                    self.drops.add(reason, segments);
                }
            }
            peer.is_ready = false;
            let waiting = peer.staging.oldest_cause();
            self.ready.pop_front();
            match waiting {
                // The session ended before these packets were sealed.
                Some(cause) => self.want_handshake(id, now, true, cause),
                None => self.reschedule(id),
            }
        }
        Progress::Done
    }

    /// Reports whether staged packets can be sealed now.
    pub fn has_ready_staged(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn make_ready(&mut self, id: PeerId) {
        if let Some(peer) = self.peer_mut(id)
            && !peer.is_ready
            && !peer.staging.is_empty()
        {
            peer.is_ready = true;
            self.ready.push_back(id);
        }
    }

    /// Returns the cause of a packet from the TUN: the peer that it is forwarded for, or this machine and the
    /// networks behind it.
    pub(crate) fn cause_of(&mut self, header: &IpHeader) -> Cause {
        self.allowed_ips.peer_of(header.source).map_or(Cause::Local, Cause::Peer)
    }

    /// Returns the bytes that staged packets of one cause may take: a multiple of the free budget, so that
    /// other causes always find room (dynamic thresholds, Choudhury and Hahne 1998). A single cause gets
    /// eight ninths of the budget.
    fn staging_share(&self) -> usize {
        const MULTIPLE: usize = 8;
        MULTIPLE.saturating_mul(self.config.staging_bytes.saturating_sub(self.stats.staged_bytes))
    }

    /// Stages a copy of `packet` until there is a session. The peer's oldest packets of the same cause are
    /// dropped to make room, because their senders are the first to have given up on them.
    fn stage(&mut self, id: PeerId, packet: &PacketMut<'_>, cause: Cause) {
        let len = packet.bytes().len();
        loop {
            let staged = self.staged.get(&cause).copied().unwrap_or_default();
            let is_budget_spent = self.stats.staged_bytes + len > self.config.staging_bytes
                || staged + len > self.staging_share();
            let Some(peer) = self.peer_mut(id) else { return };
            let is_full = peer.staging.is_full_for(len);
            if !is_full && !is_budget_spent {
                break;
            }
            let oldest = match peer.staging.pop_of(cause) {
                None if is_full => peer.staging.pop(),
                oldest => oldest,
            };
            match oldest {
                Some(oldest) => self.drop_unstaged(oldest, DropReason::StagingFull),
                None => {
                    self.drops.add(DropReason::StagingFull, packet.segments());
                    return;
                }
            }
        }
        if let Some(peer) = self.peer_mut(id) {
            peer.staging.push(packet, cause);
            *self.staged.entry(cause).or_default() += len;
            self.stats.staged_bytes += len;
            self.stats.staged_segments += packet.segments();
        }
    }

    /// Drops all staged packets of the peer.
    pub(crate) fn drop_staged(&mut self, id: PeerId, reason: DropReason) {
        while let Some(staged) = self.peer_mut(id).and_then(|peer| peer.staging.pop()) {
            self.drop_unstaged(staged, reason);
        }
    }

    fn drop_unstaged(&mut self, mut staged: Staged, reason: DropReason) {
        let cause = staged.cause;
        if let Some(packet) = staged.packet() {
            self.stats.staged_bytes -= packet.bytes().len();
            self.stats.staged_segments -= packet.segments();
            give_back(&mut self.staged, cause, packet.bytes().len());
            self.drops.add(reason, packet.segments());
        }
    }
}

/// Subtracts packets that are no longer staged from the bytes of their cause.
fn give_back(staged: &mut FxHashMap<Cause, usize>, cause: Cause, bytes: usize) {
    if let std::collections::hash_map::Entry::Occupied(mut entry) = staged.entry(cause) {
        *entry.get_mut() -= bytes;
        if *entry.get() == 0 {
            entry.remove();
        }
    }
}

/// Splits and seals one packet into `out`. The caller has checked session, endpoint and room.
#[expect(clippy::too_many_arguments, reason = "disjoint parts of the tunnel, borrowed apart")]
fn seal(
    peer: &mut Peer,
    id: PeerId,
    packet: &mut PacketMut<'_>,
    header: &IpHeader,
    mtu: usize,
    now: Instant,
    out: &mut TransmitQueue,
    stats: &mut TunnelStats,
) -> Result<(), DropReason> {
    let path = peer.path(id, ecn::of(packet.bytes())).ok_or(DropReason::NoEndpoint)?;
    // Padding must not make a packet longer than the path carries.
    let mtu = mtu.min(peer.path_limit.bytes());
    let (mut segments, mut bytes) = (0, 0);
    let session = peer.in_use(now);
    split::split(packet, header, mtu, |segment| {
        let mut slot = out.reserve(path, segment.len() + DATA_OVERHEAD);
        let Some(len) = session.seal(segment, slot.buffer_mut()) else { return false };
        slot.commit();
        segments += 1;
        bytes += len as u64;
        true
    })?;
    if segments == 0 {
        return Err(DropReason::NoSession);
    }
    if segments > 1 {
        // The receiver's GRO joins the datagrams of one send. If a send ends with its super-packet, the
        // receiver writes it to its TUN as one super-packet again; a PSH in the middle of a send would cut
        // the next super-packet short.
        out.seal();
    }
    stats.sealed += segments;
    peer.sent_bytes += bytes;
    peer.timers.data_sent(now);
    Ok(())
}
