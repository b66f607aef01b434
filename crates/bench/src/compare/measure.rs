//! One measurement of one case: its figures, and what the machine and the daemons spent on it.

use std::time::{Duration, Instant};

use anyhow::Result;
use weft_lab::counters::Counters;

use super::bench::{Bench, Outcome};
use super::case::{Case, Direction, IDLE_CPU, PEAK};
use super::iperf::{self, Run};
use super::stream;
use crate::floods::pinger;
use crate::machine::{self, CpuTime, Usage};
use crate::report::{CPU, GBIT, PINGS_LOST, RETRANSMITS, Sample};
use crate::topology::Tunnel;

/// Shortest idle measurement: WireGuard's timers are seconds apart.
const REST: Duration = Duration::from_secs(5);
/// Wait before an idle measurement: after traffic WireGuard may still send a keepalive within 10 s
/// (whitepaper, section 6.5).
const KEEPALIVE: Duration = Duration::from_secs(11);

/// The stream beside pings fills the tunnel for this time before the first ping, and continues after the
/// last.
const SETTLE: Duration = Duration::from_secs(1);
const STREAM_BESIDE: u32 = 4;

pub(super) fn measure(bench: Bench<'_>, case: Case) -> Result<Outcome> {
    let window = Window::open(bench.tunnel)?;
    let outcome = match case {
        Case::Tcp { streams, direction } => iperf::tcp(bench, streams, direction)?,
        Case::UdpFlood { bytes } => iperf::udp(bench, bytes)?,
        Case::Ping => Outcome::new(pings(bench)?, 0.0),
        Case::PingLoaded => pings_loaded(bench)?,
        Case::Memory => memory(bench)?,
        Case::Idle => idle(bench)?,
        Case::ColdStart { megabytes } => stream::cold_start(bench, megabytes)?,
        Case::Stream { omit } => stream::steady(bench, omit)?,
    };
    let spent = window.close(bench.tunnel)?;
    Ok(if outcome.gbit > 0.0 { spent.cost(outcome) } else { outcome })
}

fn pings(bench: Bench<'_>) -> Result<Sample> {
    let pinger = pinger::start(&bench.tunnel.near, bench.tunnel.server)?;
    bench.interrupt.sleep(bench.span())?;
    bench.tunnel.check()?;
    let pings = pinger.finish()??;
    let took = pings.iter().filter_map(|ping| Some(ping.took?.as_secs_f64() * 1000.0));
    let millis: Vec<f64> = took.collect();
    let longest = millis.iter().copied().fold(f64::NAN, f64::max);
    Ok(Sample::of_pings(&millis, f64::NAN)
        .with_all([("ping_max_ms", "max ms", 2, longest)])
        .with(PINGS_LOST, (pings.len() - millis.len()) as f64))
}

fn pings_loaded(bench: Bench<'_>) -> Result<Outcome> {
    let stream = Run::start(bench, bench.secs + STREAM_BESIDE, &["-P", "1"])?;
    bench.interrupt.sleep(SETTLE)?;
    let pings = pings(bench)?;
    let carried = iperf::tcp_outcome(&stream.finish(bench)?, Direction::Forward)?;
    Ok(Outcome::new(pings.and(carried.sample.only(&[GBIT])), carried.gbit))
}

/// Measures the peak memory of either daemon since its start, including TCP at full rate both ways.
fn memory(bench: Bench<'_>) -> Result<Outcome> {
    iperf::tcp(bench, 1, Direction::BothWays)?;
    let peaks = bench.tunnel.daemons.iter().map(|daemon| machine::memory_mib(daemon.id(), "VmHWM"));
    let maximum = peaks.collect::<Result<Vec<_>>>()?.into_iter().fold(0.0, f64::max);
    Ok(Outcome::new(Sample::default().with(PEAK, maximum), 0.0))
}

