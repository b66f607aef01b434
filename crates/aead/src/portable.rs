//! The vectors in plain Rust, for any processor.

use std::array::from_fn;

use crate::message;
use crate::vector::Vector;

pub(crate) fn seal(key: &[u32; 8], nonce: &[u32; 3], data: &mut [u8]) -> u128 {
    message::seal::<Plain>(key, nonce, data)
}

pub(crate) fn open(key: &[u32; 8], nonce: &[u32; 3], data: &mut [u8], tag: u128) -> bool {
    message::open::<Plain>(key, nonce, data, tag)
}

/// Poly1305 by itself.
#[cfg(test)]
pub(crate) fn tag(key: &[u64; 8], data: &[u8]) -> u128 {
    crate::poly1305::tag(Plain(*key), data)
}

#[derive(Clone, Copy)]
struct Plain([u64; 8]);

const MASK52: u64 = (1 << 52) - 1;

impl Plain {
    fn to_words(self) -> [u32; 16] {
        from_fn(|i| (self.0[i / 2] >> (32 * (i % 2))) as u32)
    }

    fn turned(self, places: usize) -> Self {
        let words = self.to_words();
        Self::words(from_fn(|i| words[i / 4 * 4 + (i + places) % 4]))
    }

    fn zip(self, other: Self, operation: impl Fn(u64, u64) -> u64) -> Self {
        Self(from_fn(|i| operation(self.0[i], other.0[i])))
    }

    fn product(a: u64, b: u64) -> u128 {
        u128::from(a & MASK52) * u128::from(b & MASK52)
    }
}

impl Vector for Plain {
    fn words(words: [u32; 16]) -> Self {
        Self(from_fn(|i| u64::from(words[2 * i]) | u64::from(words[2 * i + 1]) << 32))
    }

    fn doubles(doubles: [u64; 8]) -> Self {
        Self(doubles)
    }

    fn to_doubles(self) -> [u64; 8] {
        self.0
    }

    fn add32(self, other: Self) -> Self {
        let (a, b) = (self.to_words(), other.to_words());
        Self::words(from_fn(|i| a[i].wrapping_add(b[i])))
    }

    fn xor(self, other: Self) -> Self {
        self.zip(other, |a, b| a ^ b)
    }

    fn rotate<const BITS: i32>(self) -> Self {
        Self::words(self.to_words().map(|word| word.rotate_left(BITS as u32)))
    }

    fn turn1(self) -> Self {
        self.turned(1)
    }

    fn turn2(self) -> Self {
        self.turned(2)
    }

    fn turn3(self) -> Self {
        self.turned(3)
    }

    fn blocks(rows: [Self; 4]) -> [Self; 4] {
        from_fn(|block| Self(from_fn(|i| rows[i / 2].0[2 * block + i % 2])))
    }

    fn xor_into(self, bytes: &mut [u8]) {
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte ^= (self.0[i / 8] >> (8 * (i % 8))) as u8;
        }
    }

    // In a build with checks the sums that do not wrap show the bounds that poly1305.rs derives.
    fn add64(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    fn and(self, other: Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    fn or(self, other: Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    fn left<const BITS: u32>(self) -> Self {
        Self(self.0.map(|double| double << BITS))
    }

    fn right<const BITS: u32>(self) -> Self {
        Self(self.0.map(|double| double >> BITS))
    }

    fn add_low_product(self, a: Self, b: Self) -> Self {
        debug_assert!(a.0.iter().chain(&b.0).all(|factor| *factor <= MASK52), "a factor has 52 bits");
        self.add64(a.zip(b, |a, b| Self::product(a, b) as u64 & MASK52))
    }

    fn add_high_product(self, a: Self, b: Self) -> Self {
        self.add64(a.zip(b, |a, b| (Self::product(a, b) >> 52) as u64))
    }

    fn even(self, other: Self) -> Self {
        Self(from_fn(|i| if i % 2 == 0 { self.0[i] } else { other.0[i - 1] }))
    }

    fn odd(self, other: Self) -> Self {
        Self(from_fn(|i| if i % 2 == 0 { self.0[i + 1] } else { other.0[i] }))
    }

    fn blend(mask: u8, a: Self, b: Self) -> Self {
        Self(from_fn(|i| if mask >> i & 1 == 0 { a.0[i] } else { b.0[i] }))
    }

    fn first(self) -> Self {
        Self([self.0[0]; 8])
    }

    fn load(data: &[u8], at: isize) -> Self {
        // Only lengths decide what lies outside.
        let byte = |i: usize| {
            let index = usize::try_from(at + i as isize).ok();
            index.and_then(|index| data.get(index)).map_or(0, |byte| u64::from(*byte))
        };
        Self(from_fn(|i| (0..8).map(|k| byte(8 * i + k) << (8 * k)).sum()))
    }
}
