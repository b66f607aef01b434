//! One TCP stream at a time from this process, with every byte checked on arrival.

use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use socket2::{Domain, Socket, Type};
use weft_lab::traffic::{self, Amount, Progress, STALL, SentFlow, send_stream_over};

use super::bench::{Bench, Outcome};
use super::case::{MBIT, TRANSFER};
use crate::machine::CpuTime;
use crate::report::{CPU, RETRANSMITS, Sample};
use crate::stats;

/// Transfers per measurement, one after the other; the median counts.
const TRANSFERS: u64 = 5;
/// Timeout of a stream beyond its sending time.
const GRACE: Duration = Duration::from_secs(30);

fn connect(bench: Bench<'_>) -> Result<TcpStream> {
    let address = bench.tunnel.transfer_address();
    let connect = || -> std::io::Result<TcpStream> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        bench.control.map_or(Ok(()), |control| socket.set_tcp_congestion(control.as_bytes()))?;
        socket.connect_timeout(&address.into(), STALL)?;
        Ok(socket.into())
    };
    bench.tunnel.near.run(connect).context("cannot connect through the tunnel")
}

fn check(sent: &SentFlow) -> Result<()> {
    ensure!(sent.error.is_none(), "the stream ended early: {}", sent.error.as_deref().unwrap_or_default());
    ensure!(sent.confirmed == sent.bytes, "the stream was changed on its way, at byte {}", sent.confirmed);
    Ok(())
}

/// Measures short transfers over new connections, to detect a slow start that ends too early.
pub(super) fn cold_start(bench: Bench<'_>, megabytes: u32) -> Result<Outcome> {
    let _receiver = bench.tunnel.listen()?;
    let bytes = u64::from(megabytes) * 1_000_000;
    let [before, _] = bench.tunnel.counters()?;
    let (mut millis, mut retransmits) = (Vec::new(), 0);
    for seed in 0..TRANSFERS {
        bench.interrupt.check()?;
        bench.tunnel.check()?;
        let start = Instant::now();
        let sent = send_stream_over(connect(bench)?, Amount::Count(bytes), seed, &Progress::default());
        millis.push(start.elapsed().as_secs_f64() * 1e3);
        check(&sent)?;
        retransmits += sent.retransmits;
    }
    let counted = bench.tunnel.counters()?[0].since(&before);
    let exits =
        ["TcpExtTCPHystartTrainDetect", "TcpExtTCPHystartDelayDetect"].map(|name| counted.protocol(name));
    let sample = Sample::default()
        .with(TRANSFER, stats::percentile(&millis, 0.5).context("nothing was transferred")?)
        .with(RETRANSMITS, retransmits as f64)
        // How often HyStart (of cubic) ended a slow start, rather than a loss.
        .with_all([("hystart_exits", "HyStart exits", 0, exits.iter().sum::<u64>() as f64)]);
    Ok(Outcome::new(sample, (TRANSFERS * bytes) as f64 * 8e-9))
}

/// The growing counters of a running stream, at one moment.
struct Reading {
    at: Instant,
    bytes: u64,
    retransmits: u64,
    cpu: Duration,
}

/// Sends for `omit` seconds, in which slow start ends and which do not count, and then for the measured time.
pub(super) fn steady(bench: Bench<'_>, omit: u32) -> Result<Outcome> {
    let Bench { tunnel, interrupt, .. } = bench;
    let (omit, span) = (Duration::from_secs(omit.into()), bench.span());
    let receiver = tunnel.listen()?;
    let dropped = || {
        tunnel.emulator.as_ref().map_or(0, |link| link.counters().iter().map(|end| end.dropped).sum::<u64>())
    };
    let (dropped_before, [near, far]) = (dropped(), tunnel.counters()?);
    let stream = connect(bench)?;
    let watched = stream.try_clone()?;
    let progress = Progress::default();
    let start = Instant::now();
    let read = || -> Result<Reading> {
        let (bytes, retransmits) = (receiver.bytes(), traffic::retransmits(&watched)?);
        Ok(Reading { at: Instant::now(), bytes, retransmits, cpu: CpuTime::now()?.busy })
    };
    let (mut first, mut round_trips) = (None, Vec::new());
    let (last, sent) = std::thread::scope(|scope| {
        // `progress.stop` ends the stream, early if there is an error.
        let (amount, progress) = (Amount::Until(start + omit + span + GRACE), &progress);
        let sender = scope.spawn(move || send_stream_over(stream, amount, 1, progress));
        let last = interrupt.wait_for("the end of the stream", omit + span + GRACE, || {
            tunnel.check()?;
            ensure!(!sender.is_finished(), "the stream ended early");
            if start.elapsed() < omit {
                return Ok(None);
            }
            let begun = match &first {
                Some(Reading { at, .. }) => *at,
                None => first.insert(read()?).at,
            };
            round_trips.push(traffic::round_trip(&watched)?.as_secs_f64() * 1e3);
            (begun.elapsed() >= span).then(read).transpose()
        });
        progress.stop.store(true, Relaxed);
        anyhow::Ok((last?, sender.join().ok().context("the sender panicked")?))
    })?;
    check(&sent)?;
    receiver.finish();
    let first = first.context("nothing was measured")?;
    let gbit = (last.bytes - first.bytes) as f64 * 8e-9;
    ensure!(gbit > 0.0, "the stream stands still");
    let [near, far] = [tunnel.counters()?[0].since(&near), tunnel.counters()?[1].since(&far)];
    let rings = [&near, &far].into_iter().flat_map(|end| end.interfaces.values());
    let rings: u64 = rings.map(|interface| interface.tx_dropped).sum();
    let mbit = gbit * 1e3 / (last.at - first.at).as_secs_f64();
    let share = payload_share(tunnel.daemons.is_empty());
    let mean = round_trips.iter().sum::<f64>() / round_trips.len() as f64;
    let sample = Sample::default()
        .with(MBIT, mbit)
        .with(super::case::OF_HEADERS, mbit / share)
        .with(RETRANSMITS, (last.retransmits - first.retransmits) as f64)
        // From the first packet to the last; so are the drops.
        .with(super::case::ALL_RETRANSMITS, sent.retransmits as f64)
        .with(CPU, (last.cpu - first.cpu).as_secs_f64() / gbit)
        .with_all([
            // Frames that the link dropped at its queue, there and back, and packets that an interface
            // dropped because its ring was full.
            ("dropped_by_link", "link drops", 0, (dropped() - dropped_before) as f64),
            ("dropped_by_interfaces", "ring drops", 0, rings as f64),
            // The mean of the sender's smoothed round-trip times.
            ("round_trip_ms", "RTT seen, ms", 1, mean),
        ]);
    Ok(Outcome::new(sample, gbit))
}

/// Returns the payload share of full TCP frames over IPv4 with timestamps.
///
/// Bare, 1,514 bytes of Ethernet carry 1,500 of IP, of which 20 are IP's header, 20 TCP's and 12 the
/// timestamps': 1448/1514. In the tunnel 1,420 bytes of IP carry 1,368; WireGuard adds a header of 16 and a
/// tag of 16 bytes, then come UDP's 8, IP's 20 and Ethernet's 14: 1368/1494. (1,420 is not a multiple of 16,
/// but padding never goes beyond the MTU.)
fn payload_share(is_bare: bool) -> f64 {
    if is_bare { 1448.0 / 1514.0 } else { 1368.0 / 1494.0 }
}
