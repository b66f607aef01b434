//! Pings through an idle tunnel, and beside a TCP stream as fast as possible.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::iperf::Run;
use super::{Bench, Outcome, tcp};
use crate::case::Direction;
use crate::metric::{Metric, Sample};
use crate::process::Process;
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

pub(super) fn idle(bench: &mut Bench<'_>) -> Result<Outcome> {
    Ok(Outcome::new(ping(bench)?.sample(), 0.0))
}

pub(super) fn loaded(bench: &mut Bench<'_>) -> Result<Outcome> {
    let stream = Run::start(bench, bench.secs + STREAM_BESIDE, &["-P", "1"])?;
    bench.interrupt.sleep(SETTLE)?;
    let pings = ping(bench)?;
    let carried = tcp::outcome(&stream.finish(bench)?, Direction::Forward)?;
    let mut sample = pings.sample();
    if let Some(speed) = carried.sample.get(Metric::GbitPerSecond) {
        sample = sample.with(Metric::GbitPerSecond, speed);
    }
    Ok(Outcome::new(sample, carried.gbit))
}

/// The measured round trips in milliseconds, in ascending order.
#[derive(Debug)]
struct Pings {
    sent: u32,
    millis: Vec<f64>,
}

fn ping(bench: &mut Bench<'_>) -> Result<Pings> {
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
    let millis = parse(&output);
    ensure!(output.contains("packets transmitted"), "ping did not get to its end; it printed: {output}");
    Ok(Pings { sent, millis })
}

impl Pings {
    fn sample(&self) -> Sample {
        let lost = self.sent.saturating_sub(u32::try_from(self.millis.len()).unwrap_or(u32::MAX));
        let mut sample = Sample::default().with(Metric::PingsLost, lost.into());
        let parts = [(Metric::PingP50Ms, 0.5), (Metric::PingP99Ms, 0.99), (Metric::PingMaxMs, 1.0)];
        for (metric, part) in parts {
            if let Some(millis) = stats::percentile(&self.millis, part) {
                sample = sample.with(metric, millis);
            }
        }
        sample
    }
}

/// Returns the sorted times of the answers, without duplicates.
fn parse(output: &str) -> Vec<f64> {
    let answers = output.lines().filter(|line| !line.contains("(DUP!)"));
    let mut millis: Vec<f64> = answers
        .filter_map(|line| line.split_once(" time=")?.1.split_whitespace().next()?.parse().ok())
        .collect();
    millis.sort_by(f64::total_cmp);
    millis
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
        let millis = parse(output);
        assert_eq!(millis, [0.1, 0.3, 12.0]);
        let sample = Pings { sent: 4, millis }.sample();
        assert_eq!(sample.get(Metric::PingsLost), Some(1.0));
        assert_eq!(sample.get(Metric::PingP50Ms), Some(0.3));
        assert_eq!(sample.get(Metric::PingMaxMs), Some(12.0));
        let none = Pings { sent: 4, millis: Vec::new() }.sample();
        assert_eq!((none.get(Metric::PingsLost), none.get(Metric::PingP50Ms)), (Some(4.0), None));
    }
}
