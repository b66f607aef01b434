//! The cases: the traffic that is sent through a tunnel, and the figures that are measured. The measurements
//! are in `measure/`.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::metric::Metric;

/// Which way TCP goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Direction {
    /// From the near end to the far one.
    #[default]
    Forward,
    /// From the far end to the near one.
    Reverse,
    /// Both at once; figures are sums.
    BothWays,
}

/// A measurement. Its name on the command line is its [`fmt::Display`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// TCP with this number of streams in each direction.
    Tcp { streams: u32, direction: Direction },
    /// Datagrams with `bytes` bytes of payload, as fast as one sender can send.
    UdpFlood { bytes: u32 },
    /// The highest rate of datagrams with less than 1 % loss.
    UdpRate,
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
}

/// All cases that the help lists.
pub(crate) const ALL: [Case; 15] = [
    Case::Tcp { streams: 1, direction: Direction::Forward },
    Case::Tcp { streams: 4, direction: Direction::Forward },
    Case::Tcp { streams: 1, direction: Direction::Reverse },
    Case::Tcp { streams: 1, direction: Direction::BothWays },
    Case::UdpFlood { bytes: LARGE },
    Case::UdpFlood { bytes: 64 },
    Case::UdpRate,
    Case::Ping,
    Case::PingLoaded,
    Case::ColdStart { megabytes: 10 },
    Case::ColdStart { megabytes: 30 },
    Case::Connections { count: 256 },
    Case::Connections { count: 512 },
    // Last: these measure what the other cases left behind.
    Case::Memory,
    Case::Idle,
];

/// The payload of a datagram that fills an IPv4 packet of 1400 bytes: with an MTU of 1420 none is fragmented.
pub(crate) const LARGE: u32 = 1372;
/// Upper bound of the streams in one iperf3 process.
const MAX_STREAMS: u32 = 128;

impl Case {
    /// Returns the cases measured by default: all but those with many connections, which take a while.
    pub(crate) fn default_set() -> Vec<Self> {
        ALL.into_iter().filter(|case| !matches!(case, Self::Connections { .. })).collect()
    }

    /// Returns the name used in tables.
    pub(crate) fn title(self) -> String {
        match self {
            Self::Tcp { streams, direction } => {
                let plural = if streams == 1 { "" } else { "s" };
                let way = match direction {
                    Direction::Forward => "",
                    Direction::Reverse => ", reverse",
                    Direction::BothWays => ", both ways",
                };
                format!("TCP, {streams} stream{plural}{way}")
            }
            Self::UdpFlood { bytes } => format!("UDP flood, {bytes} B"),
            Self::UdpRate => "UDP, loss below 1 %".to_owned(),
            Self::Ping => "ping, idle".to_owned(),
            Self::PingLoaded => "ping beside TCP".to_owned(),
            Self::Memory => "memory".to_owned(),
            Self::Idle => "idle".to_owned(),
            Self::Connections { count } => format!("{count} connections"),
            Self::ColdStart { megabytes } => format!("{megabytes} MB, cold start"),
        }
    }

    /// Returns the figures in the table, in this order. The first one is the main figure of the case.
    pub(crate) fn columns(self) -> &'static [Metric] {
        match self {
            Self::Tcp { .. } => &[
                Metric::GbitPerSecond,
                Metric::CpuSecondsPerGbit,
                Metric::Retransmits,
                Metric::OutOfOrder,
                Metric::Reorderings,
            ],
            Self::UdpFlood { bytes } if bytes < 500 => &[
                Metric::PacketsPerSecond,
                Metric::GbitPerSecond,
                Metric::LossPercent,
                Metric::CpuSecondsPerGbit,
            ],
            Self::UdpFlood { .. } => &[
                Metric::GbitPerSecond,
                Metric::PacketsPerSecond,
                Metric::LossPercent,
                Metric::CpuSecondsPerGbit,
            ],
            Self::UdpRate => &[Metric::GbitPerSecond, Metric::PacketsPerSecond, Metric::LossPercent],
            Self::Ping => &[Metric::PingP50Ms, Metric::PingP99Ms, Metric::PingsLost],
            Self::PingLoaded => &[
                Metric::PingP50Ms,
                Metric::PingP99Ms,
                Metric::PingMaxMs,
                Metric::PingsLost,
                Metric::GbitPerSecond,
            ],
            Self::Memory => &[Metric::PeakRssMib],
            Self::Idle => &[Metric::IdleCpuPercent, Metric::WakeUpsPerSecond],
            Self::Connections { .. } => &[
                Metric::GbitPerSecond,
                Metric::CpuSecondsPerGbit,
                Metric::Fairness,
                Metric::FailedConnections,
                Metric::Retransmits,
            ],
            Self::ColdStart { .. } => &[Metric::TransferMs, Metric::Retransmits, Metric::HystartExits],
        }
    }

    /// Returns the figures that are compared as ratios.
    pub(crate) fn compared(self) -> &'static [Metric] {
        match self {
            Self::Tcp { .. } | Self::Connections { .. } => {
                &[Metric::GbitPerSecond, Metric::CpuSecondsPerGbit]
            }
            Self::Ping | Self::PingLoaded => &[Metric::PingP50Ms, Metric::PingP99Ms],
            Self::UdpFlood { .. } | Self::UdpRate | Self::Memory | Self::Idle | Self::ColdStart { .. } => {
                &self.columns()[..1]
            }
        }
    }

    /// Reports whether the case is measured only once per run, because its figure accumulates over the run or
    /// changes little.
    pub(crate) fn once(self) -> bool {
        matches!(self, Self::Memory | Self::Idle)
    }

    /// Reports whether the case needs a daemon to measure.
    pub(crate) fn needs_daemon(self) -> bool {
        matches!(self, Self::Memory | Self::Idle)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Tcp { streams, direction } => {
                f.write_str("tcp")?;
                if streams != 1 || direction == Direction::Forward {
                    write!(f, "-{streams}")?;
                }
                f.write_str(match direction {
                    Direction::Forward => "",
                    Direction::Reverse => "-reverse",
                    Direction::BothWays => "-both-ways",
                })
            }
            Self::UdpFlood { bytes } => write!(f, "udp-{bytes}"),
            Self::UdpRate => f.write_str("udp-rate"),
            Self::Ping => f.write_str("ping"),
            Self::PingLoaded => f.write_str("ping-loaded"),
            Self::Memory => f.write_str("memory"),
            Self::Idle => f.write_str("idle"),
            Self::Connections { count } => write!(f, "connections-{count}"),
            Self::ColdStart { megabytes } => write!(f, "cold-{megabytes}"),
        }
    }
}

