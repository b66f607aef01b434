//! What the kernel says of the threads of this process (proc_pid_status(5)).

use std::path::Path;

use rustix::thread::CapabilitySet;

use crate::Thread;

pub(crate) fn threads() -> Vec<Thread> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    // A thread may end meanwhile.
    let mut threads: Vec<(u32, Thread)> = tasks
        .filter_map(|task| Some((task.file_name().to_str()?.parse().ok()?, thread(&task.path())?)))
        .collect();
    threads.sort_unstable_by_key(|(id, _)| *id);
    threads.into_iter().map(|(_, thread)| thread).collect()
}

fn thread(task: &Path) -> Option<Thread> {
    let status = std::fs::read_to_string(task.join("status")).ok()?;
    let of = |field: &str| {
        status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::trim)
    };
    let bits = u64::from_str_radix(of("CapPrm")?, 16).ok()?;
    let capabilities = CapabilitySet::from_bits_retain(bits);
    Some(Thread {
        name: of("Name")?.to_owned(),
        capabilities: capabilities.iter_names().map(|(name, _)| format!("CAP_{name}")).collect(),
        // Field value 2: a filter is in force. Kernels without seccomp have no such field.
        is_filtered: of("Seccomp") == Some("2"),
    })
}
