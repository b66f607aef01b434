//! One measurement of one case: its figures, and the resources that the machine and the daemons spent.

use std::time::Duration;

use anyhow::Result;

use crate::batches::Batches;
use crate::case::Case;
use crate::interrupt::Interrupt;
use crate::metric::{Metric, Sample};
use crate::topology::Tunnel;

mod cold_start;
mod connections;
mod iperf;
mod ping;
mod resources;
pub(crate) mod system_calls;
mod tcp;
mod udp;
mod udp_rate;
mod window;

use window::{Spent, Window};

/// The tunnel, the duration and the means to interrupt a measurement.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) tunnel: &'a mut Tunnel,
    pub(crate) secs: u32,
    pub(crate) interrupt: &'a Interrupt,
}

impl Bench<'_> {
    fn span(&self) -> Duration {
        Duration::from_secs(self.secs.into())
    }

    fn window(&self) -> Result<Window> {
        Window::open(self.tunnel)
    }
}

/// The result of a case.
#[derive(Clone, Debug)]
struct Outcome {
    sample: Sample,
    /// Gigabits carried, by which the cost is divided; zero for a case without cost figures.
    gbit: f64,
    /// A remark for the report.
    note: Option<String>,
}

impl Outcome {
    fn new(sample: Sample, gbit: f64) -> Self {
        Self { sample, gbit, note: None }
    }
}

/// The result of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) sample: Sample,
    /// Gigabits carried.
    pub(crate) gbit: f64,
    /// Sends of both daemons by batch size, where the daemons report it.
    pub(crate) batches: Option<Batches>,
    /// A remark for the report.
    pub(crate) note: Option<String>,
}

pub(crate) fn measure(bench: &mut Bench<'_>, case: Case) -> Result<Measured> {
    let window = bench.window()?;
    let Outcome { sample, gbit, note } = match case {
        Case::Tcp { streams, direction } => tcp::measure(bench, streams, direction)?,
        Case::UdpFlood { bytes } => udp::measure(bench, bytes)?,
        Case::UdpRate => udp_rate::measure(bench)?,
        Case::Ping => ping::idle(bench)?,
        Case::PingLoaded => ping::loaded(bench)?,
        Case::Memory => resources::memory(bench)?,
        Case::Idle => resources::idle(bench)?,
        Case::Connections { count } => connections::measure(bench, count)?,
        Case::ColdStart { megabytes } => cold_start::measure(bench, megabytes)?,
    };
    let spent = window.close(bench.tunnel)?;
    let sample = if gbit > 0.0 { with_cost(sample, &spent, gbit) } else { sample };
    Ok(Measured { sample, gbit, batches: spent.batches, note })
}

/// Adds the cost per Gbit, and what the kernel's TCP counted.
fn with_cost(sample: Sample, spent: &Spent, gbit: f64) -> Sample {
    let mut sample = sample.with(Metric::CpuSecondsPerGbit, spent.machine.as_secs_f64() / gbit);
    if sample.get(Metric::Retransmits).is_some() {
        sample = sample
            .with(Metric::OutOfOrder, spent.tcp_out_of_order as f64)
            .with(Metric::Reorderings, spent.tcp_reorderings as f64);
    }
    if let [near, far] = spent.daemons[..] {
        let switches = |of: u64, and: u64| (of + and) as f64 / gbit;
        sample = sample
            .with(Metric::NearCpuSecondsPerGbit, near.cpu.as_secs_f64() / gbit)
            .with(Metric::FarCpuSecondsPerGbit, far.cpu.as_secs_f64() / gbit)
            .with(Metric::VoluntarySwitchesPerGbit, switches(near.voluntary_switches, far.voluntary_switches))
            .with(
                Metric::InvoluntarySwitchesPerGbit,
                switches(near.involuntary_switches, far.involuntary_switches),
            )
            .with(Metric::QueueOverflowsPerGbit, spent.queue_overflows as f64 / gbit)
            .with(Metric::ReceiveOverflowsPerGbit, spent.receive_overflows as f64 / gbit);
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::Usage;

    #[test]
    fn what_a_gbit_cost_is_the_machines_and_each_daemons() {
        let daemon = |millis| Usage {
            cpu: Duration::from_millis(millis),
            voluntary_switches: 10,
            involuntary_switches: 1,
        };
        let spent = Spent {
            elapsed: Duration::from_secs(1),
            machine: Duration::from_secs(1),
            daemons: vec![daemon(200), daemon(400)],
            tcp_out_of_order: 3,
            tcp_reorderings: 0,
            queue_overflows: 6,
            receive_overflows: 2,
            batches: None,
        };
        let tcp = with_cost(Sample::default().with(Metric::Retransmits, 0.0), &spent, 2.0);
        assert_eq!(tcp.get(Metric::CpuSecondsPerGbit), Some(0.5));
        assert_eq!(tcp.get(Metric::FarCpuSecondsPerGbit), Some(0.2));
        assert_eq!(tcp.get(Metric::VoluntarySwitchesPerGbit), Some(10.0));
        assert_eq!(tcp.get(Metric::OutOfOrder), Some(3.0));
        assert_eq!(tcp.get(Metric::QueueOverflowsPerGbit), Some(3.0));

        let bare = with_cost(Sample::default(), &Spent { daemons: Vec::new(), ..spent }, 2.0);
        assert_eq!(bare.metrics().collect::<Vec<_>>(), [Metric::CpuSecondsPerGbit]);
    }
}
