//! The blocks of a pcapng file (draft-ietf-opsawg-pcapng) that a capture needs: little-endian, with
//! timestamps in nanoseconds.

use std::time::{SystemTime, UNIX_EPOCH};

/// Block types.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
/// The type of an interface statistics block, with the packets seen and dropped.
pub const STATISTICS: u32 = 5;
/// The type of an enhanced packet block.
pub const PACKET: u32 = 6;

/// Raw IP, version 4 or 6 by its first byte (LINKTYPE_RAW).
const LINK_TYPE_RAW: u16 = 101;
/// Option codes.
const COMMENT: u16 = 1;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_DESCRIPTION: u16 = 3;
const INTERFACE_TIME_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
const STATISTICS_START: u16 = 2;
const STATISTICS_END: u16 = 3;
const STATISTICS_SEEN: u16 = 4;
const STATISTICS_DROPPED: u16 = 5;

/// The size of a block in bytes: a smaller block is invalid, and the daemon sends no larger block.
const BLOCK_BYTES: std::ops::RangeInclusive<usize> = 12..=1 << 20;

/// A packet of an interface.
pub struct Packet<'a> {
    /// The number of the interface block, from 0.
    pub interface: u32,
    pub at: SystemTime,
    /// The captured bytes, in two pieces.
    pub bytes: [&'a [u8]; 2],
    /// The original length of the packet, in bytes.
    pub len: usize,
    pub is_inbound: bool,
    pub comment: &'a str,
}

/// The packets that an interface saw and dropped between two moments.
pub struct Statistics {
    pub interface: u32,
    pub from: SystemTime,
    pub until: SystemTime,
    pub seen: u64,
    pub dropped: u64,
}

/// Writes the section header block, which begins a file.
pub fn section(out: &mut Vec<u8>, application: &str) {
    block(out, SECTION, |out| {
        out.extend(0x1a2b_3c4d_u32.to_le_bytes());
        out.extend(1_u16.to_le_bytes());
        out.extend(0_u16.to_le_bytes());
        // The section length is unknown.
        out.extend((-1_i64).to_le_bytes());
        option(out, SECTION_APPLICATION, application.as_bytes());
        end_of_options(out);
    });
}

/// Writes an interface description block. Interfaces are numbered in the order of these blocks.
pub fn interface(out: &mut Vec<u8>, name: &str, description: &str, snap_bytes: u32) {
    block(out, INTERFACE, |out| {
        out.extend(LINK_TYPE_RAW.to_le_bytes());
        out.extend(0_u16.to_le_bytes());
        out.extend(snap_bytes.to_le_bytes());
        option(out, INTERFACE_NAME, name.as_bytes());
        option(out, INTERFACE_DESCRIPTION, description.as_bytes());
        option(out, INTERFACE_TIME_RESOLUTION, &[9]);
        end_of_options(out);
    });
}

/// Writes a packet block.
pub fn packet(out: &mut Vec<u8>, packet: &Packet<'_>) {
    block(out, PACKET, |out| {
        let kept: usize = packet.bytes.iter().map(|bytes| bytes.len()).sum();
        out.extend(packet.interface.to_le_bytes());
        out.extend(timestamp(packet.at));
        out.extend((kept as u32).to_le_bytes());
        out.extend((packet.len as u32).to_le_bytes());
        packet.bytes.iter().for_each(|bytes| out.extend_from_slice(bytes));
        pad(out, kept);
        option(out, COMMENT, packet.comment.as_bytes());
        let flags: u32 = if packet.is_inbound { 1 } else { 2 };
        option(out, PACKET_FLAGS, &flags.to_le_bytes());
        end_of_options(out);
    });
}

/// Writes an interface statistics block.
pub fn statistics(out: &mut Vec<u8>, statistics: &Statistics) {
    block(out, STATISTICS, |out| {
        out.extend(statistics.interface.to_le_bytes());
        out.extend(timestamp(statistics.until));
        option(out, STATISTICS_START, &timestamp(statistics.from));
        option(out, STATISTICS_END, &timestamp(statistics.until));
        option(out, STATISTICS_SEEN, &statistics.seen.to_le_bytes());
        option(out, STATISTICS_DROPPED, &statistics.dropped.to_le_bytes());
        end_of_options(out);
    });
}