/// Measures CPU time and wake-ups of either daemon without traffic; the larger of each counts.
fn idle(bench: Bench<'_>) -> Result<Outcome> {
    bench.interrupt.sleep(KEEPALIVE)?;
    let window = Window::open(bench.tunnel)?;
    bench.interrupt.sleep(REST.max(bench.span()))?;
    bench.tunnel.check()?;
    let spent = window.close(bench.tunnel)?;
    let maximum = |of: fn(&Usage) -> f64| {
        spent.daemons.iter().map(of).fold(0.0, f64::max) / spent.elapsed.as_secs_f64()
    };
    let cpu = maximum(|daemon| daemon.cpu.as_secs_f64());
    let wake_ups = maximum(|daemon| daemon.voluntary_switches as f64);
    let wake_ups = [("wake_ups_per_second", "wake-ups/s", 1, wake_ups)];
    Ok(Outcome::new(Sample::default().with(IDLE_CPU, cpu * 100.0).with_all(wake_ups), 0.0))
}

/// The readings at the first moment.
struct Window {
    opened: Instant,
    machine: CpuTime,
    daemons: Vec<Usage>,
    counters: [Counters; 2],
}

/// The differences between the two moments.
struct Spent {
    elapsed: Duration,
    /// CPU time of the whole machine.
    machine: Duration,
    /// Usage of each daemon, the near one first; empty without a tunnel.
    daemons: Vec<Usage>,
    /// Of both ends.
    counters: [Counters; 2],
}

impl Window {
    fn open(tunnel: &Tunnel) -> Result<Self> {
        let (counters, daemons) = (tunnel.counters()?, tunnel.usages()?);
        Ok(Self { counters, daemons, machine: CpuTime::now()?, opened: Instant::now() })
    }

    fn close(self, tunnel: &Tunnel) -> Result<Spent> {
        let elapsed = self.opened.elapsed();
        let machine = CpuTime::now()?.busy.saturating_sub(self.machine.busy);
        let daemons = tunnel.usages()?.into_iter().zip(&self.daemons).map(|(now, then)| now.since(*then));
        let [near, far] = tunnel.counters()?;
        let counters = [near.since(&self.counters[0]), far.since(&self.counters[1])];
        Ok(Spent { elapsed, machine, daemons: daemons.collect(), counters })
    }
}

impl Spent {
    /// Adds the cost per Gbit, and what the kernel's TCP counted at both ends.
    fn cost(&self, outcome: Outcome) -> Outcome {
        let Outcome { mut sample, gbit, mut cost } = outcome;
        let sum = |count: &dyn Fn(&Counters) -> u64| self.counters.iter().map(count).sum::<u64>() as f64;
        if sample.get(CPU).is_none() {
            sample = sample.with(CPU, self.machine.as_secs_f64() / gbit);
        }
        if sample.get(RETRANSMITS).is_some() {
            let reorderings = |counters: &Counters| {
                counters.protocol("TcpExtTCPSACKReorder") + counters.protocol("TcpExtTCPTSReorder")
            };
            sample = sample.with_all([
                // After a loss, or reordered.
                ("out_of_order", "out of order", 0, sum(&Counters::tcp_out_of_order)),
                // How often a sender found its segments reordered rather than lost.
                ("reorderings", "reorderings", 0, sum(&reorderings)),
            ]);
        }
        if let [near, far] = self.daemons[..] {
            let tun_overflows = |counters: &Counters| {
                let tunnels =
                    counters.interfaces.iter().filter(|(name, _)| !["lo", "eth0"].contains(&name.as_str()));
                tunnels.map(|(_, interface)| interface.tx_dropped).sum()
            };
            let both = near.and(far);
            let (voluntary, involuntary) = (both.voluntary_switches as f64, both.involuntary_switches as f64);
            let udp_overflows = sum(&Counters::udp_receive_buffer_full);
            cost = cost.with_all([
                ("near_cpu_seconds_per_gbit", "near daemon CPU s", 3, near.cpu.as_secs_f64() / gbit),
                ("far_cpu_seconds_per_gbit", "far daemon CPU s", 3, far.cpu.as_secs_f64() / gbit),
                ("voluntary_switches_per_gbit", "voluntary switches", 0, voluntary / gbit),
                ("involuntary_switches_per_gbit", "involuntary switches", 0, involuntary / gbit),
                // Of the daemons and of the measured programs.
                ("queue_overflows_per_gbit", "TUN overflows", 0, sum(&tun_overflows) / gbit),
                ("receive_overflows_per_gbit", "UDP overflows", 0, udp_overflows / gbit),
            ]);
        }
        Outcome { sample, gbit, cost }
    }
}
