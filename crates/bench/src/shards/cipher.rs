//! How much more several threads of this machine encrypt than one: two processors may be two threads of one
//! core.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use nix::time::{ClockId, clock_gettime};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use super::site::PACKET;
use crate::report::{CPU, GBIT, Sample};

const SPAN: Duration = Duration::from_millis(300);
/// Packets between two looks at the clock.
const PACKETS: u64 = 256;

/// Returns what `threads` threads seal at once, in packets as those of the other measurements.
pub(super) fn speed(threads: usize) -> Result<Sample> {
    let barrier = &Barrier::new(threads);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(move || seal(barrier))).collect();
        let (mut speed, mut cost) = (0.0, 0.0);
        for thread in all {
            let [gbit_per_second, cpu_seconds_per_gbit] =
                thread.join().map_err(|_| anyhow!("a thread panicked"))??;
            speed += gbit_per_second;
            cost += cpu_seconds_per_gbit / threads as f64;
        }
        Ok(Sample::default().with(GBIT, speed).with(CPU, cost))
    })
}

fn cpu_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// Returns the Gbit/s of a thread, and its CPU seconds for each Gbit.
fn seal(barrier: &Barrier) -> Result<[f64; 2]> {
    let refused = |_| anyhow!("the cipher refuses to seal");
    let key = UnboundKey::new(&CHACHA20_POLY1305, &[7; 32]).map(LessSafeKey::new);
    let mut packet = vec![0; PACKET];
    barrier.wait();
    let key = key.map_err(refused)?;
    let (start, cpu, mut number) = (Instant::now(), cpu_time()?, 0_u64);
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
    let (time, cpu) = (start.elapsed(), cpu_time()?.saturating_sub(cpu));
    let gbit = (number * PACKET as u64) as f64 * 8e-9;
    Ok([gbit / time.as_secs_f64(), cpu.as_secs_f64() / gbit])
}
