//! One measurement: senders feed a gateway, and its own counters show what it handled.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use weft_lab::cpu;

use super::Case;
use super::distance;
use super::pace::{self, Pace, PacedSender, Progress};
use super::site::{Counters, PACKET, Site};
use crate::interrupt::Interrupt;
use crate::report::{CPU, Figure, GBIT, Sample};

/// Interval at which the gateway's counters are read.
const LOOK: Duration = Duration::from_millis(1);
/// Bytes that are sealed for each packet thread, and for all, before a part of the measurement.
const STOCK: usize = 160 << 20;
const MAX_STOCK: usize = 1 << 30;
/// Traffic that does not count, at the beginning.
const WARM_UP: Duration = Duration::from_millis(100);
/// Packet threads that one sending thread feeds.
const FED: usize = 4;

/// CPU time of the threads that send.
const SENDERS_CPU: Figure = Figure::new("senders_cpu_seconds_per_gbit", "senders' CPU", 3);
/// Cores that the packet threads used on average.
const CORES: Figure = Figure::new("cores", "cores", 2);
/// Share of the downloaded bytes that were read by another packet thread than that of their peer.
const FOREIGN: Figure = Figure::new("foreign_percent", "foreign, %", 1);
/// Share of the packets that did not reach the peer or the TUN.
const LOST: Figure = Figure::new("lost_percent", "lost, %", 2);
/// The longer one of the round trips between two processors before and after.
const CORE_TO_CORE: Figure = Figure::new("core_to_core_ns", "core to core, ns", 0);

/// What was counted in the parts of a measurement.
#[derive(Debug, Default)]
struct Sums {
    time: Duration,
    opened: u64,
    sealed: u64,
    lost: u64,
    /// Packets sealed and bytes handed over, with those that were on their way at the end.
    all_sealed: u64,
    handed_over_bytes: u64,
    cpu: Duration,
    senders_cpu: Duration,
}

/// Starts a gateway and measures it.
pub(super) fn measure(case: Case, peers: usize, secs: u32, interrupt: &Interrupt) -> Result<Sample> {
    let distance_before = distance::round_trip_ns()?;
    let mut site = Site::start(case.packet_threads, peers, interrupt)?;
    let shards = usize::from(case.packet_threads.get());
    let by_shard = site.peers_by_shard();
    let (fewest, most) = (by_shard.iter().min(), by_shard.iter().max());
    ensure!(
        most.zip(fewest).is_some_and(|(most, fewest)| most - fewest <= 1),
        "peers by thread: {by_shard:?}"
    );
    if case.has_download() {
        site.find_flows(interrupt)?;
    }
    let stock = (STOCK * shards).min(MAX_STOCK);
    let part = |site: &mut Site, limit, sums: &mut Sums| {
        if case.has_upload() {
            site.seal(stock, interrupt)?;
        }
        run(site, case, limit, sums, interrupt)
    };
    part(&mut site, WARM_UP, &mut Sums::default())?;
    let (span, mut sums) = (Duration::from_secs(secs.into()), Sums::default());
    while sums.time < span {
        part(&mut site, span - sums.time, &mut sums)?;
    }
    let read = site.gateway.read_bytes(sums.all_sealed);
    let packets = sums.opened + sums.sealed;
    ensure!(packets > 0, "nothing was carried");
    let gbit = (packets * PACKET as u64) as f64 * 8e-9;
    let has_foreign = case.has_download() && shards > 1;
    let foreign = if has_foreign { sums.handed_over_bytes as f64 / read } else { f64::NAN };
    let distance = distance::round_trip_ns()?.zip(distance_before);
    Ok(Sample::default()
        .with(GBIT, gbit / sums.time.as_secs_f64())
        .with(CPU, sums.cpu.as_secs_f64() / gbit)
        .with(SENDERS_CPU, sums.senders_cpu.as_secs_f64() / gbit)
        .with(CORES, sums.cpu.as_secs_f64() / sums.time.as_secs_f64())
        .with(FOREIGN, 100.0 * foreign)
        .with(LOST, 100.0 * sums.lost as f64 / (packets + sums.lost) as f64)
        .with(CORE_TO_CORE, distance.map_or(f64::NAN, |(after, before)| after.max(before))))
}

