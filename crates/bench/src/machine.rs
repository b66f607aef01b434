//! The machine: its description, and its total CPU time.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

/// The machine of a measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) kernel: String,
    /// The congestion control of the measurement: the machine's default, unless another one was requested.
    pub(crate) tcp_congestion_control: String,
}

impl Machine {
    pub(crate) fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let processors = read("/proc/cpuinfo");
        let processor = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: processor.map_or("unknown", |(_, name)| name).to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            tcp_congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control").trim().to_owned(),
        }
    }
}

/// Returns the CPU time of the whole machine since boot, without idle, I/O wait and stolen time.
pub(crate) fn busy_time() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    parse_stat(&stat).map(|times| times.busy).context("cannot understand /proc/stat")
}

#[derive(Debug, PartialEq)]
struct Times {
    busy: Duration,
    stolen: Duration,
}

fn parse_stat(stat: &str) -> Option<Times> {
    /// USER_HZ: `/proc/stat` counts hundredths of a second on every architecture that weft runs on.
    const TICK_MILLIS: u64 = 10;
    let words: Vec<u64> =
        stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().flat_map(str::parse).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, stolen, ..] = words[..] else { return None };
    let time = |ticks| Duration::from_millis(ticks * TICK_MILLIS);
    Some(Times { busy: time(user + nice + system + irq + softirq), stolen: time(stolen) })
}

/// Returns the CPU time that this virtual machine wanted and its host gave to others, since boot.
pub(crate) fn stolen_time() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    parse_stat(&stat).map(|times| times.stolen).context("cannot understand /proc/stat")
}

/// Measures for `span` how many cores are busy.
pub(crate) fn busy_cores(span: Duration) -> Result<f64> {
    let before = busy_time()?;
    std::thread::sleep(span);
    Ok((busy_time()? - before).as_secs_f64() / span.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_everything_but_idle_waiting_and_stolen() {
        let stat = "cpu  100 20 30 4000 500 6 7 8000 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        let times = Times { busy: Duration::from_millis(1630), stolen: Duration::from_secs(80) };
        assert_eq!(parse_stat(stat), Some(times));
        assert_eq!(parse_stat("intr 1"), None);
        assert_eq!(parse_stat("cpu 1 2"), None);
    }

    #[test]
    fn this_machine_can_be_read() {
        assert!(busy_time().unwrap() > Duration::ZERO);
        assert!(Machine::this().cores > 0);
    }
}
