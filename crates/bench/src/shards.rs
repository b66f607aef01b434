//! `weft-bench shards`: what several packet threads carry together, beside one.
//!
//! The gateway is fed so cheaply that it is measured alone: its peers' messages are sealed before the
//! measurement and sent as super-packets, what it opens is dropped by the kernel behind its TUN, and what it
//! sends is not read. Its own counters show what it handled. Every measurement starts a gateway.

use std::num::NonZeroU16;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Args;
use weft_config::{MAX_THREADS, PacketThreads};
use weft_lab::cpu;

use self::site::{PACKET, Sender, Site};
use crate::args::{TimeArgs, turns};
use crate::interrupt::Interrupt;
use crate::pacing::{Bounds, Ledger, PAUSE, Windows};
use crate::report::{CPU, GBIT, Report, Sample};
use crate::site::check_permission;

mod site;

/// Bytes that are sealed for each packet thread, and for all, before a part of the measurement.
const STOCK: usize = 160 << 20;
const MAX_STOCK: usize = 1 << 30;
/// Traffic that does not count, at the beginning.
const WARM_UP: Duration = Duration::from_millis(100);
/// Packet threads that one sending thread feeds.
const FED: usize = 4;
/// Packets on their way to one packet thread in one direction: about half of a socket's receive buffer, and
/// what a packet thread handles while a sender waits for a core.
const WINDOW: Bounds = Bounds { all: u64::MAX, each: 3000, lost: Duration::from_millis(20) };

