//! `weft-bench rootless`: the ways into a tunnel without root, beside the daemon as root and beside others.
//!
//! The far end is the same weft for all, as root. All near ends run in turn, round by round, over a veth and
//! over emulated links with real round trips.

mod first_byte;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path as FilePath, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};

use crate::args::TimeArgs;
use crate::compare::case::{Case, Direction};
use crate::compare::rounds::Plan;
use crate::implementation::{self, Implementation, Kind, NearEnd, Rootless, Side};
use crate::interrupt::Interrupt;
use crate::machine;
use crate::report::{CPU, Report, Wanted};
use crate::site::{self, MTU};
use crate::topology::Path;

const DAEMON: &str = "daemon";
const TCP: Case = Case::Tcp { streams: 1, direction: Direction::Forward };
const TCP_REVERSE: Case = Case::Tcp { streams: 1, direction: Direction::Reverse };
const COLD: Case = Case::ColdStart { megabytes: 30 };

/// The arguments of `weft-bench rootless`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RootlessArgs {
    /// The links between the ends, with commas between them.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "veth,rtt60,rtt20,rtt100")]
    pub(crate) link: Vec<Link>,
    /// What is measured, with commas between them; the daemon as root always is.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "exec,proxy,netstack,onetun")]
    pub(crate) way: Vec<Way>,
    #[command(flatten)]
    pub(crate) times: TimeArgs,
    /// The host's limit of receive buffers (net.core.rmem_max) meanwhile; it is restored at the end.
    #[arg(long, value_name = "BYTES", default_value_t = 212_992, value_parser = clap::value_parser!(u32).range(2304..))]
    pub(crate) rmem_max: u32,
    /// The weft to measure; without it the one beside this program.
    #[arg(long, value_name = "PATH")]
    pub(crate) weft: Option<PathBuf>,
    /// onetun.
    #[arg(long, value_name = "PATH", default_value = "onetun")]
    pub(crate) onetun: PathBuf,
}

/// A link between the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Link {
    /// A veth pair: as fast as the machine.
    Veth,
    /// 200 Mbit/s with a round trip of 60 ms.
    Rtt60,
    /// 500 Mbit/s with a round trip of 20 ms.
    Rtt20,
    /// 500 Mbit/s with a round trip of 100 ms.
    Rtt100,
}

impl Link {
    fn cases(self) -> &'static [Case] {
        match self {
            Self::Veth => &[TCP, TCP_REVERSE],
            Self::Rtt60 => &[TCP, COLD],
            Self::Rtt20 | Self::Rtt100 => &[TCP],
        }
    }

    /// Returns what is to be measured over it, without sides.
    fn plan(self, args: &RootlessArgs) -> Result<Plan> {
        let (name, spec) = match self {
            Self::Veth => ("veth", None),
            Self::Rtt60 => ("rtt60", Some("rate=200mbit,delay=30ms")),
            Self::Rtt20 => ("rtt20", Some("rate=500mbit,delay=10ms")),
            Self::Rtt100 => ("rtt100", Some("rate=500mbit,delay=50ms")),
        };
        Ok(Plan {
            sides: Vec::new(),
            cases: self.cases().to_vec(),
            path: Path { link: spec.map(str::parse).transpose()?, mtu: MTU },
            path_name: name.to_owned(),
            control: None,
            times: args.times,
        })
    }
}

/// A way into a tunnel without root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// `weft exec`, and the time until its first byte.
    Exec,
    /// `weft proxy --forward`.
    Proxy,
    /// A forwarder over wireguard-go's tun/netstack; needs go, and its module proxy the first time.
    Netstack,
    /// onetun, if it is installed (cargo install onetun).
    Onetun,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Proxy => "proxy",
            Self::Netstack => "netstack",
            Self::Onetun => "onetun",
        }
    }
}

/// Measures and prints the report.
pub(crate) fn run(args: &RootlessArgs, json: bool) -> Result<()> {
    site::check_permission()?;
    machine::check_installed(machine::ROOTLESS)?;
    let interrupt = Interrupt::watch()?;
    let directory = tempfile::tempdir()?;
    // The user may execute what is in it.
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755))?;
    let weft = directory.path().join("weft");
    let original = args.weft.clone().map_or_else(implementation::weft_beside_this, Ok)?;
    std::fs::copy(&original, &weft).with_context(|| {
        format!("there is no weft at {}: build it, or name one with --weft", original.display())
    })?;
    let TimeArgs { secs, rounds } = args.times;
    let mut report =
        Report::begin(&[("rounds", &rounds), ("seconds", &secs), ("net.core.rmem_max", &args.rmem_max)])?;
    let sides = sides(args, &weft, directory.path(), &mut report);
    let _limit = ReceiveLimit::set(args.rmem_max)?;
    let mut measure = || -> Result<()> {
        for &link in &args.link {
            let plan = Plan { sides: sides.clone(), ..link.plan(args)? };
            plan.run(&mut report, &interrupt)?;
            for case in &plan.cases {
                compare(&mut report, &plan, link, *case);
            }
        }
        if args.way.contains(&Way::Exec) {
            let exec = Rootless { end: NearEnd::Exec, weft: weft.clone() };
            first_byte::add(&mut report, &exec, rounds, &interrupt)?;
        }
        Ok(())
    };
    let ended = measure();
    report.finish(ended, json)
}