/// Writes a block of this type around the output of `body`.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    body(out);
    let len = (out.len() - start + 4) as u32;
    out.extend(len.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    // The values come from weft and fit the 16-bit length.
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

fn end_of_options(out: &mut Vec<u8>) {
    out.extend([0; 4]);
}

/// Pads `len` bytes with zeros to a multiple of four.
fn pad(out: &mut Vec<u8>, len: usize) {
    out.extend(std::iter::repeat_n(0, len.next_multiple_of(4) - len));
}

/// Encodes nanoseconds since 1970: the high 32 bits, then the low 32 bits.
fn timestamp(at: SystemTime) -> [u8; 8] {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanoseconds = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&((nanoseconds >> 32) as u32).to_le_bytes());
    bytes[4..].copy_from_slice(&(nanoseconds as u32).to_le_bytes());
    bytes
}

/// Error: the received bytes are not a pcapng block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what it sent is not a pcapng block")]
pub struct NotABlock;

/// A complete block.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// All bytes of the block, including its type and lengths.
    pub bytes: &'a [u8],
}

impl Block<'_> {
    /// Returns the type of the block.
    pub fn kind(&self) -> u32 {
        word(self.bytes, 0)
    }

    /// Returns the number of dropped packets in a statistics block; 0 if it has none.
    pub fn dropped(&self) -> u64 {
        let mut rest = self.bytes.get(20..).unwrap_or_default();
        while let Some((&[code_low, code_high, len_low, len_high], value)) = rest.split_first_chunk() {
            let code = u16::from_le_bytes([code_low, code_high]);
            let len = usize::from(u16::from_le_bytes([len_low, len_high]));
            match (code, value.first_chunk::<8>()) {
                (STATISTICS_DROPPED, Some(count)) if len == 8 => return u64::from_le_bytes(*count),
                (0, _) => break,
                _ => rest = value.get(len.next_multiple_of(4)..).unwrap_or_default(),
            }
        }
        0
    }
}

/// Returns the block at the beginning of `bytes`; `None` if it is not complete yet.
pub fn first_block(bytes: &[u8]) -> Result<Option<Block<'_>>, NotABlock> {
    if bytes.len() < 8 {
        return Ok(None);
    }
    let len = word(bytes, 4) as usize;
    if !BLOCK_BYTES.contains(&len) || !len.is_multiple_of(4) {
        return Err(NotABlock);
    }
    Ok(bytes.get(..len).map(|bytes| Block { bytes }))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn blocks_are_found_again_however_they_are_cut() {
        let mut file = Vec::new();
        section(&mut file, "weft");
        interface(&mut file, "wg0", "inner packets", 0);
        let at = UNIX_EPOCH + Duration::from_nanos(0x1234_5678_9abc);
        for comment in ["", "a", "abcd"] {
            let bytes = [b"head".as_slice(), b"tail!"];
            packet(&mut file, &Packet { interface: 0, at, bytes, len: 99, is_inbound: true, comment });
        }
        statistics(&mut file, &Statistics { interface: 0, from: at, until: at, seen: 9, dropped: 7 });
        let mut kinds = Vec::new();
        let mut rest = file.as_slice();
        while let Some(block) = first_block(rest).unwrap() {
            assert_eq!(block.bytes.len() % 4, 0);
            assert_eq!(word(block.bytes, block.bytes.len() - 4) as usize, block.bytes.len());
            for len in 0..block.bytes.len() {
                assert!(first_block(&rest[..len]).unwrap().is_none());
            }
            kinds.push(block.kind());
            if block.kind() == STATISTICS {
                assert_eq!(block.dropped(), 7);
            }
            if block.kind() == PACKET {
                let fields: Vec<u32> = (2..7).map(|field| word(block.bytes, 4 * field)).collect();
                assert_eq!(fields, [0, 0x1234, 0x5678_9abc, 9, 99]);
                assert_eq!(&block.bytes[28..37], b"headtail!");
            }
            rest = &rest[block.bytes.len()..];
        }
        assert!(rest.is_empty());
        assert_eq!(kinds, [SECTION, INTERFACE, PACKET, PACKET, PACKET, STATISTICS]);
    }

    #[test]
    fn what_is_no_block_is_refused() {
        for wrong in [[0; 8], [0xff; 8], *b"{\"versio", [6, 0, 0, 0, 13, 0, 0, 0]] {
            assert_eq!(first_block(&wrong).unwrap_err(), NotABlock);
        }
        let lying = [5, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0xff, 0xff];
        assert_eq!(first_block(&lying).unwrap().unwrap().dropped(), 0);
    }
}
