//! Sealing and opening of one message (RFC 8439, section 2.8), without associated data.

use crate::chacha20;
use crate::poly1305;
use crate::vector::Vector;

#[inline(always)]
pub(crate) fn seal<V: Vector>(key: &[u32; 8], nonce: &[u32; 3], data: &mut [u8]) -> u128 {
    let (mut blocks, made) = chacha20::start::<V>(key, nonce, data.len());
    // Section 2.6: the first half of block 0. The second half is not used.
    let one_time_key = blocks[0];
    chacha20::apply(key, nonce, made, &mut blocks, data);
    poly1305::tag(one_time_key, data)
}

/// Returns whether the tag is right; if not, no byte of `data` was written.
#[inline(always)]
pub(crate) fn open<V: Vector>(key: &[u32; 8], nonce: &[u32; 3], data: &mut [u8], tag: u128) -> bool {
    let (mut blocks, made) = chacha20::start::<V>(key, nonce, data.len());
    // All bits of the difference at once. `black_box` keeps the compiler from a comparison in pieces.
    if std::hint::black_box(poly1305::tag(blocks[0], data) ^ tag) != 0 {
        return false;
    }
    chacha20::apply(key, nonce, made, &mut blocks, data);
    true
}
