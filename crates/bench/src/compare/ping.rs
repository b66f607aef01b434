//! Pings through an idle tunnel, and beside a TCP stream as fast as possible.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::bench::{Bench, Outcome};
use super::case::Direction;
use super::iperf::{self, Run};
use crate::process::Process;
use crate::report::{Figure, GBIT, PING_P50, PING_P99, PINGS_LOST, Sample};
use crate::stats;

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
const MAX: Figure = Figure::new("ping_max_ms", "max ms", 2);

pub(super) fn idle(bench: &mut Bench<'_>) -> Result<Outcome> {
    Ok(Outcome::new(ping(bench)?, 0.0))
}

pub(super) fn loaded(bench: &mut Bench<'_>) -> Result<Outcome> {
    let stream = Run::start(bench, bench.secs + STREAM_BESIDE, &["-P", "1"])?;
    bench.interrupt.sleep(SETTLE)?;
    let pings = ping(bench)?;
    let carried = iperf::tcp_outcome(&stream.finish(bench)?, Direction::Forward)?;
    let speed = carried.sample.get(GBIT).unwrap_or(f64::NAN);
    Ok(Outcome::new(pings.with(GBIT, speed), carried.gbit))
}

fn ping(bench: &mut Bench<'_>) -> Result<Sample> {
    let sent = bench.secs * PER_SECOND;
    let (count, wait) = (sent.to_string(), ANSWER.to_string());
    let target = bench.tunnel.target.to_string();
    let words = ["ping", "-n", "-i", INTERVAL, "-c", &count, "-W", &wait, &target].map(str::to_owned);
    let mut ping = Process::start(&bench.tunnel.near, &words, bench.tunnel.file("ping.log"))?;
    let limit = bench.span() + GRACE;
    bench.interrupt.wait_for("the end of ping", limit, || {
        bench.tunnel.check()?;
        Ok(ping.has_ended()?.then_some(()))
    })?;
    let output = ping.output();
    ensure!(output.contains("packets transmitted"), "ping did not get to its end; it printed: {output}");
    Ok(sample(sent, &output))
}

/// Reads the times of the answers, without duplicates.
fn sample(sent: u32, output: &str) -> Sample {
    let answers = output.lines().filter(|line| !line.contains("(DUP!)"));
    let mut millis: Vec<f64> = answers
        .filter_map(|line| line.split_once(" time=")?.1.split_whitespace().next()?.parse().ok())
        .collect();
    millis.sort_by(f64::total_cmp);
    let part = |part| stats::percentile(&millis, part).unwrap_or(f64::NAN);
    Sample::default()
        .with(PING_P50, part(0.5))
        .with(PING_P99, part(0.99))
        .with(MAX, part(1.0))
        .with(PINGS_LOST, f64::from(sent) - millis.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_timed_and_the_others_are_lost() {
        let output = "PING 10.99.0.2 (10.99.0.2) 56(84) bytes of data.\n\
            64 bytes from 10.99.0.2: icmp_seq=1 ttl=64 time=0.300 ms\n\
            64 bytes from 10.99.0.2: icmp_seq=3 ttl=64 time=12 ms\n\
            64 bytes from 10.99.0.2: icmp_seq=3 ttl=64 time=13 ms (DUP!)\n\
            64 bytes from 10.99.0.2: icmp_seq=4 ttl=64 time=0.1 ms\n\n\
            --- 10.99.0.2 ping statistics ---\n4 packets transmitted, 3 received, 25% packet loss, time 3ms\n\
            rtt min/avg/max/mdev = 0.1/0.3/12/0.1 ms\n";
        let pings = sample(4, output);
        let figures = [PINGS_LOST, PING_P50, MAX].map(|figure| pings.get(figure));
        assert_eq!(figures, [Some(1.0), Some(0.3), Some(12.0)]);
        let none = sample(4, "");
        assert_eq!((none.get(PINGS_LOST), none.get(PING_P50)), (Some(4.0), None));
    }
}
