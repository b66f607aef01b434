//! The command line of `weft-bench peers`.

use clap::{Args, ValueEnum};
use weft_config::TunThreads;

use crate::implementation::{PeerCommand, WeftArgs};

/// The arguments of `weft-bench peers`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PeersArgs {
    /// Another implementation, as for `weft-bench compare`.
    #[arg(value_name = "NAME=COMMAND")]
    pub(crate) others: Vec<PeerCommand>,
    /// How many peers the gateway is configured with.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(10..=60_000))]
    pub(crate) configured: u32,
    /// How many of them are there and send at once; one more floods, and eight more ping.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) active: u32,
    /// What to measure, with commas between them. Handshakes are always made.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "throughput,idle,dump,fairness")]
    pub(crate) work: Vec<Work>,
    /// How long each measurement takes, in seconds.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) secs: u32,
    /// How often throughput and fairness are measured; medians count.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Packets that a peer sends one behind the other before the next one does, as one segmented send.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=44))]
    pub(crate) burst: u32,
    /// Packets that may be on their way, all peers together.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) window: u32,
    #[command(flatten)]
    pub(crate) wefts: WeftArgs,
    /// How weft drives its TUN device, as in `weft up`.
    #[arg(long, value_name = "N|auto", default_value_t)]
    pub(crate) tun_threads: TunThreads,
}

/// Something to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// Throughput with one peer and with all active ones.
    Throughput,
    /// CPU time and wake-ups of the gateway while no peer sends.
    Idle,
    /// Time of a request for all peers while they send, and the throughput meanwhile.
    Dump,
    /// Latency and throughput of a peer beside one that floods.
    Fairness,
}
