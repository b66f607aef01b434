//! The TCP connections of a stack of this process.

use std::time::Duration;

use weft_embed::{Stack, StreamStats};
use weft_report::ConnectionReport;

/// Returns the connections of a stack that a report has, and the number of the others.
pub(super) fn connections(stack: &Stack) -> (Vec<ConnectionReport>, u64) {
    const SHOWN: usize = 256;
    let mut all = stack.connections();
    all.sort_by_key(|one| std::cmp::Reverse(one.bytes_acked.saturating_add(one.bytes_received)));
    let more = all.len().saturating_sub(SHOWN) as u64;
    (all.iter().take(SHOWN).map(connection).collect(), more)
}

fn connection(stats: &StreamStats) -> ConnectionReport {
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    ConnectionReport {
        local: stats.local.to_string(),
        remote: stats.peer.to_string(),
        state: stats.state.name().to_owned(),
        rtt_us: us(stats.rtt),
        rtt_var_us: us(stats.rtt_var),
        min_rtt_us: us(stats.min_rtt),
        rto_us: us(stats.rto),
        mss: stats.mss,
        cwnd_bytes: stats.cwnd,
        ssthresh_bytes: Some(stats.ssthresh).filter(|bytes| *bytes != u64::MAX),
        in_flight_bytes: stats.in_flight,
        send_queue_bytes: stats.send_queue,
        receive_queue_bytes: stats.receive_queue,
        receive_window_bytes: stats.receive_window,
        send_window_bytes: stats.send_window,
        acked_bytes: stats.bytes_acked,
        received_bytes: stats.bytes_received,
        retransmitted_bytes: stats.bytes_retransmitted,
        timeouts: stats.timeouts,
        recoveries: stats.recoveries,
        undone: stats.undone,
    }
}
