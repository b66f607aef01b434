//! Poly1305 of a ciphertext (RFC 8439, sections 2.5 and 2.8): the message is the ciphertext, zeros up to a
//! whole block of 16 bytes, and a block with the two lengths, of which that of the associated data is 0.
//!
//! The message's blocks, each with a bit above its 128 bits, are the coefficients of a polynomial. Its value
//! at `r` is taken modulo p = 2^130 - 5. A long message is summed in 16 lanes, which take every 16th
//! block. Each lane is multiplied by r^16 from step to step, and by its own power of r, r^16 to r^1, at the
//! end.
//!
//! # Limbs
//!
//! A number is h0 + h1 2^44 + h2 2^88. The multiplication of IFMA takes 52 bits of its factors, and adds the
//! low or the high 52 bits of the product. A high half weighs 2^52 more than its low half, that is 2^8 more
//! than the next limb. What stands at 2^132 = 4 · 2^130 counts 4 · 5 = 20 at 2^0, therefore s1 = 20 r1 and s2
//! = 20 r2:
//!
//! ```text
//! limb 0: h0 r0 + h1 s2 + h2 s1
//! limb 1: h0 r1 + h1 r0 + h2 s2
//! limb 2: h0 r2 + h1 r1 + h2 r0
//! ```
//!
//! # No lane overflows
//!
//! | Step | Largest values |
//! |---|---|
//! | [`reduce`] returns | h0 < 2^44 + 2^16, h1 < 2^44, h2 < 2^42 |
//! | powers of r: r itself (clamped: r0, r1 < 2^44, r2 < 2^36), and what `reduce` returns | the same |
//! | [`factor`]: s1 = 20 r1, s2 = 20 r2 | s1 < 2^48.4, s2 < 2^46.4 |
//! | a block: 44, 44, 40 bits, and the bit at 2^40 | 2^44, 2^44, 2^41 |
//! | a number and a block | h0 < 2^45.1, h1 < 2^45, h2 < 2^43: each factor is below 2^52 |
//! | three low halves | 3 · 2^52; six, of two products: 6 · 2^52 < 2^54.6 |
//! | three high halves of limb 0: below 2^37.3 + 2^39.4 + 2^39.4 | 2^40.6; of two products 2^41.6 |
//! | of limb 1: 2^37.2 + 2^37.1 + 2^37.4 | 2^38.9; of two products 2^39.9 |
//! | of limb 2: 2^35.2 + 2^37 + 2^35.1 | 2^37.7; of two products 2^38.7 |
//! | t0 = low 0 + 20 · 2^8 · high 2 | 2^54.6 + 2^51.1 < 2^55 |
//! | t1 = low 1 + 2^8 · high 0 + t0 / 2^44 | 2^54.6 + 2^49.6 + 2^11 < 2^55 |
//! | t2 = low 2 + 2^8 · high 1 + t1 / 2^44 | 2^54.6 + 2^47.9 + 2^11 < 2^55 |
//! | carry = t2 / 2^42, and 5 times it | 2^13, 2^15.4: h0 < 2^44 + 2^16 |
//! | the sum of eight lanes | h0, h1 < 2^47.1, h2 < 2^45 |

use std::hint::black_box;

use crate::vector::{Vector, splat};

const MASK44: u64 = (1 << 44) - 1;
const MASK42: u64 = (1 << 42) - 1;
/// A block's bit above its 128 bits, in limb 2.
const BIT: u64 = 1 << (128 - 88);
/// Up to this length the sum block by block takes less time than the powers of r.
const SHORT: usize = 192;
/// The blocks of the lanes of one vector, in their order: [`add_blocks`] has it from `even` and `odd`.
const ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

type Number<V> = [V; 3];

#[derive(Clone, Copy)]
struct Factor<V> {
    r: Number<V>,
    s1: V,
    s2: V,
}

/// The tag of `data`. `key` begins with the one-time key (section 2.6): r, and s.
#[inline(always)]
pub(crate) fn tag<V: Vector>(key: V, data: &[u8]) -> u128 {
    let key = key.to_doubles();
    if data.len() <= SHORT { tag_of_short(&key, data) } else { tag_of_long::<V>(&key, data) }
}

/// r, with the bits cleared that section 2.5 says.
#[inline(always)]
fn clamp(key: &[u64; 8]) -> (u64, u64) {
    (key[0] & 0x0fff_fffc_0fff_ffff, key[1] & 0x0fff_fffc_0fff_fffc)
}

