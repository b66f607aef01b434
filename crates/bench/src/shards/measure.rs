//! One measurement: senders feed a gateway, and its own counters show what it handled.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use weft_lab::cpu;

use super::Case;
use super::site::{Counters, PACKET, Sender, Site};
use crate::interrupt::Interrupt;
use crate::pacing::{Bounds, Ledger, PAUSE, Windows};
use crate::report::{CPU, GBIT, Sample};

/// Interval at which the gateway's counters are read.
const LOOK: Duration = Duration::from_millis(1);
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

/// What was counted in the parts of a measurement.
#[derive(Debug, Default)]
struct Sums {
    time: Duration,
    /// Packets opened and sealed.
    packets: u64,
    lost: u64,
    /// Packets sealed and bytes handed over, with those that were on their way at the end.
    all_sealed: u64,
    handed_over_bytes: u64,
    cpu: Duration,
    senders_cpu: Duration,
}

/// Starts a gateway and measures it.
pub(super) fn measure(case: Case, peers: usize, secs: u32, interrupt: &Interrupt) -> Result<Sample> {
    let mut site = Site::start(case.packet_threads, peers, interrupt)?;
    let shards = usize::from(case.packet_threads.get());
    let by_shard = site.peers_by_shard();
    let spread = by_shard.iter().max().zip(by_shard.iter().min());
    ensure!(spread.is_some_and(|(most, fewest)| most - fewest <= 1), "peers by thread: {by_shard:?}");
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
    ensure!(sums.packets > 0, "nothing was carried");
    let gbit = (sums.packets * PACKET as u64) as f64 * 8e-9;
    let has_foreign = case.has_download() && shards > 1;
    let foreign = if has_foreign { sums.handed_over_bytes as f64 / read } else { f64::NAN };
    let [time, cpu, senders_cpu] = [sums.time, sums.cpu, sums.senders_cpu].map(|of| of.as_secs_f64());
    let lost = sums.lost as f64 / (sums.packets + sums.lost) as f64;
    Ok(Sample::default().with(GBIT, gbit / time).with(CPU, cpu / gbit).with_all([
        // CPU time of the threads that send.
        ("senders_cpu_seconds_per_gbit", "senders' CPU", 3, senders_cpu / gbit),
        // Cores that the packet threads used on average.
        ("cores", "cores", 2, cpu / time),
        // Share of the downloaded bytes that were read by another packet thread than that of their peer.
        ("foreign_percent", "foreign, %", 1, 100.0 * foreign),
        // Share of the packets that did not reach the peer or the TUN.
        ("lost_percent", "lost, %", 2, 100.0 * lost),
    ]))
}

/// Lets the senders send until a peer has sent all its sealed messages, or for `limit`: all packet threads
/// have something to do all the time. Adds what was counted meanwhile. What is on its way at the end is
/// handled before this returns, and does not count.
fn run(site: &mut Site, case: Case, limit: Duration, sums: &mut Sums, interrupt: &Interrupt) -> Result<()> {
    let shards = usize::from(case.packet_threads.get());
    let ledgers = &[(); 2].map(|()| Ledger::new(0, shards));
    let (stop, has_sent_all) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let (gateway, mut senders) = site.senders(case);
    let before = gateway.counters()?;
    let look = || -> Result<Counters> {
        let now = gateway.counters()?;
        for (way, ledger) in ledgers.iter().enumerate() {
            for (shard, (now, before)) in now.handled[way].iter().zip(&before.handled[way]).enumerate() {
                ledger.reached(shard, now - before);
            }
        }
        Ok(now)
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
            std::thread::sleep(LOOK);
            let now = look().and_then(|now| Ok(interrupt.check().map(|()| now)?));
            if now.is_err() || has_sent_all.load(Relaxed) || start.elapsed() >= limit {
                break now.map(|now| (now, start.elapsed(), gateway.cpu() - cpu));
            }
        };
        stop.store(true, Relaxed);
        for thread in threads {
            sums.senders_cpu += thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        let (now, time, cpu) = watched?;
        sums.time += time;
        sums.cpu += cpu;
        sums.packets += now.all() - before.all();
        for ledger in ledgers {
            ledger.drain(WINDOW.lost, || look().map(drop))?;
            sums.lost += ledger.sent_so_far().saturating_sub(ledger.arrived_so_far());
        }
        let end = look()?;
        sums.all_sealed += end.sealed() - before.sealed();
        sums.handed_over_bytes += end.handed_over_bytes - before.handed_over_bytes;
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
