//! The command line of `weft-bench soak`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::implementation::WeftCommand;

/// The arguments of `weft-bench soak`.
#[derive(Clone, Debug, Args)]
pub(crate) struct SoakArgs {
    /// How long to run, in hours.
    #[arg(value_name = "HOURS", default_value_t = 2, conflicts_with = "minutes", value_parser = clap::value_parser!(u32).range(1..=1000))]
    hours: u32,
    /// How long to run, in minutes, such as 5 or 0.5.
    #[arg(long, value_name = "N", value_parser = minutes)]
    minutes: Option<Duration>,
    /// The time between two lines of figures, in seconds.
    #[arg(long, value_name = "SECS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(5..=600))]
    every: u32,
    /// The rate of bulk traffic in Mbit/s: two thirds to the gateway, one third from it.
    #[arg(long, value_name = "MBIT", default_value_t = 300, value_parser = clap::value_parser!(u32).range(3..=10_000))]
    pub(super) mbit: u32,
    /// Peers that come, go and roam.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=5000))]
    pub(super) peers: u32,
    /// Datagrams a second of a flood.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) flood: u32,
    /// A directory for the figures (soak.jsonl), the plots (soak.svg) and the logs of the daemons.
    #[arg(long, value_name = "DIRECTORY", overrides_with = "out")]
    pub(super) out: Option<PathBuf>,
    /// The weft to load, and more arguments for `weft up`; without it the one beside this program.
    #[arg(long, value_name = "[NAME=]PATH [ARGS]")]
    pub(super) weft: Option<WeftCommand>,
}

impl SoakArgs {
    /// Returns how long the run takes.
    pub(super) fn time(&self) -> Duration {
        self.minutes.unwrap_or(Duration::from_secs(3600 * u64::from(self.hours)))
    }

    /// Returns the length of an interval, at the end of which figures are taken.
    pub(super) fn interval(&self) -> Duration {
        Duration::from_secs(self.every.into())
    }

    /// Returns the number of intervals.
    pub(super) fn intervals(&self) -> usize {
        (self.time().as_secs() / u64::from(self.every)).max(1) as usize
    }
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: Option<f64> = text.parse().ok();
    let minutes = minutes.filter(|minutes| (0.1..=60_000.0).contains(minutes));
    minutes
        .map(|minutes| Duration::from_secs_f64(minutes * 60.0))
        .ok_or_else(|| "0.1 to 60000 minutes".to_owned())
}
