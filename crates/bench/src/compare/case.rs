//! The cases: the traffic that is sent through a tunnel, and what is wanted of its figures.

use std::fmt;
use std::str::FromStr;

use crate::report::{CPU, Figure, GBIT, PING_P50, PING_P99, PINGS_LOST, Wanted};

/// Peak resident memory of a daemon; the larger of both ends.
pub(super) const PEAK: Figure = Figure::new("peak_rss_mib", "peak RSS MiB", 1);
pub(super) const IDLE_CPU: Figure = Figure::new("idle_cpu_percent", "idle CPU %", 3);
/// Duration of a transfer from connecting to the confirmation of its last byte.
pub(crate) const TRANSFER: Figure = Figure::new("transfer_ms", "ms", 1);
pub(crate) const MBIT: Figure = Figure::new("mbit_per_second", "Mbit/s", 1);
/// Of what the headers leave: the payload, divided by its share of a full frame.
pub(crate) const OF_HEADERS: Figure = Figure::new("of_what_headers_leave", "without headers, Mbit/s", 1);
/// Retransmits from the first packet to the last, slow start included.
pub(crate) const ALL_RETRANSMITS: Figure = Figure::new("retransmits_in_all", "with slow start", 0);

/// Which way TCP goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the near end to the far one.
    Forward,
    /// From the far end to the near one.
    Reverse,
    /// Both at once; figures are sums.
    BothWays,
}

/// A measurement. Its name on the command line and in tables is its [`fmt::Display`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// TCP with this number of streams in each direction.
    Tcp { streams: u32, direction: Direction },
    /// Datagrams with `bytes` bytes of payload, as fast as one sender can send.
    UdpFlood { bytes: u32 },
    /// Pings through an idle tunnel.
    Ping,
    /// Pings beside a TCP stream that runs as fast as possible.
    PingLoaded,
    /// The daemons' memory after TCP both ways.
    Memory,
    /// The daemons' CPU time and wake-ups without traffic.
    Idle,
    /// Transfers of `megabytes` MB, each over a new connection.
    ColdStart { megabytes: u32 },
    /// One TCP stream behind its slow start, which takes `omit` seconds.
    Stream { omit: u32 },
}

/// All cases by name. Memory and idle measure what the other cases left behind.
const CASES: [(&str, Case); 12] = [
    ("tcp-1", Case::Tcp { streams: 1, direction: Direction::Forward }),
    ("tcp-4", Case::Tcp { streams: 4, direction: Direction::Forward }),
    ("tcp-reverse", Case::Tcp { streams: 1, direction: Direction::Reverse }),
    ("tcp-both-ways", Case::Tcp { streams: 1, direction: Direction::BothWays }),
    // It fills an IPv4 packet of 1400 bytes: with an MTU of 1420 none is fragmented.
    ("udp-1372", Case::UdpFlood { bytes: 1372 }),
    ("udp-64", Case::UdpFlood { bytes: 64 }),
    ("ping", Case::Ping),
    ("ping-loaded", Case::PingLoaded),
    ("cold-10", Case::ColdStart { megabytes: 10 }),
    ("cold-30", Case::ColdStart { megabytes: 30 }),
    ("memory", Case::Memory),
    ("idle", Case::Idle),
];

impl Case {
    pub(super) fn names() -> String {
        CASES.map(|(name, _)| name).join(" ")
    }

    pub(crate) fn all() -> Vec<Self> {
        CASES.map(|(_, case)| case).to_vec()
    }

    /// Returns the title of its table. Cases with the same figures share one.
    pub(super) fn table(self) -> &'static str {
        match self {
            Self::Tcp { .. } => "TCP",
            Self::UdpFlood { .. } => "UDP",
            Self::Ping | Self::PingLoaded => "ping",
            Self::Memory => "memory",
            Self::Idle => "idle",
            Self::ColdStart { .. } => "cold start",
            Self::Stream { .. } => "one TCP stream",
        }
    }

    /// Returns the figures that are compared as ratios, the main one first.
    pub(crate) fn compared(self) -> &'static [Figure] {
        match self {
            Self::Tcp { .. } => &[GBIT, CPU],
            Self::UdpFlood { .. } => &[GBIT],
            Self::Ping | Self::PingLoaded => &[PING_P50, PING_P99],
            Self::Memory => &[PEAK],
            Self::Idle => &[IDLE_CPU],
            Self::ColdStart { .. } => &[TRANSFER],
            Self::Stream { .. } => &[MBIT, OF_HEADERS, ALL_RETRANSMITS],
        }
    }

    /// Returns weft's targets: ratios to the newest wireguard-go in the same run, or absolute values.
    pub(super) fn targets(self) -> Vec<(Figure, Wanted)> {
        use Wanted::{AtMost, RatioAtLeast, RatioAtMost};
        match self {
            Self::Tcp { .. } => vec![(GBIT, RatioAtLeast(1.7)), (CPU, RatioAtMost(0.6))],
            Self::UdpFlood { bytes } => vec![(GBIT, RatioAtLeast(if bytes > 64 { 4.0 } else { 3.5 }))],
            Self::Ping => vec![(PING_P50, RatioAtMost(0.5)), (PINGS_LOST, AtMost(0.0))],
            Self::PingLoaded => vec![
                (PING_P50, RatioAtMost(1.0 / 6.0)),
                (PING_P99, RatioAtMost(1.0 / 3.0)),
                (PINGS_LOST, AtMost(0.0)),
            ],
            Self::Memory => vec![(PEAK, AtMost(64.0))],
            Self::Idle => vec![(IDLE_CPU, AtMost(0.1))],
            Self::ColdStart { .. } | Self::Stream { .. } => Vec::new(),
        }
    }

    /// Reports whether the case needs a daemon, and is measured only once per run, because its figure
    /// accumulates over the run or changes little.
    pub(super) fn is_of_daemons(self) -> bool {
        matches!(self, Self::Memory | Self::Idle)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = CASES.iter().find(|(_, case)| case == self);
        f.write_str(known.map_or("stream", |(name, _)| name))
    }
}

impl FromStr for Case {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = CASES.iter().find(|(name, _)| *name == text);
        known.map(|(_, case)| *case).ok_or("unknown case; --help lists the cases")
    }
}
