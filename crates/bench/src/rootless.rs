//! `weft-bench rootless`: the ways into a tunnel without root, beside the daemon as root.
//!
//! The far end is the same weft for all, as root. All near ends run in turn, round by round, over a veth and
//! over emulated links with real round trips.

use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::args::TimeArgs;
use crate::compare::case::{Case, Direction};
use crate::compare::rounds::Plan;
use crate::implementation::{self, Implementation, NearEnd, Rootless, Side};
use crate::interrupt::Interrupt;
use crate::report::{Report, Wanted};
use crate::site;

const DAEMON: &str = "daemon";
const NAMES: [&str; 3] = ["exec", "proxy", "own"];
const TCP: Case = Case::Tcp { streams: 1, direction: Direction::Forward };
const TCP_REVERSE: Case = Case::Tcp { streams: 1, direction: Direction::Reverse };
const COLD: Case = Case::ColdStart { megabytes: 30 };

/// The host's limit of receive buffers (net.core.rmem_max) meanwhile: the usual default, in bytes.
const RMEM_MAX: u32 = 212_992;

/// A link by name: with which rate and delay, what is measured over it, and what share of the daemon's figure
/// exec, proxy and own should have: own has at least 0.5 (veth) or 0.8 of what proxy should have.
type Link = (&'static str, Option<&'static str>, &'static [Case], [f64; 3]);
const LINKS: [Link; 4] = [
    ("veth", None, &[TCP, TCP_REVERSE], [0.9, 0.7, 0.35]),
    ("rtt60", Some("rate=200mbit,delay=30ms"), &[TCP, COLD], [0.95, 0.95, 0.76]),
    ("rtt20", Some("rate=500mbit,delay=10ms"), &[TCP], [0.95, 0.95, 0.76]),
    ("rtt100", Some("rate=500mbit,delay=50ms"), &[TCP], [0.95, 0.95, 0.76]),
];

#[derive(Clone, Debug, Args)]
pub(crate) struct RootlessArgs {
    /// The links between the ends, with commas between them: a veth pair, 200 Mbit/s with a round trip of
    /// 60 ms, and 500 Mbit/s with 20 and 100 ms.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "veth,rtt60,rtt20,rtt100",
          value_parser = clap::builder::PossibleValuesParser::new(LINKS.map(|link| link.0)))]
    link: Vec<String>,
    /// What is measured, with commas between them; the daemon as root always is.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "exec,proxy,own")]
    way: Vec<NearEnd>,
    #[command(flatten)]
    times: TimeArgs,
}

pub(crate) fn run(args: &RootlessArgs, json: bool) -> Result<()> {
    site::check_permission()?;
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
    let daemon = Implementation::Weft { path: weft.clone(), arguments: Vec::new() };
    let mut sides = vec![Side::new(DAEMON, daemon)];
    for end in [NearEnd::Exec, NearEnd::Proxy, NearEnd::Own].into_iter().filter(|end| args.way.contains(end))
    {
        let way = Implementation::Rootless(Rootless { end, weft: weft.clone() });
        sides.push(Side::new(NAMES[end as usize], way));
    }
    let _limit = ReceiveLimit::set()?;
    let mut measure = || -> Result<()> {
        for (name, spec, cases, wanted) in
            LINKS.iter().filter(|link| args.link.iter().any(|name| name == link.0))
        {
            let plan = Plan {
                sides: sides.clone(),
                cases: cases.to_vec(),
                link: spec.map(str::parse).transpose()?,
                link_name: (*name).to_owned(),
                control: None,
                times: args.times,
            };
            plan.run(&mut report, &interrupt)?;
            for case in *cases {
                let label = plan.label(*case);
                for (ours, least) in
                    NAMES.iter().zip(wanted).filter(|(ours, _)| sides.iter().any(|side| side.name == **ours))
                {
                    let wanted = (*case != COLD).then_some(Wanted::RatioAtLeast(*least));
                    report.compare([&label, ours], [&label, DAEMON], case.compared()[0], wanted);
                }
            }
        }
        Ok(())
    };
    let ended = measure();
    report.finish(ended, json)
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
