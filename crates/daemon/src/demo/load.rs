//! The traffic of the demo: a TCP flow for each direction and family, and a numbered UDP flow each way.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use weft_lab::numbered::{Numbered, NumberedOptions, NumberedReport};
use weft_lab::traffic::{Amount, TcpReceiver, TcpSenders};

use super::ends::End;

/// The TCP flows: sending end and address family. All tables use this order.
pub(super) const TCP_FLOWS: [TcpFlow; 4] = [
    TcpFlow { from: 0, family: 0 },
    TcpFlow { from: 0, family: 1 },
    TcpFlow { from: 1, family: 0 },
    TcpFlow { from: 1, family: 1 },
];

/// One direction and family.
#[derive(Clone, Copy, Debug)]
pub(super) struct TcpFlow {
    pub(super) from: usize,
    family: usize,
}

impl TcpFlow {
    pub(super) fn direction(self) -> &'static str {
        ["a → b", "b → a"][self.from]
    }

    pub(super) fn family(self) -> &'static str {
        ["IPv4", "IPv6"][self.family]
    }
}

/// The result of a TCP flow.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct TcpFlowResult {
    pub(super) direction: &'static str,
    pub(super) family: &'static str,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    pub(super) confirmed_bytes: u64,
    pub(super) first_mismatch: Option<u64>,
    pub(super) retransmits: u64,
    pub(super) error: Option<String>,
}

/// All traffic through the tunnel.
pub(super) struct Load {
    receivers: Vec<TcpReceiver>,
    senders: Vec<TcpSenders>,
    numbered: Vec<Numbered>,
}

impl Load {
    /// Starts all traffic, which lasts until `end`.
    pub(super) fn start(ends: &[End; 2], end: Instant) -> io::Result<Self> {
        let amount = Amount::Until(end);
        let mut load = Self { receivers: Vec::new(), senders: Vec::new(), numbered: Vec::new() };
        for (place, flow) in TCP_FLOWS.iter().enumerate() {
            let (from, to) = (&ends[flow.from], &ends[1 - flow.from]);
            let address = SocketAddr::new(to.inner[flow.family], 0);
            let receiver = to.namespace.run(|| TcpReceiver::listen(address))?;
            let senders = TcpSenders::start(&from.namespace, receiver.local_addr(), 1, amount, place as u64)?;
            load.receivers.push(receiver);
            load.senders.push(senders);
        }
        for (from, to) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            let options = NumberedOptions { amount, ..NumberedOptions::default() };
            let flow = Numbered::start(&from.namespace, from.inner[0], &to.namespace, to.inner[0], options)?;
            load.numbered.push(flow);
        }
        Ok(load)
    }

    /// Returns the bytes received on each flow.
    pub(super) fn received_bytes(&self) -> [u64; TCP_FLOWS.len()] {
        std::array::from_fn(|flow| self.receivers[flow].bytes())
    }

    /// Returns the number of datagrams of the numbered flows that were sent, and that have arrived.
    pub(super) fn numbered_progress(&self) -> (u64, u64) {
        let progress = self.numbered.iter().map(Numbered::progress);
        progress.fold((0, 0), |(sent, received), (s, r)| (sent + s, received + r))
    }

    /// Stops all traffic early.
    pub(super) fn stop(&self) {
        self.senders.iter().for_each(TcpSenders::stop);
        self.numbered.iter().for_each(Numbered::stop);
    }

    /// Waits for the last byte. Returns the results of every flow, and of the numbered flows from a and from
    /// b.
    pub(super) fn finish(self) -> (Vec<TcpFlowResult>, Vec<NumberedReport>) {
        let numbered = self.numbered.into_iter().map(Numbered::finish).collect();
        let flows = TCP_FLOWS.iter().zip(self.senders.into_iter().zip(self.receivers));
        let flows = flows.map(|(flow, (senders, receiver))| {
            let retransmits = senders.progress().retransmits.load(Relaxed);
            let sent = senders.finish().pop().unwrap_or_default();
            let received = receiver.finish().pop().unwrap_or_default();
            TcpFlowResult {
                direction: flow.direction(),
                family: flow.family(),
                sent_bytes: sent.bytes,
                received_bytes: received.bytes,
                confirmed_bytes: sent.confirmed,
                first_mismatch: received.first_mismatch,
                retransmits: retransmits.max(sent.retransmits),
                error: sent.error.or(received.error),
            }
        });
        (flows.collect(), numbered)
    }
}