impl Serialize for Case {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The error for an unknown case name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown case; --help lists the cases")]
pub(crate) struct UnknownCase;

impl FromStr for Case {
    type Err = UnknownCase;
    fn from_str(text: &str) -> Result<Self, UnknownCase> {
        let number = |text: &str, most| match text.parse::<u32>() {
            Ok(number) if (1..=most).contains(&number) => Ok(number),
            _ => Err(UnknownCase),
        };
        let (kind, rest) = text.split_once('-').unwrap_or((text, ""));
        match (kind, rest) {
            ("tcp", _) => {
                let (streams, way) = match rest.split_once('-') {
                    Some((streams, way)) if streams.starts_with(|c: char| c.is_ascii_digit()) => {
                        (streams, way)
                    }
                    _ if rest.starts_with(|c: char| c.is_ascii_digit()) => (rest, ""),
                    _ => ("1", rest),
                };
                let direction = match way {
                    "" => Direction::Forward,
                    "reverse" => Direction::Reverse,
                    "both-ways" => Direction::BothWays,
                    _ => return Err(UnknownCase),
                };
                Ok(Self::Tcp { streams: number(streams, MAX_STREAMS)?, direction })
            }
            ("udp", "rate") => Ok(Self::UdpRate),
            // At least iperf3's header, at most the payload of a UDP datagram.
            ("udp", bytes) => number(bytes, 65_507)
                .and_then(|bytes| if bytes < 16 { Err(UnknownCase) } else { Ok(Self::UdpFlood { bytes }) }),
            ("ping", "") => Ok(Self::Ping),
            ("ping", "loaded") => Ok(Self::PingLoaded),
            ("memory", "") => Ok(Self::Memory),
            ("idle", "") => Ok(Self::Idle),
            ("connections", count) => Ok(Self::Connections { count: number(count, 4096)? }),
            ("cold", megabytes) => Ok(Self::ColdStart { megabytes: number(megabytes, 10_000)? }),
            _ => Err(UnknownCase),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_found_by_its_name() {
        for case in ALL {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        let names = ALL.map(|case| case.to_string()).join(" ");
        assert!(names.starts_with("tcp-1 tcp-4 tcp-reverse tcp-both-ways udp-1372 udp-64 udp-rate ping "));
    }

    #[test]
    fn numbers_in_names_can_be_others_within_bounds() {
        assert_eq!("tcp".parse(), "tcp-1".parse::<Case>());
        let eight = Case::Tcp { streams: 8, direction: Direction::Reverse };
        assert_eq!(("tcp-8-reverse".parse(), eight.title()), (Ok(eight), "TCP, 8 streams, reverse".into()));
        assert_eq!("connections-1000".parse(), Ok(Case::Connections { count: 1000 }));
        let wrong = [
            "",
            "tcp-0",
            "tcp-129",
            "tcp-x",
            "tcp-1-2",
            "udp",
            "udp-8",
            "udp-70000",
            "ping-x",
            "idle-1",
            "cold-0",
            "connections-5000",
        ];
        for wrong in wrong {
            assert_eq!(wrong.parse::<Case>(), Err(UnknownCase), "{wrong}");
        }
    }

    #[test]
    fn what_is_compared_is_shown() {
        for case in ALL {
            assert!(case.compared().iter().all(|metric| case.columns().contains(metric)), "{case}");
        }
    }
}
