//! `weft-bench rootless`: the ways into a tunnel without root, beside the daemon as root and beside others.
//!
//! The far end is the same weft for all, as root. All near ends run in turn, round by round, over a veth and
//! over emulated links with real round trips.

mod first_byte;
mod forwarder;
mod receive_limit;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;
use weft_lab::emulator::LinkSpec;

use crate::case::{Case, Direction};
use crate::implementation::{self, Implementation, Kind, NearEnd, Rootless};
use crate::interrupt::Interrupt;
use crate::metric::Metric;
use crate::report::{self, Comparison, Figures, Report};
use crate::rounds::{self, Plan, Subject};
use crate::targets::Wanted;
use crate::topology::{self, Wire};
use crate::{output, tools};
use first_byte::FirstByte;
use receive_limit::ReceiveLimit;

/// The MTU of the tunnels.
const MTU: u16 = 1420;
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
    /// How long each measurement takes, in seconds.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) secs: u32,
    /// How often each measurement is made; medians count.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
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
    fn wire(self) -> Result<Wire> {
        let spec = match self {
            Self::Veth => return Ok(Wire::Veth),
            Self::Rtt60 => "rate=200mbit,delay=30ms",
            Self::Rtt20 => "rate=500mbit,delay=10ms",
            Self::Rtt100 => "rate=500mbit,delay=50ms",
        };
        Ok(Wire::Emulated(spec.parse::<LinkSpec>()?))
    }

    fn cases(self) -> Vec<Case> {
        match self {
            Self::Veth => vec![TCP, TCP_REVERSE],
            Self::Rtt60 => vec![TCP, COLD],
            Self::Rtt20 | Self::Rtt100 => vec![TCP],
        }
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

/// All results.
#[derive(Debug, Serialize)]
struct All {
    rmem_max: u32,
    links: Vec<Report>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_byte: Option<FirstByte>,
}

impl All {
    fn text(&self) -> String {
        let mut text: String = self.links.iter().map(|report| report::tables::text(report) + "\n").collect();
        text += &self.first_byte.as_ref().map_or_else(String::new, FirstByte::text);
        text + &format!("net.core.rmem_max = {}\n", self.rmem_max)
    }
}

/// Measures and prints the report.
pub(crate) fn run(args: &RootlessArgs, json: bool) -> Result<()> {
    topology::check_permission()?;
    for program in ["iperf3", "setpriv", "curl"] {
        ensure!(
            tools::is_installed(program),
            "{program} is not installed (Debian: iperf3, util-linux, curl)"
        );
    }
    let interrupt = Interrupt::watch()?;
    let directory = tempfile::tempdir()?;
    // The user may execute what is in it.
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755))?;
    let weft = directory.path().join("weft");
    let original = args.weft.clone().map_or_else(implementation::weft_beside_this, Ok)?;
    std::fs::copy(&original, &weft).with_context(|| {
        format!("there is no weft at {}: build it, or name one with --weft", original.display())
    })?;
    let (subjects, notes) = subjects(args, &weft, directory.path())?;
    let _limit = ReceiveLimit::set(args.rmem_max)?;
    let mut all = All { rmem_max: args.rmem_max, links: Vec::new(), first_byte: None };
    let mut failed = 0;
    for &link in &args.link {
        let plan = Plan {
            subjects: subjects.clone(),
            cases: link.cases(),
            wire: link.wire()?,
            congestion: None,
            secs: args.secs,
            rounds: args.rounds,
            system_calls: false,
        };
        let mut report = report::new(&plan, rounds::run(&plan)?);
        report.comparisons = comparisons(&report, link);
        report.notes.extend(notes.iter().cloned());
        failed += report.failed;
        all.links.push(report);
    }
    if args.way.contains(&Way::Exec) {
        let exec = Rootless { end: NearEnd::Exec, weft };
        all.first_byte = Some(first_byte::measure(&exec, args.rounds, &interrupt)?);
    }
    output::print(&all, json, All::text)?;
    output::check(failed)
}

/// Returns what is measured, and a note for each way that is not.
fn subjects(args: &RootlessArgs, weft: &Path, directory: &Path) -> Result<(Vec<Subject>, Vec<String>)> {
    let subject = |name: &str, implementation| Subject { name: name.to_owned(), implementation, mtu: MTU };
    let daemon = Implementation::Weft { path: weft.to_owned(), arguments: Vec::new() };
    let (mut subjects, mut notes) = (vec![subject(DAEMON, daemon)], Vec::new());
    for &way in &args.way {
        let end = match way {
            Way::Exec => Ok(NearEnd::Exec),
            Way::Proxy => Ok(NearEnd::Proxy),
            Way::Netstack => forwarder::build(directory).map(NearEnd::Netstack),
            Way::Onetun if tools::is_installed(&args.onetun.to_string_lossy()) => {
                Ok(NearEnd::Onetun(args.onetun.clone()))
            }
            Way::Onetun => Err(anyhow::anyhow!("there is no program {}", args.onetun.display())),
        };
        match end {
            Ok(end) => {
                let rootless = Rootless { end, weft: weft.to_owned() };
                subjects.push(subject(way.name(), Implementation::Rootless(rootless)));
            }
            Err(error) => notes.push(format!("{} is not measured: {error:#}", way.name())),
        }
    }
    Ok((subjects, notes))
}

