//! `weft-bench shards`: what several packet threads carry together, beside one.
//!
//! The gateway is fed so cheaply that it is measured alone: its peers' messages are sealed before the
//! measurement and sent as super-packets, what it opens is dropped by the kernel behind its TUN, and what it
//! sends is not read. Its own counters show what it handled. Every measurement starts a gateway.

use std::fmt;
use std::num::NonZeroU16;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use weft_config::{MAX_THREADS, PacketThreads};

use crate::args::{TimeArgs, turns};
use crate::interrupt::Interrupt;
use crate::report::{CPU, GBIT, Report};
use crate::site::check_permission;

mod measure;
mod site;

/// The arguments of `weft-bench shards`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ShardsArgs {
    #[command(flatten)]
    times: TimeArgs,
    /// Numbers of packet threads, with commas; the first one is what the others are compared with.
    #[arg(long, value_name = "K", value_delimiter = ',', default_value = "1,2,4", value_parser = packet_threads)]
    packet_threads: Vec<NonZeroU16>,
    /// Percent of the bytes for peers that another packet thread reads than the peer's, with commas.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "0,10,100", value_parser = clap::value_parser!(u8).range(0..=100))]
    foreign: Vec<u8>,
    /// How many peers send and receive.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=250))]
    peers: u16,
}

/// Parses a number of packet threads.
fn packet_threads(text: &str) -> Result<NonZeroU16, String> {
    match text.parse() {
        Ok(PacketThreads::Fixed(threads)) => Ok(threads),
        _ => Err(format!("write a number from 1 to {MAX_THREADS}")),
    }
}

/// A direction of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// From the peers.
    Upload,
    /// To the peers.
    Download,
    Both,
}

/// What is measured with how many packet threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    packet_threads: NonZeroU16,
    load: Load,
    /// Percent of the downloaded bytes; `None` where no other packet thread can read them.
    foreign: Option<u8>,
}

impl Case {
    fn new(load: Load, packet_threads: NonZeroU16, foreign: u8) -> Self {
        let has_foreign = load != Load::Upload && packet_threads.get() > 1;
        Self { packet_threads, load, foreign: has_foreign.then_some(foreign) }
    }

    fn has_upload(self) -> bool {
        self.load != Load::Download
    }

    fn has_download(self) -> bool {
        self.load != Load::Upload
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = format!("{:?}", self.load).to_lowercase();
        let foreign = self.foreign.map_or_else(String::new, |percent| format!(", {percent} % foreign"));
        f.pad(&format!("{}, {load}{foreign}", threads_of(self.packet_threads)))
    }
}

/// Returns a number of packet threads in words.
fn threads_of(count: NonZeroU16) -> String {
    if count.get() == 1 { "1 thread".to_owned() } else { format!("{count} threads") }
}

impl ShardsArgs {
    /// Returns all cases, those to be compared next to each other, each with the one that it is compared
    /// with: the same load on the first number of packet threads.
    fn cases(&self) -> Vec<(Case, Case)> {
        let mut cases: Vec<(Case, Case)> = Vec::new();
        for load in [Load::Upload, Load::Download, Load::Both] {
            for &threads in &self.packet_threads {
                for &foreign in &self.foreign {
                    let case = Case::new(load, threads, foreign);
                    if !cases.iter().any(|(known, _)| *known == case) {
                        cases.push((case, Case::new(load, self.packet_threads[0], foreign)));
                    }
                }
            }
        }
        cases
    }
}

/// Measures and prints the report.
pub(crate) fn run(args: &ShardsArgs, json: bool) -> Result<()> {
    let largest = args.packet_threads.iter().max().context("no number of packet threads")?;
    ensure!(
        largest.get() <= args.peers,
        "{largest} packet threads need as many --peers, each of which one of them serves"
    );
    check_permission()?;
    let interrupt = Interrupt::watch()?;
    let TimeArgs { secs, rounds } = args.times;
    let mut report = Report::begin(&[("rounds", &rounds), ("seconds", &secs), ("peers", &args.peers)])?;
    let ended = measure_all(args, &mut report, &interrupt);
    for (case, base) in args.cases().iter().filter(|(case, base)| case != base) {
        let [case, base] = [case, base].map(Case::to_string);
        for figure in [GBIT, CPU] {
            report.compare([&case, ""], [&base, ""], figure, None);
        }
    }
    report.note(
        "the senders run on the same machine and take a part of it: a ratio of CPU s/Gbit near 1 is a gain of as many \
         packet threads, with a core each",
    );
    report.finish(ended, json)
}

/// Measures every case in each round.
fn measure_all(args: &ShardsArgs, report: &mut Report, interrupt: &Interrupt) -> Result<()> {
    let cases = args.cases();
    for round in 0..args.times.rounds as usize {
        for place in turns(cases.len(), round) {
            let (case, _) = cases[place];
            let sample = measure::measure(case, args.peers.into(), args.times.secs, interrupt);
            report.attempt("packet threads, load", case, "", sample)?;
        }
    }
    Ok(())
}
