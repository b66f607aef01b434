//! The measurements: which peers send or receive, for how long, and the results.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use weft_tunnel::PublicKey;

use super::gateway::{Gateway, Roster};
use super::inside::{Host, Inside};
use super::priority::{stepping_back, stepping_forward};
use super::swarm::{Pings, Swarm};
use super::task::{GIVEN_UP, PACKET, Shape, Task};
use super::{HEAVY_SINK, SINK};
use crate::implementation::Implementation;
use crate::interrupt::Interrupt;
use crate::pacing::Ledger;
use crate::report::{CPU, Figure, GBIT, PINGS_LOST, Sample};
use crate::stats::{jain, percentile};

const WARM_UP: Duration = Duration::from_millis(500);
/// Timeout for all handshakes: several tries, 5 s apart.
const HANDSHAKES: Duration = Duration::from_secs(60);
const FLOOD_BURST: u64 = 32;

pub(super) const LOST: Figure = Figure::new("lost", "lost", 0);
pub(super) const JAIN: Figure = Figure::new("jain", "Jain", 3);
/// Packets of the slowest peer divided by those of the fastest.
pub(super) const SLOWEST: Figure = Figure::new("slowest_to_fastest", "slowest to fastest", 2);

/// Which way the packets go, as the peers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Upload,
    Download,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(if *self == Self::Upload { "upload" } else { "download" })
    }
}

/// The load that one peer sends or receives beside the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// As fast as packets arrive, with a window like TCP's.
    Bulk,
    /// As fast as the machine can send, whatever arrives.
    Flood,
}

/// Stops threads when dropped, also if an error occurs meanwhile.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

type Thread<'scope> = ScopedJoinHandle<'scope, std::io::Result<()>>;

fn join(thread: Thread<'_>) -> Result<()> {
    Ok(thread.join().map_err(|_| anyhow!("a thread panicked"))??)
}

/// Starts what sends and what receives for the first `count` clients. What sends ends with its task, and what
/// receives when `stop` is set.
fn exchange<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    direction: Direction,
    (host, swarm, count): (&'env Host, &'scope mut Swarm, usize),
    task: Task<'scope>,
    stop: &'scope AtomicBool,
) -> [Thread<'scope>; 2] {
    let (is_flood, ledger) = (task.is_flood, task.ledger);
    match direction {
        Direction::Upload => [
            scope.spawn(stepping_back(is_flood, move || swarm.upload(count, task))),
            scope.spawn(stepping_back(is_flood, move || host.take(ledger, stop))),
        ],
        Direction::Download => {
            let clients = swarm.inner(count);
            [
                scope.spawn(stepping_back(is_flood, move || host.download(&clients, task))),
                scope.spawn(stepping_back(is_flood, move || swarm.listen(ledger, stop))),
            ]
        }
    }
}

/// A gateway with its peers and the hosts behind it.
pub(super) struct Stand {
    pub(super) gateway: Gateway,
    inside: Inside,
    /// The active peers, one that floods, and those that ping.
    swarms: [Swarm; 3],
    flooder_key: PublicKey,
    runs: u32,
}

impl Stand {
    /// Number of pinging peers. A hash decides separately for each of them which queue or socket it shares
    /// with the flood.
    const PINGERS: usize = 8;
    /// Peers with a client beyond the active ones: one that floods, and the pinging ones.
    pub(super) const EXTRAS: usize = 1 + Self::PINGERS;

    pub(super) fn new(
        implementation: &Implementation,
        roster: &Roster,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let gateway = Gateway::start(implementation, roster, interrupt)?;
        let inside = gateway.inside.run(Inside::new).context("no sockets behind the gateway")?;
        let active = roster.active.len() - Self::EXTRAS;
        let swarm = |peers: Range<usize>| gateway.clients.run(|| Swarm::new(roster, peers));
        let swarms =
            [swarm(0..active)?, swarm(active..active + 1)?, swarm(active + 1..active + Self::EXTRAS)?];
        let flooder_key = roster.active[active].public_key();
        Ok(Self { gateway, inside, swarms, flooder_key, runs: 0 })
    }

