//! The intervals of a run.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::Result;
use weft_lab::flood::Running;
use weft_report::StatusReport;

use super::figures::{Figures, Lost, Process, Times, counted_since};
use super::load::{Lasting, Passing};
use super::peers::Visitors;
use super::schedule::{Restart, Schedule};
use super::service::keep_log;
use super::site::Site;
use super::{Account, STALL, SoakArgs};
use crate::implementation::Implementation;
use crate::interrupt::Interrupt;
use crate::machine::{CpuTime, Usage};

/// Time after a restart in which losses are those of the restart: sessions are made, and peers find out what
/// did not arrive.
const SETTLE: Duration = Duration::from_secs(3);
const SCRAPE_EVERY: Duration = Duration::from_secs(5);
/// The daemons' snapshots and the kernel's counters may be behind.
const COUNTED: Duration = Duration::from_secs(60);
/// A status or a scrape takes no longer, also on a machine with other work.
const ANSWER: Duration = Duration::from_secs(30);

/// Runs all intervals and adds their figures to the account.
pub(super) fn run(
    args: &SoakArgs,
    implementation: &Implementation,
    out: &Path,
    interrupt: &Interrupt,
    account: &mut Account,
) -> Result<()> {
    let mut site = Site::start(args, implementation, out, interrupt)?;
    let visitors = Visitors::start(&site.peers, &site.networks.inside, args.interval() / 2)?;
    let lasting = Lasting::start(&site, args.mbit)?;
    let mut lines = File::create(out.join("soak.jsonl"))?;
    let schedule = Schedule::new(args.intervals());
    let start = Instant::now();
    let mut surplus = 0;
    for number in 0..args.intervals() {
        let end = start + args.interval() * (number as u32 + 1);
        let mut interval = Interval {
            args,
            site: &mut site,
            visitors: &visitors,
            lasting: &lasting,
            interrupt,
            figures: Figures::default(),
            surplus,
        };
        interval.run(&schedule, number, end, out)?;
        let mut figures = interval.figures;
        surplus = figures.counted.saturating_sub(figures.lost.total());
        figures.at = start.elapsed().as_secs();
        serde_json::to_writer(&mut lines, &figures)?;
        writeln!(lines)?;
        account.add(figures);
    }
    for fault in lasting.finish() {
        account.fault(fault);
    }
    keep_log(&site.service, &out.join("gateway.log"))
}

struct Interval<'a> {
    args: &'a SoakArgs,
    site: &'a mut Site,
    visitors: &'a Visitors,
    lasting: &'a Lasting,
    interrupt: &'a Interrupt,
    figures: Figures,
    /// Packets that were counted in the interval before, and not missed in it: a peer finds out later.
    surplus: u64,
}

/// What counters said at the beginning of the account.
struct Before {
    at: Instant,
    bytes: [u64; 2],
    gateway: StatusReport,
    client: Option<StatusReport>,
    kernel: u64,
    peers: [u64; 5],
    cpu: [Duration; 2],
    busy: Duration,
}

