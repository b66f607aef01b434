//! ChaCha20-Poly1305 (RFC 8439) of one WireGuard data message: no associated data, a nonce of 96 bits. No
//! allocation, no I/O, no state between messages.
//!
//! The algorithm is written once, over vectors of 512 bits (`vector::Vector`):
//!
//! 1. `chacha20` makes the key stream. Its first block holds the key of Poly1305 (section 2.6 of the RFC).
//! 2. `poly1305` authenticates the ciphertext and its length (section 2.5 and 2.8).
//! 3. `message` puts them together: sealing encrypts, then authenticates. Opening authenticates, and only
//!    then decrypts: where the tag is wrong, no byte is written.
//!
//! Two implementations run it: `avx512` with the instructions of Ice Lake, Zen 4 and later processors, and
//! `portable`, its twin in plain Rust. The twin is for tests, Miri and fuzzing on every machine: it shows
//! what the algorithm computes, and is slow. Processors without these instructions are served better by a
//! library with assembly for them ([`Cipher::AwsLc`]).
//!
//! No branch, index or address depends on a key, on plaintext, or on what they are computed into. They depend
//! on lengths, and on whether a tag is right, which a peer learns anyway. docs/decisions/063 says how that
//! was checked.

#![deny(unsafe_code)]

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx512;
mod chacha20;
mod choice;
mod message;
mod poly1305;
mod portable;
#[cfg(test)]
mod tests;
mod vector;

use std::fmt;

use zeroize::ZeroizeOnDrop;

pub use choice::{Cipher, Missing, choose, chosen};

#[cfg(not(target_arch = "x86_64"))]
use unsupported as avx512;

/// Bytes of a key.
pub const KEY_LEN: usize = 32;
/// Bytes of a nonce.
pub const NONCE_LEN: usize = 12;
/// Bytes of a tag.
pub const TAG_LEN: usize = 16;
/// The longest message. A datagram is shorter; the RFC would allow 2^38 - 64 bytes, where the block counter
/// ends.
pub const MAX_LEN: usize = u16::MAX as usize;

/// The tag is wrong, or the message is longer than [`MAX_LEN`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the message is not authentic, or too long")
    }
}

impl std::error::Error for Error {}

#[derive(Clone, Copy)]
enum Kernel {
    Portable,
    Avx512(avx512::Avx512),
}

/// A key, and the implementation that uses it. It is wiped when it is dropped.
#[derive(ZeroizeOnDrop)]
pub struct Key {
    words: [u32; 8],
    #[zeroize(skip)]
    kernel: Kernel,
}

impl Key {
    /// A key for the implementation in plain Rust.
    pub fn portable(key: &[u8; KEY_LEN]) -> Self {
        Self { words: words(key), kernel: Kernel::Portable }
    }

    /// A key for the implementation with AVX-512, or `None` where the processor or the system lacks it.
    pub fn avx512(key: &[u8; KEY_LEN]) -> Option<Self> {
        avx512::Avx512::detect().map(|proof| Self { words: words(key), kernel: Kernel::Avx512(proof) })
    }

    /// Returns the bytes of the key. The caller wipes them.
    pub fn bytes(&self) -> [u8; KEY_LEN] {
        let mut bytes = [0; KEY_LEN];
        for (bytes, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(&self.words) {
            *bytes = word.to_le_bytes();
        }
        bytes
    }

    /// Encrypts `data`, which is at most [`MAX_LEN`] long, and returns its tag.
    #[inline]
    pub fn seal(&self, nonce: &[u8; NONCE_LEN], data: &mut [u8]) -> Result<[u8; TAG_LEN], Error> {
        if data.len() > MAX_LEN {
            return Err(Error);
        }
        let tag = match self.kernel {
            Kernel::Avx512(proof) => proof.seal(&self.words, &words(nonce), data),
            Kernel::Portable => portable::seal(&self.words, &words(nonce), data),
        };
        Ok(tag.to_le_bytes())
    }

    /// Decrypts `data` if `tag` is right, and writes nothing if not.
    #[inline]
    pub fn open(&self, nonce: &[u8; NONCE_LEN], data: &mut [u8], tag: &[u8; TAG_LEN]) -> Result<(), Error> {
        if data.len() > MAX_LEN {
            return Err(Error);
        }
        let tag = u128::from_le_bytes(*tag);
        let is_right = match self.kernel {
            Kernel::Avx512(proof) => proof.open(&self.words, &words(nonce), data, tag),
            Kernel::Portable => portable::open(&self.words, &words(nonce), data, tag),
        };
        if is_right { Ok(()) } else { Err(Error) }
    }
}

/// Without its bytes.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// Little-endian words (RFC 8439, section 2.3). `BYTES` is four times `WORDS`.
#[inline(always)]
fn words<const BYTES: usize, const WORDS: usize>(bytes: &[u8; BYTES]) -> [u32; WORDS] {
    const { assert!(BYTES == 4 * WORDS, "a word has four bytes") };
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

/// Processors of other kinds.
#[cfg(not(target_arch = "x86_64"))]
mod unsupported {
    /// Has no values.
    #[derive(Clone, Copy)]
    pub(crate) enum Avx512 {}

    impl Avx512 {
        pub(crate) fn detect() -> Option<Self> {
            None
        }

        pub(crate) fn seal(self, _: &[u32; 8], _: &[u32; 3], _: &mut [u8]) -> u128 {
            match self {}
        }

        pub(crate) fn open(self, _: &[u32; 8], _: &[u32; 3], _: &mut [u8], _: u128) -> bool {
            match self {}
        }
    }
}
