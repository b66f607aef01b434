//! The command line.

use clap::{Args, Parser, Subcommand};
use weft_commands::args::{self, EXIT_CODES};
use weft_commands::complete;
use weft_config::{InterfaceName, PacketThreads, TunThreads};

use crate::logging::Format;

pub mod assets;
pub mod drop_in;
mod exec;
mod groups;
mod host;
mod metrics;
mod proxy;
mod service;
pub use exec::{ExecArgs, NameServer, Publish, RootlessArgs};
pub use host::{DownArgs, HostArgs, KillSwitch};
pub use metrics::MetricsArgs;
pub use proxy::{Elsewhere, ProxyArgs, Stack};
pub use service::{ServiceAction, ServiceArgs, ServiceStatusArgs, ServiceTarget};

const EXAMPLES: &str = "\
Examples:
  weft genkey | (umask 077; tee private.key) | weft pubkey
  weft check /etc/wireguard/wg0.conf
  sudo weft up wg0
  sudo weft wg0                 in place of wireguard-go, for wg(8) to configure
  sudo weft down wg0";

const DOCUMENTATION: &str = "\
Documentation:
  man weft, man weft.conf; docs/*.md in messages is in /usr/share/doc/weft";

/// The heading of options that trade memory, processors and latency.
const PERFORMANCE: &str = "Performance";

/// A WireGuard VPN daemon.
#[derive(Debug, Parser)]
#[command(name = "weft", version, propagate_version = true, max_term_width = 80)]
#[command(help_template = groups::help_template())]
#[command(after_help = format!("{EXAMPLES}\n\n{DOCUMENTATION}\n\n{EXIT_CODES}"))]
pub struct Cli {
    /// What to log: a level (error, warn, info, debug, trace) or targets, as in
    /// `info,weft_host::routes=debug`. Without it RUST_LOG counts, else `info` (`warn` for exec, `error` for
    /// the demo).
    #[arg(long, global = true, value_name = "FILTER", help_heading = "Logging", hide_short_help = true)]
    pub log: Option<String>,
    /// How log lines look, on standard error.
    #[arg(long, global = true, value_name = "FORMAT", value_enum, default_value_t)]
    #[arg(help_heading = "Logging", hide_short_help = true)]
    pub log_format: Format,
    /// Run as the service of this interface, under the service control manager of Windows.
    #[arg(long, value_name = "NAME", hide = true)]
    pub service: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do, in the order of the groups of `weft --help`, where the first lines of the commands stand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Bring an interface up and run it; -d goes to the background.
    ///
    /// It runs until SIGTERM, Ctrl-C or the end of the terminal, and then takes everything down.
    Up(UpArgs),
    /// Take an interface down, also what a crash left of it.
    Down(DownArgs),
    /// Show what runs, each peer, and what is wrong.
    Status(args::StatusArgs),
    /// Add peers and hand out their files; list, rename, remove them.
    Peer(args::PeerArgs),
    /// Make a running interface match its file; sessions continue.
    Reload(args::ReloadArgs),
    /// Check a configuration file and say what it means.
    Check(args::CheckArgs),
    /// Make an interface for wg(8) to configure, as wireguard-go does.
    ///
    /// `weft NAME` for short.
    Run(drop_in::RunArgs),
    /// Show a tunnel at work: two ends and traffic on this machine.
    Demo(DemoArgs),
    /// Watch an interface live: rates, handshakes, drops, queues.
    Top(args::TopArgs),
    /// Show running interfaces and their peers as wg(8) does.
    Show(args::ShowArgs),
    /// Check this machine and a configuration; say what to change.
    Doctor(args::DoctorArgs),
    /// Write packets of an interface into a file for Wireshark.
    ///
    /// Those inside the tunnel and those around it.
    Capture(args::CaptureArgs),
    /// Measure a tunnel and say what limits it (Linux).
    Speedtest(args::SpeedtestArgs),
    /// Write the running state into the interface's file.
    Save(args::SaveArgs),
    /// Change settings and peers of a running interface.
    Set(args::SetArgs),
    /// Replace the configuration of a running interface by a file's.
    ///
    /// Settings and peers that are not in the file are removed. Some daemons end all sessions; `weft
    /// syncconf` keeps them.
    Setconf(args::ConfArgs),
    /// Add the configuration in a file to that of an interface.
    Addconf(args::ConfArgs),
    /// Change only what differs between an interface and a file.
    ///
    /// Peers with the same settings in the file keep their sessions; peers that are not in the file are
    /// removed. The private key and the port stay if the file does not set them. The file may be one of
    /// wg-quick.
    Syncconf(args::ConfArgs),
    /// Run a command whose only network is a tunnel (Linux).
    Exec(ExecArgs),
    /// Use a tunnel through SOCKS5, HTTP and forwarded ports.
    ///
    /// Neither needs root, nor changes this host.
    Proxy(ProxyArgs),
    /// Print a new private key.
    #[command(after_help = "Example:\n  (umask 077; weft genkey > private.key)")]
    Genkey,
    /// Print a new preshared key.
    #[command(after_help = "Example:\n  (umask 077; weft genpsk > preshared.key)")]
    Genpsk,
    /// Read a private key from standard input; print its public key.
    #[command(after_help = "Example:\n  weft pubkey < private.key")]
    Pubkey,
    /// Print the configuration of a running interface.
    ///
    /// It is a file for `weft setconf`.
    Showconf(args::ShowconfArgs),
    /// Print a file without what only wg-quick and `weft up` know.
    Strip(args::StripArgs),
    /// Print a script that completes the command line in a shell.
    Completions(assets::CompletionsArgs),
    /// Run an interface whenever the machine runs.
    ///
    /// On macOS, FreeBSD and Windows; on Linux the command names the unit of systemd.
    Service(ServiceArgs),
    /// Make the manual pages, for packagers.
    #[command(hide = true)]
    Man(assets::ManArgs),
}

/// The arguments of `weft up`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
Examples:
  sudo weft up wg0                    reads /etc/wireguard/wg0.conf
  sudo weft up ./office.conf          makes the interface `office`
  sudo weft up './wg (1).conf' --name office
  sudo weft up wg0 --tun-threads 2    with two queues and threads for each
  sudo weft up wg0 --metrics 127.0.0.1:9586

{EXIT_CODES}"))]
pub struct UpArgs {
    /// A wg-quick configuration file: its name without `.conf` names the interface; or just that name, for
    /// /etc/wireguard/NAME.conf.
    #[arg(value_name = "FILE|NAME", add = complete::configured())]
    pub target: String,
    /// The name of the interface, in place of that of the file.
    #[arg(long, value_name = "NAME")]
    pub name: Option<InterfaceName>,
    /// End with 0 instead of the exit codes 2, 77 and 78, with which another start would fail again:
    /// launchd starts a service again after every other code.
    #[arg(long, hide = true, conflicts_with = "daemon")]
    pub launchd: bool,
    /// Changes to the system around the interface.
    #[command(flatten)]
    pub host: HostArgs,
    /// Logs and metrics.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// Give packets priority over every ordinary program (SCHED_RR): lower and steadier latency on cores that
    /// are busy with other work, at the expense of that work. Needs CAP_SYS_NICE or RLIMIT_RTPRIO.
    #[arg(long, help_heading = PERFORMANCE)]
    pub realtime: bool,
    /// Count on at most this memory, in MiB: what waits for sessions and in receive buffers takes a share of
    /// it. Otherwise the limit of the cgroup counts (MemoryMax= of systemd), else the memory of the machine.
    #[arg(long, help_heading = PERFORMANCE, value_name = "MIB", value_parser = clap::value_parser!(u32).range(16..))]
    pub memory_limit: Option<u32>,
    /// How packets pass the TUN device.
    #[command(flatten)]
    pub tun: TunArgs,
}

/// The arguments of `weft demo`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example:\n  weft demo --secs 10 --tun-threads 0")]
pub struct DemoArgs {
    /// How long to send, in seconds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub secs: u32,
    /// Print the closing report as JSON on standard output; progress goes to standard error.
    #[arg(long)]
    pub json: bool,
    /// How packets pass the TUN devices.
    #[command(flatten)]
    pub tun: TunArgs,
}

/// How packets pass a TUN device.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = PERFORMANCE)]
pub struct TunArgs {
    /// How many packet threads share the peers (up to 64): each encrypts, decrypts, sends and receives for
    /// its own. One peer is never served by two. Several read and write the device themselves, whatever
    /// --tun-threads says. auto: one below four cores, else one for each two, and no more than there are
    /// peers in the file.
    #[arg(long, value_name = "K|auto", default_value_t, hide = weft_udp::MAX_SHARDS == 1)]
    pub packet_threads: PacketThreads,
    /// Pin packet thread N to the N-th processor that this process may use. Without it the system places the
    /// threads.
    #[arg(long, hide = weft_udp::MAX_SHARDS == 1)]
    pub pin: bool,
    /// How many queues the device has, each with a thread that reads and one that writes (up to 64), beside
    /// one packet thread; 0: the packet thread reads and writes the device itself; auto: what suits this
    /// machine.
    #[arg(long, value_name = "N|auto", default_value_t)]
    pub tun_threads: TunThreads,
    /// Do without segmentation and checksum offloads of the device.
    #[arg(long, hide = true)]
    pub no_offload: bool,
    /// The size of each ring of the adapter, in MiB: 1, 2, 4, 8, 16, 32 or 64.
    #[arg(long, value_name = "MIB", default_value_t = DEFAULT_RING, value_parser = ring_mib, hide = cfg!(not(windows)))]
    pub ring: u32,
}

impl TunArgs {
    /// Returns the size of each ring, in bytes.
    pub fn ring_bytes(&self) -> u32 {
        self.ring << 20
    }
}

const DEFAULT_RING: u32 = weft_tun::RING_BYTES >> 20;

/// Wintun takes powers of two up to 64 MiB (WINTUN_MAX_RING_CAPACITY).
fn ring_mib(text: &str) -> Result<u32, String> {
    let mib: Option<u32> = text.parse().ok();
    mib.filter(|mib| mib.is_power_of_two() && *mib <= 64)
        .ok_or_else(|| "a ring has 1, 2, 4, 8, 16, 32 or 64 MiB".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_is_in_groups_with_the_log_at_the_end() {
        let mut root = Cli::command();
        root.build();
        let is_help = |command: &clap::Command| command.get_name() == "help";
        let mut rest: Vec<_> = root.get_subcommands_mut().filter(|command| !is_help(command)).collect();
        while let Some(command) = rest.pop() {
            let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
            let options = |help: clap::builder::StyledStr| -> Vec<String> {
                let help = help.to_string();
                let lines = help.lines().filter(|line| line.starts_with("      --"));
                lines.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
            };
            let (short, long) = (options(command.render_help()), options(command.render_long_help()));
            assert_eq!(long[long.len() - 2..], ["--log", "--log-format"], "{name}: {long:?}");
            assert!(short.iter().all(|option| !option.starts_with("--log")), "{name}: {short:?}");
            rest.extend(command.get_subcommands_mut().filter(|command| !is_help(command)));
        }
        let up = root.find_subcommand_mut("up").unwrap().render_help().to_string();
        let places =
            ["--daemon", "--kill-switch", "Metrics:", "--metrics", "Performance:", "--realtime", "--pin"]
                .map(|text| up.find(text).unwrap_or_else(|| panic!("{text}: {up}")));
        assert!(places.is_sorted(), "{up}");
    }

    #[test]
    fn examples_and_tables_fit_a_terminal() {
        let mut root = Cli::command();
        root.build();
        let mut rest = vec![&root];
        while let Some(command) = rest.pop() {
            let texts = [command.clone().render_help(), command.clone().render_long_help()];
            for text in texts.map(|text| text.to_string()) {
                for line in text.lines().filter(|line| !line.starts_with("Usage: ")) {
                    assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
                }
            }
            rest.extend(command.get_subcommands());
        }
        let top = root.find_subcommand_mut("top").unwrap().render_help().to_string();
        assert!(top.contains("\nKeys:\n  q          end "), "{top}");
    }

    #[test]
    fn options_are_read_wherever_they_stand() {
        let cli = Cli::try_parse_from(["weft", "up", "wg0", "--tun-threads", "2", "--log", "debug"]).unwrap();
        assert_eq!(cli.log.as_deref(), Some("debug"));
        let Command::Up(up) = cli.command else { panic!("not up") };
        assert_eq!((up.target.as_str(), up.tun.tun_threads), ("wg0", TunThreads::Fixed(2)));
        assert!(!up.tun.no_offload);
        let cli = Cli::try_parse_from(["weft", "--log-format", "json", "demo", "--no-offload"]).unwrap();
        assert_eq!(cli.log_format, Format::Json);
        let Command::Demo(demo) = cli.command else { panic!("not demo") };
        assert_eq!((demo.secs, demo.tun.tun_threads), (5, TunThreads::Auto));
        assert!(demo.tun.no_offload);
        assert_eq!(demo.tun.ring_bytes(), weft_tun::RING_BYTES);
        assert!(Cli::try_parse_from(["weft", "demo", "--secs", "0"]).is_err());
    }

    #[test]
    fn every_command_for_a_running_interface_takes_its_name_or_its_file() {
        for words in [
            "status @",
            "top @",
            "capture @ -w -",
            "speedtest @ office",
            "show @",
            "show @ dump",
            "showconf @",
            "set @ fwmark 1",
            "setconf @ -",
            "addconf @ -",
            "syncconf @ -",
        ] {
            let interfaces = ["wg0", "wg0.conf", "./wg0", "/etc/wireguard/wg0.conf"].map(|target| {
                let words = words.replace('@', target);
                let cli = Cli::try_parse_from(std::iter::once("weft").chain(words.split(' ')));
                format!("{:?}", cli.unwrap_or_else(|error| panic!("{words}: {error}")).command)
            });
            assert!(interfaces[0].contains("InterfaceName(\"wg0\")"), "{}", interfaces[0]);
            assert!(interfaces.iter().all(|interface| *interface == interfaces[0]), "{interfaces:#?}");
        }
        for words in ["showconf sixteen-letters0", "set /a/.. fwmark 1"] {
            assert!(Cli::try_parse_from(std::iter::once("weft").chain(words.split(' '))).is_err(), "{words}");
        }
    }

    #[test]
    fn a_ring_has_a_size_that_wintun_takes() {
        for (text, bytes) in [("1", 1 << 20), ("64", 64 << 20)] {
            let cli = Cli::try_parse_from(["weft", "up", "wg0", "--ring", text]).unwrap();
            let Command::Up(up) = cli.command else { panic!("not up") };
            assert_eq!(up.tun.ring_bytes(), bytes);
        }
        for text in ["0", "3", "128", "-1", "x", ""] {
            assert!(Cli::try_parse_from(["weft", "up", "wg0", "--ring", text]).is_err(), "{text:?}");
        }
    }
}
