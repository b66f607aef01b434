//! The lines that the two ends of a speed test tell each other, and what is concluded from them.
//!
//! Whatever the other end tells, reading it takes a bounded time and memory, also when it tells it again and
//! again; the responder agrees to bounded tests alone; verdicts are shares of the time, and losses are shares
//! of what was sent.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use weft_speedtest::{MAX_SECONDS, MAX_STREAMS, TestLines, outside, verdicts};

use crate::memory::most_bytes;

/// The most bytes that the client has allocated for what a responder sends.
const MOST_MEMORY: i64 = 48 << 20;
/// How often what was sent is sent again: more than there may be samples.
const REPEATS: usize = 1300;
/// The most bytes that are sent again.
const MOST_REPEATED: usize = 256;
/// The most time of the processor for a byte, without optimisation.
const TIME_OF_A_BYTE: Duration = Duration::from_micros(20);

/// Reads as both ends do.
fn read(bytes: &[u8]) -> TestLines {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let begun = processor_time();
    let (memory, lines) = most_bytes(|| runtime.block_on(TestLines::read(bytes)));
    let took = processor_time() - begun;
    assert!(memory <= MOST_MEMORY, "{memory} bytes for {} bytes", bytes.len());
    let allowed = Duration::from_millis(100) + TIME_OF_A_BYTE * u32::try_from(bytes.len()).unwrap();
    assert!(took <= allowed, "{took:?} for {} bytes", bytes.len());
    lines
}

fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

pub(crate) fn check(bytes: &[u8]) {
    let TestLines { samples, counters, agreed, agreed_datagrams } = read(bytes);
    if let Some((milliseconds, streams)) = agreed {
        assert!((1..=MAX_SECONDS * 1000).contains(&milliseconds) && (1..=MAX_STREAMS).contains(&streams));
    }
    if let Some((bits_per_second, bytes)) = agreed_datagrams {
        let a_second = bits_per_second as f64 / (f64::from(bytes) * 8.0);
        assert!(bytes >= 8 && a_second > 0.0 && a_second < 2e9, "{a_second} datagrams a second");
    }
    // Each input is a whole line, or the last one is none.
    if bytes.len() <= MOST_REPEATED {
        read(&bytes.repeat(REPEATS));
    }
    // As the sender, as the receiver, and as both.
    for (sender, receiver) in [(&samples[..], &[][..]), (&[], &samples), (&samples, &samples)] {
        let verdicts = verdicts(sender, receiver);
        let sum: f64 = verdicts.iter().map(|verdict| verdict.share).sum();
        assert!(verdicts.iter().all(|verdict| (0.0..=1.001).contains(&verdict.share)), "{verdicts:?}");
        assert!(sum <= 1.001, "{verdicts:?}");
    }
    let first = samples.first().and_then(|sample| sample.counters.clone());
    for end in [counters, samples.last().and_then(|sample| sample.counters.clone())] {
        if let Some(outside) = outside(&[first.clone(), end], u64::MAX) {
            assert!((0.0..=1.0).contains(&outside.lost_share), "{outside:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::read;

    /// A peer that tells as much as a line holds, for as long as it is heard.
    #[test]
    fn the_largest_samples_take_bounded_memory() {
        let reasons: Vec<_> = (0..250).map(|number| format!("\"{number:0>50}\":0")).collect();
        let line = format!("{{\"sample\":{{\"counters\":{{\"drops\":{{{}}}}}}}}}\n", reasons.join(","));
        assert!((12 << 10..16 << 10).contains(&line.len()), "{}", line.len());
        let lines = read(line.repeat(2500).as_bytes());
        assert_eq!(lines.samples.len(), 1200);
        let long = format!("{{\"sample\":{{\"counters\":{{\"busy_us\":[{}0]}}}}}}\n", "0,".repeat(30_000));
        assert!(read(long.repeat(100).as_bytes()).samples.is_empty());
    }
}
