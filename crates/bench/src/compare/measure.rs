//! One measurement of one case: its figures, and what the daemons spent on it.

use std::time::Duration;

use anyhow::Result;

use super::bench::{Bench, Outcome};
use super::case::{Case, Direction, PEAK};
use super::window::Window;
use super::{cold_start, connections, iperf, ping};
use crate::report::{IDLE_CPU, Sample, WAKE_UPS};
use crate::usage;

/// Shortest idle measurement: WireGuard's timers are seconds apart.
const REST: Duration = Duration::from_secs(5);
/// Wait before an idle measurement: after traffic WireGuard may still send a keepalive within 10 s
/// (whitepaper, section 6.5).
const KEEPALIVE: Duration = Duration::from_secs(11);

/// Measures the case.
pub(super) fn measure(bench: &mut Bench<'_>, case: Case) -> Result<Outcome> {
    let window = Window::open(bench.tunnel)?;
    let outcome = match case {
        Case::Tcp { streams, direction } => iperf::tcp(bench, streams, direction)?,
        Case::UdpFlood { bytes } => iperf::udp(bench, bytes)?,
        Case::UdpRate => iperf::udp_rate(bench)?,
        Case::Ping => ping::idle(bench)?,
        Case::PingLoaded => ping::loaded(bench)?,
        Case::Memory => memory(bench)?,
        Case::Idle => idle(bench)?,
        Case::Connections { count } => connections::measure(bench, count)?,
        Case::ColdStart { megabytes } => cold_start::measure(bench, megabytes)?,
    };
    let spent = window.close(bench.tunnel)?;
    Ok(if outcome.gbit > 0.0 { spent.cost(outcome) } else { outcome })
}

/// Measures the peak memory of either daemon since its start, including TCP at full rate both ways.
fn memory(bench: &mut Bench<'_>) -> Result<Outcome> {
    iperf::tcp(bench, 1, Direction::BothWays)?;
    let mut maximum = 0;
    for process in bench.tunnel.processes() {
        maximum = maximum.max(usage::peak_rss(process)?);
    }
    Ok(Outcome::new(Sample::default().with(PEAK, usage::mib(maximum)), 0.0))
}

/// Measures CPU time and wake-ups of either daemon without traffic; the larger of each counts.
fn idle(bench: &mut Bench<'_>) -> Result<Outcome> {
    bench.interrupt.sleep(KEEPALIVE)?;
    let window = Window::open(bench.tunnel)?;
    bench.interrupt.sleep(REST.max(bench.span()))?;
    bench.tunnel.check()?;
    let spent = window.close(bench.tunnel)?;
    let seconds = spent.elapsed.as_secs_f64();
    let maximum = |figures: &mut dyn Iterator<Item = f64>| figures.fold(0.0, f64::max) / seconds;
    let cpu = maximum(&mut spent.daemons.iter().map(|daemon| daemon.cpu.as_secs_f64()));
    let wake_ups = maximum(&mut spent.daemons.iter().map(|daemon| daemon.voluntary_switches as f64));
    Ok(Outcome::new(Sample::default().with(IDLE_CPU, cpu * 100.0).with(WAKE_UPS, wake_ups), 0.0))
}
