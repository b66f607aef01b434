//! ChaCha20-Poly1305 alone, in ring's implementation for this processor.

use std::time::Instant;

use anyhow::{Result, anyhow};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use serde::Serialize;

use super::times;
use crate::stats::Summary;

/// Length of the packet that is sealed and opened.
const PACKET: usize = 1420;
/// Packets between two clock reads, and the number of such rounds.
const PACKETS: u64 = 512;
const ROUNDS: u64 = 41;

/// Nanoseconds for one packet of 1420 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct CipherCosts {
    pub(crate) seal: Summary,
    pub(crate) open: Summary,
}

impl CipherCosts {
    /// Returns the CPU seconds for sealing and opening the packets of one Gbit, with `payload` bytes of it in
    /// each.
    pub(super) fn seconds_per_gbit(&self, payload: usize) -> f64 {
        // Nanoseconds per bit equal seconds per Gbit.
        (self.seal.median + self.open.median) / (8.0 * payload as f64)
    }
}

/// Measures sealing and opening.
pub(super) fn measure() -> Result<CipherCosts> {
    let refused = |_| anyhow!("ring refuses to seal or open");
    let key = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &[7; 32]).map_err(refused)?);
    let nonce = |number: u64| {
        let mut bytes = [0; 12];
        bytes[4..].copy_from_slice(&number.to_le_bytes());
        Nonce::assume_unique_for_key(bytes)
    };
    let mut packet = vec![0; PACKET + CHACHA20_POLY1305.tag_len()];
    let (mut seal, mut open) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let numbers = round * PACKETS..(round + 1) * PACKETS;
        let start = Instant::now();
        for number in numbers.clone() {
            let tag = key
                .seal_in_place_separate_tag(nonce(number), Aad::empty(), &mut packet[..PACKET])
                .map_err(refused)?;
            packet[PACKET..].copy_from_slice(tag.as_ref());
        }
        seal.push(start.elapsed().as_nanos() as f64 / PACKETS as f64);
        // Opening needs an authentic message: seal one for each, and subtract the time of sealing.
        let start = Instant::now();
        for number in numbers {
            let tag = key
                .seal_in_place_separate_tag(nonce(number), Aad::empty(), &mut packet[..PACKET])
                .map_err(refused)?;
            packet[PACKET..].copy_from_slice(tag.as_ref());
            key.open_in_place(nonce(number), Aad::empty(), &mut packet).map_err(refused)?;
        }
        let both = start.elapsed().as_nanos() as f64 / PACKETS as f64;
        open.push(both - seal.last().copied().unwrap_or_default());
    }
    let summary = |values: Vec<f64>| times::middle(&values).ok_or_else(|| anyhow!("nothing was measured"));
    Ok(CipherCosts { seal: summary(seal)?, open: summary(open)? })
}
