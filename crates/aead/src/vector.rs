//! What the algorithm needs of a vector of 512 bits.

/// 512 bits: 16 words of 32 bits, or 8 of 64 bits ("doubles"), the first in the lowest bits and, in memory,
/// in the lowest bytes.
///
/// No vector may go through a closure, and so not through `map` or `array::from_fn`: a closure lacks the
/// target features of the function around it, so that the instructions would become calls. In a probe
/// on Zen 5 sealing 1,420 bytes took 449 ns with closures and 290 ns without.
pub(crate) trait Vector: Copy {
    fn words(words: [u32; 16]) -> Self;
    fn doubles(doubles: [u64; 8]) -> Self;
    fn to_doubles(self) -> [u64; 8];

    /// Sums of words, modulo 2^32.
    fn add32(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    /// Rotates the bits of each word to the left.
    fn rotate<const BITS: i32>(self) -> Self;
    /// Rotates the four words of each 128 bits by one place: the second becomes the first.
    fn turn1(self) -> Self;
    /// By two places.
    fn turn2(self) -> Self;
    /// By three places.
    fn turn3(self) -> Self;
    /// Transposes 4 × 4 pieces of 128 bits: from the four rows of four blocks to the four blocks.
    fn blocks(rows: [Self; 4]) -> [Self; 4];
    /// XORs the first bytes into `bytes`, of which there are at most 64.
    fn xor_into(self, bytes: &mut [u8]);

    /// Sums of doubles, modulo 2^64.
    fn add64(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    /// Shifts each double.
    fn left<const BITS: u32>(self) -> Self;
    fn right<const BITS: u32>(self) -> Self;
    /// Multiplies the low 52 bits of each double of `a` and `b`, and adds the low 52 bits of the products.
    fn add_low_product(self, a: Self, b: Self) -> Self;
    /// Adds the high 52 bits of the products.
    fn add_high_product(self, a: Self, b: Self) -> Self;
    /// The first doubles of each 128 bits of both, in turn: those of `self` at even places.
    fn even(self, other: Self) -> Self;
    /// The second doubles.
    fn odd(self, other: Self) -> Self;
    /// Double `i` is that of `b` if bit `i` of `mask` is set, and that of `a` if not.
    fn blend(mask: u8, a: Self, b: Self) -> Self;
    /// The first double in all places.
    fn first(self) -> Self;
    /// The 64 bytes of `data` from `at`, which may be negative. Bytes outside `data` are zero.
    fn load(data: &[u8], at: isize) -> Self;
}

/// One double in all places.
#[inline(always)]
pub(crate) fn splat<V: Vector>(double: u64) -> V {
    V::doubles([double; 8])
}