#[inline(always)]
fn factor<V: Vector>(r: Number<V>) -> Factor<V> {
    Factor { r, s1: r[1].left::<4>().add64(r[1].left::<2>()), s2: r[2].left::<4>().add64(r[2].left::<2>()) }
}

/// Adds the low and the high halves of the products of `a` and `f`, by limb.
#[inline(always)]
fn multiply_add<V: Vector>(
    mut low: [V; 3],
    mut high: [V; 3],
    a: Number<V>,
    f: &Factor<V>,
) -> ([V; 3], [V; 3]) {
    let rows = [[f.r[0], f.r[1], f.r[2]], [f.s2, f.r[0], f.r[1]], [f.s1, f.s2, f.r[0]]];
    for k in 0..3 {
        for i in 0..3 {
            low[i] = low[i].add_low_product(a[k], rows[k][i]);
            high[i] = high[i].add_high_product(a[k], rows[k][i]);
        }
    }
    (low, high)
}

/// Carries once around. The result is below 2^130 + 2^16, not reduced to below p.
#[inline(always)]
fn reduce<V: Vector>((low, high): ([V; 3], [V; 3])) -> Number<V> {
    let t0 = low[0].add64(high[2].left::<12>()).add64(high[2].left::<10>());
    let t1 = low[1].add64(high[0].left::<8>()).add64(t0.right::<44>());
    let t2 = low[2].add64(high[1].left::<8>()).add64(t1.right::<44>());
    let carry = t2.right::<42>();
    let five = carry.add64(carry.left::<2>());
    [t0.and(splat(MASK44)).add64(five), t1.and(splat(MASK44)), t2.and(splat(MASK42))]
}

#[inline(always)]
fn multiply<V: Vector>(a: Number<V>, f: &Factor<V>) -> Number<V> {
    reduce(multiply_add([splat(0); 3], [splat(0); 3], a, f))
}

#[inline(always)]
fn blend<V: Vector>(mask: u8, a: Number<V>, b: Number<V>) -> Number<V> {
    [V::blend(mask, a[0], b[0]), V::blend(mask, a[1], b[1]), V::blend(mask, a[2], b[2])]
}

#[inline(always)]
fn first<V: Vector>(a: Number<V>) -> Number<V> {
    [a[0].first(), a[1].first(), a[2].first()]
}

/// Adds eight blocks, four of each vector, in the order `ORDER`. `bit` has `BIT` for those that exist.
#[inline(always)]
fn add_blocks<V: Vector>(sum: Number<V>, a: V, b: V, bit: V) -> Number<V> {
    let (low, high) = (a.even(b), a.odd(b));
    let middle = low.right::<44>().or(high.left::<20>()).and(splat(MASK44));
    [sum[0].add64(low.and(splat(MASK44))), sum[1].add64(middle), sum[2].add64(high.right::<24>().or(bit))]
}

/// Returns r^16 to r^9 and r^8 to r^1, for the lanes of the first and of the second eight blocks in `ORDER`.
#[inline(always)]
fn powers<V: Vector>(r0: u64, r1: u64) -> (Number<V>, Number<V>) {
    let r = [splat(r0 & MASK44), splat((r0 >> 44 | r1 << 20) & MASK44), splat(r1 >> 24)];
    let r2 = multiply(r, &factor(r));
    // 2, 2, 1, 1, 2, 2, 1, 1
    let to2 = blend(0b0011_0011, r, r2);
    // 4, 4, 3, 3, 2, 2, 1, 1
    let to4 = blend(0b0000_1111, to2, multiply(to2, &factor(r2)));
    // 8, 4, 7, 3, 6, 2, 5, 1
    let to8 = blend(0b0101_0101, to4, multiply(to4, &factor(first(to4))));
    (multiply(to8, &factor(first(to8))), to8)
}

