//! Resources of a daemon: memory at full rate, CPU time and wake-ups when idle.

use std::time::Duration;

use anyhow::Result;

use super::{Bench, Outcome, tcp};
use crate::case::Direction;
use crate::metric::{Metric, Sample};
use crate::usage;

/// Shortest idle measurement: WireGuard's timers are seconds apart.
const REST: Duration = Duration::from_secs(5);
/// Wait before an idle measurement: after traffic WireGuard may still send a keepalive within 10 s
/// (whitepaper, section 6.5).
const KEEPALIVE: Duration = Duration::from_secs(11);

/// Measures the peak memory of either daemon since its start, including TCP at full rate both ways.
pub(super) fn memory(bench: &mut Bench<'_>) -> Result<Outcome> {
    tcp::measure(bench, 1, Direction::BothWays)?;
    let mut maximum = 0;
    for process in bench.tunnel.processes() {
        maximum = maximum.max(usage::peak_rss(process)?);
    }
    let mebibytes = maximum as f64 / f64::from(1 << 20);
    Ok(Outcome::new(Sample::default().with(Metric::PeakRssMib, mebibytes), 0.0))
}

/// Measures CPU time and wake-ups of either daemon without traffic; the larger of each counts.
pub(super) fn idle(bench: &mut Bench<'_>) -> Result<Outcome> {
    bench.interrupt.sleep(KEEPALIVE)?;
    let window = bench.window()?;
    bench.interrupt.sleep(REST.max(bench.span()))?;
    bench.tunnel.check()?;
    let spent = window.close(bench.tunnel)?;
    let seconds = spent.elapsed.as_secs_f64();
    let maximum = |figures: &mut dyn Iterator<Item = f64>| figures.fold(0.0, f64::max) / seconds;
    let cpu = maximum(&mut spent.daemons.iter().map(|daemon| daemon.cpu.as_secs_f64()));
    let wake_ups = maximum(&mut spent.daemons.iter().map(|daemon| daemon.voluntary_switches as f64));
    let sample =
        Sample::default().with(Metric::IdleCpuPercent, cpu * 100.0).with(Metric::WakeUpsPerSecond, wake_ups);
    Ok(Outcome::new(sample, 0.0))
}
