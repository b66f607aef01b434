//! The lines that the two ends of a speed test tell each other, and what is concluded from them.
//!
//! Whatever the other end tells, reading it ends, verdicts are shares of the time, losses are shares of what
//! was sent, and a refusal that is printed has no control characters.

use weft_speedtest::{TestLines, outside, verdicts};

pub(crate) fn check(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let TestLines { samples, refusals, counters } = runtime.block_on(TestLines::read(bytes));
    for refusal in refusals {
        assert!(!refusal.to_string().chars().any(char::is_control), "{refusal:?}");
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
        if let Some(outside) = outside(&[first.clone(), end]) {
            assert!((0.0..=1.0).contains(&outside.lost_share), "{outside:?}");
        }
    }
}
