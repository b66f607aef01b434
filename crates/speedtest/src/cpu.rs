//! Processor times of the machine, the daemon and the test.
//!
//! A daemon that may use some of the processors alone (CPUAffinity=, containers) is held by these: others do
//! not count.

use std::ops::RangeInclusive;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::sample::CpuTimes;

/// Microseconds of a clock tick in /proc (proc(5), USER_HZ).
const TICK_US: u64 = 10_000;

/// Reads the processor times; `daemon` is the process of the daemon, if it is another one. Call it on the
/// thread of the test. What cannot be read is 0.
pub(crate) fn read(daemon: Option<u32>) -> CpuTimes {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let status = daemon.map_or("/proc/self/status".to_owned(), |pid| format!("/proc/{pid}/status"));
    let allowed = allowed(&std::fs::read_to_string(status).unwrap_or_default());
    let daemon = daemon.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
    let daemon = daemon.and_then(|stat| process(&stat)).unwrap_or_default();
    let own_us = clock(ClockId::CLOCK_PROCESS_CPUTIME_ID) + daemon;
    // A service sees its own processes alone (ProcSubset=pid): then they are all that is known to work.
    let (machine_busy_us, machine_us) = machine(&stat, &allowed).unwrap_or_else(|| {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        (own_us, clock(ClockId::CLOCK_MONOTONIC) * processors)
    });
    CpuTimes { machine_busy_us, machine_us, own_us, thread_us: clock(ClockId::CLOCK_THREAD_CPUTIME_ID) }
}

fn clock(id: ClockId) -> u64 {
    let time = clock_gettime(id).map(Duration::from).unwrap_or_default();
    u64::try_from(time.as_micros()).unwrap_or_default()
}

/// Returns the time at work and the whole time of these processors, from /proc/stat.
fn machine(stat: &str, allowed: &[RangeInclusive<usize>]) -> Option<(u64, u64)> {
    let (mut busy, mut all) = (0, 0);
    for line in stat.lines() {
        let Some((number, times)) = line.strip_prefix("cpu").and_then(|line| line.split_once(' ')) else {
            continue;
        };
        // The first line is the sum of the others.
        let Ok(number) = number.parse() else { continue };
        if !allowed.iter().any(|range| range.contains(&number)) {
            continue;
        }
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are in the first two.
        let times: Vec<u64> = times.split_whitespace().take(8).filter_map(|time| time.parse().ok()).collect();
        let sum: u64 = times.iter().sum();
        all += sum;
        busy += sum - (times.get(3)? + times.get(4)?);
    }
    (all > 0).then_some((busy * TICK_US, all * TICK_US))
}

/// Returns the processors that a process may use, from /proc/PID/status.
fn allowed(status: &str) -> Vec<RangeInclusive<usize>> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let ranges = list.into_iter().flat_map(|list| list.trim().split(',')).filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.collect()
}

/// Returns the processor time of a process, from /proc/PID/stat.
fn process(stat: &str) -> Option<u64> {
    // The name in parentheses may have spaces; utime and stime are the 12th and 13th word after it.
    let (_, rest) = stat.rsplit_once(')')?;
    let times: Vec<u64> =
        rest.split_whitespace().skip(11).take(2).filter_map(|time| time.parse().ok()).collect();
    Some(times.iter().sum::<u64>() * TICK_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_from_proc() {
        let stat = "cpu  99 99 99 99 99 99 99 99 99 0\ncpu0 10 1 20 500 60 2 3 4 99 0\ncpu1 1 0 0 0 0 0 0 0 0 0\n\
                    cpu9 1 0 0 1 0 0 0 0 0 0\nintr 5\n";
        assert_eq!(machine(stat, &[0..=0]), Some((400_000, 6_000_000)));
        assert_eq!(machine(stat, &[0..=1, 9..=9]), Some((420_000, 6_030_000)));
        assert_eq!(machine(stat, &[]), None);
        assert_eq!(machine("", &[0..=9]), None);
        assert_eq!(allowed("Name:\tweft\nCpus_allowed_list:\t0-1,9\n"), [0..=1, 9..=9]);
        assert_eq!(allowed(""), []);
        let stat = "1 (a ) b) S 0 1 1 0 -1 0 1 2 3 4 700 80 1 2 20 0";
        assert_eq!(process(stat), Some(7_800_000));
    }

    #[test]
    fn work_of_this_thread_is_seen() {
        let before = read(Some(std::process::id()));
        while read(None).thread_us < before.thread_us + 20_000 {
            std::hint::spin_loop();
        }
        let after = read(Some(std::process::id()));
        assert!(after.own_us >= before.own_us + 20_000 && after.machine_us >= before.machine_us);
    }
}
