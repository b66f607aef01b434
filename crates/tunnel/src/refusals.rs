//! Handles refused outbound packets: counts them, and answers their senders by ICMP where that helps.
//!
//! Before: `outbound.rs` refused a packet. After: the event loop writes the answers to the TUN when the TUN
//! accepts them.

use std::time::Instant;

use crate::drop_reason::DropReason;
use crate::icmp::{self, IcmpError};
use crate::icmp_answers::Offered;
use crate::ip::IpHeader;
use crate::packet::PacketMut;
use crate::split;
use crate::tunnel::Tunnel;

impl Tunnel {
    /// Reports whether an answer waits for [`Self::pop_answer`].
    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Removes and returns the oldest ICMP answer, of at most 1280 bytes, to a packet from the TUN. The
    /// caller writes it to the TUN.
    pub fn pop_answer(&mut self) -> Option<Box<[u8]>> {
        self.answers.pop()
    }

    /// Counts a packet from the TUN that was refused, and answers its sender where that helps.
    #[cold]
    pub(crate) fn refuse(&mut self, packet: &PacketMut<'_>, reason: DropReason, now: Instant) {
        self.drops.add(reason, packet.segments());
        let Some(header) = IpHeader::parse(packet.bytes()) else { return };
        let error = match reason {
            DropReason::NoPeer | DropReason::LinkLocal | DropReason::NoEndpoint => IcmpError::HostUnreachable,
            DropReason::PacketTooBig => {
                let id = self.allowed_ips.peer_of(header.destination);
                let Some(peer) = id.and_then(|id| self.peer_mut(id)) else { return };
                IcmpError::TooBig { mtu: peer.path_limit.bytes() as u16 }
            }
            _ => return,
        };
        let offered = self.answers.offer(error, now, || {
            icmp::answer(packet.bytes(), split::longest_segment(packet, &header), error)
        });
        match offered {
            Offered::Kept => self.stats.icmp_sent += 1,
            Offered::Suppressed => self.stats.icmp_suppressed += 1,
            Offered::NotDue => {}
        }
    }
}
