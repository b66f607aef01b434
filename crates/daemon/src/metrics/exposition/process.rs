//! Metrics of the process, under the standard names of Prometheus clients.

use std::fmt;

use super::Writer;

#[cfg_attr(target_os = "linux", path = "process/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "process/other.rs")]
mod platform;

/// Resource usage of the process, as reported by the system.
struct Process {
    cpu_seconds: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    open_fds: u64,
    max_fds: u64,
    threads: u64,
}

pub(super) fn write(writer: &mut Writer<'_>) -> fmt::Result {
    let Some(process) = platform::read() else { return Ok(()) };
    writer.counter(
        "process_cpu_seconds",
        "Processor time of the daemon, in the kernel and outside.",
        process.cpu_seconds,
    )?;
    for (name, help, value) in [
        ("process_resident_memory_bytes", "Memory of the daemon that is in use.", process.resident_bytes),
        ("process_virtual_memory_bytes", "Addresses that the daemon has mapped.", process.virtual_bytes),
        ("process_open_fds", "Descriptors that the daemon has open.", process.open_fds),
        ("process_max_fds", "Descriptors that it may have open.", process.max_fds),
        ("process_threads", "Threads of the daemon.", process.threads),
    ] {
        writer.gauge(name, help, value)?;
    }
    Ok(())
}
