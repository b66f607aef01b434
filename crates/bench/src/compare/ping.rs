//! Pings through an idle tunnel, and beside a TCP stream as fast as possible.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::bench::{Bench, Outcome};
use super::case::Direction;
use super::iperf::{self, Run};
use crate::implementation;
use crate::report::{GBIT, PINGS_LOST, Sample};

/// Pings a second: enough for a 99th percentile in a few seconds, too few to matter beside the stream.
const PER_SECOND: u32 = 200;
const INTERVAL: &str = "0.005";
/// Timeout for an answer, in seconds.
const ANSWER: u32 = 2;
/// The stream fills the tunnel for this time before the first ping, and continues after the last ping.
const SETTLE: Duration = Duration::from_secs(1);
const STREAM_BESIDE: u32 = 2 + ANSWER;
/// Timeout of ping beyond its sending time.
const GRACE: Duration = Duration::from_secs(10);

pub(super) fn loaded(bench: Bench<'_>) -> Result<Outcome> {
    let stream = Run::start(bench, bench.secs + STREAM_BESIDE, &["-P", "1"])?;
    bench.interrupt.sleep(SETTLE)?;
    let pings = measure(bench)?;
    let carried = iperf::tcp_outcome(&stream.finish(bench)?, Direction::Forward)?;
    let speed = carried.sample.get(GBIT).unwrap_or(f64::NAN);
    Ok(Outcome::new(pings.with(GBIT, speed), carried.gbit))
}

pub(super) fn measure(bench: Bench<'_>) -> Result<Sample> {
    let sent = bench.secs * PER_SECOND;
    let (count, wait) = (sent.to_string(), ANSWER.to_string());
    let target = bench.tunnel.target.to_string();
    let words = ["ping", "-n", "-i", INTERVAL, "-c", &count, "-W", &wait, &target].map(str::to_owned);
    let ping = implementation::start(&bench.tunnel.near, &words, &bench.tunnel.near_directory)?;
    let limit = bench.span() + GRACE;
    bench.interrupt.wait_for("the end of ping", limit, || {
        bench.tunnel.check()?;
        Ok((!ping.is_running()).then_some(()))
    })?;
    let output = ping.log();
    ensure!(output.contains("packets transmitted"), "ping did not get to its end; it printed: {output}");
    Ok(sample(sent, &output))
}

/// Reads the times of the answers, without duplicates.
fn sample(sent: u32, output: &str) -> Sample {
    let answers = output.lines().filter(|line| !line.contains("(DUP!)"));
    let millis: Vec<f64> = answers
        .filter_map(|line| line.split_once(" time=")?.1.split_whitespace().next()?.parse().ok())
        .collect();
    Sample::of_pings(&millis, f64::NAN)
        .with_all([("ping_max_ms", "max ms", 2, millis.iter().copied().fold(f64::NAN, f64::max))])
        .with(PINGS_LOST, f64::from(sent) - millis.len() as f64)
}
