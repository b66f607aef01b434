//! MemAvailable (proc_meminfo(5)), or the limit of the cgroup if that is lower. Where /proc shows processes
//! only, half of the machine's memory stands in for what is available.

use std::fs;
use std::path::Path;

mod cgroup;

pub(super) fn available_bytes() -> Option<u64> {
    [mem_available().or_else(half_of_all), cgroup::limit(Path::new("/"))].into_iter().flatten().min()
}

/// All of the machine's memory, or the limit of the cgroup if that is lower.
pub(super) fn total_bytes() -> Option<u64> {
    [half_of_all().map(|half| 2 * half), cgroup::limit(Path::new("/"))].into_iter().flatten().min()
}

fn mem_available() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn half_of_all() -> Option<u64> {
    nix::sys::sysinfo::sysinfo().ok().map(|info| info.ram_total() / 2)
}

#[cfg(test)]
mod tests {
    #[test]
    fn there_is_an_answer_without_meminfo() {
        let half = super::half_of_all().unwrap();
        assert!(half > 64 << 20, "{half}");
    }
}
