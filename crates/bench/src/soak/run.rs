//! The intervals of a run.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use weft_lab::flood::Running;
use weft_report::StatusReport;
use weft_tunnel::DropReason;

use super::load::{Lasting, Passing, disorder};
use super::peers::{Seen, Visitors};
use super::site::{Restart, Site};
use super::{Account, COUNTED, FLOODED, LOST, ROAMS, SENT, STALL, SoakArgs, USED, VISITS};
use crate::floods::attack::{Attack, Kind};
use crate::implementation::Implementation;
use crate::interrupt::Interrupt;
use crate::machine::{CpuTime, Usage, memory_mib};
use crate::report::Sample;

/// Time after a restart in which losses are those of the restart: sessions are made, and peers find out what
/// did not arrive.
const SETTLE: Duration = Duration::from_secs(3);
const SCRAPE_EVERY: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(4);
/// The daemons' snapshots and the kernel's counters may be behind.
const LATE: Duration = Duration::from_secs(60);
/// A status or a scrape takes no longer, also on a machine with other work.
const ANSWER: Duration = Duration::from_secs(30);

/// Reasons that never concern what a peer with a session sent or gets: drops for these explain no loss.
const OF_STRANGERS: [DropReason; 9] = [
    DropReason::MalformedDatagram,
    DropReason::TruncatedDatagram,
    DropReason::InvalidMac,
    DropReason::CookieRequired,
    DropReason::HandshakeRateLimited,
    DropReason::UnknownPeer,
    DropReason::ReplayedHandshake,
    DropReason::UnexpectedHandshake,
    DropReason::InvalidTag,
];

/// What happens in an interval. Each event comes every few intervals, and in a short run often enough that
/// each kind comes.
struct Events {
    restart: Option<Restart>,
    reload: bool,
    flood: Option<Attack>,
}

impl Events {
    fn of(number: usize, args: &SoakArgs) -> Self {
        /// Intervals of a run that is long enough for these periods.
        const LONG: usize = 60;
        const FLOODS: [(Kind, u32); 5] = [
            (Kind::NoMac1, 65_000),
            (Kind::Mac1, 65_000),
            (Kind::Proven, 1),
            (Kind::Junk, 1024),
            (Kind::Data, 1024),
        ];
        let intervals = args.intervals();
        // Which one in the run it is, of those that come every `period` intervals of a long one.
        let nth = |period: usize| {
            let period = (period * intervals / LONG).clamp(1, period);
            let since = number.checked_sub(period / 2).filter(|since| since.is_multiple_of(period))?;
            (number > 0).then_some(since / period)
        };
        let attack = |nth: usize| {
            let (kind, count) = FLOODS[nth % FLOODS.len()];
            Attack { kind, count, is_v6: false, per_second: args.flood }
        };
        let how = |nth: usize| if nth.is_multiple_of(2) { Restart::Orderly } else { Restart::Crash };
        // The daemon runs through the second half without a restart, which would hide that it grows.
        let restart = nth(10).filter(|_| number < intervals.div_ceil(2)).map(how);
        Self { restart, reload: nth(3).is_some(), flood: nth(5).map(attack) }
    }

    fn names(&self) -> Vec<String> {
        let names = [
            self.restart.map(|how| format!("restart, {how:?}").to_lowercase()),
            self.flood.map(|attack| format!("flood, {}", attack.kind.name())),
            self.reload.then(|| "reload".to_owned()),
        ];
        names.into_iter().flatten().collect()
    }
}

/// Runs all intervals and adds their figures to the account.
pub(super) fn run(
    args: &SoakArgs,
    implementation: &Implementation,
    out: &Path,
    interrupt: &Interrupt,
    account: &mut Account,
) -> Result<()> {
    let mut site = Site::start(args, implementation, out, interrupt)?;
    let visitors = Visitors::start(&site, args.interval() / 2)?;
    let lasting = Lasting::start(&site, args.mbit)?;
    let start = Instant::now();
    let mut run = Run { site: &mut site, visitors, lasting, interrupt, surplus: 0, faults: Vec::new() };
    for number in 0..args.intervals() {
        let events = Events::of(number, args);
        if let Some(how) = events.restart {
            run.restart(how, &out.join(format!("gateway-{number}.log")))?;
        }
        // Even if a restart took long.
        let end = start + args.interval() * (number as u32 + 1);
        let sample = run.interval(&events, end.max(Instant::now() + args.interval() / 2))?;
        let at = start.elapsed().as_secs();
        run.faults.drain(..).for_each(|fault| account.fault(format!("at {at} s: {fault}")));
        account.add(at, sample, &events.names());
    }
    for fault in run.lasting.finish() {
        account.fault(fault);
    }
    site.keep_log(&out.join("gateway.log"))
}

