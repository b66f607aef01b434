//! The vectors with AVX-512 and its 52-bit multiplication, IFMA.

use std::arch::x86_64::*;

use crate::message;
use crate::vector::Vector;

/// Shows that the processor has the instructions, and that the system saves the registers (XCR0).
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512ifma")
            && is_x86_feature_detected!("bmi2");
        has.then_some(Self(()))
    }

    #[inline]
    pub(crate) fn seal(self, key: &[u32; 8], nonce: &[u32; 3], data: &mut [u8]) -> u128 {
        // SAFETY: an `Avx512` exists only where `detect` has found the features.
        unsafe { seal(key, nonce, data) }
    }

    #[inline]
    pub(crate) fn open(self, key: &[u32; 8], nonce: &[u32; 3], data: &mut [u8], tag: u128) -> bool {
        // SAFETY: an `Avx512` exists only where `detect` has found the features.
        unsafe { open(key, nonce, data, tag) }
    }

    /// Poly1305 by itself.
    #[cfg(test)]
    pub(crate) fn tag(self, key: &[u64; 8], data: &[u8]) -> u128 {
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512ifma,bmi2")]
        fn tag(key: &[u64; 8], data: &[u8]) -> u128 {
            crate::poly1305::tag(Wide::doubles(*key), data)
        }
        // SAFETY: an `Avx512` exists only where `detect` has found the features.
        unsafe { tag(key, data) }
    }
}

#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512ifma,bmi2")]
fn seal(key: &[u32; 8], nonce: &[u32; 3], data: &mut [u8]) -> u128 {
    message::seal::<Wide>(key, nonce, data)
}

#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512ifma,bmi2")]
fn open(key: &[u32; 8], nonce: &[u32; 3], data: &mut [u8], tag: u128) -> bool {
    message::open::<Wide>(key, nonce, data, tag)
}

/// Used by the two functions above alone, which have the target features.
#[derive(Clone, Copy)]
struct Wide(__m512i);

/// A vector from instructions that touch no memory.
macro_rules! wide {
    ($value:expr) => {
        // SAFETY: only functions with the target features use `Wide`.
        Wide(unsafe { $value })
    };
}

impl Vector for Wide {
    #[inline(always)]
    fn words(words: [u32; 16]) -> Self {
        // SAFETY: as in `wide`; the array has 64 bytes.
        Self(unsafe { _mm512_loadu_si512(words.as_ptr().cast()) })
    }

    #[inline(always)]
    fn doubles(doubles: [u64; 8]) -> Self {
        // SAFETY: as in `wide`; the array has 64 bytes.
        Self(unsafe { _mm512_loadu_si512(doubles.as_ptr().cast()) })
    }

    #[inline(always)]
    fn to_doubles(self) -> [u64; 8] {
        let mut doubles = [0; 8];
        // SAFETY: as in `wide`; the array has 64 bytes.
        unsafe { _mm512_storeu_si512(doubles.as_mut_ptr().cast(), self.0) };
        doubles
    }

    #[inline(always)]
    fn add32(self, other: Self) -> Self {
        wide!(_mm512_add_epi32(self.0, other.0))
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        wide!(_mm512_xor_si512(self.0, other.0))
    }

    #[inline(always)]
    fn rotate<const BITS: i32>(self) -> Self {
        wide!(_mm512_rol_epi32::<BITS>(self.0))
    }

    #[inline(always)]
    fn turn1(self) -> Self {
        wide!(_mm512_shuffle_epi32::<0b00_11_10_01>(self.0))
    }

    #[inline(always)]
    fn turn2(self) -> Self {
        wide!(_mm512_shuffle_epi32::<0b01_00_11_10>(self.0))
    }

    #[inline(always)]
    fn turn3(self) -> Self {
        wide!(_mm512_shuffle_epi32::<0b10_01_00_11>(self.0))
    }

