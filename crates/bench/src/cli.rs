//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use weft_config::TunThreads;
use weft_lab::emulator::LinkSpec;

use crate::case::{ALL, Case, Direction};
use crate::implementation::{Offload, PeerCommand, WeftArgs};
use crate::stages::args::StagesArgs;

/// Measures weft side by side with other implementations of WireGuard, on this machine.
///
/// Both ends of every tunnel are here, each in a separate network namespace. Needs root; an error names any
/// other program that is missing.
#[derive(Debug, Parser)]
#[command(name = "weft-bench", version, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print everything as JSON on standard output.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

const EXIT_CODES: &str = "\
Exit codes:
  0   everything was measured; whether targets hold is in the report
  1   something failed
  2   the command line is wrong
  77  a permission is missing: run it as root";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure weft, beside the same link without a tunnel.
    #[command(after_help = cases_help("\
Examples:
  weft-bench tunnel
  weft-bench tunnel --case tcp-1,ping-loaded --tun-threads 2
  weft-bench tunnel --streams 8 --direction reverse --mtu 8920
  weft-bench tunnel --link rate=200mbit,delay=10ms --case tcp-1
  weft-bench tunnel --weft old=/tmp/weft --weft new=target/release/weft"))]
    Tunnel(TunnelArgs),
    /// Measure weft and others in turn, round by round, and compare.
    #[command(after_help = cases_help("\
Examples:
  weft-bench compare
  weft-bench compare 'go=/opt/wireguard-go -f {interface}' 'boringtun=boringtun-cli -f {interface}'
  weft-bench compare --weft 'inline=--tun-threads 0' --weft 'threads=--tun-threads 1' --case tcp-1"))]
    Compare(CompareArgs),
    /// Measure each stage of the packet path by itself, and what this machine could do at best.
    ///
    /// Needs root and iperf3.
    Stages(StagesArgs),
    /// Emulate a link between two namespaces and measure whether it has the requested properties.
    ///
    /// Needs root and ping; no netem.
    Link(crate::link::LinkArgs),
    /// Run TCP over an emulated link with round trips of 20, 60 and 100 ms, bare and through tunnels.
    ///
    /// Needs root, and for --peer wg (wireguard-tools) and the programs to compare with; no iperf3, no netem.
    Rtt(crate::rtt::RttArgs),
    /// Measure a gateway with thousands of peers, many of which are there at once.
    ///
    /// Needs root, and for others than weft wg (wireguard-tools); no iperf3.
    #[command(after_help = "\
Examples:
  weft-bench peers
  weft-bench peers --weft old=/tmp/weft --weft new=target/release/weft --work throughput --rounds 5
  weft-bench peers --configured 1000 --active 100 --burst 1 'go=wireguard-go -f {interface}' --weft target/release/weft")]
    Peers(crate::peers::PeersArgs),
    /// Measure the service of a gateway's peers beside floods of handshakes and junk, and beside a peer that
    /// scans.
    ///
    /// Needs root, and for others than weft wg (wireguard-tools); no iperf3, no ping.
    #[command(after_help = crate::floods::help())]
    Floods(crate::floods::FloodsArgs),
    /// Measure what several packet threads of a gateway carry together, beside one.
    ///
    /// Needs root; no other program, and no weft beside this one: the gateway runs in this process.
    #[command(after_help = "\
Examples:
  weft-bench shards
  weft-bench shards --packet-threads 1,2 --load download --foreign 0,100 --rounds 9
  weft-bench shards --model")]
    Shards(crate::shards::ShardsArgs),
    /// Measure the ways into a tunnel without root, beside the daemon as root and beside others.
    ///
    /// Needs root, to be both ends and to become the user without root; iperf3, curl and setpriv.
    #[command(after_help = "\
Examples:
  weft-bench rootless
  weft-bench rootless --link veth --way exec,proxy --rounds 5
  weft-bench rootless --link rtt60 --way exec,netstack,onetun --onetun /tmp/bin/onetun")]
    Rootless(crate::rootless::RootlessArgs),
    /// Load a gateway for hours with all that happens to one, and fail if anything grows, stalls or is lost.
    ///
    /// Needs root and dbus-daemon; no iperf3, no ping.
    #[command(after_help = "\
