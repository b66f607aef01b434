//! A short transfer on a new connection: its duration depends on slow start.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use weft_lab::traffic::{Amount, Progress, send_stream_over};

use super::path::Path;
use super::signs::{Order, SlowStart};
use crate::interrupt::Interrupt;

/// The result of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Sample {
    /// From connecting to the receiver's confirmation of every byte.
    pub(super) seconds: f64,
    pub(super) retransmits: u64,
    #[serde(flatten)]
    pub(super) order: Order,
    #[serde(flatten)]
    pub(super) slow_start: SlowStart,
}

/// Transfers `bytes` bytes, all of which are checked.
pub(super) fn measure(path: &mut Path, control: &str, bytes: u64, interrupt: &Interrupt) -> Result<Sample> {
    path.check()?;
    let receiver = path.listen()?;
    let before = path.counters()?;
    let progress = Progress::default();
    let (sent, seconds) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let start = Instant::now();
            let stream = path.connect(receiver.local_addr(), control)?;
            let sent = send_stream_over(stream, Amount::Count(bytes), 1, &progress);
            anyhow::Ok((sent, start.elapsed().as_secs_f64()))
        });
        // A stalled transfer ends by itself.
        let waited = interrupt
            .wait_for("the end of the transfer", Duration::MAX, || Ok(sender.is_finished().then_some(())));
        progress.stop.store(true, Relaxed);
        let sent = sender.join().ok().context("the sender panicked")?;
        waited.and(sent)
    })?;
    ensure!(sent.error.is_none(), "the transfer ended early: {}", sent.error.unwrap_or_default());
    ensure!(sent.confirmed == bytes, "the transfer was changed on its way, at byte {}", sent.confirmed);
    let after = path.counters()?;
    let [near, far] = [after[0].since(&before[0]), after[1].since(&before[1])];
    receiver.finish();
    Ok(Sample {
        seconds,
        retransmits: sent.retransmits,
        order: Order::of(&near, &far),
        slow_start: SlowStart::of(&near),
    })
}
