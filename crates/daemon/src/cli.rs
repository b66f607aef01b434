//! The command line.

use clap::{Args, Parser, Subcommand};
use weft_commands::args::{self, EXIT_CODES};
use weft_config::{InterfaceName, PacketThreads, TunThreads};

use crate::logging::Format;

pub mod assets;
pub mod drop_in;
mod exec;
mod host;
mod metrics;
mod proxy;
mod service;
pub use exec::{ExecArgs, NameServer, Publish, RootlessArgs};
pub use host::{DownArgs, HostArgs, KillSwitch};
pub use metrics::MetricsArgs;
pub use proxy::{Elsewhere, ProxyArgs};
pub use service::{ServiceAction, ServiceArgs, ServiceStatusArgs, ServiceTarget};

const EXAMPLES: &str = "\
Examples:
  weft genkey | (umask 077; tee private.key) | weft pubkey
  weft check /etc/wireguard/wg0.conf
  sudo weft up wg0
  sudo weft wg0                 in place of wireguard-go: an interface for wg(8) and wg-quick(8)
  sudo weft down wg0";

/// A WireGuard VPN daemon.
#[derive(Debug, Parser)]
#[command(name = "weft", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct Cli {
    /// What to log: a level (error, warn, info, debug, trace) or targets, as in
    /// `info,weft_host::routes=debug`. Without it RUST_LOG counts, else `info` (`warn` for exec, `error` for
    /// the demo).
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
    /// How log lines look, on standard error.
    #[arg(long, global = true, value_name = "FORMAT", value_enum, default_value_t)]
    pub log_format: Format,
    /// Run as the service of this interface, under the service control manager of Windows.
    #[arg(long, value_name = "NAME", hide = true)]
    pub service: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Bring an interface up and run it until SIGTERM, Ctrl-C, or the end of the terminal.
    Up(UpArgs),
    /// Run an interface for wg(8) to configure, in place of wireguard-go; `weft NAME` for short.
    Run(drop_in::RunArgs),
    /// Run a command whose only network is a tunnel, without root (Linux).
    Exec(ExecArgs),
    /// Use a tunnel without root and without a change to this host: SOCKS5, HTTP, and forwarded ports.
    Proxy(ProxyArgs),
    /// Take an interface down, or remove what a daemon left of it when it crashed.
    Down(DownArgs),
    /// Run an interface whenever the machine runs (macOS, FreeBSD, Windows; on Linux the command names the
    /// unit of systemd).
    Service(ServiceArgs),
    /// Write the state of a running interface into the file that it was brought up from.
    Save(args::SaveArgs),
    /// Make a running interface match its file, and change only what differs: sessions continue.
    Reload(args::ReloadArgs),
    /// Add peers to an interface and hand out their files, list, rename, disable and remove them.
    Peer(args::PeerArgs),
    /// Check a configuration file and show what it means; nothing is changed.
    Check(args::CheckArgs),
    /// Print a new private key.
    #[command(after_help = "Example:\n  (umask 077; weft genkey > private.key)")]
    Genkey,
    /// Print a new preshared key.
    #[command(after_help = "Example:\n  (umask 077; weft genpsk > preshared.key)")]
    Genpsk,
    /// Read a private key from standard input and print its public key.
    #[command(after_help = "Example:\n  weft pubkey < private.key")]
    Pubkey,
    /// Show what running interfaces do, and what is wrong with them.
    Status(args::StatusArgs),
    /// Watch a running interface: rates, handshakes, drops, batches, queues.
    Top(args::TopArgs),
    /// Write packets of a running interface into a file for Wireshark, inside the tunnel and around it.
    Capture(args::CaptureArgs),
    /// Measure a tunnel together with its peer, and say what limits it (Linux).
    Speedtest(args::SpeedtestArgs),
    /// Check this machine, and what a configuration asks of it, and say what to change.
    Doctor(args::DoctorArgs),
    /// Show running interfaces and their peers.
    Show(args::ShowArgs),
    /// Print the configuration of a running interface, as a file for `weft setconf`.
    Showconf(args::ShowconfArgs),
    /// Change a running interface, and add, change or remove its peers.
    Set(args::SetArgs),
    /// Replace the configuration of a running interface by that in a file.
    ///
    /// Settings and peers that are not in the file are removed. Some daemons end all sessions; `weft
    /// syncconf` keeps them.
    Setconf(args::ConfArgs),
    /// Add the configuration in a file to that of a running interface.
    Addconf(args::ConfArgs),
    /// Change only those settings of a running interface that differ from a file.
    ///
    /// Peers with the same settings in the file keep their sessions; peers that are not in the file are
    /// removed. The private key and the port stay if the file does not set them. The file may be one of
    /// wg-quick.
    Syncconf(args::ConfArgs),
    /// Print a wg-quick file without what only wg-quick and `weft up` know.
    Strip(args::StripArgs),
    /// Print a script that completes the command line of weft in a shell.
    Completions(assets::CompletionsArgs),
    /// Make the manual pages, for packagers.
    #[command(hide = true)]
    Man(assets::ManArgs),
    /// Run two tunnel ends on this machine, send traffic between them, and show how fast it went.
    Demo(DemoArgs),
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
    #[arg(value_name = "FILE|NAME")]
    pub target: String,
    /// The name of the interface, in place of that of the file.
    #[arg(long, value_name = "NAME")]
    pub name: Option<InterfaceName>,
    /// Give packets priority over every ordinary program (SCHED_RR): lower and steadier latency on cores that
    /// are busy with other work, at the expense of that work. Needs CAP_SYS_NICE or RLIMIT_RTPRIO.
    #[arg(long)]
    pub realtime: bool,
    /// Count on at most this memory, in MiB: what waits for sessions and in receive buffers takes a share of
    /// it. Otherwise the limit of the cgroup counts (MemoryMax= of systemd), else the memory of the machine.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(16..))]
    pub memory_limit: Option<u32>,
    /// End with 0 instead of the exit codes 2, 77 and 78, with which another start would fail again: launchd
    /// starts a service again after every other code.
    #[arg(long, hide = true, conflicts_with = "daemon")]
    pub launchd: bool,
    /// Changes to the system around the interface.
    #[command(flatten)]
    pub host: HostArgs,
    /// Logs and metrics.
    #[command(flatten)]
    pub metrics: MetricsArgs,
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
    /// Hand several TCP segments of a connection to the system as one packet of up to 65,535 bytes: less work
    /// for each segment. Not for a gateway: forwarded packets may be too long for the next link.
    #[arg(long, hide = weft_tun::SUPER_PACKETS)]
    pub join_segments: bool,
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
        assert_eq!((demo.tun.join_segments, demo.tun.ring_bytes()), (false, weft_tun::RING_BYTES));
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
            let cli = Cli::try_parse_from(["weft", "up", "wg0", "--ring", text, "--join-segments"]).unwrap();
            let Command::Up(up) = cli.command else { panic!("not up") };
            assert_eq!((up.tun.ring_bytes(), up.tun.join_segments), (bytes, true));
        }
        for text in ["0", "3", "128", "-1", "x", ""] {
            assert!(Cli::try_parse_from(["weft", "up", "wg0", "--ring", text]).is_err(), "{text:?}");
        }
    }
}
