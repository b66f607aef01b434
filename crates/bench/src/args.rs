//! The arguments that several commands share. `cli.rs` sets defaults of a command that differ.

use anyhow::Result;
use clap::Args;

use crate::implementation::named::{self, Named};
use crate::implementation::{Implementation, Side};

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct TimeArgs {
    /// How long each measurement takes, in seconds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) secs: u32,
    /// How often each measurement is made, in turns; medians count.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SideArgs {
    /// Another implementation: a name, and a command that makes the interface `{interface}`, stays in the
    /// foreground and is configured by `wg setconf`. The words of the command are separated by spaces; no
    /// shell. Ratio targets are meant for the first one: the newest wireguard-go.
    #[arg(value_name = "NAME=COMMAND", value_parser = named::other)]
    pub(crate) others: Vec<Named>,
    /// Leave out other implementations.
    #[arg(long)]
    pub(crate) alone: bool,
    /// A weft to measure: a path, or a name for the tables with a path and more arguments for `weft up`,
    /// separated by spaces; without a path the one beside this program. Can be given more than once: all are
    /// measured in turn.
    #[arg(long = "weft", value_name = "[NAME=]PATH [ARGS]", value_parser = named::weft)]
    pub(crate) wefts: Vec<Named>,
    #[command(flatten)]
    pub(crate) times: TimeArgs,
}

impl SideArgs {
    /// Returns the wefts, and then the other implementations.
    pub(crate) fn sides(&self) -> Result<Vec<Side>> {
        let default = [Named { name: "weft".to_owned(), words: Vec::new() }];
        let wefts = if self.wefts.is_empty() { &default[..] } else { &self.wefts };
        let others = if self.alone { &[][..] } else { &self.others };
        let others =
            others.iter().map(|other| Ok(Side::new(&other.name, Implementation::Other(other.clone()))));
        let weft = |weft: &Named| Ok(Side::new(&weft.name, Implementation::weft(&weft.words)?));
        wefts.iter().map(weft).chain(others).collect()
    }
}

/// Returns the indices of all sides in the order of a round: another one begins in each.
pub(crate) fn turns(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |turn| (round + turn) % count)
}