/// Lets the senders send until a peer has sent all its sealed messages, or for `limit`: all packet threads
/// have something to do all the time. Adds what was counted meanwhile. What is on its way at the end is
/// handled before this returns, and does not count.
fn run(site: &mut Site, case: Case, limit: Duration, sums: &mut Sums, interrupt: &Interrupt) -> Result<()> {
    let shards = usize::from(case.packet_threads.get());
    let (up, down) = (Pace::new(shards), Pace::new(shards));
    let stop = &AtomicBool::new(false);
    let has_sent_all = &AtomicBool::new(false);
    let (gateway, mut uploads, mut downloads) = site.senders(case);
    let before = gateway.counters()?;
    let mut progress = (Progress::new(&before.opened), Progress::new(&before.sealed));
    let mut look = |up: &Pace, down: &Pace| -> Result<(Counters, u64, u64)> {
        let now = gateway.counters()?;
        let under_way = progress.0.update(up, &now.opened) + progress.1.update(down, &now.sealed);
        Ok((now, under_way, progress.0.lost() + progress.1.lost()))
    };
    let (senders_cpu, lost) = std::thread::scope(|scope| {
        let (up, down) = (&up, &down);
        let mut senders = Vec::new();
        let (cpu, start) = (gateway.cpu(), Instant::now());
        for part in divide(&mut uploads, shards.div_ceil(FED)) {
            senders.push(scope.spawn(move || {
                let result = send(part, up, stop);
                has_sent_all.store(true, Relaxed);
                result
            }));
        }
        for part in divide(&mut downloads, shards.div_ceil(FED)) {
            senders.push(scope.spawn(move || send(part, down, stop)));
        }
        let mut watch = || -> Result<_> {
            loop {
                std::thread::sleep(LOOK);
                let (now, ..) = look(up, down)?;
                interrupt.check()?;
                if has_sent_all.load(Relaxed) || start.elapsed() >= limit {
                    return Ok((now, start.elapsed(), gateway.cpu() - cpu));
                }
            }
        };
        let watched = watch();
        stop.store(true, Relaxed);
        let mut senders_cpu = Duration::ZERO;
        for sender in senders {
            senders_cpu += sender.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        let (now, time, cpu) = watched?;
        sums.time += time;
        sums.cpu += cpu;
        let difference = |now: &[u64], before: &[u64]| now.iter().sum::<u64>() - before.iter().sum::<u64>();
        sums.opened += difference(&now.opened, &before.opened);
        sums.sealed += difference(&now.sealed, &before.sealed);
        // A packet is given up as lost after a while, so this ends.
        let (end, lost) = loop {
            let (end, under_way, lost) = look(up, down)?;
            if under_way == 0 {
                break (end, lost);
            }
            std::thread::sleep(LOOK);
        };
        sums.all_sealed += difference(&end.sealed, &before.sealed);
        sums.handed_over_bytes += end.handed_over_bytes - before.handed_over_bytes;
        anyhow::Ok((senders_cpu, lost))
    })?;
    sums.senders_cpu += senders_cpu;
    sums.lost += lost;
    Ok(())
}

/// Sends, and returns the CPU time for it.
fn send<L: PacedSender>(senders: &mut [L], pace: &Pace, stop: &AtomicBool) -> Result<Duration> {
    pace::send_all(senders, pace, stop)?;
    let time = cpu::thread_time(nix::unistd::gettid().as_raw());
    time.ok_or_else(|| anyhow!("no CPU clock of a thread"))
}

/// Divides peers among at most this number of threads.
fn divide<L>(senders: &mut [L], threads: usize) -> impl Iterator<Item = &mut [L]> {
    let each = senders.len().div_ceil(threads).max(1);
    senders.chunks_mut(each)
}
