//! Resource usage of a process: CPU time, context switches, memory.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// The usage of one process at one moment, or a difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// CPU time of all its threads, in user and in kernel mode.
    pub(crate) cpu: Duration,
    /// Voluntary context switches.
    pub(crate) voluntary_switches: u64,
    /// Involuntary context switches.
    pub(crate) involuntary_switches: u64,
}

impl Usage {
    /// Reads the usage of a process.
    pub(crate) fn of(process: u32) -> Result<Self> {
        let mut usage = Self { cpu: cpu(process)?, ..Self::default() };
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).context("cannot list threads")?;
        for task in tasks.flatten() {
            // A thread may have ended meanwhile.
            if let Ok(status) = std::fs::read_to_string(task.path().join("status")) {
                usage.voluntary_switches += number(&status, "voluntary_ctxt_switches").unwrap_or(0);
                usage.involuntary_switches += number(&status, "nonvoluntary_ctxt_switches").unwrap_or(0);
            }
        }
        Ok(usage)
    }

    /// Returns the sum with that of another process.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            voluntary_switches: self.voluntary_switches + other.voluntary_switches,
            involuntary_switches: self.involuntary_switches + other.involuntary_switches,
        }
    }

    /// Returns the difference to `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(earlier.involuntary_switches),
        }
    }
}

/// Reads the process's CPU clock, which counts nanoseconds, whereas the figures in `/proc` count hundredths
/// of a second.
fn cpu(process: u32) -> Result<Duration> {
    let id = Pid::from_raw(i32::try_from(process)?);
    let clock =
        clock_getcpuclockid(id).map_err(|error| anyhow!("no CPU clock of process {process}: {error}"))?;
    let time = clock_gettime(clock).context("cannot read a CPU clock")?;
    Ok(Duration::from(time))
}

/// Returns the peak resident memory of the process in bytes.
pub(crate) fn peak_rss(process: u32) -> Result<u64> {
    memory(process, "VmHWM")
}

/// Returns the resident memory of the process in bytes.
pub(crate) fn rss(process: u32) -> Result<u64> {
    memory(process, "VmRSS")
}

fn memory(process: u32, name: &str) -> Result<u64> {
    let status =
        std::fs::read_to_string(format!("/proc/{process}/status")).context("cannot read a status")?;
    Ok(number(&status, name).context("the kernel does not say how much memory a process uses")? * 1024)
}

/// Converts bytes to mebibytes.
pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Returns a number from the text of `/proc/PID/status`.
fn number(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_by_name() {
        let status =
            "Name:\tweft\nVmHWM:\t   1234 kB\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t2\n";
        assert_eq!(number(status, "VmHWM"), Some(1234));
        assert_eq!(number(status, "voluntary_ctxt_switches"), Some(7));
        assert_eq!(number(status, "nonvoluntary_ctxt_switches"), Some(2));
        assert_eq!(number(status, "Vm"), None);
    }

    #[test]
    fn this_process_has_used_something() {
        let process = std::process::id();
        let earlier = Usage::of(process).unwrap();
        assert!(earlier.cpu > Duration::ZERO);
        assert!(peak_rss(process).unwrap() > 100_000);
        let later = Usage { cpu: earlier.cpu + Duration::from_secs(1), ..earlier };
        assert_eq!(later.since(earlier), Usage { cpu: Duration::from_secs(1), ..Usage::default() });
    }
}
