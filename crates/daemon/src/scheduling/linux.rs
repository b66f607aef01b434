//! sched_setattr(2): short EEVDF slices by default, SCHED_RR on request. sched_setaffinity(2).

use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The time slice, on kernels that let a thread choose it (Linux 6.12): the shortest that they allow. A yield
/// gives up the rest of the slice; with slices of milliseconds, frequent yields would give up the thread's
/// share of the core.
const SLICE_NS: u64 = 100_000;
/// The lowest real-time priority: before ordinary threads, after all other real-time threads.
const REALTIME_PRIORITY: u32 = 1;
/// Microseconds of each period that real-time threads may use; -1 means all of them.
const RT_RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// The nice value and the policy that weft was started with stay.
pub(super) fn take_short_slices() {
    let shortened = get().and_then(|own| match own.sched_policy as libc::c_int {
        libc::SCHED_OTHER => set(&libc::sched_attr { sched_runtime: SLICE_NS, ..own }),
        _ => Ok(()),
    });
    // Older kernels ignore the slice. If seccomp forbids a call, packets move all the same.
    if let Err(error) = shortened {
        tracing::debug!(%error, "cannot ask for short time slices");
    }
}

pub(super) fn take_precedence() -> io::Result<()> {
    // The kernel reserves a share for other threads, so that a flood of packets cannot lock the machine up.
    if std::fs::read_to_string(RT_RUNTIME).is_ok_and(|runtime| runtime.trim() == "-1") {
        return Err(io::Error::other(format!(
            "{RT_RUNTIME} is -1: under a flood of packets nothing else would ever run; set it to 950000"
        )));
    }
    set(&attributes(libc::SCHED_RR, REALTIME_PRIORITY))
}

pub(super) fn pin(place: usize) -> io::Result<()> {
    let this_thread = Pid::from_raw(0);
    let allowed = sched_getaffinity(this_thread)?;
    let processors: Vec<_> =
        (0..CpuSet::count()).filter(|number| allowed.is_set(*number).unwrap_or_default()).collect();
    let Some(processor) = processors.get(place) else {
        let count = processors.len();
        return Err(io::Error::other(format!("this process may use {count} of them")));
    };
    let mut only = CpuSet::new();
    only.set(*processor)?;
    Ok(sched_setaffinity(this_thread, &only)?)
}

fn attributes(policy: libc::c_int, priority: u32) -> libc::sched_attr {
    libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: policy as u32,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: priority,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    }
}

fn get() -> io::Result<libc::sched_attr> {
    let mut attributes = attributes(0, 0);
    let size = attributes.size;
    // SAFETY: the kernel writes at most `size` bytes to a sched_attr that lives until the call returns.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if result == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

fn set(attributes: &libc::sched_attr) -> io::Result<()> {
    // SAFETY: the kernel reads `size` bytes of a sched_attr that lives until the call returns; 0 means this
    // thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_stays_on_the_processor_at_its_place() {
        let allowed = || {
            let set = sched_getaffinity(Pid::from_raw(0)).unwrap();
            (0..CpuSet::count()).filter(|number| set.is_set(*number).unwrap()).collect::<Vec<_>>()
        };
        let all = allowed();
        for (place, processor) in all.iter().enumerate() {
            let pinned = std::thread::spawn(move || pin(place).map(|()| allowed())).join().unwrap();
            assert_eq!(pinned.unwrap(), [*processor]);
        }
        let beyond = all.len();
        let error = std::thread::spawn(move || pin(beyond)).join().unwrap().unwrap_err();
        assert_eq!(error.to_string(), format!("this process may use {beyond} of them"));
        assert_eq!(allowed(), all);
    }

    #[test]
    fn short_slices_are_of_the_calling_thread_and_those_it_starts() {
        let elsewhere = std::thread::spawn(|| {
            take_short_slices();
            let inherited = std::thread::spawn(|| get().unwrap().sched_runtime).join().unwrap();
            (get().unwrap().sched_policy, get().unwrap().sched_runtime, inherited)
        });
        let (policy, own, inherited) = elsewhere.join().unwrap();
        assert_eq!(policy, libc::SCHED_OTHER as u32);
        // 0 on kernels that do not let a thread choose.
        assert!([0, SLICE_NS].contains(&own), "{own}");
        assert_eq!(inherited, own);
        assert_ne!(get().unwrap().sched_runtime, SLICE_NS);
    }

    #[test]
    fn the_nice_value_and_the_policy_of_the_start_stay() {
        for policy in [libc::SCHED_OTHER, libc::SCHED_BATCH] {
            let started = libc::sched_attr { sched_nice: 5, ..attributes(policy, 0) };
            let own = std::thread::spawn(move || {
                set(&started).unwrap();
                take_short_slices();
                get().unwrap()
            });
            let own = own.join().unwrap();
            assert_eq!((own.sched_policy, own.sched_nice), (policy as u32, 5));
        }
    }
}
