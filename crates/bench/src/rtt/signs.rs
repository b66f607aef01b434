//! Signs of reordering and of the end of slow start, in TCP's counters of the kernel.

use serde::Serialize;
use weft_lab::counters::Counters;

/// Signs of reordering that TCP counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Order {
    /// How often the sender found its segments reordered: by SACK, by timestamps, without either.
    pub(super) reordering_seen: u64,
    /// Segments that arrived behind a gap, by loss or by reordering.
    pub(super) out_of_order: u64,
    /// Segments that the receiver got twice: unnecessary retransmits.
    pub(super) duplicates: u64,
}

impl Order {
    /// Extracts the figures from the counters of the sender's and the receiver's kernel.
    pub(super) fn of(sender: &Counters, receiver: &Counters) -> Self {
        let seen = ["TcpExtTCPSACKReorder", "TcpExtTCPTSReorder", "TcpExtTCPRenoReorder"];
        Self {
            reordering_seen: seen.into_iter().map(|name| sender.protocol(name)).sum(),
            out_of_order: receiver.tcp_out_of_order(),
            duplicates: sender.protocol("TcpExtTCPDSACKRecv") + sender.protocol("TcpExtTCPDSACKOfoRecv"),
        }
    }
}

/// How HyStart (of cubic) ended slow start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct SlowStart {
    /// Exits because an acknowledgement train was as long as the round trip.
    pub(super) hystart_train: u64,
    /// Sum of the congestion windows at these exits, in segments.
    pub(super) hystart_train_cwnd: u64,
    /// Exits because the round trip grew.
    pub(super) hystart_delay: u64,
    /// Sum of the congestion windows at these exits, in segments.
    pub(super) hystart_delay_cwnd: u64,
}

impl SlowStart {
    pub(super) fn of(sender: &Counters) -> Self {
        Self {
            hystart_train: sender.protocol("TcpExtTCPHystartTrainDetect"),
            hystart_train_cwnd: sender.protocol("TcpExtTCPHystartTrainCwnd"),
            hystart_delay: sender.protocol("TcpExtTCPHystartDelayDetect"),
            hystart_delay_cwnd: sender.protocol("TcpExtTCPHystartDelayCwnd"),
        }
    }
}
