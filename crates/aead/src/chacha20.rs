//! The key stream of ChaCha20 (RFC 8439, sections 2.1 to 2.4).
//!
//! The RFC's state is a matrix of four rows of four words. Here one vector holds the same row of four blocks,
//! so that a quarter round on the four columns is one on whole vectors. For the diagonals the rows are
//! rotated, as section 2.3 describes it. Several such groups are computed side by side, because each step of
//! one waits for the one before.

use crate::vector::{Vector, splat};

/// Blocks of one vector.
const LANES: usize = 4;
/// Groups of blocks that are computed side by side at most: with four vectors each they fit the 32 registers.
const MOST_GROUPS: usize = 6;
/// Blocks that one call makes at most.
const MOST: usize = LANES * MOST_GROUPS;
/// Bytes of a block.
pub(crate) const BLOCK: usize = 64;

/// "expand 32-byte k" (section 2.3).
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// The same row in each of four blocks.
#[inline(always)]
fn row<V: Vector>([a, b, c, d]: [u32; 4]) -> V {
    V::words([a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d])
}

/// What the last rows of four blocks have more in their first word, the block counter.
#[inline(always)]
fn count<V: Vector>(from: u32) -> V {
    V::words([from, 0, 0, 0, from + 1, 0, 0, 0, from + 2, 0, 0, 0, from + 3, 0, 0, 0])
}

/// Writes the blocks from `counter` on to `out`, which has room for them, and returns how many they are:
/// `4 * GROUPS`.
#[inline(always)]
fn blocks<V: Vector, const GROUPS: usize>(
    key: &[u32; 8],
    nonce: &[u32; 3],
    counter: u32,
    out: &mut [V; MOST],
) -> usize {
    let a0 = row::<V>(CONSTANTS);
    let b0 = row::<V>([key[0], key[1], key[2], key[3]]);
    let c0 = row::<V>([key[4], key[5], key[6], key[7]]);
    let last = row::<V>([counter, nonce[0], nonce[1], nonce[2]]);
    let mut d0 = [last; GROUPS];
    for (group, d0) in d0.iter_mut().enumerate() {
        *d0 = last.add32(count((LANES * group) as u32));
    }
    let (mut a, mut b, mut c, mut d) = ([a0; GROUPS], [b0; GROUPS], [c0; GROUPS], d0);
    macro_rules! each {
        ($group:ident, $step:expr) => {
            for $group in 0..GROUPS {
                $step
            }
        };
    }
    // Half of a quarter round (section 2.1), with its two rotations.
    macro_rules! half {
        ($first:literal, $second:literal) => {
            each!(group, a[group] = a[group].add32(b[group]));
            each!(group, d[group] = d[group].xor(a[group]).rotate::<$first>());
            each!(group, c[group] = c[group].add32(d[group]));
            each!(group, b[group] = b[group].xor(c[group]).rotate::<$second>());
        };
    }
    // 20 rounds: ten times the columns and the diagonals.
    for _ in 0..10 {
        half!(16, 12);
        half!(8, 7);
        // The RFC leaves the first row where it is. Here the second stays, for which the next addition waits.
        each!(group, {
            a[group] = a[group].turn3();
            d[group] = d[group].turn2();
            c[group] = c[group].turn1();
        });
        half!(16, 12);
        half!(8, 7);
        each!(group, {
            a[group] = a[group].turn1();
            d[group] = d[group].turn2();
            c[group] = c[group].turn3();
        });
    }
    for group in 0..GROUPS {
        let rows = [a[group].add32(a0), b[group].add32(b0), c[group].add32(c0), d[group].add32(d0[group])];
        out[LANES * group..LANES * (group + 1)].copy_from_slice(&V::blocks(rows));
    }
    LANES * GROUPS
}

/// Returns the first blocks, block 0 and what a message of `len` bytes needs, and how many they are: a
/// message that needs more takes [`apply`] further calls.
#[inline(always)]
pub(crate) fn start<V: Vector>(key: &[u32; 8], nonce: &[u32; 3], len: usize) -> ([V; MOST], usize) {
    // An array for each: the longest is written completely, and not cleared before.
    macro_rules! first {
        ($groups:expr) => {{
            let mut out = [splat(0); MOST];
            let made = blocks::<V, { $groups }>(key, nonce, 0, &mut out);
            (out, made)
        }};
    }
    // Few groups take less time than many, but not in proportion. Five were not faster than six.
    match (BLOCK + len).div_ceil(LANES * BLOCK) {
        ..=1 => first!(1),
        2 => first!(2),
        3 => first!(3),
        4 => first!(4),
        _ => first!(MOST_GROUPS),
    }
}

#[inline(always)]
fn xor<V: Vector>(blocks: &[V], data: &mut [u8]) -> usize {
    let mut done = 0;
    for (block, bytes) in blocks.iter().zip(data.chunks_mut(BLOCK)) {
        block.xor_into(bytes);
        done += bytes.len();
    }
    done
}

/// XORs the key stream from block 1 on into `data` (section 2.8). `blocks` holds the first `made` blocks. The
/// counter does not end: [`crate::MAX_LEN`] is below 2^10 blocks.
#[inline(always)]
pub(crate) fn apply<V: Vector>(
    key: &[u32; 8],
    nonce: &[u32; 3],
    made: usize,
    out: &mut [V; MOST],
    data: &mut [u8],
) {
    let mut done = xor(&out[1..made], data);
    let mut counter = made as u32;
    while done < data.len() {
        let made = blocks::<V, MOST_GROUPS>(key, nonce, counter, out);
        done += xor(&out[..], &mut data[done..]);
        counter += made as u32;
    }
}