    /// Performs the handshakes of all peers without a session at once. Returns how long the fastest half of
    /// the active peers took, and all of them.
    pub(super) fn shake_hands(&mut self, interrupt: &Interrupt) -> Result<(Duration, Duration)> {
        let [active, flooder, pinger] = &mut self.swarms;
        let times = active.shake_hands(HANDSHAKES, interrupt)?;
        flooder.shake_hands(HANDSHAKES, interrupt)?;
        pinger.shake_hands(HANDSHAKES, interrupt)?;
        Ok(times)
    }

    fn ledger(&mut self, peers: usize) -> Ledger {
        self.runs += 1;
        Ledger::new(self.runs, peers)
    }

    /// Lets the first `count` peers send or receive with a window, and runs `meanwhile` during the
    /// measurement. Returns the throughput, and the Gbit/s that the gateway carried for the peer `beside`
    /// them, by the gateway's counters: the receiver of a flood need not keep up with it.
    pub(super) fn throughput(
        &mut self,
        direction: Direction,
        count: usize,
        shape: Shape,
        beside: Option<Load>,
        meanwhile: impl FnOnce() -> Result<()>,
    ) -> Result<(Sample, Option<f64>)> {
        let count = count.min(self.swarms[0].len());
        let (ledger, flood) = (&self.ledger(count), &self.ledger(1));
        let (stop_sending, stop) = (&AtomicBool::new(false), &AtomicBool::new(false));
        let Self { inside, gateway, swarms: [swarm, flooder, _], flooder_key, .. } = self;
        let (inside, gateway, flooder_key) = (&*inside, &*gateway, &*flooder_key);
        std::thread::scope(|scope| {
            let (sending, taking) = (Stop(stop_sending), Stop(stop));
            let task = Task { shape, port: SINK, is_flood: false, ledger, stop: stop_sending };
            let mut threads = vec![exchange(scope, direction, (&inside.ordinary, swarm, count), task, stop)];
            if let Some(load) = beside {
                let heavy = heavy(shape, load, flood, stop_sending);
                threads.push(exchange(scope, direction, (&inside.heavy, flooder, 1), heavy, stop));
            }
            std::thread::sleep(WARM_UP);
            let carried = || -> Result<_> {
                let carried = beside.map(|_| gateway.carried(flooder_key)).transpose()?;
                Ok((carried, Instant::now()))
            };
            let (before, since) = carried()?;
            let window = Span::open(gateway, ledger)?;
            meanwhile()?;
            let arrived = window.close(gateway, ledger)?;
            let (after, until) = carried()?;
            let beside = before.zip(after).map(|(before, after)| {
                let way = usize::from(direction == Direction::Download);
                gbit(packets(after[way].saturating_sub(before[way])), until.duration_since(since))
            });
            drop(sending);
            let (senders, takers): (Vec<_>, Vec<_>) =
                threads.into_iter().map(|[sender, taker]| (sender, taker)).unzip();
            senders.into_iter().try_for_each(join)?;
            ledger.drain(GIVEN_UP, || Ok(()))?;
            drop(taking);
            takers.into_iter().try_for_each(join)?;
            let (sent, all) = (ledger.sent_so_far(), ledger.arrived_so_far());
            let sample = arrived
                .with_all([("sent", "sent", 0, sent as f64)])
                .with(LOST, sent.saturating_sub(all) as f64)
                .with_all([("displaced", "displaced", 0, ledger.displaced() as f64)]);
            Ok((sample, beside))
        })
    }

