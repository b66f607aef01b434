//! Resources spent between two moments, by the machine and by the daemons.

use std::time::{Duration, Instant};

use anyhow::Result;
use weft_lab::counters::Counters;

use super::bench::Outcome;
use crate::machine;
use crate::report::{CPU, Figure, RETRANSMITS, Sample};
use crate::topology::Tunnel;
use crate::usage::Usage;

/// Segments that arrived out of order at either end: after a loss, or reordered.
const OUT_OF_ORDER: Figure = Figure::new("out_of_order", "out of order", 0);
/// How often a sending TCP found its segments reordered rather than lost.
const REORDERINGS: Figure = Figure::new("reorderings", "reorderings", 0);
/// CPU time of the daemon at the client's end, and at the other.
const NEAR_CPU: Figure = Figure::new("near_cpu_seconds_per_gbit", "near daemon CPU s", 3);
const FAR_CPU: Figure = Figure::new("far_cpu_seconds_per_gbit", "far daemon CPU s", 3);
/// Context switches of both daemons' threads.
const VOLUNTARY: Figure = Figure::new("voluntary_switches_per_gbit", "voluntary switches", 0);
const INVOLUNTARY: Figure = Figure::new("involuntary_switches_per_gbit", "involuntary switches", 0);
/// Packets that the kernel dropped because a TUN's queue was full, and datagrams because a receive buffer
/// was, of the daemons and of the measured programs.
const TUN_OVERFLOWS: Figure = Figure::new("queue_overflows_per_gbit", "TUN overflows", 0);
const UDP_OVERFLOWS: Figure = Figure::new("receive_overflows_per_gbit", "UDP overflows", 0);

/// The readings at the first moment.
#[derive(Debug)]
pub(super) struct Window {
    opened: Instant,
    machine: Duration,
    daemons: Vec<Usage>,
    counters: [Counters; 2],
}

/// The differences between the two moments.
#[derive(Debug)]
pub(super) struct Spent {
    pub(super) elapsed: Duration,
    /// CPU time of the whole machine.
    machine: Duration,
    /// Usage of each daemon, the near one first; empty without a tunnel.
    pub(super) daemons: Vec<Usage>,
    /// Of both ends.
    counters: [Counters; 2],
}

impl Window {
    pub(super) fn open(tunnel: &Tunnel) -> Result<Self> {
        Ok(Self {
            counters: tunnel.counters()?,
            daemons: tunnel.usages()?,
            machine: machine::busy_time()?,
            opened: Instant::now(),
        })
    }

    pub(super) fn close(self, tunnel: &Tunnel) -> Result<Spent> {
        let elapsed = self.opened.elapsed();
        let machine = machine::busy_time()?.saturating_sub(self.machine);
        let daemons = tunnel.usages()?.into_iter().zip(&self.daemons).map(|(now, then)| now.since(*then));
        let [near, far] = tunnel.counters()?;
        let counters = [near.since(&self.counters[0]), far.since(&self.counters[1])];
        Ok(Spent { elapsed, machine, daemons: daemons.collect(), counters })
    }
}

impl Spent {
    /// Adds the cost per Gbit, and what the kernel's TCP counted.
    pub(super) fn cost(&self, outcome: Outcome) -> Outcome {
        let Outcome { mut sample, gbit, mut cost, note } = outcome;
        let sum = |count: &dyn Fn(&Counters) -> u64| self.counters.iter().map(count).sum::<u64>() as f64;
        sample = sample.with(CPU, self.machine.as_secs_f64() / gbit);
        if sample.get(RETRANSMITS).is_some() {
            let reorderings = |counters: &Counters| {
                counters.protocol("TcpExtTCPSACKReorder") + counters.protocol("TcpExtTCPTSReorder")
            };
            sample = sample
                .with(OUT_OF_ORDER, sum(&Counters::tcp_out_of_order))
                .with(REORDERINGS, sum(&reorderings));
        }
        if let [near, far] = self.daemons[..] {
            let tun_overflows = |counters: &Counters| {
                let tunnels =
                    counters.interfaces.iter().filter(|(name, _)| !["lo", "eth0"].contains(&name.as_str()));
                tunnels.map(|(_, interface)| interface.tx_dropped).sum()
            };
            let both = near.and(far);
            cost = Sample::default()
                .with(NEAR_CPU, near.cpu.as_secs_f64() / gbit)
                .with(FAR_CPU, far.cpu.as_secs_f64() / gbit)
                .with(VOLUNTARY, both.voluntary_switches as f64 / gbit)
                .with(INVOLUNTARY, both.involuntary_switches as f64 / gbit)
                .with(TUN_OVERFLOWS, sum(&tun_overflows) / gbit)
                .with(UDP_OVERFLOWS, sum(&Counters::udp_receive_buffer_full) / gbit);
        }
        Outcome { sample, gbit, cost, note }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::GBIT;

    #[test]
    fn what_a_gbit_cost_is_the_machines_and_each_daemons() {
        let daemon = |millis| Usage {
            cpu: Duration::from_millis(millis),
            voluntary_switches: 10,
            involuntary_switches: 1,
        };
        let mut spent = Spent {
            elapsed: Duration::from_secs(1),
            machine: Duration::from_secs(1),
            daemons: vec![daemon(200), daemon(400)],
            counters: Default::default(),
        };
        let tcp = || Outcome::new(Sample::default().with(RETRANSMITS, 0.0), 2.0);
        let Outcome { sample, cost, .. } = spent.cost(tcp());
        assert_eq!((sample.get(CPU), sample.get(OUT_OF_ORDER)), (Some(0.5), Some(0.0)));
        assert_eq!((cost.get(FAR_CPU), cost.get(VOLUNTARY)), (Some(0.2), Some(10.0)));
        spent.daemons.clear();
        let bare = spent.cost(Outcome::new(Sample::default().with(GBIT, 1.0), 2.0));
        assert_eq!((bare.cost, bare.sample.get(OUT_OF_ORDER)), (Sample::default(), None));
    }
}