Examples:
  weft-bench soak 2 --out soak
  weft-bench soak --minutes 5 --every 10 --mbit 100")]
    Soak(crate::soak::SoakArgs),
    /// Measure weft over TUN threads, TCP streams and MTUs, with what TCP saw out of order.
    #[command(after_help = "\
Examples:
  weft-bench sweep --secs 2 --svg sweep.svg
  weft-bench sweep --tun-threads auto,0,1 --streams 1 --mtu 1420")]
    Sweep(SweepArgs),
}

/// How long, how often and with which weft.
#[derive(Clone, Debug, Args)]
pub(crate) struct MeasureArgs {
    /// How long each measurement takes, in seconds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) secs: u32,
    /// How often each measurement is made; medians count.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    #[command(flatten)]
    pub(crate) wefts: WeftArgs,
    /// TCP's congestion control at both ends, such as cubic or bbr; without it that of this machine.
    #[arg(long, value_name = "NAME")]
    pub(crate) congestion: Option<String>,
    /// Whether weft uses the offloads of its TUN device.
    #[arg(long, hide = true, value_enum, default_value_t)]
    pub(crate) offload: Offload,
    /// Leave out the run that counts system calls with perf.
    #[arg(long)]
    pub(crate) no_system_calls: bool,
    /// Draw a plot into this file, too.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// In which setting.
#[derive(Clone, Debug, Args)]
pub(crate) struct SettingArgs {
    /// How weft drives its TUN devices, as in `weft up`.
    #[arg(long, value_name = "N|auto", default_value_t)]
    pub(crate) tun_threads: TunThreads,
    /// The MTU of the tunnels, in bytes. The link's is as large as it takes, and at least 1500.
    #[arg(long, value_name = "BYTES", default_value_t = 1420, value_parser = clap::value_parser!(u16).range(576..=65_000))]
    pub(crate) mtu: u16,
    /// Join the ends by an emulated link instead of a veth, such as rate=200mbit,delay=5ms (one way); see
    /// `weft-bench link --help` for all of it.
    #[arg(long, value_name = "SPEC")]
    pub(crate) link: Option<LinkSpec>,
}

/// Which cases.
#[derive(Clone, Debug, Args)]
pub(crate) struct CaseArgs {
    /// What to measure, or `all`; can be given more than once, or with commas. See the list below.
    #[arg(long = "case", value_name = "NAME", value_delimiter = ',', value_parser = parse_cases)]
    named: Vec<Cases>,
    /// Only TCP, with this number of streams.
    #[arg(long, value_name = "N", conflicts_with = "named", value_parser = clap::value_parser!(u32).range(1..=128))]
    streams: Option<u32>,
    /// Only TCP, this way.
    #[arg(long, value_enum, conflicts_with = "named")]
    direction: Option<Direction>,
}

impl CaseArgs {
    /// Returns the selected cases without duplicates.
    pub(crate) fn cases(&self) -> Vec<Case> {
        if self.streams.is_some() || self.direction.is_some() {
            let direction = self.direction.unwrap_or_default();
            return vec![Case::Tcp { streams: self.streams.unwrap_or(1), direction }];
        }
        let mut cases = Vec::new();
        for case in self.named.iter().flat_map(|cases| &cases.0) {
            if !cases.contains(case) {
                cases.push(*case);
            }
        }
        if cases.is_empty() { Case::default_set() } else { cases }
    }
}

/// The cases that one value of `--case` selects.
#[derive(Clone, Debug)]
struct Cases(Vec<Case>);

fn parse_cases(text: &str) -> Result<Cases, crate::case::UnknownCase> {
    if text == "all" { Ok(Cases(ALL.to_vec())) } else { Ok(Cases(vec![text.parse()?])) }
}

fn cases_help(examples: &str) -> String {
    let defaults = Case::default_set();
    let line = |case: &Case| {
        let star = if defaults.contains(case) { '*' } else { ' ' };
        format!("  {star} {:<18}{}\n", case.to_string(), case.title())
    };
    let lines: String = ALL.iter().map(line).collect();
    format!(
        "Cases (*: measured unless some are named; numbers may be others):\n{lines}\n{examples}\n\n{EXIT_CODES}"
    )
}

/// The arguments of `weft-bench tunnel`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TunnelArgs {
    #[command(flatten)]
    pub(crate) cases: CaseArgs,
    #[command(flatten)]
    pub(crate) setting: SettingArgs,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
    /// Leave out the link without a tunnel.
    #[arg(long)]
    pub(crate) no_bare: bool,
}

