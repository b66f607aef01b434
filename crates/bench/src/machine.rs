//! The machine: what it is, and the CPU time that all of it has used.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

/// What was measured on.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) kernel: String,
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

/// CPU time that the whole machine has spent since its start, waiting and idleness left out.
pub(crate) fn busy_time() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    parse_busy_time(&stat).context("cannot understand /proc/stat")
}

fn parse_busy_time(stat: &str) -> Option<Duration> {
    /// USER_HZ: the kernel shows hundredths of a second on every architecture that weft runs on.
    const TICK: Duration = Duration::from_millis(10);
    let words: Vec<u64> =
        stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().flat_map(str::parse).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = words[..] else { return None };
    let ticks = u32::try_from(user + nice + system + irq + softirq).ok()?;
    Some(TICK * ticks)
}

/// How many cores are busy with something else, measured for as long as this.
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
        assert_eq!(parse_busy_time(stat), Some(Duration::from_millis(1630)));
        assert_eq!(parse_busy_time("intr 1"), None);
        assert_eq!(parse_busy_time("cpu 1 2"), None);
    }

    #[test]
    fn this_machine_can_be_read() {
        assert!(busy_time().unwrap() > Duration::ZERO);
        assert!(Machine::this().cores > 0);
    }
}
