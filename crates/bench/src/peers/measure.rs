//! The measurements: which peers send or receive, for how long, and the results.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use weft_tunnel::PublicKey;

use super::gateway::{Carried, Gateway};
use super::inside::Inside;
use super::ledger::{Ledger, Totals};
use super::priority::{stepping_back, stepping_forward};
use super::roster::Roster;
use super::shape::{HEAVY_SINK, Shape};
use super::swarm::{Pings, Swarm, drain};
use crate::implementation::Implementation;
use crate::interrupt::Interrupt;
use crate::report::{CPU, Figure, GBIT, PING_P50, PING_P99, PINGS_LOST, Sample};
use crate::stats::{jain, percentile};

/// Excluded start-up time.
const WARM_UP: Duration = Duration::from_millis(500);
/// Timeout for all handshakes: several tries, 5 s apart.
const HANDSHAKES: Duration = Duration::from_secs(60);
/// Packets in a burst of the flooding peer.
const FLOOD_BURST: u64 = 32;

const SENT: Figure = Figure::new("sent", "sent", 0);
pub(super) const LOST: Figure = Figure::new("lost", "lost", 0);
/// Packets that arrived after a later one of the same peer.
const DISPLACED: Figure = Figure::new("displaced", "displaced", 0);
/// Packets that the kernel dropped: datagrams for the gateway's socket, packets for its TUN.
const SOCKET_FULL: Figure = Figure::new("socket_overflows", "socket full", 0);
const TUN_FULL: Figure = Figure::new("tun_overflows", "TUN full", 0);
pub(super) const JAIN: Figure = Figure::new("jain", "Jain", 3);
/// Packets of the slowest peer divided by those of the fastest.
pub(super) const SLOWEST: Figure = Figure::new("slowest_to_fastest", "slowest to fastest", 2);
/// The highest p50 of a single peer.
const SLOWEST_P50: Figure = Figure::new("slowest_p50_ms", "slowest p50 ms", 3);

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

/// A gateway with its peers and the hosts behind it.
pub(super) struct Stand {
    pub(super) gateway: Gateway,
    inside: Inside,
    swarm: Swarm,
    flooder: Swarm,
    pinger: Swarm,
    flooder_key: PublicKey,
    runs: u32,
}

