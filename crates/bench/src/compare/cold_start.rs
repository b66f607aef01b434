//! Short transfers over new connections, to detect a slow start that ends too early.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use weft_lab::counters::Counters;
use weft_lab::traffic::{Amount, Progress, send_stream};

use super::bench::{Bench, Outcome};
use super::case::TRANSFER;
use crate::implementation::TRANSFER_PORT;
use crate::report::{Figure, RETRANSMITS, Sample};
use crate::stats;

/// Transfers per measurement, one after the other; the median counts.
const TRANSFERS: u64 = 5;

/// How often HyStart (of cubic) ended a slow start, rather than a loss.
const HYSTART_EXITS: Figure = Figure::new("hystart_exits", "HyStart exits", 0);

pub(super) fn measure(bench: &mut Bench<'_>, megabytes: u32) -> Result<Outcome> {
    let _receiver = bench.tunnel.listen()?;
    let address = (bench.tunnel.target, TRANSFER_PORT).into();
    let bytes = u64::from(megabytes) * 1_000_000;
    let before = Counters::read(&bench.tunnel.near)?;
    let (mut millis, mut retransmits) = (Vec::new(), 0);
    for seed in 0..TRANSFERS {
        bench.interrupt.sleep(Duration::ZERO)?;
        bench.tunnel.check()?;
        let progress = Progress::default();
        let (flow, elapsed) = bench.tunnel.near.run(|| {
            let start = Instant::now();
            (send_stream(address, Amount::Count(bytes), seed, &progress), start.elapsed())
        });
        let error = flow.error.as_deref().unwrap_or("the content is wrong");
        ensure!(flow.confirmed == bytes, "a transfer of {megabytes} MB failed: {error}");
        millis.push(elapsed.as_secs_f64() * 1e3);
        retransmits += flow.retransmits;
    }
    let counted = Counters::read(&bench.tunnel.near)?.since(&before);
    let exits =
        counted.protocol("TcpExtTCPHystartTrainDetect") + counted.protocol("TcpExtTCPHystartDelayDetect");
    millis.sort_by(f64::total_cmp);
    let median = stats::percentile(&millis, 0.5).context("nothing was transferred")?;
    let sample = Sample::default()
        .with(TRANSFER, median)
        .with(RETRANSMITS, retransmits as f64)
        .with(HYSTART_EXITS, exits as f64);
    Ok(Outcome::new(sample, (TRANSFERS * bytes) as f64 * 8e-9))
}