#[derive(Clone, Debug, Args)]
pub(crate) struct ShardsArgs {
    #[command(flatten)]
    times: TimeArgs,
    /// Numbers of packet threads, with commas; the first one is what the others are compared with.
    #[arg(long, value_name = "K", value_delimiter = ',', default_value = "1,2,4", value_parser = packet_threads)]
    packet_threads: Vec<NonZeroU16>,
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

/// What the peers send and receive, and whether another packet thread reads it than the peer's.
#[derive(Clone, Copy, Debug)]
struct Load {
    name: &'static str,
    upload: bool,
    download: bool,
    foreign: bool,
}

const LOADS: [Load; 5] = [
    Load { name: "upload", upload: true, download: false, foreign: false },
    Load { name: "download", upload: false, download: true, foreign: false },
    Load { name: "download", upload: false, download: true, foreign: true },
    Load { name: "both", upload: true, download: true, foreign: false },
    Load { name: "both", upload: true, download: true, foreign: true },
];

impl Load {
    /// Returns the name of its case with this number of packet threads; one alone reads all.
    fn case(self, threads: NonZeroU16) -> String {
        let (count, foreign) = match threads.get() {
            1 => ("1 thread".to_owned(), ""),
            _ => (format!("{threads} threads"), if self.foreign { ", foreign" } else { "" }),
        };
        format!("{count}, {}{foreign}", self.name)
    }
}

pub(crate) fn run(args: &ShardsArgs, json: bool) -> Result<()> {
    let (counts, peers) = (&args.packet_threads, args.peers);
    let largest = counts.iter().max().context("no number of packet threads")?;
    ensure!(
        largest.get() <= peers,
        "{largest} packet threads need as many --peers, each of which one of them serves"
    );
    check_permission()?;
    let interrupt = Interrupt::watch()?;
    let TimeArgs { secs, rounds } = args.times;
    let mut report = Report::begin(&[("rounds", &rounds), ("seconds", &secs), ("peers", &peers)])?;
    let has_foreign = |count: NonZeroU16, load: Load| count.get() > 1 || !load.foreign;
    let all = LOADS.iter().flat_map(|load| counts.iter().map(|count| (*count, *load)));
    let cases: Vec<_> = all.filter(|(count, load)| has_foreign(*count, *load)).collect();
    let mut measure_all = || -> Result<()> {
        for round in 0..rounds as usize {
            for place in turns(cases.len(), round) {
                let (count, load) = cases[place];
                let sample = measure(count, load, peers.into(), secs, &interrupt);
                report.attempt("packet threads, load", load.case(count), "", sample)?;
            }
        }
        Ok(())
    };
    let ended = measure_all();
    for (count, load) in cases.iter().filter(|(count, _)| *count != counts[0]) {
        let [case, base] = [load.case(*count), load.case(counts[0])];
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

/// What was counted in the parts of a measurement.
#[derive(Debug, Default)]
struct Sums {
    time: Duration,
    /// Packets opened and sealed.
    packets: u64,
    lost: u64,
    cpu: Duration,
    senders_cpu: Duration,
}

fn measure(
    threads: NonZeroU16,
    load: Load,
    peers: usize,
    secs: u32,
    interrupt: &Interrupt,
) -> Result<Sample> {
    let mut site = Site::start(threads, peers, interrupt)?;
    let shards = usize::from(threads.get());
    if load.download {
        site.find_flows(load.foreign && shards > 1, interrupt)?;
    }
    let mut part = |limit, sums: &mut Sums| {
        if load.upload {
            site.seal((STOCK * shards).min(MAX_STOCK), interrupt)?;
        }
        run_part(&mut site, load, shards, limit, sums, interrupt)
    };
    part(WARM_UP, &mut Sums::default())?;
    let (span, mut sums) = (Duration::from_secs(secs.into()), Sums::default());
    while sums.time < span {
        part(span - sums.time, &mut sums)?;
    }
    ensure!(sums.packets > 0, "nothing was carried");
    let gbit = (sums.packets * PACKET as u64) as f64 * 8e-9;
    let [time, cpu, senders_cpu] = [sums.time, sums.cpu, sums.senders_cpu].map(|of| of.as_secs_f64());
    let lost = sums.lost as f64 / (sums.packets + sums.lost) as f64;
    Ok(Sample::default().with(GBIT, gbit / time).with(CPU, cpu / gbit).with_all([
        ("senders_cpu_seconds_per_gbit", "senders' CPU", 3, senders_cpu / gbit),
        // Cores that the packet threads used on average.
        ("cores", "cores", 2, cpu / time),
        // Share of the packets that did not reach the peer or the TUN.
        ("lost_percent", "lost, %", 2, 100.0 * lost),
    ]))
}

/// Lets the senders send until a peer has sent all its sealed messages, or for `limit`: all packet threads
/// have something to do all the time. Adds what was counted meanwhile. What is on its way at the end is
/// handled before this returns, and does not count.
fn run_part(
    site: &mut Site,
    load: Load,
    shards: usize,
    limit: Duration,
    sums: &mut Sums,
    interrupt: &Interrupt,
) -> Result<()> {
    let ledgers = &[(); 2].map(|()| Ledger::new(0, shards));
    let (stop, has_sent_all) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let (gateway, mut senders) = site.senders(load.upload, load.download);
    let before = gateway.handled()?;
    let look = || -> Result<u64> {
        let now = gateway.handled()?;
        for (ledger, (now, before)) in ledgers.iter().zip(now.iter().zip(&before)) {
            for (shard, (now, before)) in now.iter().zip(before).enumerate() {
                ledger.reached(shard, now - before);
            }
        }
        Ok(ledgers.iter().map(Ledger::arrived_so_far).sum())
    };
    std::thread::scope(|scope| {
        let (cpu, start) = (gateway.cpu(), Instant::now());
        let mut threads = Vec::new();
        for (senders, ledger) in senders.iter_mut().zip(ledgers) {
            let each = senders.len().div_ceil(shards.div_ceil(FED)).max(1);
            for part in senders.chunks_mut(each) {
                threads.push(scope.spawn(move || {
                    let sent = send_all(part, ledger, shards, stop);
                    has_sent_all.store(true, Relaxed);
                    sent
                }));
            }
        }
        let watched = loop {
            std::thread::sleep(Duration::from_millis(1));
            let now = look().and_then(|now| Ok(interrupt.check().map(|()| now)?));
            if now.is_err() || has_sent_all.load(Relaxed) || start.elapsed() >= limit {
                break now.map(|now| (now, start.elapsed(), gateway.cpu() - cpu));
            }
        };
        stop.store(true, Relaxed);
        for thread in threads {
            sums.senders_cpu += thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        let (packets, time, cpu) = watched?;
        sums.time += time;
        sums.cpu += cpu;
        sums.packets += packets;
        for ledger in ledgers {
            ledger.drain(WINDOW.lost, || look().map(drop))?;
            sums.lost += ledger.sent_so_far().saturating_sub(ledger.arrived_so_far());
        }
        Ok(())
    })
}

/// Sends on all senders in turn until `stop` is set, or one of them has nothing left. Returns the CPU time.
fn send_all(
    senders: &mut [Sender<'_>],
    ledger: &Ledger,
    shards: usize,
    stop: &AtomicBool,
) -> Result<Duration> {
    let mut windows = Windows::new(shards, Some(WINDOW));
    'sending: while !stop.load(Relaxed) {
        let mut is_full = true;
        for sender in senders.iter_mut().filter(|_| !stop.load(Relaxed)) {
            if windows.has_room(ledger, sender.shard) {
                let Some(packets) = sender.send()? else { break 'sending };
                ledger.send(sender.shard, packets);
                is_full = false;
            }
        }
        if is_full {
            std::thread::sleep(PAUSE * 10);
        }
    }
    let time = cpu::thread_time(nix::unistd::gettid().as_raw());
    time.ok_or_else(|| anyhow!("no CPU clock of a thread"))
}