    /// Lets the pinging peers ping in turn for `span`, while another peer sends or receives `load`. Returns
    /// the percentiles of all, those of the peer with the highest, and the lost pings.
    pub(super) fn pings(
        &mut self,
        load: Option<(Direction, Load)>,
        shape: Shape,
        span: Duration,
        interrupt: &Interrupt,
    ) -> Result<Sample> {
        let flood = &self.ledger(1);
        let run = self.ledger(0).run();
        let stop = &AtomicBool::new(false);
        let Self { inside, swarms: [_, flooder, pinger], .. } = self;
        let inside = &*inside;
        std::thread::scope(|scope| {
            let guard = Stop(stop);
            let mut others = vec![scope.spawn(stepping_forward(|| inside.answer(stop)))];
            if let Some((direction, load)) = load {
                let heavy = heavy(shape, load, flood, stop);
                others.extend(exchange(scope, direction, (&inside.heavy, flooder, 1), heavy, stop));
            }
            let counts_from = Instant::now() + WARM_UP;
            let pings = scope.spawn(stepping_forward(move || pinger.ping(run, counts_from, stop)));
            let slept = interrupt.sleep(WARM_UP + span);
            drop(guard);
            others.into_iter().try_for_each(join)?;
            let pings = pings.join().map_err(|_| anyhow!("a thread panicked"))?;
            slept?;
            Ok(percentiles(&pings?))
        })
    }
}

/// Returns the task of the peer that loads the gateway.
fn heavy<'a>(shape: Shape, load: Load, ledger: &'a Ledger, stop: &'a AtomicBool) -> Task<'a> {
    let shape = Shape { burst: FLOOD_BURST, ..shape };
    Task { shape, port: HEAVY_SINK, is_flood: load == Load::Flood, ledger, stop }
}

fn gbit(packets: u64, elapsed: Duration) -> f64 {
    (packets * PACKET as u64) as f64 * 8e-9 / elapsed.as_secs_f64()
}

/// Computes the number of packets in this number of bytes of messages: padding to 16 bytes, a header and a
/// tag of 16 bytes each (whitepaper, section 5.4.6).
fn packets(bytes: u64) -> u64 {
    bytes / (PACKET.next_multiple_of(16) + 16 + 16) as u64
}

/// A span of time in which received packets are counted.
struct Span {
    start: Instant,
    peers: Vec<u64>,
    cpu: Duration,
}

impl Span {
    fn open(gateway: &Gateway, ledger: &Ledger) -> Result<Self> {
        let cpu = gateway.usage()?.cpu;
        Ok(Self { start: Instant::now(), peers: ledger.arrived_by_lane(), cpu })
    }

    fn close(self, gateway: &Gateway, ledger: &Ledger) -> Result<Sample> {
        let elapsed = self.start.elapsed();
        let now = ledger.arrived_by_lane();
        let peers: Vec<u64> = now.iter().zip(&self.peers).map(|(now, then)| now - then).collect();
        let cpu = gateway.usage()?.cpu.saturating_sub(self.cpu);
        gateway.daemon.check()?;
        let packets: u64 = peers.iter().sum();
        let [fewest, most] = [peers.iter().min(), peers.iter().max()].map(|of| of.copied().unwrap_or(0));
        Ok(Sample::default()
            .with(GBIT, gbit(packets, elapsed))
            .with(CPU, cpu.as_secs_f64() / gbit(packets, Duration::from_secs(1)))
            .with(JAIN, jain(&peers))
            .with(SLOWEST, fewest as f64 / most.max(1) as f64))
    }
}

/// Returns the figures of the answered pings of several peers; two seconds without any answer.
fn percentiles(peers: &[Pings]) -> Sample {
    const NOTHING: f64 = 2000.0;
    let all: Vec<f64> = peers.iter().flat_map(|peer| peer.millis.iter().copied()).collect();
    // If many pings are lost, some peers may have sent none.
    let had_a_turn = peers.iter().filter(|peer| peer.lost > 0 || !peer.millis.is_empty());
    let slowest = had_a_turn.map(|peer| percentile(&peer.millis, 0.5).unwrap_or(NOTHING));
    let slowest = slowest.fold(0.0, f64::max);
    Sample::of_pings(&all, NOTHING)
        .with_all([("slowest_p50_ms", "slowest p50 ms", 3, slowest)])
        .with(PINGS_LOST, peers.iter().map(|peer| peer.lost).sum::<u64>() as f64)
}
