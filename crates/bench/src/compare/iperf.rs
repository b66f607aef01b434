//! iperf3 through a tunnel: TCP and datagrams as fast as possible, and the highest rate of datagrams with
//! almost no loss. Each run has a new server, so that none waits for an earlier run.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use super::bench::{Bench, Outcome};
use super::case::{Direction, LARGE};
use crate::process::Process;
use crate::report::{Figure, GBIT, RETRANSMITS, Sample};

/// Timeout of iperf3 beyond its sending time.
const GRACE: Duration = Duration::from_secs(30);
/// Timeout for the server to listen.
const LISTEN: Duration = Duration::from_secs(10);

const PACKETS: Figure = Figure::new("packets_per_second", "packets/s", 0);
const LOSS: Figure = Figure::new("loss_percent", "lost %", 1);

/// A running client with its server.
#[derive(Debug)]
pub(super) struct Run {
    client: Process,
    _server: Process,
    limit: Duration,
}

impl Run {
    /// Starts both; the client sends for `secs` seconds.
    pub(super) fn start(bench: &mut Bench<'_>, secs: u32, arguments: &[&str]) -> Result<Self> {
        let words = ["iperf3", "-s", "-1", "--forceflush"].map(str::to_owned);
        let mut server = Process::start(&bench.tunnel.far, &words, bench.tunnel.file("iperf3-server.log"))?;
        server.wait_until(bench.interrupt, "the iperf3 server", LISTEN, |server| {
            server.output().contains("Server listening")
        })?;
        let mut words = vec!["iperf3".to_owned(), "-J".into(), "-c".into(), bench.tunnel.target.to_string()];
        words.extend(["-t".into(), secs.to_string()]);
        words.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let client = Process::start(&bench.tunnel.near, &words, bench.tunnel.file("iperf3-client.json"))?;
        Ok(Self { client, _server: server, limit: Duration::from_secs(secs.into()) + GRACE })
    }

    /// Waits until the client has ended, and returns its totals.
    pub(super) fn finish(mut self, bench: &mut Bench<'_>) -> Result<Totals> {
        bench.interrupt.wait_for("the end of iperf3", self.limit, || {
            bench.tunnel.check()?;
            Ok(self.client.has_ended()?.then_some(()))
        })?;
        parse(&self.client.output())
    }
}

fn run(bench: &mut Bench<'_>, secs: u32, arguments: &[&str]) -> Result<Totals> {
    Run::start(bench, secs, arguments)?.finish(bench)
}

/// Measures TCP, one way or both ways at once.
pub(super) fn tcp(bench: &mut Bench<'_>, streams: u32, direction: Direction) -> Result<Outcome> {
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
pub(super) fn udp(bench: &mut Bench<'_>, bytes: u32) -> Result<Outcome> {
    let (size, secs) = (bytes.to_string(), bench.secs);
    let arrived = Arrived::of(&run(bench, secs, &["-u", "-b", "0", "-l", &size])?, bytes)?;
    Ok(Outcome::new(arrived.sample(), arrived.gbit_per_second * arrived.seconds))
}

/// Measures the highest rate of datagrams with less than 1 % loss. Receive buffers are large, so that the
/// application is not what drops.
pub(super) fn udp_rate(bench: &mut Bench<'_>) -> Result<Outcome> {
    const SECONDS_PER_STEP: u32 = 1;
    let size = LARGE.to_string();
    let best = search(|rate| {
        let rate = format!("{:.0}", rate * 1e9);
        let arguments = ["-u", "-b", &rate, "-l", &size, "-w", "4M"];
        Arrived::of(&run(bench, SECONDS_PER_STEP, &arguments)?, LARGE)
    })?;
    Ok(Outcome::new(best.sample(), 0.0))
}

/// Returns the step with the highest received rate among those with little enough loss, which need not be the
/// last one: loss need not grow with the rate.
fn search(mut step: impl FnMut(f64) -> Result<Arrived>) -> Result<Arrived> {
    /// Each step halves the ratio of the bounds on a logarithmic scale: eight steps find the rate to 2.5 %.
    const STEPS: u32 = 8;
    const MOST_LOSS: f64 = 0.01;
    /// A sender below this share of the requested rate is at its limit, and higher rates are not tried.
    const REACHED: f64 = 0.8;
    let (mut low, mut high) = (0.03_f64, 16.0);
    let mut best = None::<Arrived>;
    for _ in 0..STEPS {
        let rate = (low * high).sqrt();
        let arrived = step(rate)?;
        if arrived.loss >= MOST_LOSS {
            high = rate;
            continue;
        }
        if best.is_none_or(|best| best.gbit_per_second < arrived.gbit_per_second) {
            best = Some(arrived);
        }
        if arrived.sent_gbit_per_second < REACHED * rate {
            break;
        }
        low = rate;
    }
    best.context("more than 1 % is lost at any rate above 0.03 Gbit/s")
}

/// The result for datagrams of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Arrived {
    gbit_per_second: f64,
    sent_gbit_per_second: f64,
    packets_per_second: f64,
    /// From 0 to 1.
    loss: f64,
    seconds: f64,
}

