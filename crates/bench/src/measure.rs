//! One measurement of one case: the figures of the case itself, and what the machine and the daemons spent on it.

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

/// Where it is measured, for how long, and what can end it early.
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

/// What came of a case.
#[derive(Clone, Debug)]
struct Outcome {
    sample: Sample,
    /// What was carried meanwhile, by which the cost is divided; zero where nothing is carried on purpose.
    gbit: f64,
    /// What figures do not say.
    note: Option<String>,
}

impl Outcome {
    fn new(sample: Sample, gbit: f64) -> Self {
        Self { sample, gbit, note: None }
    }
}

/// What a measurement gave.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) sample: Sample,
    /// What was carried meanwhile.
    pub(crate) gbit: f64,
    /// What was sent meanwhile, where the daemons can be asked.
    pub(crate) batches: Option<Batches>,
    /// What figures do not say.
    pub(crate) note: Option<String>,
}

/// Measures a case.
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

/// Adds what the Gbits cost, and what the kernel's TCP noticed.
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