/// Stops threads when dropped, also if an error occurs meanwhile.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
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
        let pingers = active + 1..active + Self::EXTRAS;
        let (swarm, flooder, pinger) = (swarm(0..active)?, swarm(active..active + 1)?, swarm(pingers)?);
        let flooder_key = roster.active[active].public_key();
        Ok(Self { gateway, inside, swarm, flooder, pinger, flooder_key, runs: 0 })
    }

    /// Performs all handshakes at once. Returns how long the fastest half of the active peers took, and all
    /// of them.
    pub(super) fn shake_hands(&mut self, interrupt: &Interrupt) -> Result<(Duration, Duration)> {
        let times = self.swarm.shake_hands(HANDSHAKES, interrupt)?;
        self.flooder.shake_hands(HANDSHAKES, interrupt)?;
        self.pinger.shake_hands(HANDSHAKES, interrupt)?;
        Ok(times)
    }

    /// Runs `work` while no peer sends data.
    pub(super) fn rest<T>(&mut self, work: impl FnOnce(&mut Gateway) -> Result<T>) -> Result<T> {
        let (no_peers, stop) = (Ledger::new(0, 0), AtomicBool::new(false));
        let (gateway, swarms) = (&mut self.gateway, [&mut self.swarm, &mut self.flooder, &mut self.pinger]);
        let (no_peers, stop) = (&no_peers, &stop);
        std::thread::scope(|scope| {
            let guard = Stop(stop);
            let threads = swarms.map(|swarm| scope.spawn(|| swarm.listen(no_peers, stop)));
            let result = work(gateway);
            drop(guard);
            threads.into_iter().try_for_each(join)?;
            result
        })
    }

    /// Renews the sessions that have expired since the peers sent last.
    pub(super) fn renew_sessions(&mut self, interrupt: &Interrupt) -> Result<()> {
        for swarm in [&mut self.swarm, &mut self.flooder, &mut self.pinger] {
            swarm.shake_hands(HANDSHAKES, interrupt)?;
        }
        Ok(())
    }

    /// Lets the first `count` peers send or receive with a window, and runs `meanwhile` during the
    /// measurement. Returns the throughput, the Gbit/s that the gateway carried for the peer `beside` them,
    /// and the result of `meanwhile`. The gateway's counters are used for that peer because the receiver of a
    /// flood need not keep up with it.
    pub(super) fn throughput<T>(
        &mut self,
        direction: Direction,
        count: usize,
        shape: Shape,
        beside: Option<Load>,
        meanwhile: impl FnOnce(&mut Gateway, &Ledger) -> Result<T>,
    ) -> Result<(Sample, Option<f64>, T)> {
        let count = count.min(self.swarm.len());
        let [ledger, flood] = [count, 1].map(|peers| {
            self.runs += 1;
            Ledger::new(self.runs, peers)
        });
        let (ledger, flood) = (&ledger, &flood);
        let (stop_sending, stop) = (&AtomicBool::new(false), &AtomicBool::new(false));
        let (inside, gateway) = (&self.inside, &mut self.gateway);
        let (swarm, flooder, flooder_key) = (&mut self.swarm, &mut self.flooder, &self.flooder_key);
        std::thread::scope(|scope| {
            let guards = (Stop(stop_sending), Stop(stop));
            let is_flood = beside == Some(Load::Flood);
            let heavy = Shape { burst: FLOOD_BURST, port: HEAVY_SINK, ..shape };
            let mut senders = Vec::new();
            let mut takers = Vec::new();
            match direction {
                Direction::Upload => {
                    takers.push(scope.spawn(|| inside.ordinary.take(ledger, stop)));
                    takers.push(scope.spawn(stepping_back(is_flood, || inside.heavy.take(flood, stop))));
                    senders
                        .push(scope.spawn(move || swarm.upload(count, shape, false, ledger, stop_sending)));
                    if beside.is_some() {
                        senders.push(scope.spawn(stepping_back(is_flood, move || {
                            flooder.upload(1, heavy, is_flood, flood, stop_sending)
                        })));
                    }
                }
                Direction::Download => {
                    let (many, one) = (swarm.inner(), flooder.inner());
                    takers.push(scope.spawn(|| swarm.listen(ledger, stop)));
                    takers.push(scope.spawn(stepping_back(is_flood, || flooder.listen(flood, stop))));
                    senders.push(scope.spawn(move || {
                        inside.ordinary.download(&many[..count], shape, false, ledger, stop_sending)
                    }));
                    if beside.is_some() {
                        senders.push(scope.spawn(stepping_back(is_flood, move || {
                            inside.heavy.download(&one, heavy, is_flood, flood, stop_sending)
                        })));
                    }
                }
            }
            std::thread::sleep(WARM_UP);
            let carried = |gateway: &Gateway| -> Result<_> {
                let carried = beside.map(|_| gateway.carried(flooder_key)).transpose()?;
                Ok((carried, Instant::now()))
            };
            let (before, since) = carried(gateway)?;
            let window = Span::open(gateway, ledger)?;
            let other = meanwhile(gateway, ledger)?;
            let arrived = window.close(gateway, ledger, shape)?;
            let (after, until) = carried(gateway)?;
            let beside = before.zip(after).map(|(before, after)| {
                gbit(packets(direction, shape, before, after), shape, until.duration_since(since))
            });
            let (sending, taking) = guards;
            drop(sending);
            senders.into_iter().try_for_each(join)?;
            drain(ledger);
            drop(taking);
            takers.into_iter().try_for_each(join)?;
            let Totals { sent, arrived: all, displaced } = ledger.totals();
            let sample = arrived
                .with(SENT, sent as f64)
                .with(LOST, sent.saturating_sub(all) as f64)
                .with(DISPLACED, displaced as f64);
            Ok((sample, beside, other))
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
        self.runs += 2;
        let (run, flood) = (self.runs, &Ledger::new(self.runs - 1, 1));
        let stop = &AtomicBool::new(false);
        let is_flood = matches!(load, Some((_, Load::Flood)));
        let heavy = Shape { burst: FLOOD_BURST, port: HEAVY_SINK, ..shape };
        let (inside, flooder, pinger) = (&self.inside, &mut self.flooder, &mut self.pinger);
        std::thread::scope(|scope| {
            let guard = Stop(stop);
            let mut others = vec![
                scope.spawn(stepping_forward(|| inside.answer(stop))),
                scope.spawn(stepping_back(is_flood, || inside.heavy.take(flood, stop))),
            ];
            match load {
                Some((Direction::Upload, _)) => {
                    others.push(scope.spawn(stepping_back(is_flood, move || {
                        flooder.upload(1, heavy, is_flood, flood, stop)
                    })));
                }
                Some((Direction::Download, _)) => {
                    let to = flooder.inner();
                    others.push(scope.spawn(stepping_back(is_flood, move || flooder.listen(flood, stop))));
                    others.push(scope.spawn(stepping_back(is_flood, move || {
                        inside.heavy.download(&to, heavy, is_flood, flood, stop)
                    })));
                }
                None => {}
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

fn join(thread: std::thread::ScopedJoinHandle<'_, std::io::Result<()>>) -> Result<()> {
    Ok(thread.join().map_err(|_| anyhow!("a thread panicked"))??)
}

fn gbit(packets: u64, shape: Shape, elapsed: Duration) -> f64 {
    packets as f64 * shape.bytes as f64 * 8e-9 / elapsed.as_secs_f64()
}

/// Computes the number of one peer's packets that the gateway has carried between two readings.
fn packets(direction: Direction, shape: Shape, before: Carried, after: Carried) -> u64 {
    // Padding to 16 bytes, a header and a tag of 16 bytes each (whitepaper, section 5.4.6).
    let message = shape.bytes.next_multiple_of(16) + 16 + 16;
    let bytes = match direction {
        Direction::Upload => after.received.saturating_sub(before.received),
        Direction::Download => after.sent.saturating_sub(before.sent),
    };
    bytes / message as u64
}

/// A span of time in which received packets are counted.
struct Span {
    start: Instant,
    peers: Vec<u64>,
    cpu: Duration,
    counters: weft_lab::counters::Counters,
}

impl Span {
    fn open(gateway: &Gateway, ledger: &Ledger) -> Result<Self> {
        let (counters, cpu) = (gateway.counters()?, gateway.usage()?.cpu);
        Ok(Self { start: Instant::now(), peers: ledger.arrived_by_peer(), cpu, counters })
    }

    fn close(self, gateway: &mut Gateway, ledger: &Ledger, shape: Shape) -> Result<Sample> {
        let elapsed = self.start.elapsed();
        let peers: Vec<u64> =
            ledger.arrived_by_peer().iter().zip(&self.peers).map(|(now, then)| now - then).collect();
        let cpu = gateway.usage()?.cpu.saturating_sub(self.cpu);
        gateway.check()?;
        let counters = gateway.counters()?.since(&self.counters);
        let packets: u64 = peers.iter().sum();
        let [fewest, most] = [peers.iter().min(), peers.iter().max()].map(|of| of.copied().unwrap_or(0));
        Ok(Sample::default()
            .with(GBIT, gbit(packets, shape, elapsed))
            .with(CPU, cpu.as_secs_f64() / gbit(packets, shape, Duration::from_secs(1)))
            .with(JAIN, jain(&peers))
            .with(SLOWEST, fewest as f64 / most.max(1) as f64)
            .with(SOCKET_FULL, counters.protocol("UdpRcvbufErrors") as f64)
            .with(TUN_FULL, counters.interface(gateway.interface()).tx_dropped as f64))
    }
}

/// Returns the figures of the answered pings of several peers; two seconds without any answer.
fn percentiles(peers: &[Pings]) -> Sample {
    let part = |mut millis: Vec<f64>, part| {
        millis.sort_by(f64::total_cmp);
        percentile(&millis, part).unwrap_or(2000.0)
    };
    let all: Vec<f64> = peers.iter().flat_map(|peer| peer.millis.iter().copied()).collect();
    // If many pings are lost, some peers may have sent none.
    let had_a_turn = peers.iter().filter(|peer| peer.lost > 0 || !peer.millis.is_empty());
    let slowest = had_a_turn.map(|peer| part(peer.millis.clone(), 0.5)).fold(0.0, f64::max);
    Sample::default()
        .with(PING_P50, part(all.clone(), 0.5))
        .with(PING_P99, part(all, 0.99))
        .with(SLOWEST_P50, slowest)
        .with(PINGS_LOST, peers.iter().map(|peer| peer.lost).sum::<u64>() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_the_other_are_those_that_its_direction_carried() {
        let (before, after) = (Carried { received: 100, sent: 7 }, Carried { received: 1_540, sent: 2_887 });
        let of = |direction| packets(direction, Shape::full(1, 1), before, after);
        assert_eq!((of(Direction::Upload), of(Direction::Download)), (1, 2));
    }

    #[test]
    fn the_slowest_of_several_shows_beside_all_of_them_and_lost_pings_are_no_good_pings() {
        let answered = |millis: [f64; 3]| Pings { millis: millis.to_vec(), lost: 0 };
        let all = percentiles(&[answered([1.0; 3]), answered([9.0, 8.0, 2.0]), Pings::default()]);
        let figures = [PING_P50, PING_P99, SLOWEST_P50, PINGS_LOST].map(|figure| all.get(figure));
        assert_eq!(figures, [Some(1.0), Some(9.0), Some(8.0), Some(0.0)]);
        let none = percentiles(&[Pings { millis: Vec::new(), lost: 3 }]);
        assert_eq!([PING_P99, PINGS_LOST].map(|figure| none.get(figure)), [Some(2000.0), Some(3.0)]);
    }
}
