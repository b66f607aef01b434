//! What a process has used so far: CPU time, changes of threads on the processors, memory.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// The figures of one process at one moment, or what they grew by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// CPU time of all its threads, in user and in kernel mode.
    pub(crate) cpu: Duration,
    /// Times that a thread went to sleep.
    pub(crate) voluntary_switches: u64,
    /// Times that the kernel took the processor from a thread.
    pub(crate) involuntary_switches: u64,
}

impl Usage {
    /// Of this process now.
    pub(crate) fn of(process: u32) -> Result<Self> {
        let mut usage = Self { cpu: cpu(process)?, ..Self::default() };
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).context("cannot list threads")?;
        for task in tasks.flatten() {
            // A thread may end meanwhile.
            if let Ok(status) = std::fs::read_to_string(task.path().join("status")) {
                usage.voluntary_switches += number(&status, "voluntary_ctxt_switches").unwrap_or(0);
                usage.involuntary_switches += number(&status, "nonvoluntary_ctxt_switches").unwrap_or(0);
            }
        }
        Ok(usage)
    }

    /// What was used since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(earlier.involuntary_switches),
        }
    }
}

/// The process's CPU clock: it counts nanoseconds, where the figures in `/proc` count hundredths of a second.
fn cpu(process: u32) -> Result<Duration> {
    let id = Pid::from_raw(i32::try_from(process)?);
    let clock =
        clock_getcpuclockid(id).map_err(|error| anyhow!("no CPU clock of process {process}: {error}"))?;
    let time = clock_gettime(clock).context("cannot read a CPU clock")?;
    Ok(Duration::from(time))
}

/// The largest part of memory that the process ever had in use, in bytes.
pub(crate) fn peak_rss(process: u32) -> Result<u64> {
    let status =
        std::fs::read_to_string(format!("/proc/{process}/status")).context("cannot read a status")?;
    Ok(number(&status, "VmHWM").context("the kernel does not say how much memory a process used")? * 1024)
}

/// The part of memory that the process has in use, in bytes.
pub(crate) fn rss(process: u32) -> Result<u64> {
    let status =
        std::fs::read_to_string(format!("/proc/{process}/status")).context("cannot read a status")?;
    Ok(number(&status, "VmRSS").context("the kernel does not say how much memory a process uses")? * 1024)
}

/// A number of a `/proc/PID/status`.
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
