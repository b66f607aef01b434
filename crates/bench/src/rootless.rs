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
use crate::site;

const DAEMON: &str = "daemon";
const EXEC: &str = "exec";
const TCP: Case = Case::Tcp { streams: 1, direction: Direction::Forward };
const TCP_REVERSE: Case = Case::Tcp { streams: 1, direction: Direction::Reverse };
const COLD: Case = Case::ColdStart { megabytes: 30 };

/// The host's limit of receive buffers (net.core.rmem_max) meanwhile: the usual default, in bytes.
const RMEM_MAX: u32 = 212_992;

/// The arguments of `weft-bench rootless`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RootlessArgs {
    /// The links between the ends, with commas between them.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "veth,rtt60,rtt20,rtt100")]
    link: Vec<Link>,
    /// What is measured, with commas between them; the daemon as root always is.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "exec,proxy,netstack")]
    way: Vec<Way>,
    #[command(flatten)]
    times: TimeArgs,
}

/// A link between the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Link {
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
    /// Returns what is to be measured over it.
    fn plan(self, sides: &[Side], times: TimeArgs) -> Result<Plan> {
        let (name, spec, cases) = match self {
            Self::Veth => ("veth", None, &[TCP, TCP_REVERSE][..]),
            Self::Rtt60 => ("rtt60", Some("rate=200mbit,delay=30ms"), &[TCP, COLD][..]),
            Self::Rtt20 => ("rtt20", Some("rate=500mbit,delay=10ms"), &[TCP][..]),
            Self::Rtt100 => ("rtt100", Some("rate=500mbit,delay=50ms"), &[TCP][..]),
        };
        Ok(Plan {
            sides: sides.to_vec(),
            cases: cases.to_vec(),
            link: spec.map(str::parse).transpose()?,
            link_name: name.to_owned(),
            control: None,
            times,
        })
    }
}

/// A way into a tunnel without root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Way {
    /// `weft exec`, and the time until its first byte.
    Exec,
    /// `weft proxy --forward`.
    Proxy,
    /// A forwarder over wireguard-go's tun/netstack; needs go, and its module proxy the first time.
    Netstack,
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
    let original = implementation::weft_beside_this()?;
    std::fs::copy(&original, &weft)
        .with_context(|| format!("there is no weft at {}: build it", original.display()))?;
    let TimeArgs { secs, rounds } = args.times;
    let mut report =
        Report::begin(&[("rounds", &rounds), ("seconds", &secs), ("net.core.rmem_max", &RMEM_MAX)])?;
    let sides = sides(args, &weft, directory.path(), &mut report);
    let _limit = ReceiveLimit::set()?;
    let mut measure = || -> Result<()> {
        for &link in &args.link {
            let plan = link.plan(&sides, args.times)?;
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
        let (name, end) = match way {
            Way::Exec => (EXEC, NearEnd::Exec),
            Way::Proxy => ("proxy", NearEnd::Proxy),
            Way::Netstack => match build_forwarder(directory) {
                Ok(program) => ("netstack", NearEnd::Netstack(program)),
                Err(error) => {
                    report.note(format!("netstack is not measured: {error:#}"));
                    continue;
                }
            },
        };
        let rootless = Rootless { end, weft: weft.to_owned() };
        sides.push(Side::new(name, Implementation::Rootless(rootless)));
    }
    sides
}

/// Compares exec and proxy with the daemon, and with the others.
fn compare(report: &mut Report, plan: &Plan, link: Link, case: Case) {
    use Wanted::{RatioAtLeast, RatioAtMost};
    let (figure, label) = (case.compared()[0], plan.label(case));
    let is_cold = case == COLD;
    for ours in plan.of(Kind::Weft).map(|side| side.name.as_str()).filter(|name| *name != DAEMON) {
        let beside_daemon = match link {
            Link::Veth if ours == EXEC => 0.9,
            Link::Veth => 0.7,
            _ => 0.95,
        };
        let wanted = (!is_cold).then_some(RatioAtLeast(beside_daemon));
        report.compare([&label, ours], [&label, DAEMON], figure, wanted);
        let Some(Side { name: other, .. }) = plan.of(Kind::Other).next() else { continue };
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

    fn set() -> Result<Self> {
        let before = std::fs::read_to_string(Self::PATH).context("cannot read net.core.rmem_max")?;
        std::fs::write(Self::PATH, RMEM_MAX.to_string())
            .with_context(|| format!("cannot set net.core.rmem_max to {RMEM_MAX}"))?;
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
