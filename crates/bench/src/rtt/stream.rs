//! One TCP stream of limited duration, with the counters of both kernels and the link.

use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use weft_lab::traffic::{self, Amount, Progress, SentFlow, TcpReceiver, send_stream_over};

use super::path::Path;
use super::signs::{Order, SlowStart};
use crate::interrupt::Interrupt;
use crate::machine;

/// Timeout of a stream beyond its sending time.
const GRACE: Duration = Duration::from_secs(30);

/// The result of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Sample {
    /// Payload received in the measured time.
    pub(super) mbit_per_second: f64,
    /// Retransmits in the measured time.
    pub(super) retransmits: u64,
    /// Retransmits from the first packet to the last, slow start included. The fields below also cover that
    /// span unless they name the measured time.
    pub(super) retransmits_in_all: u64,
    #[serde(flatten)]
    pub(super) order: Order,
    #[serde(flatten)]
    pub(super) slow_start: SlowStart,
    /// Frames that the link dropped at its queue, there and back.
    pub(super) dropped_by_link: u64,
    /// Packets that an interface dropped because its ring was full.
    pub(super) dropped_by_interfaces: u64,
    /// Mean of the sender's smoothed round-trip times in the measured time, in milliseconds.
    pub(super) round_trip_ms: f64,
    /// CPU time of the whole machine in the measured time, the emulation of the link included.
    pub(super) cpu_seconds_per_gbit: f64,
    /// CPU time of the link's thread in the measured time, in cores.
    pub(super) link_cores: f64,
}

/// The growing counters of a running stream, at one moment.
struct Reading {
    at: Instant,
    bytes: u64,
    retransmits: u64,
    cpu: Duration,
    link_cpu: Duration,
}

impl Reading {
    fn take(path: &Path, stream: &TcpStream, receiver: &TcpReceiver) -> Result<Self> {
        Ok(Self {
            at: Instant::now(),
            bytes: receiver.bytes(),
            retransmits: traffic::retransmits(stream)?,
            cpu: machine::busy_time()?,
            link_cpu: path.tunnel.emulator()?.cpu_time().unwrap_or_default(),
        })
    }
}

/// The readings of the measured time.
struct Readings {
    first: Reading,
    last: Reading,
    round_trips: Vec<Duration>,
}

/// Sends over the path for `omit` seconds, which do not count, and then for `secs` measured seconds.
pub(super) fn measure(
    path: &mut Path,
    control: &str,
    secs: u32,
    omit: u32,
    interrupt: &Interrupt,
) -> Result<Sample> {
    let receiver = path.listen()?;
    let before = path.counters()?;
    let link_before = path.tunnel.emulator()?.counters();
    let stream = path.connect(receiver.local_addr(), control)?;
    let (readings, sent) = run(path, stream, &receiver, [omit, secs], interrupt)?;
    ensure!(sent.error.is_none(), "the stream ended early: {}", sent.error.unwrap_or_default());
    ensure!(sent.confirmed == sent.bytes, "the stream was changed on its way, at byte {}", sent.confirmed);
    receiver.finish();
    let after = path.counters()?;
    let [near, far] = [after[0].since(&before[0]), after[1].since(&before[1])];
    let link = path.tunnel.emulator()?.counters().into_iter().zip(&link_before);
    let rings = [&near, &far].into_iter().flat_map(|counters| counters.interfaces.values());
    let Readings { first, last, round_trips } = readings;
    let seconds = (last.at - first.at).as_secs_f64();
    let gbit = (last.bytes - first.bytes) as f64 * 8.0 / 1e9;
    ensure!(gbit > 0.0, "the stream stands still");
    Ok(Sample {
        mbit_per_second: gbit * 1e3 / seconds,
        retransmits: last.retransmits - first.retransmits,
        retransmits_in_all: sent.retransmits,
        order: Order::of(&near, &far),
        slow_start: SlowStart::of(&near),
        dropped_by_link: link.map(|(now, before)| now.since(before).dropped).sum(),
        dropped_by_interfaces: rings.map(|interface| interface.tx_dropped).sum(),
        round_trip_ms: round_trips.iter().sum::<Duration>().as_secs_f64() * 1e3 / round_trips.len() as f64,
        cpu_seconds_per_gbit: (last.cpu - first.cpu).as_secs_f64() / gbit,
        link_cores: (last.link_cpu - first.link_cpu).as_secs_f64() / seconds,
    })
}

fn run(
    path: &mut Path,
    stream: TcpStream,
    receiver: &TcpReceiver,
    [omit, secs]: [u32; 2],
    interrupt: &Interrupt,
) -> Result<(Readings, SentFlow)> {
    let [omit, span] = [omit, secs].map(|seconds| Duration::from_secs(seconds.into()));
    let watched = stream.try_clone()?;
    let progress = Progress::default();
    let start = Instant::now();
    // `progress.stop` ends the stream, early if there is an error.
    let amount = Amount::Until(start + omit + span + GRACE);
    thread::scope(|scope| {
        let sender = scope.spawn(|| send_stream_over(stream, amount, 1, &progress));
        let mut first = None;
        let mut round_trips = Vec::new();
        let readings = interrupt.wait_for("the end of the stream", omit + span + GRACE, || {
            path.check()?;
            ensure!(!sender.is_finished(), "the stream ended early");
            if start.elapsed() < omit {
                return Ok(None);
            }
            let begun = match &first {
                Some(Reading { at, .. }) => *at,
                None => first.insert(Reading::take(path, &watched, receiver)?).at,
            };
            round_trips.push(traffic::round_trip(&watched)?);
            let over = begun.elapsed() >= span;
            over.then(|| Reading::take(path, &watched, receiver)).transpose()
        });
        progress.stop.store(true, Relaxed);
        let sent = sender.join().ok().context("the sender panicked")?;
        let first = first.context("nothing was measured");
        Ok((Readings { last: readings?, first: first?, round_trips }, sent))
    })
}
