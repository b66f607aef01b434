//! One TCP stream of iperf3 between two namespaces, with the CPU time of the whole machine.

use std::net::{IpAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;
use weft_lab::Namespace;

use super::ends::Side;
use crate::interrupt::Interrupt;
use crate::machine;
use crate::process::Process;

/// Timeout of a program beyond its sending time.
const GRACE: Duration = Duration::from_secs(30);

/// The result of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Transfer {
    /// TCP payload received.
    pub(crate) gbit_per_second: f64,
    /// CPU time of the whole machine, iperf3 included.
    pub(crate) cpu_seconds_per_gbit: f64,
}

/// Sends from near to far for `secs` seconds.
pub(super) fn run(namespaces: &[Namespace; 2], secs: u32, interrupt: &Interrupt) -> Result<Transfer> {
    let files = tempfile::tempdir()?;
    let start = |namespace: &Namespace, line: String, name: &str| {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Process::start(namespace, &words, files.path().join(name))
    };
    let [near, far] = namespaces;
    let address = Side::Far.inner();
    let mut server = start(far, "iperf3 -s -1 --forceflush".into(), "server")?;
    server.wait_until(interrupt, "the iperf3 server", GRACE, |server| {
        server.output().contains("Server listening")
    })?;
    let before = machine::busy_time()?;
    let mut client = start(near, format!("iperf3 -J -c {address} -t {secs}"), "client")?;
    let limit = Duration::from_secs(secs.into()) + GRACE;
    interrupt.wait_for("the end of iperf3", limit, || Ok(client.has_ended()?.then_some(())))?;
    let cpu = machine::busy_time()? - before;
    let output = client.output();
    parse(&output, cpu).with_context(|| format!("iperf3 printed: {output}"))
}

/// Waits until a connection to the other end of the tunnel succeeds.
pub(super) fn wait_for_tunnel(namespaces: &[Namespace; 2], interrupt: &Interrupt) -> Result<()> {
    let [near, far] = namespaces;
    let address: IpAddr = Side::Far.inner();
    let listener = far.run(|| std::net::TcpListener::bind((address, 0)))?;
    let address = listener.local_addr()?;
    interrupt.wait_for("a connection through the tunnel", GRACE, || {
        let connection = near.run(|| TcpStream::connect_timeout(&address, Duration::from_secs(1)));
        Ok(connection.ok().map(|_| ()))
    })
}

fn parse(json: &str, cpu: Duration) -> Result<Transfer> {
    let report: Value = serde_json::from_str(json)?;
    let received = &report["end"]["sum_received"];
    let number = |name: &str| received[name].as_f64().filter(|number| *number > 0.0);
    let gbit = number("bytes").context("it transferred nothing")? * 8.0 / 1e9;
    let seconds = number("seconds").context("it took no time")?;
    Ok(Transfer { gbit_per_second: gbit / seconds, cpu_seconds_per_gbit: cpu.as_secs_f64() / gbit })
}

/// Returns an error if iperf3 is not installed.
pub(super) fn check() -> Result<()> {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| is_in(&directory)));
    anyhow::ensure!(
        found,
        "iperf3 is not installed; without it, give --no-floor to measure the stages alone"
    );
    Ok(())
}

fn is_in(directory: &Path) -> bool {
    directory.join("iperf3").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_iperf3_becomes_a_transfer() {
        let json = r#"{ "end": { "sum_received": { "seconds": 2.0, "bytes": 250000000 } } }"#;
        let transfer = parse(json, Duration::from_secs(1)).unwrap();
        assert_eq!(transfer, Transfer { gbit_per_second: 1.0, cpu_seconds_per_gbit: 0.5 });
    }

    #[test]
    fn what_failed_is_an_error() {
        for json in ["", "{}", r#"{ "error": "unable to connect", "end": {} }"#] {
            assert!(parse(json, Duration::ZERO).is_err(), "{json}");
        }
    }
}
