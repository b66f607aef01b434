//! The cases: the traffic that is sent through a tunnel, and what is wanted of its figures.

use std::fmt;
use std::str::FromStr;

use crate::machine::{IPERF3, PING, Tool};
use crate::report::{CPU, Figure, GBIT, IDLE_CPU, PING_P50, PING_P99, PINGS_LOST, Wanted};

/// Peak resident memory of a daemon; the larger of both ends.
pub(super) const PEAK: Figure = Figure::new("peak_rss_mib", "peak RSS MiB", 1);
/// Duration of a transfer from connecting to the confirmation of its last byte.
pub(crate) const TRANSFER: Figure = Figure::new("transfer_ms", "ms", 1);
/// Connections that failed, of many.
pub(super) const FAILED: Figure = Figure::new("failed_connections", "failed", 0);
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
    /// This number of concurrent TCP connections, with every byte checked.
    Connections { count: u32 },
    /// Transfers of `megabytes` MB, each over a new connection.
    ColdStart { megabytes: u32 },
    /// One TCP stream behind its slow start, which takes `omit` seconds.
    Stream { omit: u32 },
}

/// All cases that the help lists. Memory and idle measure what the other cases left behind.
pub(super) const ALL: &str = "tcp-1 tcp-4 tcp-reverse tcp-both-ways udp-1372 udp-64 ping ping-loaded \
    cold-10 cold-30 connections-256 connections-512 stream-5 memory idle";

/// The payload of a datagram that fills an IPv4 packet of 1400 bytes: with an MTU of 1420 none is fragmented.
pub(super) const LARGE: u32 = 1372;

impl Case {
    /// Returns all cases of the help.
    pub(crate) fn all() -> Vec<Self> {
        ALL.split_whitespace().flat_map(str::parse).collect()
    }

    /// Returns the cases measured by default: all but those with many connections, which take a while, and
    /// the one for links with a delay.
    pub(crate) fn default_set() -> Vec<Self> {
        Self::all()
            .into_iter()
            .filter(|case| !matches!(case, Self::Connections { .. } | Self::Stream { .. }))
            .collect()
    }

    /// Returns the title of its table. Cases with the same figures share one.
    pub(super) fn table(self) -> &'static str {
        match self {
            Self::Tcp { .. } => "TCP",
            Self::UdpFlood { .. } => "UDP",
            Self::Ping | Self::PingLoaded => "ping",
            Self::Memory => "memory",
            Self::Idle => "idle",
            Self::Connections { .. } => "many connections",
            Self::ColdStart { .. } => "cold start",
            Self::Stream { .. } => "one TCP stream",
        }
    }

    /// Returns the figures that are compared as ratios, the main one first.
    pub(crate) fn compared(self) -> &'static [Figure] {
        match self {
            Self::Tcp { .. } | Self::Connections { .. } => &[GBIT, CPU],
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
            Self::Tcp { streams: 1, .. } | Self::Tcp { streams: 4, direction: Direction::Forward } => {
                vec![(GBIT, RatioAtLeast(1.7)), (CPU, RatioAtMost(0.6))]
            }
            Self::UdpFlood { bytes: LARGE } => vec![(GBIT, RatioAtLeast(4.0))],
            Self::UdpFlood { bytes: 64 } => vec![(GBIT, RatioAtLeast(3.5))],
            Self::Ping => vec![(PING_P50, RatioAtMost(0.5)), (PINGS_LOST, AtMost(0.0))],
            Self::PingLoaded => vec![
                (PING_P50, RatioAtMost(1.0 / 6.0)),
                (PING_P99, RatioAtMost(1.0 / 3.0)),
                (PINGS_LOST, AtMost(0.0)),
            ],
            Self::Connections { .. } => vec![(FAILED, AtMost(0.0))],
            Self::Memory => vec![(PEAK, AtMost(64.0))],
            Self::Idle => vec![(IDLE_CPU, AtMost(0.1))],
            Self::Tcp { .. } | Self::UdpFlood { .. } | Self::ColdStart { .. } | Self::Stream { .. } => {
                Vec::new()
            }
        }
    }

    /// Returns the programs that the case needs.
    pub(super) fn tools(self) -> &'static [Tool] {
        match self {
            Self::Idle | Self::Connections { .. } | Self::ColdStart { .. } | Self::Stream { .. } => &[],
            Self::Ping => &[PING],
            Self::PingLoaded => &[IPERF3, PING],
            _ => &[IPERF3],
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
        match *self {
            Self::Tcp { streams, direction: Direction::Forward } => write!(f, "tcp-{streams}"),
            Self::Tcp { streams, direction } => {
                f.write_str("tcp")?;
                if streams != 1 {
                    write!(f, "-{streams}")?;
                }
                f.write_str(if direction == Direction::Reverse { "-reverse" } else { "-both-ways" })
            }
            Self::UdpFlood { bytes } => write!(f, "udp-{bytes}"),
            Self::Ping => f.write_str("ping"),
            Self::PingLoaded => f.write_str("ping-loaded"),
            Self::Memory => f.write_str("memory"),
            Self::Idle => f.write_str("idle"),
            Self::Connections { count } => write!(f, "connections-{count}"),
            Self::ColdStart { megabytes } => write!(f, "cold-{megabytes}"),
            Self::Stream { omit } => write!(f, "stream-{omit}"),
        }
    }
}