struct Run<'a> {
    site: &'a mut Site,
    visitors: Visitors,
    lasting: Lasting,
    interrupt: &'a Interrupt,
    /// Packets that were counted in the interval before, and not missed in it: a peer finds out later.
    surplus: u64,
    faults: Vec<String>,
}

/// What counters said at the beginning of the account.
struct Before {
    at: Instant,
    bytes: [u64; 2],
    reports: [StatusReport; 2],
    kernel: u64,
    seen: Seen,
    cpu: [Duration; 2],
    busy: Duration,
}

impl Run<'_> {
    /// Restarts the daemon, and lets the peers find out what did not arrive.
    fn restart(&mut self, how: Restart, log: &Path) -> Result<()> {
        self.surplus = 0;
        self.site.restart(how, log, self.interrupt)?;
        self.visitors.restarted(self.site, how == Restart::Crash)?;
        let settled = Instant::now() + SETTLE;
        while Instant::now() < settled {
            self.step()?;
        }
        self.visitors.restarted(self.site, false)
    }

    /// Lets the peers do what is due, and watches everything else for a moment. Returns the bytes and pauses
    /// of bulk.
    fn step(&mut self) -> Result<[(u64, Duration); 2]> {
        self.interrupt.check()?;
        self.site.check()?;
        self.visitors.step(self.site)?;
        std::thread::sleep(TICK);
        Ok(self.lasting.bulk.each_mut().map(|bulk| bulk.look()))
    }

    fn interval(&mut self, events: &Events, end: Instant) -> Result<Sample> {
        let before = self.before()?;
        let passing = Passing::start(self.site)?;
        let (mut attack, mut is_reload_due, mut scrape) = (events.flood, events.reload, before.at);
        let span = end.saturating_duration_since(Instant::now());
        let (early, late) = (end - span * 3 / 4, end - span / 2);
        let (mut flood, mut longest): (Option<Running>, _) = (None, [Duration::ZERO; 2]);
        while Instant::now() < end {
            let now = Instant::now();
            if now >= early
                && let Some(attack) = attack.take()
            {
                flood = Some(self.site.flood(attack, span / 4)?);
            }
            // Half of the floods are over by then, and half of a flood is still to come.
            if now >= late && std::mem::take(&mut is_reload_due) {
                let reloaded = self.site.reload();
                self.note("reload", reloaded);
            }
            if now >= scrape {
                scrape = now + SCRAPE_EVERY;
                self.scrape();
            }
            for ((_, pause), longest) in self.step()?.into_iter().zip(&mut longest) {
                *longest = pause.max(*longest);
            }
        }
        for (place, pause) in longest.iter().enumerate().filter(|(_, pause)| **pause >= STALL) {
            let name = self.lasting.bulk[place].name;
            self.faults.push(format!("bulk {name}: no progress for {} s", pause.as_secs()));
        }
        let flooded = flood.map_or(Ok(0), |flood| flood.end().map(|sent| sent.datagrams))?;
        let sample = self.account(&before, passing)?;
        let longest = longest.iter().max().map_or(0.0, |longest| longest.as_secs_f64() * 1e3);
        Ok(sample.with(FLOODED, flooded as f64).with_all([(
            "longest_pause_ms",
            "longest pause, ms",
            0,
            longest,
        )]))
    }

    /// Asks for status and metrics, as a monitor does.
    fn scrape(&mut self) {
        let start = Instant::now();
        let answers = self.site.status().and_then(|_| self.site.scrape());
        self.note("scrape", answers);
        if start.elapsed() >= ANSWER {
            self.faults.push(format!("status and metrics took {} s", start.elapsed().as_secs()));
        }
    }

    fn note(&mut self, what: &str, result: Result<()>) {
        self.faults.extend(result.err().map(|error| format!("{what}: {error:#}")));
    }

    fn reports(&self) -> Result<[StatusReport; 2]> {
        Ok([self.site.status()?, self.site.client.status().context("the client does not answer")?])
    }

    fn cpu(&self) -> Result<[Duration; 2]> {
        let [gateway, client] = self.site.processes().map(Usage::of);
        Ok([gateway?.cpu, client?.cpu])
    }

    fn before(&mut self) -> Result<Before> {
        Ok(Before {
            at: Instant::now(),
            bytes: self.lasting.bulk.each_mut().map(|bulk| bulk.look().0),
            reports: self.reports()?,
            kernel: self.site.kernel_drops()?,
            seen: self.visitors.seen.clone(),
            cpu: self.cpu()?,
            busy: CpuTime::now()?.busy,
        })
    }

    /// Ends the numbered flows, compares what was lost with what was counted, and takes all other figures.
    fn account(&mut self, before: &Before, passing: Passing) -> Result<Sample> {
        let span = before.at.elapsed().as_secs_f64();
        let [to, from] = self.lasting.bulk.each_mut().map(|bulk| bulk.look().0);
        let mbit = |now: u64, before: u64| (now - before) as f64 * 8e-6 / span;
        let (mbit_to, mbit_from) = (mbit(to, before.bytes[0]), mbit(from, before.bytes[1]));
        let mut sample = Sample::default()
            .with_all([("mbit_to_gateway", "Mbit/s to the gateway", 0, mbit_to)])
            .with_all([("mbit_from_gateway", "Mbit/s from it", 0, mbit_from)]);
        let busy = (CpuTime::now()?.busy.saturating_sub(before.busy)).as_secs_f64() / span;
        let cpu = self.cpu()?;
        let (flows, pings) = passing.finish()?;
        self.faults.extend(flows.iter().filter_map(disorder));
        let answers = pings.iter().filter_map(|ping| Some(ping.took?.as_secs_f64() * 1e3));
        let millis: Vec<f64> = answers.collect();
        let tallies = || flows.iter().flat_map(|report| [report.forward, report.replies]);
        let (seen, then) = (&mut self.visitors.seen, &before.seen);
        self.faults.append(&mut seen.faults);
        let of_peers = (seen.lost - then.lost).saturating_sub(seen.late - then.late);
        let of_flows: u64 = tallies().map(|tally| tally.lost).sum();
        let of_pings = (pings.len() - millis.len()) as u64;
        let lost = of_peers + of_flows + of_pings;
        let sent =
            tallies().map(|tally| tally.sent).sum::<u64>() + pings.len() as u64 + seen.sent - then.sent;
        let (visits, roams) = (seen.visits - then.visits, seen.roams - then.roams);
        let limit = Instant::now() + LATE;
        let counted = loop {
            let kernel = self.site.kernel_drops()?.saturating_sub(before.kernel);
            let reports = self.reports()?;
            let daemons = reports.iter().zip(&before.reports).map(|(now, then)| counted_since(now, then));
            let counted = daemons.sum::<u64>() + kernel;
            if lost <= counted + self.surplus || Instant::now() >= limit {
                break counted;
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        if lost > counted + self.surplus {
            self.faults.push(format!(
                "{of_flows} packets of flows, {of_pings} pings and {of_peers} packets of peers did not arrive, and \
                 {counted} packets were counted"
            ));
        }
        self.surplus = counted.saturating_sub(lost);
        sample = sample.and(Sample::of_pings(&millis, f64::NAN));
        let figures = [(SENT, sent), (LOST, lost), (COUNTED, counted), (VISITS, visits), (ROAMS, roams)];
        for (figure, value) in figures {
            sample = sample.with(figure, value as f64);
        }
        for (process, (cpu, (then, used))) in
            self.site.processes().into_iter().zip(cpu.into_iter().zip(before.cpu.into_iter().zip(USED)))
        {
            let count = |name: &str| {
                Ok::<_, anyhow::Error>(std::fs::read_dir(format!("/proc/{process}/{name}"))?.count())
            };
            let cpu = 100.0 * cpu.saturating_sub(then).as_secs_f64() / span;
            let values = [memory_mib(process, "VmRSS")?, count("fd")? as f64, count("task")? as f64, cpu];
            sample = used.into_iter().zip(values).fold(sample, |sample, (of, value)| sample.with(of, value));
        }
        Ok(sample.with_all([("busy_cores", "busy cores", 1, busy)]))
    }
}

/// Returns the packets that a daemon and the kernel at its device and sockets dropped since the earlier
/// report, for reasons that a packet of a peer may have.
fn counted_since(now: &StatusReport, earlier: &StatusReport) -> u64 {
    let count = |report: &StatusReport| {
        let is_of_strangers = |reason: &str| OF_STRANGERS.iter().any(|other| other.label() == reason);
        let drops = report.drops.iter().filter(|drop| !is_of_strangers(&drop.reason));
        let kernel = report.tun.queue_overflows + report.udp.receive_overflows + report.udp.junk_dropped;
        drops.map(|drop| drop.packets).sum::<u64>() + kernel
    };
    count(now).saturating_sub(count(earlier))
}
