//! The machine and its processes: descriptions, CPU time, memory, installed programs.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) kernel: String,
    /// The machine's default congestion control; a run may use another one in its namespaces.
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

/// CPU time of the whole machine since boot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuTime {
    /// Everything but idle, waiting and stolen time.
    pub(crate) busy: Duration,
    /// What this virtual machine wanted and its host gave to others.
    pub(crate) stolen: Duration,
}

impl CpuTime {
    pub(crate) fn now() -> Result<Self> {
        let stat = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        Self::parse(&stat).context("cannot understand /proc/stat")
    }

    fn parse(stat: &str) -> Option<Self> {
        /// USER_HZ: `/proc/stat` counts hundredths of a second on every architecture that weft runs on.
        const TICK_MILLIS: u64 = 10;
        let words: Vec<u64> =
            stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().flat_map(str::parse).collect();
        let [user, nice, system, _idle, _iowait, irq, softirq, stolen, ..] = words[..] else { return None };
        let time = |ticks| Duration::from_millis(ticks * TICK_MILLIS);
        Some(Self { busy: time(user + nice + system + irq + softirq), stolen: time(stolen) })
    }
}

/// The usage of one process at one moment, or a difference.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// CPU time of all its threads, in user and in kernel mode.
    pub(crate) cpu: Duration,
    pub(crate) voluntary_switches: u64,
    pub(crate) involuntary_switches: u64,
}

impl Usage {
    /// Reads the usage of a process. Its CPU clock counts nanoseconds, the figures in `/proc` hundredths of a
    /// second.
    pub(crate) fn of(process: u32) -> Result<Self> {
        let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(process)?))
            .map_err(|error| anyhow!("no CPU clock of process {process}: {error}"))?;
        let mut usage = Self { cpu: Duration::from(clock_gettime(clock)?), ..Self::default() };
        for task in std::fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
            // A thread may have ended meanwhile.
            if let Ok(status) = std::fs::read_to_string(task.path().join("status")) {
                usage.voluntary_switches += number(&status, "voluntary_ctxt_switches").unwrap_or(0);
                usage.involuntary_switches += number(&status, "nonvoluntary_ctxt_switches").unwrap_or(0);
            }
        }
        Ok(usage)
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            voluntary_switches: self.voluntary_switches + other.voluntary_switches,
            involuntary_switches: self.involuntary_switches + other.involuntary_switches,
        }
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(earlier.involuntary_switches),
        }
    }
}

/// Returns the resident memory of a process (VmRSS), or its peak (VmHWM).
pub(crate) fn memory_mib(process: u32, name: &str) -> Result<f64> {
    let status =
        std::fs::read_to_string(format!("/proc/{process}/status")).context("cannot read a status")?;
    let kib = number(&status, name).context("the kernel does not say how much memory a process uses")?;
    Ok(kib as f64 / 1024.0)
}

fn number(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}