/// The arguments of `weft-bench compare`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CompareArgs {
    /// Another implementation: a name, and a command that makes the interface `{interface}`, stays in the
    /// foreground and is configured by `wg setconf`. The words of the command are separated by spaces; no
    /// shell. The targets are meant for the first one: the newest wireguard-go.
    #[arg(value_name = "NAME=COMMAND", default_value = "wireguard-go=wireguard-go -f {interface}")]
    pub(crate) peers: Vec<PeerCommand>,
    #[command(flatten)]
    pub(crate) cases: CaseArgs,
    #[command(flatten)]
    pub(crate) setting: SettingArgs,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
    /// Measure the link without a tunnel, too.
    #[arg(long)]
    pub(crate) bare: bool,
}

/// The arguments of `weft-bench sweep`.
#[derive(Clone, Debug, Args)]
pub(crate) struct SweepArgs {
    /// How weft drives its TUN devices, as in `weft up`; several, with commas.
    #[arg(long, value_name = "N|auto", value_delimiter = ',', default_value = "0,1,2,4,8")]
    pub(crate) tun_threads: Vec<TunThreads>,
    /// TCP streams; several, with commas.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u32).range(1..=128))]
    pub(crate) streams: Vec<u32>,
    /// MTUs of the tunnel, in bytes; several, with commas.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "1280,1420,8920", value_parser = clap::value_parser!(u16).range(576..=65_000))]
    pub(crate) mtu: Vec<u16>,
    /// Which way TCP goes.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) direction: Direction,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn compare(arguments: &[&str]) -> CompareArgs {
        let words = ["weft-bench", "compare"].iter().chain(arguments);
        let Command::Compare(args) = Cli::try_parse_from(words).unwrap().command else { panic!("compare") };
        args
    }

    #[test]
    fn the_command_line_is_consistent_and_has_defaults() {
        Cli::command().debug_assert();
        let args = compare(&[]);
        let MeasureArgs { secs, rounds, .. } = args.measure;
        let SettingArgs { tun_threads, mtu, link } = args.setting;
        assert_eq!((secs, rounds, tun_threads, mtu), (5, 3, TunThreads::Auto, 1420));
        assert_eq!((link, &args.measure.congestion), (None, &None));
        assert_eq!(args.peers[0].name, "wireguard-go");
        assert_eq!(args.peers[0].words("wg7"), ["wireguard-go", "-f", "wg7"]);
        assert_eq!(args.cases.cases(), Case::default_set());
        assert_eq!(args.measure.wefts.commands()[0].name, "weft");
    }

    #[test]
    fn a_sweep_is_over_lists() {
        let words = ["weft-bench", "sweep", "--tun-threads", "auto,2", "--mtu", "1420"];
        let Command::Sweep(args) = Cli::try_parse_from(words).unwrap().command else { panic!("sweep") };
        assert_eq!(args.tun_threads, [TunThreads::Auto, TunThreads::Fixed(2)]);
        assert_eq!((args.streams, args.mtu), (vec![1, 4], vec![1420]));
    }

    #[test]
    fn cases_are_named_once_all_or_by_streams_and_direction() {
        let names = |arguments: &[&str]| {
            let cases = compare(arguments).cases.cases();
            cases.iter().map(Case::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&["--case", "ping,tcp-4", "--case", "ping"]), "ping tcp-4");
        assert_eq!(compare(&["--case", "all"]).cases.cases(), ALL);
        assert_eq!(names(&["--streams", "8"]), "tcp-8");
        assert_eq!(names(&["--direction", "both-ways"]), "tcp-both-ways");
    }
}
