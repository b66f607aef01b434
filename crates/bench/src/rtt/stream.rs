//! One TCP stream of iperf3 for a while, and what both kernels and the link counted meanwhile.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::path::Path;
use crate::interrupt::Interrupt;
use crate::machine;
use crate::process::Process;

/// How long iperf3 may take beyond the time that it sends.
const GRACE: Duration = Duration::from_secs(30);
/// How often a server that still ends the measurement before is asked again.
const TRIES: u32 = 20;

/// What one stream gave. Without further word: in the time that counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Sample {
    /// Payload that arrived.
    pub(super) mbit_per_second: f64,
    pub(super) retransmits: u64,
    /// From the first packet on, slow start included.
    pub(super) retransmits_in_all: u64,
    /// The round trips that the sender saw, in milliseconds: the mean of its smoothed ones.
    pub(super) round_trip_ms: f64,
    #[serde(flatten)]
    pub(super) order: Order,
    /// Frames that the link dropped at its queue, there and back, slow start included.
    pub(super) dropped_by_link: u64,
    /// Packets that an interface dropped because its ring was full, slow start included.
    pub(super) dropped_by_interfaces: u64,
    /// Seconds of the whole machine for each Gbit in all, the emulation of the link included.
    pub(super) cpu_seconds: f64,
    /// The share of a core that the link's thread used.
    pub(super) link_cores: f64,
}

/// What TCP takes for reordering, slow start included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Order {
    /// Times that the sender found its segments reordered: by SACK, by timestamps, without either.
    pub(super) reordering_seen: u64,
    /// Segments that arrived behind a gap, by loss or by reordering.
    pub(super) out_of_order: u64,
    /// Segments that the receiver had already: sent again without need.
    pub(super) duplicates: u64,
}

/// Sends over the path.
pub(super) fn measure(
    path: &mut Path,
    control: &str,
    secs: u32,
    omit: u32,
    interrupt: &Interrupt,
) -> Result<Sample> {
    let words = arguments(&path.far_address.to_string(), control, secs, omit);
    let span = Duration::from_secs((secs + omit).into());
    for _ in 0..TRIES {
        let before = path.counters()?;
        let link_before = path.lab.emulator.counters();
        let (cpu, link_cpu) = (machine::busy_time()?, path.lab.emulator.cpu_time());
        let mut client = Process::start(&path.lab.near, &words, path.file("iperf3-client.json"))?;
        interrupt.wait_for("the end of iperf3", span + GRACE, || {
            path.check()?;
            Ok(client.has_ended()?.then_some(()))
        })?;
        let Some(transfer) = parse(&client.output())? else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let cpu = machine::busy_time()? - cpu;
        let link_cpu =
            path.lab.emulator.cpu_time().zip(link_cpu).map_or(Duration::ZERO, |(now, then)| now - then);
        let after = path.counters()?;
        let [near, far] = [after[0].since(&before[0]), after[1].since(&before[1])];
        let link = path.lab.emulator.counters().into_iter().zip(&link_before);
        let rings = [&near, &far].into_iter().flat_map(|counters| counters.interfaces.values());
        return Ok(Sample {
            mbit_per_second: transfer.bytes as f64 * 8.0 / 1e6 / transfer.seconds,
            retransmits: transfer.retransmits,
            retransmits_in_all: near.tcp_retransmits(),
            round_trip_ms: transfer.round_trip_ms,
            order: Order::of(&near, &far),
            dropped_by_link: link.map(|(now, before)| now.since(before).dropped).sum(),
            dropped_by_interfaces: rings.map(|interface| interface.tx_dropped).sum(),
            cpu_seconds: cpu.as_secs_f64(),
            link_cores: link_cpu.as_secs_f64() / span.as_secs_f64(),
        });
    }
    bail!("the iperf3 server stays busy")
}

