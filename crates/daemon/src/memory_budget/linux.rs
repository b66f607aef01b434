//! MemAvailable (proc_meminfo(5)), or the limit of the cgroup if that is lower. Where /proc shows processes only, half of
//! the machine's memory stands in for what is available.

use std::fs;

pub(super) fn available_bytes() -> Option<u64> {
    [mem_available().or_else(half_of_all), cgroup_limit()].into_iter().flatten().min()
}

/// All of the machine's memory, or the limit of the cgroup if that is lower.
pub(super) fn total_bytes() -> Option<u64> {
    [half_of_all().map(|half| 2 * half), cgroup_limit()].into_iter().flatten().min()
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

/// The limit of the process's own cgroup (v2); a limit further up is rare, and MemAvailable bounds it.
fn cgroup_limit() -> Option<u64> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    fs::read_to_string(format!("/sys/fs/cgroup/{path}/memory.max")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn there_is_an_answer_without_meminfo() {
        let half = super::half_of_all().unwrap();
        assert!(half > 64 << 20, "{half}");
    }
}
