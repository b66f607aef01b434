//! Metrics of the process, under the standard names of Prometheus clients, as far as the system reports them.

use std::fmt;

use super::Writer;

pub(super) fn write(writer: &mut Writer<'_>) -> fmt::Result {
    #[cfg(unix)]
    if let Some(seconds) = cpu_seconds() {
        let help = "Processor time of the daemon, in the kernel and outside.";
        writer.counter("process_cpu_seconds", help, seconds)?;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (name, help, value) in [
        (
            "process_resident_memory_bytes",
            "Memory of the daemon that is in use.",
            number(&status, "VmRSS").map(|kibibytes| kibibytes << 10),
        ),
        (
            "process_virtual_memory_bytes",
            "Addresses that the daemon has mapped.",
            number(&status, "VmSize").map(|kibibytes| kibibytes << 10),
        ),
        ("process_open_fds", "Descriptors that the daemon has open.", open_fds()),
        #[cfg(unix)]
        ("process_max_fds", "Descriptors that it may have open.", max_fds()),
        ("process_threads", "Threads of the daemon.", number(&status, "Threads")),
    ] {
        if let Some(value) = value {
            writer.gauge(name, help, value)?;
        }
    }
    Ok(())
}

#[cfg(unix)]
fn cpu_seconds() -> Option<f64> {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike as _;
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let microseconds = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Some(microseconds as f64 / 1e6)
}

/// Returns the number of a line of proc_pid_status(5), which only Linux has. It exists also with
/// `ProcSubset=pid`.
fn number(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
}

fn open_fds() -> Option<u64> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    // Without the descriptor that reads the directory.
    Some((entries.count() as u64).saturating_sub(1))
}

#[cfg(unix)]
#[allow(clippy::unnecessary_cast, reason = "the limit is signed on FreeBSD")]
fn max_fds() -> Option<u64> {
    use nix::sys::resource::{Resource, getrlimit};
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    // RLIM_INFINITY is too large for the metric.
    Some((limit as u64).min(u64::MAX >> 1))
}
