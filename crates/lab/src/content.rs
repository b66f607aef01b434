//! Test content that depends on its position: a lost, displaced or changed byte no longer matches.
//!
//! A stream is cut into blocks. Each block is a window into one fixed random pattern; the seed and the block
//! number determine where the window begins. So sending costs no computation, checking costs one memory
//! comparison, and the pattern stays in the processor's cache regardless of the number of streams.

use std::sync::OnceLock;

/// Bytes in one window.
pub const BLOCK: usize = 64 * 1024;
/// Number of positions where a window can begin. Small enough that the pattern fits into a second-level
/// cache.
const PLACES: usize = 256 * 1024;

/// The content of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    seed: u64,
}

impl Content {
    /// Creates the content that belongs to this seed.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Returns the bytes from `position` up to the end of its block: at least one.
    pub fn at(self, position: u64) -> &'static [u8] {
        let within = (position % BLOCK as u64) as usize;
        let place = mix(self.seed ^ mix(position / BLOCK as u64)) as usize % PLACES;
        &pattern()[place + within..place + BLOCK]
    }

    /// Compares `bytes` with the content at `position` and returns the position of the first byte that
    /// differs.
    pub fn first_mismatch(self, position: u64, mut bytes: &[u8]) -> Option<u64> {
        let mut position = position;
        while !bytes.is_empty() {
            let expected = self.at(position);
            let len = expected.len().min(bytes.len());
            if bytes[..len] != expected[..len] {
                let equal = bytes.iter().zip(expected).take_while(|(a, b)| a == b).count();
                return Some(position + equal as u64);
            }
            bytes = &bytes[len..];
            position += len as u64;
        }
        None
    }
}

/// Mixes every bit of a number into all others (the finalizer of MurmurHash3).
pub(super) fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

fn pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    PATTERN.get_or_init(|| {
        let words = (PLACES + BLOCK) as u64 / 8;
        (0..words).flat_map(|word| mix(word ^ 0x5eed_0000_0000_0000).to_le_bytes()).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(content: Content, position: u64, len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while out.len() < len {
            let piece = content.at(position + out.len() as u64);
            out.extend_from_slice(&piece[..piece.len().min(len - out.len())]);
        }
        out
    }

    #[test]
    fn a_stream_matches_itself_in_pieces_of_any_size() {
        let content = Content::new(7);
        let whole = bytes(content, 0, 3 * BLOCK + 11);
        assert_eq!(content.first_mismatch(0, &whole), None);
        for (start, len) in [(1, 10), (BLOCK - 1, 2), (BLOCK, BLOCK), (17, 2 * BLOCK)] {
            assert_eq!(content.first_mismatch(start as u64, &whole[start..start + len]), None);
        }
    }

    #[test]
    fn one_changed_byte_is_named_by_its_position() {
        let content = Content::new(1);
        for at in [0, 5, BLOCK - 1, BLOCK, BLOCK + 100] {
            let mut wrong = bytes(content, 1000, 2 * BLOCK);
            wrong[at] ^= 1;
            assert_eq!(content.first_mismatch(1000, &wrong), Some(1000 + at as u64));
        }
    }

    #[test]
    fn displaced_content_and_another_stream_do_not_match() {
        let content = Content::new(1);
        for by in [1, 8, 1380, 1448, 4096, 65_483, BLOCK as u64, 7 * BLOCK as u64, PLACES as u64] {
            assert!(content.first_mismatch(0, &bytes(content, by, 256)).is_some(), "by {by}");
        }
        assert!(content.first_mismatch(0, &bytes(Content::new(2), 0, 256)).is_some());
    }
}