    #[inline(always)]
    fn blocks([a, b, c, d]: [Self; 4]) -> [Self; 4] {
        // Pieces 0 and 1 of two rows, and pieces 2 and 3.
        let ab01 = wide!(_mm512_shuffle_i32x4::<0b01_00_01_00>(a.0, b.0));
        let cd01 = wide!(_mm512_shuffle_i32x4::<0b01_00_01_00>(c.0, d.0));
        let ab23 = wide!(_mm512_shuffle_i32x4::<0b11_10_11_10>(a.0, b.0));
        let cd23 = wide!(_mm512_shuffle_i32x4::<0b11_10_11_10>(c.0, d.0));
        [
            wide!(_mm512_shuffle_i32x4::<0b10_00_10_00>(ab01.0, cd01.0)),
            wide!(_mm512_shuffle_i32x4::<0b11_01_11_01>(ab01.0, cd01.0)),
            wide!(_mm512_shuffle_i32x4::<0b10_00_10_00>(ab23.0, cd23.0)),
            wide!(_mm512_shuffle_i32x4::<0b11_01_11_01>(ab23.0, cd23.0)),
        ]
    }

    #[inline(always)]
    fn xor_into(self, bytes: &mut [u8]) {
        let pointer = bytes.as_mut_ptr();
        if bytes.len() >= 64 {
            // SAFETY: as in `wide`; 64 bytes are there.
            unsafe {
                let mixed = _mm512_xor_si512(_mm512_loadu_si512(pointer.cast()), self.0);
                _mm512_storeu_si512(pointer.cast(), mixed);
            }
        } else {
            let mask = first_bits(bytes.len() as isize);
            // SAFETY: as in `wide`; the mask selects the bytes that are there, and others are not accessed.
            unsafe {
                let mixed = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, pointer.cast()), self.0);
                _mm512_mask_storeu_epi8(pointer.cast(), mask, mixed);
            }
        }
    }

    #[inline(always)]
    fn add64(self, other: Self) -> Self {
        wide!(_mm512_add_epi64(self.0, other.0))
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        wide!(_mm512_and_si512(self.0, other.0))
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        wide!(_mm512_or_si512(self.0, other.0))
    }

    #[inline(always)]
    fn left<const BITS: u32>(self) -> Self {
        wide!(_mm512_slli_epi64::<BITS>(self.0))
    }

    #[inline(always)]
    fn right<const BITS: u32>(self) -> Self {
        wide!(_mm512_srli_epi64::<BITS>(self.0))
    }

    #[inline(always)]
    fn add_low_product(self, a: Self, b: Self) -> Self {
        wide!(_mm512_madd52lo_epu64(self.0, a.0, b.0))
    }

    #[inline(always)]
    fn add_high_product(self, a: Self, b: Self) -> Self {
        wide!(_mm512_madd52hi_epu64(self.0, a.0, b.0))
    }

    #[inline(always)]
    fn even(self, other: Self) -> Self {
        wide!(_mm512_unpacklo_epi64(self.0, other.0))
    }

    #[inline(always)]
    fn odd(self, other: Self) -> Self {
        wide!(_mm512_unpackhi_epi64(self.0, other.0))
    }

    #[inline(always)]
    fn blend(mask: u8, a: Self, b: Self) -> Self {
        wide!(_mm512_mask_blend_epi64(mask, a.0, b.0))
    }

    #[inline(always)]
    fn first(self) -> Self {
        wide!(_mm512_broadcastq_epi64(_mm512_castsi512_si128(self.0)))
    }

    #[inline(always)]
    fn load(data: &[u8], at: isize) -> Self {
        // Not dereferenced where it lies outside: `wrapping_offset` allows it to.
        let pointer = data.as_ptr().wrapping_offset(at);
        let len = data.len() as isize;
        if at >= 0 && at + 64 <= len {
            // SAFETY: as in `wide`; 64 bytes are there.
            return Self(unsafe { _mm512_loadu_si512(pointer.cast()) });
        }
        let mask = first_bits(len - at) & !first_bits(-at);
        // SAFETY: as in `wide`; the mask selects the bytes that are there, and others are not accessed.
        Self(unsafe { _mm512_maskz_loadu_epi8(mask, pointer.cast()) })
    }
}

/// The lowest `bits` bits: none if it is negative, all if it is 64 or more.
#[inline(always)]
fn first_bits(bits: isize) -> u64 {
    match bits {
        ..=0 => 0,
        1..=63 => (1 << bits) - 1,
        _ => u64::MAX,
    }
}