fn arguments(address: &str, control: &str, secs: u32, omit: u32) -> Vec<String> {
    let (secs, omit) = (secs.to_string(), omit.to_string());
    ["iperf3", "-J", "-c", address, "-C", control, "-t", &secs, "-O", &omit].map(str::to_owned).into()
}

impl Order {
    /// From the counters of the sender's kernel and of the receiver's.
    pub(super) fn of(
        sender: &weft::lab::counters::Counters,
        receiver: &weft::lab::counters::Counters,
    ) -> Self {
        let seen = ["TcpExtTCPSACKReorder", "TcpExtTCPTSReorder", "TcpExtTCPRenoReorder"];
        Self {
            reordering_seen: seen.into_iter().map(|name| sender.protocol(name)).sum(),
            out_of_order: receiver.tcp_out_of_order(),
            duplicates: sender.protocol("TcpExtTCPDSACKRecv") + sender.protocol("TcpExtTCPDSACKOfoRecv"),
        }
    }
}

#[derive(Debug, PartialEq)]
struct Transfer {
    bytes: u64,
    seconds: f64,
    retransmits: u64,
    round_trip_ms: f64,
}

/// iperf3's report, as far as it is of use here.
#[derive(Deserialize)]
struct Output {
    error: Option<String>,
    #[serde(default)]
    end: End,
}

#[derive(Default, Deserialize)]
struct End {
    #[serde(default)]
    streams: Vec<Stream>,
}

#[derive(Deserialize)]
struct Stream {
    sender: Sender,
    receiver: Receiver,
}

#[derive(Deserialize)]
struct Sender {
    #[serde(default)]
    retransmits: u64,
    /// In microseconds.
    #[serde(default)]
    mean_rtt: f64,
}

#[derive(Deserialize)]
struct Receiver {
    bytes: u64,
    seconds: f64,
}

/// `None` when the server has not ended the measurement before.
fn parse(json: &str) -> Result<Option<Transfer>> {
    let output: Output = serde_json::from_str(json).with_context(|| format!("iperf3 printed: {json}"))?;
    match output.error {
        Some(error) if error.contains("server is busy") => return Ok(None),
        Some(error) => bail!("iperf3 failed: {error}"),
        None => {}
    }
    let Stream { sender, receiver } = output.end.streams.into_iter().next().context("iperf3 sent nothing")?;
    ensure!(receiver.bytes > 0 && receiver.seconds > 0.0, "iperf3 transferred nothing");
    Ok(Some(Transfer {
        bytes: receiver.bytes,
        seconds: receiver.seconds,
        retransmits: sender.retransmits,
        round_trip_ms: sender.mean_rtt / 1e3,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_iperf3_is_read() {
        let json = r#"{ "start": {}, "end": { "streams": [ {
            "sender": { "seconds": 2.0, "bytes": 9, "retransmits": 7, "mean_rtt": 20500 },
            "receiver": { "seconds": 2.0, "bytes": 250000000, "sender": true } } ] } }"#;
        let expected = Transfer { bytes: 250_000_000, seconds: 2.0, retransmits: 7, round_trip_ms: 20.5 };
        assert_eq!(parse(json).unwrap(), Some(expected));
    }

    #[test]
    fn slow_start_is_left_out_and_the_congestion_control_chosen() {
        assert_eq!(
            arguments("192.0.2.2", "bbr", 12, 5).join(" "),
            "iperf3 -J -c 192.0.2.2 -C bbr -t 12 -O 5"
        );
    }

    #[test]
    fn a_busy_server_is_asked_again_and_other_errors_are_told() {
        let failed = |error| format!(r#"{{ "end": {{}}, "error": "{error}" }}"#);
        assert_eq!(parse(&failed("the server is busy running a test. try again later")).unwrap(), None);
        assert!(parse(&failed("Connection refused")).unwrap_err().to_string().contains("refused"));
        assert!(parse(r#"{ "end": {} }"#).is_err());
    }
}
