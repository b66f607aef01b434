//! Scheduling of threads that stand for other machines, so that they do not compete with the gateway for the
//! cores as equals. Each thread serves one measurement.

use std::io;

use weft::scheduling::{self, Priority};

/// Wraps the work of a thread: if it floods, or receives a flood, it runs with the lowest priority, so that
/// it does not keep the gateway and its other clients waiting for a core of this machine.
pub(crate) fn stepping_back<T>(
    is_flood: bool,
    work: impl FnOnce() -> io::Result<T>,
) -> impl FnOnce() -> io::Result<T> {
    const LAST: i32 = 19;
    move || {
        if is_flood {
            // On Linux this changes the calling thread alone (setpriority(2)).
            rustix::process::setpriority_process(None, LAST)?;
        }
        work()
    }
}

/// Wraps the work of a thread that runs with a real-time priority, as far as the system permits: its time
/// waiting for a core says nothing about the gateway.
pub(crate) fn stepping_forward<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        // Without the permission it runs with normal priority, which `refusal` reports.
        let _ = scheduling::begin(Priority::Realtime);
        work()
    }
}

/// Returns a note for the report if the system does not permit a real-time priority.
pub(crate) fn refusal() -> Option<String> {
    // On a new thread, because a thread keeps the priority.
    let tried = std::thread::scope(|scope| scope.spawn(|| scheduling::begin(Priority::Realtime)).join());
    let error = tried.ok()?.err()?;
    Some(format!("pings wait for a core as all other threads do, without a real-time priority: {error}"))
}
