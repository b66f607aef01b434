//! The arguments of `weft-bench stages`.

use clap::{Args, value_parser};
use weft_config::TunThreads;

/// What to measure, and for how long.
#[derive(Clone, Debug, Args)]
pub(crate) struct StagesArgs {
    /// How long each kind of packet goes through the stages, and each iperf3 runs, in seconds.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u32).range(1..=600))]
    pub(crate) secs: u32,
    /// How often iperf3 runs through the path without a cipher and through weft, in turns; medians count.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// How weft drives its TUN devices, as in `weft up`.
    #[arg(long, value_name = "N|auto", default_value_t)]
    pub(crate) tun_threads: TunThreads,
    /// What weft carried on this machine in Gbit/s, if that was measured elsewhere; weft does not run then.
    #[arg(long, value_name = "X")]
    pub(crate) weft_gbit: Option<f64>,
    /// The stages alone: no iperf3, and so no limit.
    #[arg(long)]
    pub(crate) no_floor: bool,
}
