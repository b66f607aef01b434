//! How much more several threads of this machine encrypt than one: two processors may be two threads of one
//! core.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use nix::time::{ClockId, clock_gettime};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use super::site::PACKET;

const SPAN: Duration = Duration::from_millis(300);
/// Packets between two looks at the clock.
const PACKETS: u64 = 256;

/// What threads seal.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Speed {
    pub(super) gbit_per_second: f64,
    /// For each second of CPU time, on average.
    pub(super) gbit_per_cpu_second: f64,
}

/// Returns what `threads` threads seal with ring at once, in packets as those of the other measurements.
pub(super) fn speed(threads: usize) -> Result<Speed> {
    let barrier = &Barrier::new(threads);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(move || seal(barrier))).collect();
        let mut sum = Speed::default();
        for thread in all {
            let speed = thread.join().map_err(|_| anyhow!("a thread panicked"))??;
            sum.gbit_per_second += speed.gbit_per_second;
            sum.gbit_per_cpu_second += speed.gbit_per_cpu_second / threads as f64;
        }
        Ok(sum)
    })
}

fn cpu_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

fn seal(barrier: &Barrier) -> Result<Speed> {
    let refused = |_| anyhow!("ring refuses to seal");
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
    Ok(Speed { gbit_per_second: gbit / time.as_secs_f64(), gbit_per_cpu_second: gbit / cpu.as_secs_f64() })
}