/// Compares exec and proxy with the daemon, and with the fastest of the others.
fn comparisons(report: &Report, link: Link) -> Vec<Comparison> {
    use Wanted::{RatioAtLeast, RatioAtMost};
    let mut comparisons = Vec::new();
    for case in &report.cases {
        let metric = case.case.compared()[0];
        let is_other = |figures: &&Figures| {
            let mut named = report.subjects.iter().filter(|subject| subject.name == figures.name);
            named.any(|subject| subject.kind == Kind::Other)
        };
        let median =
            |figures: &&Figures| figures.metrics.get(&metric).map_or(f64::NAN, |summary| summary.median);
        let mut others: Vec<&Figures> =
            case.subjects.iter().filter(is_other).filter(|figures| median(figures).is_finite()).collect();
        others.sort_by(|a, b| median(a).total_cmp(&median(b)));
        let best_other = if case.case == COLD { others.first() } else { others.last() }.copied();
        let daemon = case.subjects.iter().find(|figures| figures.name == DAEMON);
        for ours in case
            .subjects
            .iter()
            .filter(|ours| [Way::Exec, Way::Proxy].iter().any(|way| way.name() == ours.name))
        {
            let beside_daemon = match link {
                Link::Veth if ours.name == Way::Exec.name() => 0.9,
                Link::Veth => 0.7,
                _ => 0.95,
            };
            let mut beside = |theirs: Option<&Figures>, metric, wanted| {
                comparisons.extend(
                    theirs.and_then(|theirs| report::beside(case.case, metric, ours, theirs, wanted)),
                );
            };
            match (case.case, link) {
                (Case::ColdStart { .. }, _) => {
                    beside(daemon, metric, None);
                    beside(best_other, metric, Some(RatioAtMost(1.0)));
                }
                (_, Link::Veth) => {
                    beside(daemon, metric, Some(RatioAtLeast(beside_daemon)));
                    beside(best_other, metric, Some(RatioAtLeast(2.0)));
                    beside(best_other, Metric::CpuSecondsPerGbit, Some(RatioAtMost(0.5)));
                }
                _ => {
                    beside(daemon, metric, Some(RatioAtLeast(beside_daemon)));
                    let wanted = (link == Link::Rtt60).then_some(RatioAtLeast(1.0));
                    beside(best_other, metric, wanted);
                }
            }
        }
    }
    comparisons
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Sample;
    use crate::report::CaseReport;
    use crate::stats::Summary;

    #[test]
    fn exec_and_proxy_are_compared_with_the_daemon_and_the_fastest_other() {
        let figures = |name: &str, speed: f64| {
            let sample = Sample::default()
                .with(Metric::GbitPerSecond, speed)
                .with(Metric::CpuSecondsPerGbit, 1.0 / speed);
            let metrics =
                sample.metrics().filter_map(|metric| Some((metric, Summary::of(sample.get(metric))?)));
            Figures {
                name: name.to_owned(),
                metrics: metrics.collect(),
                batches: None,
                samples: vec![Some(sample)],
            }
        };
        let report = report::tests::report();
        let subject = |name: &str, kind| report::SubjectReport { name: name.to_owned(), kind, mtu: MTU };
        let subjects = vec![
            subject(DAEMON, Kind::Weft),
            subject("exec", Kind::Weft),
            subject("proxy", Kind::Weft),
            subject("netstack", Kind::Other),
            subject("onetun", Kind::Other),
        ];
        let speeds = [("daemon", 4.0), ("exec", 3.8), ("proxy", 2.0), ("netstack", 1.5), ("onetun", 0.5)];
        let case = CaseReport {
            case: TCP,
            subjects: speeds.into_iter().map(|(name, speed)| figures(name, speed)).collect(),
        };
        let report = Report { subjects, cases: vec![case], ..report };
        let found: Vec<_> = comparisons(&report, Link::Veth)
            .into_iter()
            .map(|found| (found.ours, found.theirs.unwrap_or_default(), found.metric, found.holds))
            .collect();
        let row = |ours: &str, theirs: &str, metric, holds| {
            (ours.to_owned(), theirs.to_owned(), metric, Some(holds))
        };
        let expected = [
            row("exec", DAEMON, Metric::GbitPerSecond, true),
            row("exec", "netstack", Metric::GbitPerSecond, true),
            row("exec", "netstack", Metric::CpuSecondsPerGbit, true),
            row("proxy", DAEMON, Metric::GbitPerSecond, false),
            row("proxy", "netstack", Metric::GbitPerSecond, false),
            row("proxy", "netstack", Metric::CpuSecondsPerGbit, false),
        ];
        assert_eq!(found, expected);
    }
}