impl Interval<'_> {
    fn run(&mut self, schedule: &Schedule, number: usize, end: Instant, out: &Path) -> Result<()> {
        if let Some(how) = schedule.restart(number) {
            self.surplus = 0;
            self.restart(how, &out.join(format!("gateway-{number}.log")))?;
        }
        // Even if a restart took long.
        let end = end.max(Instant::now() + self.args.interval() / 2);
        let before = self.before()?;
        let passing = Passing::start(self.site)?;
        let mut attack = schedule.attack(number, self.args.flood);
        let mut reload_is_due = schedule.reload(number);
        let span = end.saturating_duration_since(Instant::now());
        let [early, late] = [Instant::now() + span / 4, Instant::now() + span / 2];
        let mut flood: Option<Running> = None;
        let mut scrape = Instant::now();
        while Instant::now() < end {
            self.interrupt.check()?;
            self.site.service.check()?;
            self.site.client_daemon.check()?;
            let now = Instant::now();
            if now >= early
                && let Some(attack) = attack.take()
            {
                self.figures.flood = Some(attack.kind.name());
                flood = Some(self.site.flood(attack, span / 4)?);
            }
            // Half of the floods are over by then, and half of a flood is still to come.
            if now >= late && std::mem::take(&mut reload_is_due) {
                let reloaded = self.site.reload();
                self.figures.reloads += u64::from(reloaded.is_ok());
                self.note("reload", reloaded);
            }
            if now >= scrape {
                scrape = now + SCRAPE_EVERY;
                self.scrape();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        if let Some(flood) = flood {
            self.figures.flooded = flood.end()?.datagrams;
        }
        let passed = passing.finish()?;
        self.figures.faults.extend(passed.faults());
        self.figures.pings = Times::of_pings(&passed.pings);
        let (sent, lost) = passed.sent_and_lost();
        self.account(&before, sent, lost)
    }

    /// Restarts the daemon, and waits until the peers have sessions again.
    fn restart(&mut self, how: Restart, log: &Path) -> Result<()> {
        self.figures.restart = Some(how);
        self.visitors.pause();
        let restarted = self.site.service.restart(how, self.interrupt);
        keep_log(&self.site.service, log)?;
        restarted?;
        self.visitors.go_on(how == Restart::Crash);
        self.interrupt.sleep(SETTLE)?;
        self.visitors.settled();
        Ok(())
    }

    /// Asks for status and metrics, as a monitor does.
    fn scrape(&mut self) {
        let start = Instant::now();
        let answers = self.site.service.status().map(drop).and_then(|()| self.site.service.scrape());
        let took = start.elapsed();
        self.figures.scrapes += u64::from(answers.is_ok());
        self.note("scrape", answers);
        if took >= ANSWER {
            self.figures.faults.push(format!("status and metrics took {} ms", took.as_millis()));
        }
    }

    fn note(&mut self, what: &str, result: Result<()>) {
        if let Err(error) = result {
            self.figures.faults.push(format!("{what}: {error:#}"));
        }
    }

    fn peers(&self) -> [u64; 5] {
        let seen = &self.visitors.seen;
        [&seen.visits, &seen.roams, &seen.sent, &seen.lost, &seen.late].map(|counter| counter.load(Relaxed))
    }

    fn before(&self) -> Result<Before> {
        let cpu = |id| Ok::<_, anyhow::Error>(Usage::of(id)?.cpu);
        // Those of a restart.
        self.visitors.seen.losers();
        Ok(Before {
            at: Instant::now(),
            bytes: self.lasting.bytes(),
            gateway: self.site.service.status()?,
            client: self.site.client_daemon.status(),
            kernel: self.site.kernel_drops()?,
            peers: self.peers(),
            cpu: [cpu(self.site.service.id())?, cpu(self.site.client_daemon.id())?],
            busy: CpuTime::now()?.busy,
        })
    }

    /// Compares what was lost with what was counted, and takes all other figures.
    fn account(&mut self, before: &Before, sent: u64, lost: Lost) -> Result<()> {
        let span = before.at.elapsed();
        let [visits, roams, peers_sent, peers_lost, late] = self.peers();
        let figures = &mut self.figures;
        (figures.visits, figures.roams) = (visits - before.peers[0], roams - before.peers[1]);
        figures.sent = sent + peers_sent - before.peers[2];
        figures.late = late - before.peers[4];
        figures.losers = self.visitors.seen.losers();
        let peers = (peers_lost - before.peers[3]).saturating_sub(figures.late);
        figures.lost = Lost { peers, ..lost };
        let limit = Instant::now() + COUNTED;
        loop {
            let gateway = self.site.service.status()?;
            let kernel = self.site.kernel_drops()?.saturating_sub(before.kernel);
            figures.counted = counted_since(&gateway, &before.gateway) + kernel;
            if let (Some(now), Some(before)) = (self.site.client_daemon.status(), &before.client) {
                figures.counted += counted_since(&now, before);
            }
            if figures.lost.total() <= figures.counted + self.surplus || Instant::now() >= limit {
                break;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        if figures.lost.total() > figures.counted + self.surplus {
            let Figures { lost, counted, ref losers, .. } = *figures;
            let fault = format!("{lost:?} of {losers:?} did not arrive, and {counted} packets were counted");
            figures.faults.push(fault);
        }
        let mbit = |now: u64, before: u64| (now - before) as f64 * 8e-6 / span.as_secs_f64();
        let [to, from] = self.lasting.bytes();
        figures.mbit_to_gateway = mbit(to, before.bytes[0]);
        figures.mbit_from_gateway = mbit(from, before.bytes[1]);
        let answers = self.lasting.requests.take();
        figures.requests = Times::of(&answers.millis, answers.failures.len());
        figures.faults.extend(answers.failures);
        figures.faults.extend(self.visitors.faults());
        figures.peers = self.visitors.seen.present.load(Relaxed);
        figures.gateway = Process::of(self.site.service.id(), before.cpu[0], span)?;
        figures.client = Process::of(self.site.client_daemon.id(), before.cpu[1], span)?;
        let busy = CpuTime::now()?.busy.saturating_sub(before.busy);
        figures.busy_cores = busy.as_secs_f64() / span.as_secs_f64();
        for (name, pause) in self.lasting.watch.take() {
            figures.longest_pause_ms = figures.longest_pause_ms.max(pause.as_millis() as u64);
            if pause >= STALL {
                figures.faults.push(format!("{name}: no progress for {} s", pause.as_secs()));
            }
        }
        Ok(())
    }
}
