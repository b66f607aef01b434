//! The command line of `weft-bench floods`.

use clap::Args;
use weft_config::TunThreads;

use super::attack::{Attack, defaults};
use crate::implementation::{PeerCommand, WeftArgs};

/// The arguments of `weft-bench floods`.
#[derive(Clone, Debug, Args)]
pub(crate) struct FloodsArgs {
    /// Another implementation, as for `weft-bench compare`.
    #[arg(value_name = "NAME=COMMAND", default_value = "wireguard-go=wireguard-go -f {interface}")]
    pub(crate) others: Vec<PeerCommand>,
    /// Leave out other implementations.
    #[arg(long)]
    pub(crate) alone: bool,
    /// What to flood with; several, with commas. See the list below.
    #[arg(long = "attack", value_name = "NAME", value_delimiter = ',')]
    attacks: Vec<Attack>,
    /// How long TCP and pings are measured during a flood, in seconds. The flood itself lasts until all
    /// strangers are in, or 17 s.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) secs: u32,
    /// How often each measurement is made; medians count.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Threads of a busy loop beside everything.
    #[arg(long, value_name = "N", default_value_t = 0, num_args = 0..=1, default_missing_value = "1", value_parser = clap::value_parser!(u32).range(0..=64))]
    pub(crate) busy: u32,
    #[command(flatten)]
    pub(crate) wefts: WeftArgs,
    /// How weft drives its TUN device, as in `weft up`.
    #[arg(long, value_name = "N|auto", default_value_t)]
    pub(crate) tun_threads: TunThreads,
}

impl FloodsArgs {
    /// Returns the attacks in order, by default the list of the help.
    pub(crate) fn attacks(&self) -> Vec<Attack> {
        if self.attacks.is_empty() { defaults() } else { self.attacks.clone() }
    }
}
