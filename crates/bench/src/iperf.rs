//! One measurement: iperf3 through a tunnel, and the CPU time of the whole machine meanwhile.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::interrupt::Interrupt;
use crate::machine;
use crate::process::Process;
use crate::topology::{FAR, Tunnel};

/// How long iperf3 may take beyond the time that it sends.
const GRACE: Duration = Duration::from_secs(30);
/// How often a server that still ends the measurement before is asked again.
const TRIES: u32 = 20;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    streams: u32,
    reverse: bool,
}

/// Every case, in the order of the report.
pub(crate) const CASES: [Case; 3] = [
    Case { name: "TCP, 1 stream", streams: 1, reverse: false },
    Case { name: "TCP, 4 streams", streams: 4, reverse: false },
    Case { name: "TCP, 1 stream, reverse", streams: 1, reverse: true },
];

/// What one measurement gave.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Sample {
    /// TCP payload that arrived.
    pub(crate) gbit_per_second: f64,
    /// CPU time of the whole machine, sender, receiver and kernel included.
    pub(crate) cpu_seconds_per_gbit: f64,
    pub(crate) retransmits: u64,
}

/// Sends through the tunnel for as long as this.
pub(crate) fn measure(tunnel: &mut Tunnel, case: Case, secs: u32, interrupt: &Interrupt) -> Result<Sample> {
    let words = arguments(case, secs);
    for _ in 0..TRIES {
        let before = machine::busy_time()?;
        let mut client = Process::start(&tunnel.near, &words, tunnel.file("iperf3-client.json"))?;
        interrupt.wait_for("the end of iperf3", Duration::from_secs(secs.into()) + GRACE, || {
            tunnel.check()?;
            Ok(client.has_ended()?.then_some(()))
        })?;
        let cpu = machine::busy_time()? - before;
        match parse(&client.output())? {
            Outcome::Done(transfer) => return Ok(transfer.sample(cpu)),
            Outcome::Busy => std::thread::sleep(Duration::from_millis(100)),
        }
    }
    bail!("the iperf3 server stays busy")
}

fn arguments(case: Case, secs: u32) -> Vec<String> {
    let mut words = vec!["iperf3".to_owned(), "-J".into(), "-c".into(), FAR.into()];
    words.extend(["-t".into(), secs.to_string(), "-P".into(), case.streams.to_string()]);
    words.extend(case.reverse.then(|| "-R".into()));
    words
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Done(Transfer),
    /// The server has not ended the measurement before.
    Busy,
}

#[derive(Debug, PartialEq)]
struct Transfer {
    bytes: u64,
    seconds: f64,
    retransmits: u64,
}

impl Transfer {
    fn sample(&self, cpu: Duration) -> Sample {
        let gbit = self.bytes as f64 * 8.0 / 1e9;
        Sample {
            gbit_per_second: gbit / self.seconds,
            cpu_seconds_per_gbit: cpu.as_secs_f64() / gbit,
            retransmits: self.retransmits,
        }
    }
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
    sum_sent: Option<Sum>,
    sum_received: Option<Sum>,
}

#[derive(Deserialize)]
struct Sum {
    bytes: u64,
    seconds: f64,
    #[serde(default)]
    retransmits: u64,
}

fn parse(json: &str) -> Result<Outcome> {
    let output: Output = serde_json::from_str(json).with_context(|| format!("iperf3 printed: {json}"))?;
    match (output.error, output.end.sum_sent, output.end.sum_received) {
        (Some(error), ..) if error.contains("server is busy") => Ok(Outcome::Busy),
        (Some(error), ..) => bail!("iperf3 failed: {error}"),
        (None, Some(sent), Some(received)) if received.bytes > 0 && received.seconds > 0.0 => {
            Ok(Outcome::Done(Transfer {
                bytes: received.bytes,
                seconds: received.seconds,
                retransmits: sent.retransmits,
            }))
        }
        _ => bail!("iperf3 transferred nothing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_iperf3_becomes_a_sample() {
        let json = r#"{ "start": {}, "end": { "streams": [],
            "sum_sent": { "seconds": 2.01, "bytes": 260000000, "bits_per_second": 1.0, "retransmits": 7 },
            "sum_received": { "seconds": 2.0, "bytes": 250000000, "bits_per_second": 1.0 } } }"#;
        let Outcome::Done(transfer) = parse(json).unwrap() else { panic!("not done") };
        let sample = transfer.sample(Duration::from_secs(3));
        let expected = Sample { gbit_per_second: 1.0, cpu_seconds_per_gbit: 1.5, retransmits: 7 };
        assert_eq!(sample, expected);
    }

    #[test]
    fn a_busy_server_is_asked_again_and_other_errors_are_told() {
        let failed = |error| format!(r#"{{ "end": {{}}, "error": "{error}" }}"#);
        let busy = parse(&failed("the server is busy running a test. try again later")).unwrap();
        assert_eq!(busy, Outcome::Busy);
        let error = parse(&failed("unable to connect to server: Connection refused")).unwrap_err();
        assert!(error.to_string().contains("refused"));
        assert!(parse(r#"{ "end": {} }"#).is_err());
        assert!(parse("").is_err());
    }

    #[test]
    fn every_case_is_what_its_name_says() {
        let words = CASES.map(|case| arguments(case, 9).join(" "));
        assert_eq!(words[0], "iperf3 -J -c 10.99.0.2 -t 9 -P 1");
        assert!(words[1].ends_with("-P 4") && words[2].ends_with("-P 1 -R"));
    }
}