#[inline(always)]
fn tag_of_long<V: Vector>(key: &[u64; 8], data: &[u8]) -> u128 {
    let (r0, r1) = clamp(key);
    let (to16, to8) = powers::<V>(r0, r1);
    let r16 = factor(first(to16));

    let blocks = data.len().div_ceil(16) + 1;
    let steps = blocks.div_ceil(16);
    // The message is continued to the left, to whole steps, with coefficients that are zero.
    let padding = 16 * steps - blocks;
    let mut bits = [[0_u64; 8]; 2];
    for (half, bits) in bits.iter_mut().enumerate() {
        for (bit, block) in bits.iter_mut().zip(ORDER) {
            *bit = u64::from(block + 8 * half >= padding) * BIT;
        }
    }
    let mut bits = [V::doubles(bits[0]), V::doubles(bits[1])];
    let lengths = V::doubles([0, 0, 0, 0, 0, 0, 0, data.len() as u64]);
    let (mut a, mut b) = ([splat(0); 3], [splat(0); 3]);
    for step in 0..steps {
        let at = 256 * step as isize - 16 * padding as isize;
        let v0 = V::load(data, at);
        let v1 = V::load(data, at + 64);
        let v2 = V::load(data, at + 128);
        let mut v3 = V::load(data, at + 192);
        let is_last = step + 1 == steps;
        if is_last {
            v3 = v3.or(lengths);
        }
        a = add_blocks(a, v0, v1, bits[0]);
        b = add_blocks(b, v2, v3, bits[1]);
        if !is_last {
            a = multiply(a, &r16);
            b = multiply(b, &r16);
        }
        bits = [splat(BIT); 2];
    }
    let (low, high) = multiply_add([splat(0); 3], [splat(0); 3], a, &factor(to16));
    let sums = reduce(multiply_add(low, high, b, &factor(to8)));

    let mut h = [0_u64; 3];
    for (h, lanes) in h.iter_mut().zip(sums) {
        for lane in lanes.to_doubles() {
            *h += lane;
        }
    }
    let [mut h0, mut h1, mut h2] = h;
    h1 += h0 >> 44;
    h2 += h1 >> 44;
    h0 = (h0 & MASK44) + 5 * (h2 >> 42);
    h1 = (h1 & MASK44) + (h0 >> 44);
    // At most 2^42, and then the limbs below are small: the number is below 2p.
    h2 = (h2 & MASK42) + (h1 >> 44);
    h0 &= MASK44;
    h1 &= MASK44;
    finish([h0 | h1 << 44, h1 >> 20 | h2 << 24, h2 >> 40], key)
}

#[inline(always)]
fn join(low: u64, high: u64) -> u128 {
    u128::from(low) | u128::from(high) << 64
}

/// Subtracts p from `h`, which is below 2p, if it is not below p, and adds s modulo 2^128.
#[inline(always)]
fn finish(h: [u64; 3], key: &[u64; 8]) -> u128 {
    let number = join(h[0], h[1]);
    // h - p = h + 5 - 2^130: bit 130 of h + 5 says whether h is at least p.
    let (less, carry) = number.overflowing_add(5);
    let is_above = (h[2] + u64::from(carry)) >> 2;
    // `black_box` keeps the compiler from a branch.
    let mask = 0_u128.wrapping_sub(u128::from(black_box(is_above)));
    ((number & !mask) | (less & mask)).wrapping_add(join(key[2], key[3]))
}

/// Block by block. The number is h0 + h1 2^64 + h2 2^128, where h2 stays below 2^3. As r1 is a multiple of 4
/// and 2^130 counts 5, r1 2^128 is r1 / 4 · 5 = r1 + r1 / 4 = s1.
///
/// r0, r1 < 2^60 and s1 < 2^60.4, so that h0 r0 + h1 s1 < 2^125.2; h0 r1 + h1 r0 + h2 s1 and the carry are
/// below 2^125.1; and h2 r0 and the carry are below 2^63.2, of which five quarters are below 2^63.6.
#[inline(always)]
fn tag_of_short(key: &[u64; 8], data: &[u8]) -> u128 {
    let (r0, r1) = clamp(key);
    let s1 = r1 + (r1 >> 2);
    let mut h = [0_u64; 3];
    let multiply = |a: u64, b: u64| u128::from(a) * u128::from(b);
    let mut add = |block: u128| {
        let (low, carry) = join(h[0], h[1]).overflowing_add(block);
        let h2 = h[2] + 1 + u64::from(carry);
        let (h0, h1) = (low as u64, (low >> 64) as u64);
        let d0 = multiply(h0, r0) + multiply(h1, s1);
        let d1 = multiply(h0, r1) + multiply(h1, r0) + u128::from(h2 * s1) + (d0 >> 64);
        let d2 = h2 * r0 + (d1 >> 64) as u64;
        // d2 / 4 stands at 2^130, and counts 5 times.
        let five = u128::from((d2 >> 2) + (d2 & !3));
        let (low, carry) = join(d0 as u64, d1 as u64).overflowing_add(five);
        h = [low as u64, (low >> 64) as u64, (d2 & 3) + u64::from(carry)];
    };
    let (blocks, rest) = data.as_chunks::<16>();
    for block in blocks {
        add(u128::from_le_bytes(*block));
    }
    if !rest.is_empty() {
        let mut block = [0; 16];
        block[..rest.len()].copy_from_slice(rest);
        add(u128::from_le_bytes(block));
    }
    add(join(0, data.len() as u64));
    finish(h, key)
}
