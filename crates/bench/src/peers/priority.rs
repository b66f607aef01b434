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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the nice value and the scheduling policy of this thread (proc_pid_stat(5), fields 19 and 41).
    fn nice_and_policy() -> (i32, i32) {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, behind_the_name) = stat.rsplit_once(") ").unwrap();
        let fields: Vec<&str> = behind_the_name.split_whitespace().collect();
        (fields[19 - 3].parse().unwrap(), fields[41 - 3].parse().unwrap())
    }

    fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    #[test]
    fn priorities_are_of_one_thread_and_end_with_it() {
        const SCHED_RR: i32 = 2;
        let before = nice_and_policy();
        let look = || Ok(nice_and_policy());
        assert_eq!(on_a_thread(stepping_back(true, look)).unwrap().0, 19);
        assert_eq!(on_a_thread(stepping_back(false, look)).unwrap(), before);
        let policy = on_a_thread(stepping_forward(nice_and_policy)).1;
        assert_eq!(policy == SCHED_RR, refusal().is_none());
        assert_eq!((nice_and_policy(), on_a_thread(nice_and_policy)), (before, before));
    }
}
