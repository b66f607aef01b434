//! Linux: values from /proc/self and getrusage(2). /proc/self exists also with `ProcSubset=pid`.

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike as _;

use super::Process;

pub(super) fn read() -> Option<Process> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let number = |key: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
    };
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let microseconds = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Some(Process {
        cpu_seconds: microseconds as f64 / 1e6,
        resident_bytes: number("VmRSS")? << 10,
        virtual_bytes: number("VmSize")? << 10,
        // Without the descriptor that reads the directory.
        open_fds: (std::fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1),
        // RLIM_INFINITY is too large for the metric.
        max_fds: getrlimit(Resource::RLIMIT_NOFILE).ok()?.0.min(u64::MAX >> 1),
        threads: number("Threads")?,
    })
}
