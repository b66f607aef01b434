//! `weft-bench compare`: weft beside other implementations of WireGuard, case by case and round by round.

use anyhow::Result;
use clap::Args;
use weft_lab::emulator::LinkSpec;

use self::case::Case;
use self::rounds::Plan;
use crate::args::SideArgs;
use crate::implementation::{Implementation, Kind, Side};
use crate::interrupt::Interrupt;
use crate::report::Report;
use crate::site::MTU;

mod bench;
pub(crate) mod case;
mod iperf;
mod measure;
pub(crate) mod rounds;
mod stream;

/// The name of the bare link in tables.
pub(crate) const BARE: &str = "no tunnel";

#[derive(Clone, Debug, Args)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pub(crate) sides: SideArgs,
    /// What to measure; can be given more than once, or with commas. See the list below.
    #[arg(long = "case", value_name = "NAME", value_delimiter = ',')]
    cases: Vec<Case>,
    /// Join the ends by an emulated link instead of a veth: keys and values with commas between them, such as
    /// rate=200mbit (whole Ethernet frames; without it no limit), delay=5ms (one way),
    /// queue=bdp|64kib|100p|20ms (drop-tail; bdp is rate × 2 × delay), loss=0.1%, reorder=0.5% (the share of
    /// frames that come late) with reorder-by=1ms, seed=1.
    #[arg(long, value_name = "SPEC")]
    pub(crate) link: Option<LinkSpec>,
    /// TCP's congestion control at both ends, such as cubic or bbr; without it that of this machine.
    #[arg(long, value_name = "NAME")]
    pub(crate) congestion: Option<String>,
    /// Measure the link without a tunnel, too.
    #[arg(long)]
    pub(crate) bare: bool,
}

/// Returns the list of the cases, for the help.
pub(crate) fn help() -> String {
    format!(
        "Cases, all unless some are named:\n  {}\n\nExamples:\n  weft-bench compare\n  weft-bench compare 'go=/opt/wireguard-go -f {{interface}}' \
         'boringtun=boringtun-cli -f {{interface}}'\n  weft-bench compare --alone --weft 'inline=--tun-threads 0' \
         --weft 'threads=--tun-threads 1' --case tcp-1\n  weft-bench compare --alone --bare --link \
         rate=200mbit,delay=10ms --case tcp-1",
        Case::names()
    )
}

pub(crate) fn run(args: &CompareArgs, json: bool) -> Result<()> {
    let bare = args.bare.then(|| Side::new(BARE, Implementation::Bare));
    let times = args.sides.times;
    let sides = args.sides.sides()?.into_iter().chain(bare).collect();
    let plan = Plan {
        sides,
        cases: if args.cases.is_empty() { Case::all() } else { args.cases.clone() },
        link: args.link.clone(),
        link_name: String::new(),
        control: args.congestion.clone(),
        times,
    };
    plan.check()?;
    let interrupt = Interrupt::watch()?;
    let mut report = Report::begin(&[("rounds", &times.rounds), ("seconds", &times.secs), ("MTU", &MTU)])?;
    if let Some(link) = &args.link {
        report.set("emulated link", link);
    }
    let ended = plan.run(&mut report, &interrupt);
    for case in &plan.cases {
        compare(&mut report, &plan, *case);
    }
    report.finish(ended, json)
}

/// Compares every weft with every other implementation and the bare link, the first weft with further ones,
/// and every weft with its absolute targets. Ratio targets apply to the first other implementation.
fn compare(report: &mut Report, plan: &Plan, case: Case) {
    let label = plan.label(case);
    let targets = case.targets();
    let first_other = plan.of(Kind::Other).next().map(|side| &side.name);
    for (place, ours) in plan.of(Kind::Weft).enumerate() {
        let later_wefts = plan.of(Kind::Weft).skip(1).filter(|_| place == 0);
        for theirs in later_wefts.chain(plan.of(Kind::Other)).chain(plan.of(Kind::Bare)) {
            // Against the bare link only the main figure is meaningful.
            let count = if theirs.kind() == Kind::Bare { 1 } else { usize::MAX };
            for figure in case.compared().iter().take(count) {
                let target = targets.iter().find(|(of, wanted)| of == figure && wanted.is_ratio());
                let wanted = target.filter(|_| Some(&theirs.name) == first_other).map(|(_, wanted)| *wanted);
                report.compare([&label, &ours.name], [&label, &theirs.name], *figure, wanted);
            }
        }
        for (figure, wanted) in targets.iter().filter(|(_, wanted)| !wanted.is_ratio()) {
            report.require([&label, &ours.name], *figure, *wanted);
        }
    }
}
