//! One numbered datagram: magic, kind, length, flow, sequence number, then content derived from all of these.

use crate::content::{Content, mix};

/// The shortest datagram in bytes: the header and one word of content.
pub const MIN_DATAGRAM: usize = HEADER + 8;
/// The longest payload of a UDP datagram over IPv4.
pub(super) const MAX_DATAGRAM: usize = 65_507;

const HEADER: usize = 20;
const MAGIC: u16 = 0x77ef;

/// Direction of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Kind {
    Forward = 1,
    Reply = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) flow: u32,
    pub(super) sequence: u64,
}

impl Header {
    /// Appends the datagram to `out`, `len` bytes in total.
    pub(super) fn write_datagram(self, len: usize, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC.to_be_bytes());
        out.extend_from_slice(&(self.kind as u16).to_be_bytes());
        out.extend_from_slice(&(len as u32).to_be_bytes());
        out.extend_from_slice(&self.flow.to_be_bytes());
        out.extend_from_slice(&self.sequence.to_be_bytes());
        let content = self.content(len);
        let mut position = 0;
        while out.len() - start < len {
            let piece = content.at(position);
            let take = piece.len().min(len - (out.len() - start));
            out.extend_from_slice(&piece[..take]);
            position += take as u64;
        }
    }

    /// Returns the header of a datagram of this kind if its length and content are correct.
    pub(super) fn check(datagram: &[u8], kind: Kind) -> Option<Self> {
        let (header, content) = datagram.split_first_chunk::<HEADER>()?;
        let (magic, rest) = header.split_first_chunk::<2>()?;
        let (kind_bytes, rest) = rest.split_first_chunk::<2>()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (flow, rest) = rest.split_first_chunk::<4>()?;
        let sequence = rest.first_chunk::<8>()?;
        let known = *magic == MAGIC.to_be_bytes()
            && *kind_bytes == (kind as u16).to_be_bytes()
            && u32::from_be_bytes(*len) as usize == datagram.len();
        let header = Self { kind, flow: u32::from_be_bytes(*flow), sequence: u64::from_be_bytes(*sequence) };
        let right = known && header.content(datagram.len()).first_mismatch(0, content).is_none();
        right.then_some(header)
    }

    fn content(self, len: usize) -> Content {
        let flow = u64::from(self.flow) << 20 ^ len as u64 ^ (self.kind as u64) << 56;
        Content::new(mix(flow) ^ self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_byte_of_a_datagram_is_noticed() {
        let header = Header { kind: Kind::Forward, flow: 7, sequence: 1 << 33 };
        let mut datagram = Vec::new();
        header.write_datagram(300, &mut datagram);
        assert_eq!(datagram.len(), 300);
        assert_eq!(Header::check(&datagram, Kind::Forward), Some(header));
        assert_eq!(Header::check(&datagram, Kind::Reply), None);
        assert_eq!(Header::check(&datagram[..299], Kind::Forward), None);
        for at in 0..datagram.len() {
            datagram[at] ^= 0x40;
            assert_eq!(Header::check(&datagram, Kind::Forward), None, "byte {at}");
            datagram[at] ^= 0x40;
        }
    }

    #[test]
    fn the_shortest_and_the_longest_datagram_are_checked_too() {
        for len in [MIN_DATAGRAM, MAX_DATAGRAM] {
            let header = Header { kind: Kind::Reply, flow: 0, sequence: 0 };
            let mut datagram = Vec::new();
            header.write_datagram(len, &mut datagram);
            assert_eq!(Header::check(&datagram, Kind::Reply), Some(header));
        }
    }
}