/// Returns what is measured, and notes each way that is not.
fn sides(args: &RootlessArgs, weft: &FilePath, directory: &FilePath, report: &mut Report) -> Vec<Side> {
    let daemon = Implementation::Weft { path: weft.to_owned(), arguments: Vec::new() };
    let mut sides = vec![Side::new(DAEMON, daemon)];
    for &way in &args.way {
        let end = match way {
            Way::Exec => Ok(NearEnd::Exec),
            Way::Proxy => Ok(NearEnd::Proxy),
            Way::Netstack => build_forwarder(directory).map(NearEnd::Netstack),
            Way::Onetun if machine::is_installed(&args.onetun) => Ok(NearEnd::Onetun(args.onetun.clone())),
            Way::Onetun => Err(anyhow::anyhow!("there is no program {}", args.onetun.display())),
        };
        match end {
            Ok(end) => {
                let rootless = Rootless { end, weft: weft.to_owned() };
                sides.push(Side::new(way.name(), Implementation::Rootless(rootless)));
            }
            Err(error) => report.note(format!("{} is not measured: {error:#}", way.name())),
        }
    }
    sides
}

/// Compares exec and proxy with the daemon, and with the fastest of the others.
fn compare(report: &mut Report, plan: &Plan, link: Link, case: Case) {
    use Wanted::{RatioAtLeast, RatioAtMost};
    let (figure, label) = (case.compared()[0], plan.label(case));
    let others = plan
        .of(Kind::Other)
        .filter_map(|side| Some((report.summary([&label, &side.name], figure)?.median, side.name.clone())));
    let mut others: Vec<(f64, String)> = others.collect();
    others.sort_by(|one, other| one.0.total_cmp(&other.0));
    let best_other = if case == COLD { others.first() } else { others.last() };
    let is_cold = case == COLD;
    for ours in plan.of(Kind::Weft).map(|side| side.name.as_str()).filter(|name| *name != DAEMON) {
        let beside_daemon = match link {
            Link::Veth if ours == Way::Exec.name() => 0.9,
            Link::Veth => 0.7,
            _ => 0.95,
        };
        let wanted = (!is_cold).then_some(RatioAtLeast(beside_daemon));
        report.compare([&label, ours], [&label, DAEMON], figure, wanted);
        let Some((_, other)) = best_other else { continue };
        let wanted = match link {
            _ if is_cold => Some(RatioAtMost(1.0)),
            Link::Veth => Some(RatioAtLeast(2.0)),
            Link::Rtt60 => Some(RatioAtLeast(1.0)),
            Link::Rtt20 | Link::Rtt100 => None,
        };
        report.compare([&label, ours], [&label, other], figure, wanted);
        if link == Link::Veth {
            report.compare([&label, ours], [&label, other], CPU, Some(RatioAtMost(0.5)));
        }
    }
}

/// Builds the forwarder over wireguard-go's tun/netstack in the directory, and returns its path.
fn build_forwarder(directory: &FilePath) -> Result<PathBuf> {
    const FILES: [(&str, &str); 3] = [
        ("main.go", include_str!("rootless/netstack/main.go")),
        ("go.mod", include_str!("rootless/netstack/go.mod")),
        ("go.sum", include_str!("rootless/netstack/go.sum")),
    ];
    let source = directory.join("netstack");
    std::fs::create_dir(&source)?;
    for (name, text) in FILES {
        std::fs::write(source.join(name), text)?;
    }
    let program = directory.join("netstack-forwarder");
    let mut go = Command::new("go");
    go.args(["build", "-trimpath", "-o"]).arg(&program).arg(".").current_dir(&source);
    let output = go.output().context("cannot start go")?;
    ensure!(output.status.success(), "go build failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(program)
}

/// Another limit of receive buffers for all namespaces of the host, by which a user without root is bound.
/// Dropping it restores the one before.
struct ReceiveLimit {
    before: String,
}

impl ReceiveLimit {
    const PATH: &str = "/proc/sys/net/core/rmem_max";

    fn set(bytes: u32) -> Result<Self> {
        let before = std::fs::read_to_string(Self::PATH).context("cannot read net.core.rmem_max")?;
        std::fs::write(Self::PATH, bytes.to_string())
            .with_context(|| format!("cannot set net.core.rmem_max to {bytes}"))?;
        Ok(Self { before })
    }
}

impl Drop for ReceiveLimit {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(Self::PATH, &self.before) {
            eprintln!("cannot restore net.core.rmem_max to {}: {error}", self.before.trim());
        }
    }
}
