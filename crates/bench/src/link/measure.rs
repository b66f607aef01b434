//! Measurements of a link between its two ends.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use weft_lab::counters::Counters;
use weft_lab::emulator::PipeCounters;
use weft_lab::numbered::{Numbered, NumberedOptions};
use weft_lab::traffic::{Amount, TcpReceiver, TcpSenders};

use super::LinkArgs;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::topology::Tunnel;

/// Payload of a datagram that fills a frame, and the length of that frame.
const DATAGRAM: usize = 1472;
const FRAME: f64 = 1514.0;
const PINGS: u32 = 100;
/// Excluded start-up time of a stream or a flood.
const WARM_UP: Duration = Duration::from_secs(1);
/// Rate of full frames, in frames a second, on a link without a rate.
const ANY_RATE: f64 = 10_000.0;
const GRACE: Duration = Duration::from_secs(60);

/// The requested properties, and the measured ones.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// The link as specified on the command line.
    pub(crate) link: String,
    pub(crate) asked: Requested,
    pub(crate) ping: Ping,
    /// Datagrams at half the rate.
    pub(crate) half: Datagrams,
    /// Datagrams at 1.2 times the rate. `None` without a rate.
    pub(crate) flood: Option<Datagrams>,
    pub(crate) tcp: Tcp,
    /// Counters of the whole run: from the near end to the far one, and back.
    pub(crate) counters: [PipeCounters; 2],
    /// Frames lost before the link, because its thread read them too late.
    pub(crate) missed: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Requested {
    /// Bits a second.
    pub(crate) rate: Option<u64>,
    /// Sum of both directions' delays.
    pub(crate) round_trip_ms: f64,
    /// From 0 to 1.
    pub(crate) loss: f64,
    /// From 0 to 1.
    pub(crate) reorder: f64,
}

/// Round trips of single packets on the idle link, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Ping {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) p99: f64,
    pub(crate) lost: u32,
}

/// Numbered datagrams of one flow.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Datagrams {
    /// Rate of frames sent, in bits a second.
    pub(crate) sent_rate: f64,
    /// Rate of frames received, in bits a second, after the first second.
    pub(crate) received_rate: f64,
    /// Share of those sent that did not arrive.
    pub(crate) lost: f64,
    /// Share of those received that arrived behind a later one.
    pub(crate) out_of_order: f64,
    /// Share of those sent that were dropped in the receiving socket: lost, but not by the link.
    pub(crate) socket_full: f64,
    /// CPU time of the link's thread, in cores.
    pub(crate) link_cores: f64,
}

/// One TCP stream.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Tcp {
    /// Bits of payload a second, after the first second.
    pub(crate) rate: f64,
    pub(crate) retransmits: u64,
    pub(crate) link_cores: f64,
}

