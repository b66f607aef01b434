//! Counters of an endpoint and of its connections.

use std::net::SocketAddr;
use std::time::Duration;

/// Counters since the endpoint was made, and what there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets from the tunnel.
    pub packets_in: u64,
    /// Packets into the tunnel; a super-packet counts once.
    pub packets_out: u64,
    /// Packets that were malformed, had a wrong checksum, or were not for an address of the endpoint.
    pub invalid_packets: u64,
    /// Packets that were dropped because a bound was reached.
    pub dropped_packets: u64,
    /// Connections that were opened, by either end.
    pub opened: u64,
    /// Connections that could not be opened.
    pub failed: u64,
    /// Connections that the peer or this end reset, or that timed out.
    pub reset: u64,
    /// Connections that gave way to new ones where memory was short.
    pub gave_way: u64,
    /// Bytes that were sent again.
    pub retransmitted_bytes: u64,
    /// Expirations of the retransmission timer.
    pub timeouts: u64,
    /// Challenge acknowledgements (RFC 5961).
    pub challenges: u64,
    /// Half-open connections that gave way to newer ones.
    pub half_open_evicted: u64,
    /// Connections that exist now, without those in TIME-WAIT.
    pub streams: u64,
    /// Half-open connections now.
    pub half_open: u64,
    /// Connections in TIME-WAIT now.
    pub time_wait: u64,
    /// Bytes that are reserved now: windows that were advertised and not read, or the buffers for them if
    /// these are more, and buffers of what is queued to send.
    pub reserved_bytes: u64,
}

/// State of a connection (RFC 9293, section 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum StreamState {
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
    Closed,
}

impl StreamState {
    /// Returns the name of the state, as ss(8) has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECV",
            Self::Established => "ESTAB",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::CloseWait => "CLOSE-WAIT",
            Self::Closing => "CLOSING",
            Self::LastAck => "LAST-ACK",
            Self::TimeWait => "TIME-WAIT",
            Self::Closed => "CLOSED",
        }
    }
}

/// One connection now: the fields of Linux's TCP_INFO that this endpoint has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStats {
    /// The state.
    pub state: StreamState,
    /// Address of this end.
    pub local: SocketAddr,
    /// Address of the peer.
    pub peer: SocketAddr,
    /// Smoothed round trip time; zero before the first sample.
    pub rtt: Duration,
    /// Its mean deviation.
    pub rtt_var: Duration,
    /// The least round trip time so far.
    pub min_rtt: Duration,
    /// Retransmission timeout.
    pub rto: Duration,
    /// Payload bytes of a full segment.
    pub mss: u16,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Slow start threshold in bytes; `u64::MAX` before the first loss.
    pub ssthresh: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Bytes that were sent or wait to be sent, and are not acknowledged.
    pub send_queue: u64,
    /// Bytes that were received and not taken.
    pub receive_queue: u64,
    /// Bytes that the peer may send beyond what has arrived.
    pub receive_window: u64,
    /// Bytes that the peer lets this end send beyond what it has acknowledged.
    pub send_window: u64,
    /// Payload bytes that the peer acknowledged.
    pub bytes_acked: u64,
    /// Payload bytes that arrived in order.
    pub bytes_received: u64,
    /// Bytes that were sent again.
    pub bytes_retransmitted: u64,
    /// Expirations of the retransmission timer.
    pub timeouts: u64,
    /// Times that a loss was repaired without the retransmission timer.
    pub recoveries: u64,
    /// Times that a loss turned out to be none, and the window became what it was.
    pub undone: u64,
}
