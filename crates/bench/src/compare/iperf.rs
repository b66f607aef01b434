//! iperf3 through a tunnel: TCP and datagrams as fast as possible. Each run has a new server, so that none
//! waits for an earlier run.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use weft_lab::Process;

use super::bench::{Bench, Outcome};
use super::case::Direction;
use crate::implementation;
use crate::report::{GBIT, RETRANSMITS, Sample};

/// Timeout of iperf3 beyond its sending time.
const GRACE: Duration = Duration::from_secs(30);
const LISTEN: Duration = Duration::from_secs(10);

/// A running client with its server.
#[derive(Debug)]
pub(super) struct Run {
    client: Process,
    _server: Process,
    limit: Duration,
}

impl Run {
    /// Starts both; the client sends for `secs` seconds.
    pub(super) fn start(bench: Bench<'_>, secs: u32, arguments: &[&str]) -> Result<Self> {
        let words = ["iperf3", "-s", "-1", "--forceflush"].map(str::to_owned);
        let directory = &bench.tunnel.near_directory;
        let server = implementation::start(&bench.tunnel.far, &words, directory)?;
        bench.interrupt.wait_for("the iperf3 server", LISTEN, || {
            implementation::check_runs(&server)?;
            Ok(server.log().contains("Server listening").then_some(()))
        })?;
        let mut words = vec!["iperf3".to_owned(), "-J".into(), "-c".into(), bench.tunnel.target.to_string()];
        words.extend(["-t".into(), secs.to_string()]);
        if let Some(control) = bench.control {
            words.extend(["-C".into(), control.into()]);
        }
        words.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let client = implementation::start(&bench.tunnel.near, &words, directory)?;
        Ok(Self { client, _server: server, limit: Duration::from_secs(secs.into()) + GRACE })
    }

    pub(super) fn finish(self, bench: Bench<'_>) -> Result<Totals> {
        bench.interrupt.wait_for("the end of iperf3", self.limit, || {
            bench.tunnel.check()?;
            Ok((!self.client.is_running()).then_some(()))
        })?;
        parse(&self.client.log())
    }
}

fn run(bench: Bench<'_>, secs: u32, arguments: &[&str]) -> Result<Totals> {
    Run::start(bench, secs, arguments)?.finish(bench)
}

pub(super) fn tcp(bench: Bench<'_>, streams: u32, direction: Direction) -> Result<Outcome> {
    let streams = streams.to_string();
    let mut arguments = vec!["-P", &streams];
    arguments.extend(match direction {
        Direction::Forward => None,
        Direction::Reverse => Some("-R"),
        Direction::BothWays => Some("--bidir"),
    });
    let secs = bench.secs;
    tcp_outcome(&run(bench, secs, &arguments)?, direction)
}

pub(super) fn tcp_outcome(totals: &Totals, direction: Direction) -> Result<Outcome> {
    let mut ways = vec![(totals.sum_sent, totals.sum_received)];
    if direction == Direction::BothWays {
        ways.push((totals.sum_sent_bidir_reverse, totals.sum_received_bidir_reverse));
    }
    let (mut carried, mut speed, mut retransmits) = (0.0, 0.0, 0);
    for (sent, received) in ways {
        let (sent, received) = sent.zip(received).context("iperf3 gave no sums")?;
        let gbit = received.bytes as f64 * 8e-9;
        carried += gbit;
        speed += gbit / received.seconds;
        retransmits += sent.retransmits;
    }
    ensure!(carried > 0.0, "iperf3 transferred nothing");
    Ok(Outcome::new(Sample::default().with(GBIT, speed).with(RETRANSMITS, retransmits as f64), carried))
}

/// Measures datagrams of `bytes` bytes, as fast as one sender can send them.
pub(super) fn udp(bench: Bench<'_>, bytes: u32) -> Result<Outcome> {
    let totals = run(bench, bench.secs, &["-u", "-b", "0", "-l", &bytes.to_string()])?;
    let (sent, received) = totals.sum_sent.zip(totals.sum_received).context("iperf3 gave no sums")?;
    // The receiver does not know of datagrams lost behind the last one that arrived: use the sender's count.
    let packets = received.packets.saturating_add_signed(-received.lost_packets) as f64;
    let gbit = packets * f64::from(bytes) * 8e-9;
    let lost = (1.0 - packets / sent.packets as f64).max(0.0);
    let sample = Sample::default().with(GBIT, gbit / sent.seconds).with_all([
        ("packets_per_second", "packets/s", 0, packets / sent.seconds),
        ("loss_percent", "lost %", 1, lost * 100.0),
    ]);
    Ok(Outcome::new(sample, gbit))
}

/// The sums at the end of iperf3's report.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Totals {
    sum_sent: Option<Sum>,
    sum_received: Option<Sum>,
    /// The reverse direction, with `--bidir`.
    sum_sent_bidir_reverse: Option<Sum>,
    sum_received_bidir_reverse: Option<Sum>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Sum {
    bytes: u64,
    seconds: f64,
    /// Only for TCP.
    #[serde(default)]
    retransmits: u64,
    /// Only for UDP; at the receiver, up to the last datagram that arrived.
    #[serde(default)]
    packets: u64,
    /// Only for UDP, at the receiver. Negative when datagrams were duplicated.
    #[serde(default)]
    lost_packets: i64,
}

#[derive(Deserialize)]
struct Output {
    error: Option<String>,
    #[serde(default)]
    end: Totals,
}

fn parse(printed: &str) -> Result<Totals> {
    // Warnings precede the report, which begins on a new line.
    let json = printed.find("{\n").map_or(printed, |start| &printed[start..]);
    let first_line = || printed.lines().next().unwrap_or("nothing").to_owned();
    let output: Output =
        serde_json::from_str(json).with_context(|| format!("iperf3 gave no report but: {}", first_line()))?;
    match output.error {
        Some(error) => bail!("iperf3 failed: {error}"),
        None => Ok(output.end),
    }
}
