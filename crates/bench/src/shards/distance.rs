//! How far two processors are from each other. A hypervisor may move them apart while a benchmark runs, to
//! cores with different caches, and what one packet thread hands over to another then takes longer.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The calling thread.
const THIS_THREAD: Pid = Pid::from_raw(0);
const SPAN: Duration = Duration::from_millis(20);
/// Round trips between two looks at the clock.
const ROUND_TRIPS: u32 = 256;

/// Returns how long a cache line takes from one processor to another and back, in nanoseconds. The first two
/// processors that this process may use are measured; `None` if there is only one.
pub(super) fn round_trip_ns() -> Result<Option<f64>> {
    let allowed = sched_getaffinity(THIS_THREAD)?;
    let mut numbers = (0..CpuSet::count()).filter(|number| allowed.is_set(*number).unwrap_or_default());
    let Some((here, there)) = numbers.next().zip(numbers.next()) else { return Ok(None) };
    // 0 is a question, and 1 its answer.
    let (line, is_over) = (&AtomicU32::new(1), &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let answers = scope.spawn(move || {
            pin(there)?;
            while !is_over.load(Ordering::Relaxed) {
                let _ = line.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
                spin_loop();
            }
            anyhow::Ok(())
        });
        let asks = scope.spawn(move || {
            let pinned = pin(here);
            let (start, mut round_trips) = (Instant::now(), 0);
            while pinned.is_ok() && start.elapsed() < SPAN && !answers.is_finished() {
                for _ in 0..ROUND_TRIPS {
                    line.store(0, Ordering::Release);
                    while line.load(Ordering::Acquire) == 0 && !answers.is_finished() {
                        spin_loop();
                    }
                }
                round_trips += ROUND_TRIPS;
            }
            let time = start.elapsed();
            is_over.store(true, Ordering::Relaxed);
            answers.join().map_err(|_| anyhow!("a thread panicked"))??;
            pinned?;
            Ok(Some(time.as_secs_f64() * 1e9 / f64::from(round_trips.max(1))))
        });
        asks.join().map_err(|_| anyhow!("a thread panicked"))?
    })
}

fn pin(processor: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(processor)?;
    Ok(sched_setaffinity(THIS_THREAD, &only)?)
}
