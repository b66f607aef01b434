//! Which implementation new keys use. The process chooses once, at its start.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::avx512::Avx512;

/// An implementation of ChaCha20-Poly1305.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cipher {
    /// This crate's, with AVX-512 and IFMA.
    Avx512,
    /// aws-lc's, which has assembly for most processors.
    AwsLc,
    /// This crate's in plain Rust, for tests.
    Portable,
}

/// The processor, or the system, lacks AVX-512 with the extensions F, VL, BW, DQ and IFMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing;

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "this processor has no AVX-512 with VL, BW, DQ and IFMA, or its system does not enable them",
        )
    }
}

impl std::error::Error for Missing {}

impl Cipher {
    const ALL: [Self; 3] = [Self::Avx512, Self::AwsLc, Self::Portable];

    /// Its name in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512ifma",
            Self::AwsLc => "aws-lc",
            Self::Portable => "portable",
        }
    }

    /// The fastest that this machine supports.
    pub fn detect() -> Self {
        if Avx512::detect().is_some() { Self::Avx512 } else { Self::AwsLc }
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The index in `ALL`, or this value before the choice.
static CHOSEN: AtomicU8 = AtomicU8::new(UNSET);
const UNSET: u8 = u8::MAX;

/// Sets the implementation of keys that are made from now on. Others keep theirs.
pub fn choose(cipher: Cipher) -> Result<(), Missing> {
    if cipher == Cipher::Avx512 && Avx512::detect().is_none() {
        return Err(Missing);
    }
    CHOSEN.store(cipher as u8, Ordering::Relaxed);
    Ok(())
}

/// The implementation of new keys: the chosen one, or the fastest.
pub fn chosen() -> Cipher {
    match Cipher::ALL.get(usize::from(CHOSEN.load(Ordering::Relaxed))) {
        Some(cipher) => *cipher,
        None => Cipher::detect(),
    }
}
