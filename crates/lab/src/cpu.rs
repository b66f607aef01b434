//! CPU time by thread.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

/// Returns the IDs of the threads that this process has now.
pub fn threads() -> io::Result<BTreeSet<i32>> {
    let ids = std::fs::read_dir("/proc/self/task")?;
    Ok(ids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Returns the CPU time that the whole process has used so far, ended threads included.
pub fn process_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or_default()
}

/// Returns the CPU time that a thread of this process has used so far, in user and kernel mode; `None` if it
/// has ended.
pub fn thread_time(thread: i32) -> Option<Duration> {
    // The ID of a thread's CPU clock, composed as pthread_getcpuclockid(3) does: the inverted thread ID, a
    // bit for "one thread", and the clock type that the scheduler keeps.
    const PER_THREAD: i32 = 4;
    const SCHEDULED: i32 = 2;
    clock(!thread << 3 | PER_THREAD | SCHEDULED)
}

fn clock(id: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which outlives the call.
    let result = unsafe { libc::clock_gettime(id, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).ok()?;
    (result == 0).then(|| Duration::from_secs(seconds) + Duration::from_nanos(time.tv_nsec.unsigned_abs()))
}

/// Tracks the CPU time of a set of threads. A thread that has ended keeps the value of the last
/// [`Self::sample`].
#[derive(Clone, Debug, Default)]
pub struct Meter(BTreeMap<i32, Duration>);

impl Meter {
    /// Starts to track these threads and takes the first sample.
    pub fn new(threads: impl IntoIterator<Item = i32>) -> Self {
        let mut meter = Self(threads.into_iter().map(|thread| (thread, Duration::ZERO)).collect());
        meter.sample();
        meter
    }

    /// Samples the CPU time of every thread that still runs.
    pub fn sample(&mut self) {
        for (thread, time) in &mut self.0 {
            if let Some(now) = thread_time(*thread) {
                *time = now;
            }
        }
    }

    /// Returns the threads' total CPU time at the last sample.
    pub fn total(&self) -> Duration {
        self.0.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_is_seen_and_keeps_its_time_after_its_end() {
        let (started, wait) = std::sync::mpsc::channel();
        let (end, ending) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let this = nix::unistd::gettid().as_raw();
            while thread_time(this).unwrap() < Duration::from_millis(10) {
                std::hint::spin_loop();
            }
            started.send(this).unwrap();
            let _ = ending.recv();
        });
        let id = wait.recv().unwrap();
        assert!(threads().unwrap().contains(&id));
        let mut meter = Meter::new([id]);
        drop(end);
        thread.join().unwrap();
        meter.sample();
        assert!(meter.total() >= Duration::from_millis(5), "{:?}", meter.total());
        assert!(process_time() >= meter.total());
    }
}
