//! `weft-bench rtt`: TCP over links with a real round trip, bare and through tunnels, and the cost of the
//! tunnel: lost speed beyond its headers, more retransmits, reordering.

mod datagrams;
mod path;
mod report;
mod signs;
mod stream;
mod transfer;

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use weft_config::TunThreads;
use weft_lab::emulator::LinkSpec;

use crate::implementation::{Implementation, PeerCommand, WeftArgs};
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::progress::Progress;
use crate::{congestion, implementation, output, topology};
use path::Path;
use report::Report;

/// The arguments of `weft-bench rtt`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RttArgs {
    /// The link, as for `weft-bench link`, without its delay. Its queue is one bandwidth-delay product unless
    /// it says otherwise.
    #[arg(long, value_name = "SPEC", default_value = "rate=500mbit")]
    pub(crate) link: LinkSpec,
    /// Round trips to measure with, in milliseconds, with commas between them.
    #[arg(long, value_name = "MS", value_delimiter = ',', default_value = "20,60,100",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rtt: Vec<u32>,
    /// Congestion controls, with commas between them; without it cubic and bbr, as far as the kernel has
    /// them.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) congestion: Vec<String>,
    /// What to measure, with commas between them.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "streams,transfers,datagrams")]
    pub(crate) work: Vec<Work>,
    /// How long a stream is measured, in seconds.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) secs: u32,
    /// How long a stream runs before, in seconds: its slow start does not count.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=60))]
    pub(crate) omit: u32,
    /// The sizes of transfers from a cold start, in megabytes, with commas between them.
    #[arg(long, value_name = "MB", value_delimiter = ',', default_value = "10,30",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) sizes: Vec<u32>,
    /// How often each measurement is made; medians count.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// How weft drives its TUN devices, as in `weft up`.
    #[arg(long, value_name = "N|auto", default_value_t)]
    pub(crate) tun_threads: TunThreads,
    #[command(flatten)]
    pub(crate) wefts: WeftArgs,
    /// Another implementation, as for `weft-bench compare`.
    #[arg(long = "peer", value_name = "NAME=COMMAND")]
    pub(crate) peers: Vec<PeerCommand>,
}

/// Something to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// One TCP stream, once it is as it stays.
    Streams,
    /// Short TCP transfers from a cold start.
    Transfers,
    /// Numbered datagrams at 0.8 of what the headers leave: nothing may be lost, nothing out of order.
    Datagrams,
}

/// Measures and prints the report.
pub(crate) fn run(args: &RttArgs, json: bool) -> Result<()> {
    let congestion = congestion_controls(&args.congestion)?;
    let tunnels = implementation::named(&args.wefts.commands(), args.tun_threads, &args.peers)?;
    implementation::check_names(
        [path::BARE].into_iter().chain(tunnels.iter().map(|(name, _)| name.as_str())),
    )?;
    topology::check_permission()?;
    let interrupt = Interrupt::watch()?;
    let mut report = Report::new(args, Machine::this());
    let measured = measure_all(args, &congestion, &tunnels, &mut report, &interrupt);
    // Print partial results: they may represent hours of measurements.
    if measured.is_ok() || !report.is_empty() {
        output::print(&report, json, Report::text)?;
    }
    measured
}

fn measure_all(
    args: &RttArgs,
    congestion: &[String],
    tunnels: &[(String, Implementation)],
    report: &mut Report,
    interrupt: &Interrupt,
) -> Result<()> {
    let progress = Progress::new(0);
    for &rtt in &args.rtt {
        let spec = LinkSpec { delay: Duration::from_millis(rtt.into()) / 2, ..args.link.clone() };
        progress.say(&format!("bringing up a link with {spec} for each"));
        let mut paths = vec![Path::new(path::BARE, &Implementation::Bare, &spec, interrupt)?];
        for (name, implementation) in tunnels {
            paths.push(Path::new(name, implementation, &spec, interrupt)?);
        }
        for control in congestion {
            for round in 0..args.rounds as usize {
                // The path that begins changes from round to round.
                let first = round % paths.len();
                for place in (first..paths.len()).chain(0..first) {
                    let path = &mut paths[place];
                    measure(args, rtt, control, path, report, &progress, interrupt)
                        .with_context(|| format!("{rtt} ms, {control}, {}", path.name))?;
                }
            }
        }
        if args.work.contains(&Work::Datagrams) {
            for path in &mut paths {
                let sample = datagrams::measure(path, &args.link, interrupt)?;
                progress.say(&format!("{rtt} ms  datagrams  {:<14} {} lost", path.name, sample.lost));
                report.add_datagrams(rtt, &path.name, sample);
            }
        }
    }
    Ok(())
}

fn measure(
    args: &RttArgs,
    rtt: u32,
    control: &str,
    path: &mut Path,
    report: &mut Report,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<()> {
    if args.work.contains(&Work::Streams) {
        let sample = stream::measure(path, control, args.secs, args.omit, interrupt)?;
        let (name, speed, sent_again) = (&path.name, sample.mbit_per_second, sample.retransmits);
        progress
            .say(&format!("{rtt} ms  {control:<6} {name:<14} {speed:>7.2} Mbit/s, {sent_again} retransmits"));
        report.add_stream(rtt, control, &path.name, sample);
    }
    if args.work.contains(&Work::Transfers) {
        for &megabytes in &args.sizes {
            let sample = transfer::measure(path, control, u64::from(megabytes) * 1_000_000, interrupt)?;
            let (name, seconds) = (&path.name, sample.seconds);
            progress.say(&format!("{rtt} ms  {control:<6} {name:<14} {megabytes} MB in {seconds:.3} s"));
            report.add_transfer(rtt, control, megabytes, &path.name, sample);
        }
    }
    Ok(())
}

/// Returns the requested congestion controls, or by default those of cubic and bbr that the kernel has.
fn congestion_controls(asked: &[String]) -> Result<Vec<String>> {
    let available = congestion::available()?;
    congestion::check(asked, &available)?;
    let usual = ["cubic", "bbr"].map(str::to_owned).into_iter().filter(|control| available.contains(control));
    Ok(if asked.is_empty() { usual.collect() } else { asked.to_vec() })
}