impl Arrived {
    fn of(totals: &Totals, bytes: u32) -> Result<Self> {
        let sent = totals.sum_sent.context("iperf3 does not say what it sent")?;
        let received = totals.sum_received.context("iperf3 does not say what it received")?;
        // The receiver does not know of datagrams lost behind the last one that arrived: use the sender's
        // count.
        let packets = received.packets.saturating_add_signed(-received.lost_packets) as f64;
        let gbit_per_packet = f64::from(bytes) * 8e-9;
        Ok(Self {
            gbit_per_second: packets * gbit_per_packet / sent.seconds,
            sent_gbit_per_second: sent.packets as f64 * gbit_per_packet / sent.seconds,
            packets_per_second: packets / sent.seconds,
            loss: (1.0 - packets / sent.packets as f64).max(0.0),
            seconds: sent.seconds,
        })
    }

    fn sample(&self) -> Sample {
        Sample::default()
            .with(GBIT, self.gbit_per_second)
            .with(PACKETS, self.packets_per_second)
            .with(LOSS, self.loss * 100.0)
    }
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
        Some(error) if error.contains("socket buffer size") => bail!(
            "iperf3 failed: {error}; this machine allows no buffers that large: sysctl -w net.core.rmem_max=4194304 \
             net.core.wmem_max=4194304"
        ),
        Some(error) => bail!("iperf3 failed: {error}"),
        None => Ok(output.end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_of_a_report_are_read_and_errors_are_told_with_what_helps() {
        let json = r#"warning: UDP block size 1372 exceeds TCP MSS 1368
{
            "start": {}, "end": { "streams": [],
            "sum_sent": { "seconds": 2.01, "bytes": 260000000, "retransmits": 7, "sender": true },
            "sum_received": { "seconds": 2.0, "bytes": 250000000, "packets": 10, "lost_packets": -1 } } }"#;
        let one = tcp_outcome(&parse(json).unwrap(), Direction::Forward).unwrap();
        assert_eq!(
            (one.gbit, one.sample.get(GBIT), one.sample.get(RETRANSMITS)),
            (2.0, Some(1.0), Some(7.0))
        );
        let failed =
            |error| parse(&format!(r#"{{ "end": {{}}, "error": "{error}" }}"#)).unwrap_err().to_string();
        assert!(failed("unable to connect to server: Connection refused").contains("refused"));
        assert!(failed("socket buffer size not set correctly").contains("rmem_max"));
        assert!(parse("").is_err() && tcp_outcome(&Totals::default(), Direction::Forward).is_err());
    }

    #[test]
    fn both_ways_are_summed_up() {
        let sum = |bytes, retransmits| Some(Sum { bytes, seconds: 2.0, retransmits, ..Sum::default() });
        let totals = Totals {
            sum_sent: sum(9, 5),
            sum_received: sum(1_000_000_000, 0),
            sum_sent_bidir_reverse: sum(9, 2),
            sum_received_bidir_reverse: sum(500_000_000, 0),
        };
        let both = tcp_outcome(&totals, Direction::BothWays).unwrap();
        assert_eq!(
            (both.gbit, both.sample.get(GBIT), both.sample.get(RETRANSMITS)),
            (12.0, Some(6.0), Some(7.0))
        );
    }

    #[test]
    fn what_arrives_is_counted_against_what_was_sent() {
        // 100 are lost within the sequence, and 100 more behind the last one that arrived.
        let totals = Totals {
            sum_sent: Some(Sum { packets: 1000, seconds: 2.0, ..Sum::default() }),
            sum_received: Some(Sum { packets: 900, lost_packets: 100, seconds: 2.1, ..Sum::default() }),
            ..Totals::default()
        };
        let arrived = Arrived::of(&totals, 1250).unwrap();
        assert!((arrived.gbit_per_second - 400.0 * 1e-5).abs() < 1e-12);
        assert!((arrived.loss - 0.2).abs() < 1e-12);
    }

    #[test]
    fn the_rate_is_found_to_a_few_per_cent() {
        let arrived = |sent: f64, capacity: f64| {
            let gbit_per_second = sent.min(capacity);
            let loss = 1.0 - gbit_per_second / sent;
            Arrived {
                gbit_per_second,
                sent_gbit_per_second: sent,
                packets_per_second: 0.0,
                loss,
                seconds: 1.0,
            }
        };
        for capacity in [0.04, 0.31, 1.0, 2.77, 9.0] {
            let found = search(|rate| Ok(arrived(rate, capacity))).unwrap().gbit_per_second;
            assert!((0.97..=1.0).contains(&(found / capacity)), "{found} of {capacity}");
        }
        let at_its_limit = search(|rate| Ok(arrived(rate.min(1.5), 100.0)));
        assert_eq!(at_its_limit.unwrap().gbit_per_second, 1.5);
        assert!(search(|rate| Ok(arrived(rate, 0.001))).is_err(), "a path that always loses");
    }
}
