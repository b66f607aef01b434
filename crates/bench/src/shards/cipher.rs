//! How much more several threads of this machine encrypt than one: two processors may be two threads of one
//! core.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use super::site::PACKET;

const SPAN: Duration = Duration::from_millis(300);
/// Packets between two looks at the clock.
const PACKETS: u64 = 256;

/// Returns the Gbit/s that `threads` threads seal with ring at once, in packets as those of the other
/// measurements.
pub(super) fn gbit_per_second(threads: usize) -> Result<f64> {
    let barrier = &Barrier::new(threads);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(move || seal(barrier))).collect();
        all.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?).sum()
    })
}

fn seal(barrier: &Barrier) -> Result<f64> {
    let refused = |_| anyhow!("ring refuses to seal");
    let key = UnboundKey::new(&CHACHA20_POLY1305, &[7; 32]).map(LessSafeKey::new);
    let mut packet = vec![0; PACKET];
    barrier.wait();
    let key = key.map_err(refused)?;
    let (start, mut number) = (Instant::now(), 0_u64);
    while start.elapsed() < SPAN {
        for _ in 0..PACKETS {
            let mut nonce = [0; 12];
            nonce[4..].copy_from_slice(&number.to_le_bytes());
            number += 1;
            let nonce = Nonce::assume_unique_for_key(nonce);
            let _tag = std::hint::black_box(
                key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut packet).map_err(refused)?,
            );
        }
    }
    Ok((number * PACKET as u64) as f64 * 8e-9 / start.elapsed().as_secs_f64())
}