impl FromStr for Case {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        /// Upper bound of the streams in one iperf3 process.
        const MAX_STREAMS: u32 = 128;
        const UNKNOWN: &str = "unknown case; --help lists the cases";
        let number = |text: &str, bounds: std::ops::RangeInclusive<u32>| {
            text.parse().ok().filter(|number| bounds.contains(number)).ok_or(UNKNOWN)
        };
        let (kind, rest) = text.split_once('-').unwrap_or((text, ""));
        Ok(match (kind, rest) {
            ("tcp", _) => {
                let (streams, direction) = match rest {
                    _ if rest.ends_with("reverse") => (rest.trim_end_matches("reverse"), Direction::Reverse),
                    _ if rest.ends_with("both-ways") => {
                        (rest.trim_end_matches("both-ways"), Direction::BothWays)
                    }
                    _ => (rest, Direction::Forward),
                };
                let streams = match (streams, streams.strip_suffix('-')) {
                    ("", _) => 1,
                    (_, Some(streams)) if direction != Direction::Forward => {
                        number(streams, 1..=MAX_STREAMS)?
                    }
                    (streams, None) if direction == Direction::Forward => number(streams, 1..=MAX_STREAMS)?,
                    _ => return Err(UNKNOWN),
                };
                Self::Tcp { streams, direction }
            }
            // At least iperf3's header, at most the payload of a UDP datagram.
            ("udp", bytes) => Self::UdpFlood { bytes: number(bytes, 16..=65_507)? },
            ("ping", "") => Self::Ping,
            ("ping", "loaded") => Self::PingLoaded,
            ("memory", "") => Self::Memory,
            ("idle", "") => Self::Idle,
            ("connections", count) => Self::Connections { count: number(count, 1..=4096)? },
            ("stream", omit) => Self::Stream { omit: number(omit, 0..=60)? },
            ("cold", megabytes) => Self::ColdStart { megabytes: number(megabytes, 1..=10_000)? },
            _ => return Err(UNKNOWN),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_found_by_its_name_and_numbers_can_be_others_within_bounds() {
        let names: Vec<String> = Case::all().iter().map(Case::to_string).collect();
        assert_eq!(names.join(" "), ALL);
        assert_eq!("tcp".parse(), "tcp-1".parse::<Case>());
        for other in ["tcp-8-reverse", "tcp-2-both-ways", "connections-1000", "udp-100", "cold-1"] {
            assert_eq!(other.parse::<Case>().map(|case| case.to_string()).as_deref(), Ok(other));
        }
        for wrong in ["", "tcp-0", "tcp-129", "tcp-1-x-reverse", "udp", "udp-70000", "ping-x", "cold-0"] {
            assert!(wrong.parse::<Case>().is_err(), "{wrong}");
        }
    }
}
