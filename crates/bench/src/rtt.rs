//! `weft-bench rtt`: TCP over links with a real round trip, bare and through tunnels, and the cost of the
//! tunnel: lost speed beyond its headers, more retransmits, reordering. The cases are those of `compare`.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use weft_lab::emulator::LinkSpec;

use crate::args::SideArgs;
use crate::compare::BARE;
use crate::compare::case::Case;
use crate::compare::rounds::Plan;
use crate::implementation::{Implementation, Side};
use crate::interrupt::Interrupt;
use crate::report::Report;
use crate::site::{self, MTU};

/// The link without its delay. Its queue is one bandwidth-delay product.
const LINK: &str = "rate=500mbit";
const CASES: [Case; 3] =
    [Case::Stream { omit: 5 }, Case::ColdStart { megabytes: 10 }, Case::ColdStart { megabytes: 30 }];

#[derive(Clone, Debug, Args)]
pub(crate) struct RttArgs {
    #[command(flatten)]
    pub(crate) sides: SideArgs,
    /// Round trips to measure with, in milliseconds, with commas between them.
    #[arg(long, value_name = "MS", value_delimiter = ',', default_value = "20,60,100",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rtt: Vec<u32>,
    /// Congestion controls, with commas between them; without it cubic and bbr, as far as the kernel has
    /// them.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    congestion: Vec<String>,
}

pub(crate) fn run(args: &RttArgs, json: bool) -> Result<()> {
    let available = site::congestion_controls(&args.congestion)?;
    let mut controls = args.congestion.clone();
    if controls.is_empty() {
        controls.extend(["cubic", "bbr"].map(str::to_owned));
        controls.retain(|control| available.contains(control));
    }
    let mut sides = vec![Side::new(BARE, Implementation::Bare)];
    sides.extend(args.sides.sides()?);
    let times = args.sides.times;
    let link: LinkSpec = LINK.parse()?;
    let plan = |rtt: u32, control: &String| Plan {
        sides: sides.clone(),
        cases: CASES.to_vec(),
        link: Some(LinkSpec { delay: Duration::from_millis(rtt.into()) / 2, ..link.clone() }),
        link_name: format!("{rtt} ms {control}"),
        control: Some(control.clone()),
        times,
    };
    let plans = args.rtt.iter().flat_map(|rtt| controls.iter().map(|control| plan(*rtt, control)));
    let plans: Vec<Plan> = plans.collect();
    plans.iter().try_for_each(Plan::check)?;
    let interrupt = Interrupt::watch()?;
    let mut report = Report::begin(&[
        ("rounds", &times.rounds),
        ("seconds", &times.secs),
        ("link", &LINK),
        ("MTU", &format!("{MTU} over 1500")),
    ])?;
    let ended = plans.iter().try_for_each(|plan| plan.run(&mut report, &interrupt));
    for plan in &plans {
        for case in &plan.cases {
            let label = plan.label(*case);
            for side in &sides[1..] {
                for figure in case.compared() {
                    report.compare([&label, &side.name], [&label, BARE], *figure, None);
                }
            }
        }
    }
    report.set("congestion control", controls.join(" and "));
    report.finish(ended, json)
}