/// Measures everything.
pub(super) fn all(
    link: &Tunnel,
    args: &LinkArgs,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Report> {
    let spec = &args.spec;
    let secs = Duration::from_secs(args.secs.into());
    progress.say("round trips on the idle link");
    let ping = ping(link)?;
    let rate = spec.rate.map(|rate| rate as f64);
    let pps = rate.map_or(ANY_RATE, |rate| rate / (FRAME * 8.0));
    progress.say("datagrams at half the rate");
    let half = datagrams(link, pps / 2.0, secs, interrupt)?;
    let flood = match rate {
        Some(_) => {
            progress.say("datagrams at 1.2 times the rate");
            Some(datagrams(link, pps * 1.2, secs, interrupt)?)
        }
        None => None,
    };
    progress.say("one TCP stream");
    let tcp = tcp(link, secs, interrupt)?;
    let missed = [&link.near, &link.far].map(Counters::read).into_iter();
    let missed = missed.map(|counters| Ok(counters?.interface("eth0").tx_dropped)).sum::<Result<u64>>()?;
    let round_trip_ms = 2e3 * spec.delay.as_secs_f64();
    Ok(Report {
        link: spec.to_string(),
        asked: Requested { rate: spec.rate, round_trip_ms, loss: spec.loss, reorder: spec.reorder },
        ping,
        half,
        flood,
        tcp,
        counters: link.emulator()?.counters(),
        missed,
    })
}

fn ping(link: &Tunnel) -> Result<Ping> {
    let mut command = link.near.command("ping");
    command.args(["-n", "-i", "0.01", "-W", "5", "-c", &PINGS.to_string(), &link.target.to_string()]);
    let output = command.output().context("cannot start ping: is it installed?")?;
    parse_ping(&String::from_utf8_lossy(&output.stdout)).context("no ping came back")
}

fn parse_ping(output: &str) -> Option<Ping> {
    let time = |line: &str| line.split_once("time=")?.1.split_whitespace().next()?.parse::<f64>().ok();
    let mut times: Vec<f64> = output.lines().filter_map(time).collect();
    times.sort_by(f64::total_cmp);
    let at =
        |share: usize| times.get((times.len() * share / 100).min(times.len().saturating_sub(1))).copied();
    let lost = PINGS.saturating_sub(times.len() as u32);
    Some(Ping { least: at(0)?, median: at(50)?, p99: at(99)?, lost })
}

fn datagrams(link: &Tunnel, pps: f64, span: Duration, interrupt: &Interrupt) -> Result<Datagrams> {
    let options = NumberedOptions {
        datagram_bytes: DATAGRAM,
        datagrams_per_second: pps.round().max(1.0) as u32,
        burst: 4,
        amount: Amount::Until(Instant::now() + span + WARM_UP),
        ..NumberedOptions::default()
    };
    let before = Counters::read(&link.far)?;
    let cpu = link.emulator()?.cpu_time();
    let start = Instant::now();
    let flow = Numbered::start(&link.near, link.source, &link.far, link.target, options)?;
    let mut warm = None;
    let (sent, received, measured) = interrupt.wait_for("the end of the datagrams", span + GRACE, || {
        if start.elapsed() < WARM_UP {
            return Ok(None);
        }
        let (since, sent, received) = *warm.get_or_insert_with(|| {
            let (sent, received) = flow.progress();
            (Instant::now(), sent, received)
        });
        if since.elapsed() < span {
            return Ok(None);
        }
        let (sent_now, received_now) = flow.progress();
        Ok(Some((sent_now - sent, received_now - received, since.elapsed().as_secs_f64())))
    })?;
    let cores = cores(link, cpu, start)?;
    let tally = flow.finish().forward;
    ensure!(tally.received > 0, "no datagram arrived");
    let full = Counters::read(&link.far)?.since(&before).udp_receive_buffer_full();
    let rate = |datagrams: u64| datagrams as f64 * FRAME * 8.0 / measured;
    Ok(Datagrams {
        sent_rate: rate(sent),
        received_rate: rate(received),
        lost: tally.lost as f64 / tally.sent as f64,
        out_of_order: tally.out_of_order as f64 / tally.received as f64,
        socket_full: full as f64 / tally.sent as f64,
        link_cores: cores,
    })
}

fn tcp(link: &Tunnel, span: Duration, interrupt: &Interrupt) -> Result<Tcp> {
    let receiver =
        link.far.run(|| TcpReceiver::listen((link.target, 0).into()).map_err(anyhow::Error::from))?;
    let amount = Amount::Until(Instant::now() + span + WARM_UP);
    let cpu = link.emulator()?.cpu_time();
    let start = Instant::now();
    let senders = TcpSenders::start(&link.near, receiver.local_addr(), 1, amount, 1)?;
    let mut warm = None;
    let rate = interrupt.wait_for("the end of the stream", span + GRACE, || {
        if start.elapsed() < WARM_UP {
            return Ok(None);
        }
        let (since, bytes) = *warm.get_or_insert_with(|| (Instant::now(), receiver.bytes()));
        let elapsed = since.elapsed();
        let rate = || (receiver.bytes() - bytes) as f64 * 8.0 / elapsed.as_secs_f64();
        Ok((elapsed >= span).then(rate))
    })?;
    let link_cores = cores(link, cpu, start)?;
    let sent = senders.finish();
    let received = receiver.finish();
    let flow = sent.first().context("there was no stream")?;
    ensure!(flow.error.is_none(), "the stream ended early: {}", flow.error.as_deref().unwrap_or_default());
    ensure!(received.iter().all(|flow| flow.first_mismatch.is_none()), "the stream was changed on its way");
    Ok(Tcp { rate, retransmits: flow.retransmits, link_cores })
}

fn cores(link: &Tunnel, before: Option<Duration>, start: Instant) -> Result<f64> {
    let used = link.emulator()?.cpu_time().zip(before).map_or(Duration::ZERO, |(now, before)| now - before);
    Ok(used.as_secs_f64() / start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_pings_are_summarised() {
        let line = |ms: f64| format!("64 bytes from 192.0.2.2: icmp_seq=1 ttl=64 time={ms} ms\n");
        let output: String = (1..=99).map(|ms| line(f64::from(ms))).collect();
        let expected = Ping { least: 1.0, median: 50.0, p99: 99.0, lost: 1 };
        assert_eq!(parse_ping(&output), Some(expected));
        assert_eq!(parse_ping("100 packets transmitted, 0 received\n"), None);
    }
}
