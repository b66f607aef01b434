//! What becomes of outbound packets that are refused: they are counted, and their senders told by ICMP where that is
//! of use.
//!
//! Before: `outbound.rs` found no way for a packet. After: the event loop writes the answers to the TUN, as soon as
//! that takes them.

use std::collections::VecDeque;
use std::time::Instant;

use crate::bucket::Bucket;
use crate::drop_reason::DropReason;
use crate::icmp::{self, IcmpError};
use crate::ip::IpHeader;
use crate::packet::PacketMut;
use crate::split;
use crate::tunnel::Tunnel;

/// Answers that may wait for the TUN: 20 KiB.
const SLOTS: usize = 16;
/// Answers of one kind a second, and at once. WireGuard for Linux is bound by the kernel's 1000 a second and 50 at
/// once (net.ipv4.icmp_msgs_per_sec and icmp_msgs_burst) for the whole machine.
const PER_SECOND: u64 = 100;
const BURST: u64 = 32;

/// Answers that wait for the TUN, and how many more may be given.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    waiting: VecDeque<Box<[u8]>>,
    unreachable: Bucket,
    /// Apart from the other: whoever looks for hosts that are not there must not make a black hole of a path.
    too_big: Bucket,
}

impl Answers {
    /// Keeps an answer, if there may be one more and it finds a slot.
    fn offer(
        &mut self,
        error: IcmpError,
        now: Instant,
        answer: impl FnOnce() -> Option<Box<[u8]>>,
    ) -> Offered {
        let Some(answer) = answer() else { return Offered::NotDue };
        let bucket = match error {
            IcmpError::HostUnreachable => &mut self.unreachable,
            IcmpError::TooBig { .. } => &mut self.too_big,
        };
        if self.waiting.len() >= SLOTS || !bucket.try_take(PER_SECOND, BURST, now) {
            return Offered::Suppressed;
        }
        self.waiting.push_back(answer);
        Offered::Kept
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offered {
    Kept,
    Suppressed,
    NotDue,
}

impl Tunnel {
    /// Whether there is something for [`Self::pop_answer`] to give.
    pub fn has_answers(&self) -> bool {
        !self.answers.waiting.is_empty()
    }

    /// An ICMP packet of at most 1280 bytes for the TUN, in answer to one that came from there.
    pub fn pop_answer(&mut self) -> Option<Box<[u8]>> {
        self.answers.waiting.pop_front()
    }

    /// Counts a packet from the TUN that finds no way, and answers its sender where that is of use.
    #[cold]
    pub(crate) fn refuse(&mut self, packet: &PacketMut<'_>, reason: DropReason, now: Instant) {
        self.drops.add(reason, split::segments(packet));
        let Some(header) = IpHeader::parse(packet.bytes()) else { return };
        let error = match reason {
            DropReason::NoPeer | DropReason::NoEndpoint => IcmpError::HostUnreachable,
            DropReason::PacketTooBig => {
                let id = self.allowed_ips.peer_of(header.destination);
                let Some(peer) = id.and_then(|id| self.peer_mut(id)) else { return };
                IcmpError::TooBig { mtu: peer.path_limit.for_packet_to(header.destination) }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn answers_at(answers: &mut Answers, error: IcmpError, now: Instant, tries: usize) -> usize {
        let mut kept = 0;
        for _ in 0..tries {
            kept += usize::from(answers.offer(error, now, || Some(Box::default())) == Offered::Kept);
            answers.waiting.clear();
        }
        kept
    }

    #[test]
    fn there_is_a_burst_of_answers_and_then_a_rate() {
        let (mut answers, start) = (Answers::default(), Instant::now());
        let error = IcmpError::HostUnreachable;
        assert_eq!(answers_at(&mut answers, error, start, 100), BURST as usize);
        assert_eq!(answers_at(&mut answers, error, start + Duration::from_millis(50), 100), 5);
        assert_eq!(answers_at(&mut answers, error, start + Duration::from_secs(3600), 100), BURST as usize);
    }

    #[test]
    fn one_kind_of_answers_leaves_the_other_its_share() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        answers_at(&mut answers, IcmpError::HostUnreachable, now, 100);
        assert_eq!(answers_at(&mut answers, IcmpError::TooBig { mtu: 1 }, now, 100), BURST as usize);
    }

    #[test]
    fn what_finds_no_slot_is_not_kept() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        for tried in 0..BURST as usize {
            let offered = answers.offer(IcmpError::HostUnreachable, now, || Some(Box::default()));
            assert_eq!(offered == Offered::Kept, tried < SLOTS);
        }
        assert_eq!(answers.waiting.len(), SLOTS);
    }

    #[test]
    fn what_is_not_to_be_answered_takes_no_share() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        for _ in 0..100 {
            assert_eq!(answers.offer(IcmpError::HostUnreachable, now, || None), Offered::NotDue);
        }
        assert_eq!(answers_at(&mut answers, IcmpError::HostUnreachable, now, 100), BURST as usize);
    }
}
