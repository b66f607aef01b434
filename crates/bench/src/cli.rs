//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};
use weft::cli::TunThreads;

use crate::stages::args::StagesArgs;

/// Measures weft side by side with other implementations of WireGuard, on this machine.
#[derive(Debug, Parser)]
#[command(name = "weft-bench", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run iperf3 through weft and through others in turn, round by round, and compare.
    ///
    /// Needs root, iperf3, wg (wireguard-tools) and the programs to compare with.
    Compare(CompareArgs),
    /// Measure each stage of the packet path by itself, and what this machine could do at best.
    ///
    /// Needs root and iperf3.
    Stages(StagesArgs),
    /// Emulate a link between two namespaces and measure whether it is what was asked for.
    ///
    /// Needs root and ping; no netem.
    Link(crate::link::LinkArgs),
    /// Run TCP over an emulated link with round trips of 20, 60 and 100 ms, bare and through tunnels.
    ///
    /// Needs root, and for --peer wg (wireguard-tools) and the programs to compare with; no iperf3, no netem.
    Rtt(crate::rtt::RttArgs),
}

/// The arguments of `weft-bench compare`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CompareArgs {
    /// How long each measurement takes, in seconds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) secs: u32,
    /// How often each measurement is made; medians count.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// How weft drives its TUN devices, as in `weft up`.
    #[arg(long, value_name = "N|auto", default_value_t)]
    pub(crate) tun_threads: TunThreads,
    /// The weft to measure; without it the one beside this program.
    #[arg(long, value_name = "PATH")]
    pub(crate) weft: Option<PathBuf>,
    /// Another implementation: a name, and a command that makes the interface `{interface}`, stays in the
    /// foreground and is configured by `wg setconf`. The words of the command are separated by spaces; no shell.
    #[arg(
        long = "peer",
        value_name = "NAME=COMMAND",
        default_value = "wireguard-go=wireguard-go -f {interface}"
    )]
    pub(crate) peers: Vec<PeerCommand>,
    /// Print everything as JSON on standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Another implementation, as the command line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerCommand {
    /// How tables call it.
    pub(crate) name: String,
    /// The program and its arguments.
    words: Vec<String>,
}

/// What stands for the name of the interface.
const INTERFACE: &str = "{interface}";

impl PeerCommand {
    /// The program and its arguments for this interface.
    pub(crate) fn words(&self, interface: &str) -> Vec<String> {
        self.words.iter().map(|word| word.replace(INTERFACE, interface)).collect()
    }
}

/// Not a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidPeer;

impl std::fmt::Display for InvalidPeer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "write NAME=COMMAND, with {INTERFACE} where the command takes the name of its interface")
    }
}

impl std::error::Error for InvalidPeer {}

impl FromStr for PeerCommand {
    type Err = InvalidPeer;
    fn from_str(text: &str) -> Result<Self, InvalidPeer> {
        let (name, command) = text.split_once('=').ok_or(InvalidPeer)?;
        let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        if name.trim().is_empty() || !words.iter().skip(1).any(|word| word.contains(INTERFACE)) {
            return Err(InvalidPeer);
        }
        Ok(Self { name: name.trim().to_owned(), words })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_has_defaults() {
        Cli::command().debug_assert();
        let command = Cli::try_parse_from(["weft-bench", "compare"]).unwrap().command;
        let Command::Compare(args) = command else { panic!("not compare") };
        assert_eq!((args.secs, args.rounds, args.tun_threads), (5, 3, TunThreads::Auto));
        assert_eq!(args.peers[0].name, "wireguard-go");
        assert_eq!(args.peers[0].words("wg7"), ["wireguard-go", "-f", "wg7"]);
    }

    #[test]
    fn a_peer_has_a_name_a_program_and_a_place_for_the_interface() {
        let peer: PeerCommand = "other = env THREADS=2 other --foreground {interface}".parse().unwrap();
        assert_eq!(peer.name, "other");
        assert_eq!(peer.words("x"), ["env", "THREADS=2", "other", "--foreground", "x"]);
        for wrong in ["", "other", "=other {interface}", "other=other", "other={interface}", "other="] {
            assert_eq!(wrong.parse::<PeerCommand>(), Err(InvalidPeer), "{wrong}");
        }
    }
}
