//! The arguments of `weft status` and `weft top`.

use std::time::Duration;

use clap::Args;
use weft_config::InterfaceName;

use crate::complete;
use crate::own_file::interface_of;

/// The arguments of `weft status`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
Examples:
  sudo weft status              every interface that runs
  sudo weft status wg0 laptop   one peer of it
  sudo weft status wg0 --json   for scripts

{}", super::EXIT_CODES))]
pub struct StatusArgs {
    /// The interface, or its configuration file; without it all that run.
    #[arg(value_name = "NAME|FILE", value_parser = interface_of, add = complete::running())]
    pub name: Option<InterfaceName>,
    /// One peer: its name, its public key, or the beginning of that.
    #[arg(value_name = "PEER", add = complete::peer())]
    pub peer: Option<String>,
    /// Also routes, name servers, firewall, queues, threads, batches and drops, and each peer with its key.
    #[arg(short, long)]
    pub verbose: bool,
    /// Print everything as JSON on standard output.
    #[arg(long)]
    pub json: bool,
    /// How long to look, in seconds, for rates and for what is being dropped now; 0: only the totals.
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = sample)]
    pub sample: Duration,
}

/// What the keys of `weft top` do.
pub const TOP_KEYS: &str = "  q          end                     j k, arrows  choose a peer
  Enter      that peer alone         Esc          back, and at last the end
  /          find peers              ?            these keys
  n          sort by name            h            by latest handshake
  r t        by rate in, out         R T          by total in, out
  i          the other way round     p            pause";

/// The arguments of `weft top`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
Examples:
  sudo weft top
  sudo weft top wg0 laptop   one peer of it

Keys:
{TOP_KEYS}

{}", super::EXIT_CODES))]
pub struct TopArgs {
    /// The interface, or its configuration file; without it the first that runs.
    #[arg(value_name = "NAME|FILE", value_parser = interface_of, add = complete::running())]
    pub name: Option<InterfaceName>,
    /// Begin with one peer: its name, its public key, or the beginning of that.
    #[arg(value_name = "PEER", add = complete::peer())]
    pub peer: Option<String>,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
}

fn sample(text: &str) -> Result<Duration, String> {
    seconds(text, 0.0, 60.0)
}

fn interval(text: &str) -> Result<Duration, String> {
    seconds(text, 0.1, 60.0)
}

fn seconds(text: &str, least: f64, most: f64) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (least..=most).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("write a number of seconds from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_bounds() {
        assert_eq!(sample("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(sample("0"), Ok(Duration::ZERO));
        assert_eq!(interval("60"), Ok(Duration::from_secs(60)));
        for wrong in ["", "x", "NaN", "inf", "-1", "0", "61"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
