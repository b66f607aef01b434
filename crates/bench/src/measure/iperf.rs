//! iperf3 through a tunnel. Each run has a new server, so that none waits for an earlier run.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::Bench;
use crate::process::Process;

/// Timeout of iperf3 beyond its sending time.
const GRACE: Duration = Duration::from_secs(30);
/// Timeout for the server to listen.
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

/// Runs iperf3 for the duration of the measurement.
pub(super) fn run(bench: &mut Bench<'_>, arguments: &[&str]) -> Result<Totals> {
    Run::start(bench, bench.secs, arguments)?.finish(bench)
}

/// The sums at the end of iperf3's report.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Totals {
    pub(super) sum_sent: Option<Sum>,
    pub(super) sum_received: Option<Sum>,
    /// The reverse direction, with `--bidir`.
    pub(super) sum_sent_bidir_reverse: Option<Sum>,
    pub(super) sum_received_bidir_reverse: Option<Sum>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct Sum {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    /// Only for TCP.
    #[serde(default)]
    pub(super) retransmits: u64,
    /// Only for UDP; at the receiver, up to the last datagram that arrived.
    #[serde(default)]
    pub(super) packets: u64,
    /// Only for UDP, at the receiver. Negative when datagrams were duplicated.
    #[serde(default)]
    pub(super) lost_packets: i64,
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
    fn the_sums_of_a_report_are_read() {
        let json = r#"warning: UDP block size 1372 exceeds TCP MSS 1368
{
            "start": {}, "end": { "streams": [],
            "sum_sent": { "seconds": 2.01, "bytes": 260000000, "retransmits": 7, "sender": true },
            "sum_received": { "seconds": 2.0, "bytes": 250000000, "packets": 10, "lost_packets": -1 } } }"#;
        let totals = parse(json).unwrap();
        assert_eq!(totals.sum_sent.unwrap().retransmits, 7);
        let received = totals.sum_received.unwrap();
        assert_eq!((received.bytes, received.packets, received.lost_packets), (250_000_000, 10, -1));
        assert!(totals.sum_sent_bidir_reverse.is_none());
    }

    #[test]
    fn errors_are_told_with_what_helps() {
        let failed =
            |error| parse(&format!(r#"{{ "end": {{}}, "error": "{error}" }}"#)).unwrap_err().to_string();
        assert!(failed("unable to connect to server: Connection refused").contains("refused"));
        assert!(failed("socket buffer size not set correctly").contains("rmem_max"));
        assert!(parse("").is_err());
    }
}
