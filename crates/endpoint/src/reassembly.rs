//! Puts fragments together (RFC 791, RFC 8200 section 4.5), within a bound. A packet with overlapping
//! fragments is discarded (RFC 5722).

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::ops::Range;

use crate::packet::Packet;

/// How long the rest of a packet may take: as Linux, for both families.
const LIFETIME: u64 = 30_000_000_000;
/// What a fragment counts besides its bytes.
const OVERHEAD: usize = 64;

type Key = (IpAddr, IpAddr, u32, u8);

#[derive(Debug, Default)]
struct Partial {
    bytes: Vec<u8>,
    /// What has arrived, sorted.
    ranges: Vec<Range<usize>>,
    total: Option<usize>,
    /// Of the first fragment.
    protocol: u8,
    /// Two fragments overlap: everything is discarded until the time is over.
    is_spoilt: bool,
    until: u64,
}

impl Partial {
    fn cost(&self) -> usize {
        self.bytes.capacity() + (1 + self.ranges.len()) * OVERHEAD
    }

    fn is_complete(&self) -> bool {
        matches!((self.ranges.as_slice(), self.total), ([one], Some(total)) if *one == (0..total))
    }
}

/// The packets that are not complete.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    packets: HashMap<Key, Partial>,
    by_age: VecDeque<(Key, u64)>,
    bytes: usize,
}

impl Reassembly {
    /// Adds a fragment. Returns the payload of the packet that it completes, and its protocol.
    pub(crate) fn add(&mut self, packet: &Packet<'_>, now: u64, limit: u32) -> Option<(Vec<u8>, u8)> {
        let fragment = packet.fragment?;
        let len = packet.payload.len();
        let range = fragment.offset..fragment.offset + len;
        let is_odd = fragment.has_more && (len == 0 || !len.is_multiple_of(8));
        if is_odd || range.end > weft_tunnel::MAX_PACKET {
            return None;
        }
        // The next header of later fragments of IPv6 means nothing (RFC 8200).
        let protocol = if packet.source.is_ipv4() { packet.protocol } else { 0 };
        let key = (packet.source, packet.destination, fragment.identification, protocol);
        let mut partial = match self.packets.remove(&key) {
            Some(partial) => {
                self.bytes -= partial.cost();
                partial
            }
            None => {
                self.by_age.push_back((key, now + LIFETIME));
                Partial { until: now + LIFETIME, ..Partial::default() }
            }
        };
        partial.insert(range, packet, !fragment.has_more);
        if partial.is_complete() {
            self.by_age.retain(|(other, _)| *other != key);
            return Some((partial.bytes, partial.protocol));
        }
        self.bytes += partial.cost();
        self.packets.insert(key, partial);
        while self.bytes > limit as usize && self.drop_oldest() {}
        None
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.by_age.front().map(|(_, until)| *until)
    }

    /// Forgets what is too old.
    pub(crate) fn expire(&mut self, now: u64) {
        while self.next_deadline().is_some_and(|until| until <= now) && self.drop_oldest() {}
    }

    fn drop_oldest(&mut self) -> bool {
        let Some((key, _)) = self.by_age.pop_front() else { return false };
        self.bytes -= self.packets.remove(&key).map_or(0, |partial| partial.cost());
        true
    }
}

impl Partial {
    fn insert(&mut self, range: Range<usize>, packet: &Packet<'_>, is_last: bool) {
        if self.is_spoilt {
            return;
        }
        let at = self.ranges.partition_point(|other| other.end <= range.start);
        let overlap = self.ranges.get(at).filter(|other| other.start < range.end);
        let is_end_wrong = match self.total {
            Some(total) => range.end > total || (is_last && range.end != total),
            None => is_last && self.ranges.last().is_some_and(|last| last.end > range.end),
        };
        if overlap.is_some_and(|other| other.start <= range.start && range.end <= other.end) && !is_end_wrong
        {
            // It comes again, as whole: the first counts.
            return;
        }
        if overlap.is_some() || is_end_wrong {
            *self = Self { is_spoilt: true, until: self.until, ..Self::default() };
            return;
        }
        if is_last {
            self.total = Some(range.end);
        }
        if range.start == 0 {
            self.protocol = packet.protocol;
        }
        if self.bytes.len() < range.end {
            self.bytes.resize(range.end, 0);
        }
        if let Some(room) = self.bytes.get_mut(range.clone()) {
            room.copy_from_slice(packet.payload);
        }
        self.ranges.insert(at, range);
        // Neighbours become one.
        for left in [at, at.saturating_sub(1)] {
            if let Some([before, after]) = self.ranges.get(left..left + 2)
                && before.end == after.start
            {
                self.ranges[left].end = after.end;
                self.ranges.remove(left + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Fragment;

    fn fragment(bytes: &[u8], offset: usize, has_more: bool) -> Packet<'_> {
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let fragment = Some(Fragment { identification: 7, offset, has_more });
        Packet { source: address, destination: address, protocol: 17, payload: bytes, fragment, bytes }
    }

    #[test]
    fn fragments_in_any_order_make_the_packet() {
        let whole: Vec<u8> = (0..100).collect();
        let parts = [(0, 24), (24, 64), (64, 100)];
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
            let mut reassembly = Reassembly::default();
            let mut result = None;
            for index in order {
                let (start, end) = parts[index];
                assert!(result.is_none());
                for _ in 0..if index != order[2] { 2 } else { 1 } {
                    result =
                        result.or(reassembly.add(&fragment(&whole[start..end], start, end < 100), 0, 9999));
                }
            }
            assert_eq!(result, Some((whole.clone(), 17)));
            assert_eq!((reassembly.bytes, reassembly.packets.len()), (0, 0));
        }
    }

    #[test]
    fn overlapping_fragments_spoil_their_packet() {
        let mut reassembly = Reassembly::default();
        for (bytes, offset, has_more) in
            [(&[1; 16], 0, true), (&[2; 16], 8, true), (&[3; 16], 16, false), (&[3; 16], 0, true)]
        {
            assert_eq!(reassembly.add(&fragment(bytes, offset, has_more), 0, 9999), None);
        }
        assert_eq!(reassembly.bytes, OVERHEAD, "nothing of it is kept");
        reassembly.expire(LIFETIME);
        assert_eq!((reassembly.bytes, reassembly.packets.len(), reassembly.next_deadline()), (0, 0, None));
    }

    #[test]
    fn memory_is_bounded() {
        let mut reassembly = Reassembly::default();
        for identification in 0..1000 {
            let mut packet = fragment(&[0; 800], 64_000, true);
            packet.fragment = Some(Fragment { identification, offset: 64_000, has_more: true });
            reassembly.add(&packet, 0, 200_000);
            assert!(reassembly.bytes <= 200_000);
        }
        assert!(reassembly.packets.len() > 1);
        assert_eq!(reassembly.add(&fragment(&[0; 800], 65_000, false), 0, 200_000), None);
    }
}
