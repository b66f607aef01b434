//! The command line.

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{compare, floods, peers, rootless, rtt, shards, soak, stages};

/// Measures weft side by side with other implementations of WireGuard, on this machine.
///
/// Both ends of every tunnel are here, each in a separate network namespace. Needs root; an error names any
/// other program that is missing.
#[derive(Debug, Parser)]
#[command(name = "weft-bench", version, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print everything as JSON on standard output.
    #[arg(long, global = true)]
    json: bool,
}

const EXIT_CODES: &str = "\
Exit codes:
  0   everything was measured; whether targets hold is in the report
  1   something failed
  2   the command line is wrong
  77  a permission is missing: run it as root";
const WIREGUARD_GO: &str = "wireguard-go=wireguard-go -f {interface}";

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure weft and others in turn, round by round, and compare.
    #[command(after_help = compare::help(), mut_arg("others", |arg| arg.default_value(WIREGUARD_GO)))]
    Compare(compare::CompareArgs),
    /// Measure what each stage of the packet path takes for a packet.
    #[command(mut_arg("secs", |arg| arg.default_value("10")))]
    Stages(stages::StagesArgs),
    /// Run TCP over an emulated link with round trips of 20, 60 and 100 ms, bare and through tunnels.
    ///
    /// Needs no iperf3 and no netem, and wg (wireguard-tools) only for others than weft.
    #[command(mut_arg("secs", |arg| arg.default_value("12")))]
    Rtt(rtt::RttArgs),
    /// Measure a gateway with thousands of peers, many of which are there at once.
    #[command(mut_arg("secs", |arg| arg.default_value("3")), after_help = "\
Examples:
  weft-bench peers
  weft-bench peers --weft old=/tmp/weft --weft new=target/release/weft --work throughput --rounds 5
  weft-bench peers --configured 1000 --active 100 --burst 1 'go=wireguard-go -f {interface}'")]
    Peers(peers::PeersArgs),
    /// Measure the service of a gateway's peers beside floods of handshakes and junk.
    #[command(mut_arg("others", |arg| arg.default_value(WIREGUARD_GO)),
              mut_arg("rounds", |arg| arg.default_value("5")), after_help = floods::help())]
    Floods(floods::FloodsArgs),
    /// Measure what several packet threads of a gateway carry together, beside one.
    ///
    /// Needs no other program, and no weft beside this one: the gateway runs in this process.
    #[command(mut_arg("secs", |arg| arg.default_value("1")), mut_arg("rounds", |arg| arg.default_value("5")))]
    Shards(shards::ShardsArgs),
    /// Measure the ways into a tunnel without root, beside the daemon as root.
    ///
    /// Needs root, to be both ends and to become the user without root; iperf3 and setpriv.
    #[command(mut_arg("secs", |arg| arg.default_value("8")), after_help = "\
Examples:
  weft-bench rootless
  weft-bench rootless --link veth --way exec --rounds 5")]
    Rootless(rootless::RootlessArgs),
    /// Load a gateway for hours with all that happens to one, and fail if anything grows, stalls or is lost.
    ///
    /// Needs dbus-daemon.
    #[command(after_help = "\
Examples:
  weft-bench soak 2 --out soak
  weft-bench soak --minutes 5 --every 10 --mbit 100")]
    Soak(soak::SoakArgs),
}

pub(crate) fn run(cli: &Cli) -> Result<()> {
    let json = cli.json;
    match &cli.command {
        Command::Compare(args) => compare::run(args, json),
        Command::Stages(args) => stages::run(args, json),
        Command::Rtt(args) => rtt::run(args, json),
        Command::Peers(args) => peers::run(args, json),
        Command::Floods(args) => floods::run(args, json),
        Command::Shards(args) => shards::run(args, json),
        Command::Rootless(args) => rootless::run(args, json),
        Command::Soak(args) => soak::run(args, json),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_each_command_has_its_defaults() {
        Cli::command().debug_assert();
        let Command::Compare(args) =
            Cli::try_parse_from(["weft-bench", "compare", "--case", "udp-64,idle"]).unwrap().command
        else {
            panic!()
        };
        let times = args.sides.times;
        assert_eq!((times.secs, times.rounds), (5, 3));
        assert_eq!(args.sides.others[0].name, "wireguard-go");
        assert_eq!(args.sides.others[0].words, ["wireguard-go", "-f", "{interface}"]);
        let Command::Rtt(args) = Cli::try_parse_from(["weft-bench", "rtt"]).unwrap().command else {
            panic!()
        };
        assert_eq!((args.sides.times.secs, args.sides.times.rounds), (12, 3));
        assert!(args.sides.others.is_empty());
    }
}
