//! The arguments of `weft speedtest`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use weft_config::InterfaceName;
use weft_config::values::parse_rate;
use weft_tunnel::Rate;

use crate::complete;
use crate::own_file::interface_of;

const OUTPUT: &str = "Output";

/// The arguments of `weft speedtest`.
#[derive(Clone, Debug, Args)]
#[command(allow_missing_positional = true)]
#[command(after_help = format!("\
Examples:
  sudo weft speedtest wg0 office              both directions, 10 s each
  sudo weft speedtest 10.0.0.1 --direction down -t 30s --streams 4
  sudo weft speedtest wg0 office --congestion bbr --json
  sudo weft speedtest wg0 office --udp 50Mbit
  sudo weft speedtest wg0 office --direction up --plot office.svg

The peer needs `# weft: SpeedTest = on` in [Interface] of its file.
docs/SPEEDTEST.md says how the limits are found.

{}", super::EXIT_CODES))]
pub struct SpeedtestArgs {
    /// The interface, or its configuration file; without it the one that has the peer.
    #[arg(value_name = "NAME|FILE", value_parser = interface_of, add = complete::running_or_peer())]
    pub name: Option<InterfaceName>,
    /// The peer: its public key, or what its configuration calls it, if its allowed IPs have the address of a
    /// single host; or an address of it in the tunnel.
    #[arg(value_name = "PEER|ADDRESS", required = true, add = complete::peer())]
    pub target: String,
    /// up: this machine sends; down: the peer sends; both: one after the other.
    #[arg(long, value_enum, default_value_t = Directions::Both)]
    pub direction: Directions,
    /// How long each direction takes, such as 10s; at most 60s.
    #[arg(short = 't', long = "time", value_name = "SECONDS", default_value = "10s", value_parser = duration)]
    pub time: Duration,
    /// TCP connections at once, 1 to 32.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub streams: u16,
    /// The congestion control of the sender, such as cubic or bbr; without it its default.
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Send datagrams at this rate instead of TCP, such as 50Mbit, and count those lost and displaced.
    #[arg(long, value_name = "RATE", conflicts_with_all = ["streams", "congestion"], value_parser = rate)]
    pub udp: Option<Rate>,
    /// Capture the packets of the peer during the test into this file, in the format pcapng: the first 128
    /// bytes of each, inside the tunnel and outside.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub pcap: Option<PathBuf>,
    /// Draw throughput, windows, bytes in flight and round trips into this file, as SVG; with --udp
    /// throughput and the datagrams sent, received and lost.
    #[arg(long, value_name = "FILE.svg", help_heading = OUTPUT)]
    pub plot: Option<PathBuf>,
    /// Print the result with all samples as JSON on standard output.
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// The directions to test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Directions {
    /// This machine sends.
    Up,
    /// The peer sends.
    Down,
    /// Up, then down.
    Both,
}

fn duration(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.strip_suffix('s').unwrap_or(text).trim_end().parse().ok();
    let seconds = seconds.filter(|seconds| (1.0..=60.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "write seconds from 1s to 60s".to_owned())
}

fn rate(text: &str) -> Result<Rate, String> {
    parse_rate(text).ok_or_else(|| "write a rate with its unit, kbit, Mbit or Gbit, like 50Mbit".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn parse(arguments: &[&str]) -> Result<SpeedtestArgs, clap::Error> {
        let command = SpeedtestArgs::augment_args(Command::new("speedtest").no_binary_name(true));
        SpeedtestArgs::from_arg_matches(&command.try_get_matches_from(arguments)?)
    }

    #[test]
    fn the_interface_may_be_left_out() {
        let args = parse(&["office"]).unwrap();
        assert_eq!((args.name, &*args.target), (None, "office"));
        let args = parse(&["wg0", "office"]).unwrap();
        assert_eq!((args.name.unwrap().as_str(), &*args.target), ("wg0", "office"));
        assert_eq!((args.time, args.streams, args.direction), (Duration::from_secs(10), 1, Directions::Both));
        assert!(parse(&[]).is_err());
    }

    #[test]
    fn times_and_streams_have_bounds() {
        for (text, milliseconds) in [("1", 1000), ("2.5s", 2500), ("60s", 60_000)] {
            let args = parse(&["office", "-t", text]).unwrap();
            assert_eq!(args.time, Duration::from_millis(milliseconds), "{text}");
        }
        for wrong in ["0", "61s", "-1", "x", "s", "NaN", "1m"] {
            assert!(parse(&["office", "-t", wrong]).is_err(), "{wrong}");
        }
        assert!(parse(&["office", "--streams", "0"]).is_err());
        assert!(parse(&["office", "--streams", "33"]).is_err());
        let bits =
            |text: &str| parse(&["office", "--udp", text]).map(|args| args.udp.unwrap().bits_per_second());
        assert_eq!(bits("50Mbit").unwrap(), 50_000_000);
        assert!(bits("50").is_err() && bits("off").is_err());
        assert!(parse(&["office", "--udp", "1Mbit", "--streams", "2"]).is_err());
    }
}
