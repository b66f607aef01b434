//! Resources spent between two moments, by the machine and by the daemons.

use std::time::{Duration, Instant};

use anyhow::Result;
use weft_lab::Namespace;
use weft_lab::counters::Counters;

use crate::batches::Batches;
use crate::machine;
use crate::topology::Tunnel;
use crate::usage::Usage;

/// The readings at the first moment.
#[derive(Debug)]
pub(super) struct Window {
    opened: Instant,
    machine: Duration,
    daemons: Vec<Usage>,
    counters: [Counters; 2],
    batches: Option<Batches>,
}

/// The differences between the two moments.
#[derive(Clone, Debug)]
pub(super) struct Spent {
    pub(super) elapsed: Duration,
    /// CPU time of the whole machine.
    pub(super) machine: Duration,
    /// Usage of each daemon, the near one first; empty without a tunnel.
    pub(super) daemons: Vec<Usage>,
    /// Segments that arrived out of order, both ends together.
    pub(super) tcp_out_of_order: u64,
    /// How often a sending TCP detected reordering, both ends together.
    pub(super) tcp_reorderings: u64,
    /// Packets that did not fit the queue of a TUN, both ends together.
    pub(super) queue_overflows: u64,
    /// Datagrams that did not fit a socket's receive buffer, both ends together.
    pub(super) receive_overflows: u64,
    /// Sends of both daemons by batch size, where they report them.
    pub(super) batches: Option<Batches>,
}

impl Window {
    pub(super) fn open(tunnel: &Tunnel) -> Result<Self> {
        Ok(Self {
            counters: counters(tunnel)?,
            batches: tunnel.batches(),
            daemons: tunnel.usages()?,
            machine: machine::busy_time()?,
            opened: Instant::now(),
        })
    }

    pub(super) fn close(self, tunnel: &Tunnel) -> Result<Spent> {
        let elapsed = self.opened.elapsed();
        let machine = machine::busy_time()?.saturating_sub(self.machine);
        let daemons = tunnel.usages()?.into_iter().zip(&self.daemons).map(|(now, then)| now.since(*then));
        let counted: Vec<Counters> =
            counters(tunnel)?.iter().zip(&self.counters).map(|(now, then)| now.since(then)).collect();
        let sum = |count: &dyn Fn(&Counters) -> u64| counted.iter().map(count).sum();
        Ok(Spent {
            elapsed,
            machine,
            daemons: daemons.collect(),
            tcp_out_of_order: sum(&Counters::tcp_out_of_order),
            queue_overflows: sum(&|counters| {
                let tunnels =
                    counters.interfaces.iter().filter(|(name, _)| !["lo", "eth0"].contains(&name.as_str()));
                tunnels.map(|(_, interface)| interface.tx_dropped).sum()
            }),
            receive_overflows: sum(&Counters::udp_receive_buffer_full),
            batches: tunnel.batches().zip(self.batches).map(|(now, then)| now.since(then)),
            tcp_reorderings: sum(&|counters| {
                counters.protocol("TcpExtTCPSACKReorder") + counters.protocol("TcpExtTCPTSReorder")
            }),
        })
    }
}

fn counters(tunnel: &Tunnel) -> Result<[Counters; 2]> {
    let read = |namespace: &Namespace| Counters::read(namespace);
    Ok([read(&tunnel.near)?, read(&tunnel.far)?])
}
