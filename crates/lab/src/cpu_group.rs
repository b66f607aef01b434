//! A control group whose threads get a share of one processor (cgroups(7)), version 2 or 1.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::memory_group::create;

/// The kernel gives out the share once in this many microseconds.
const PERIOD_US: u64 = 10_000;

/// A control group for threads of one process. It is removed when this is dropped, which needs that the
/// process has ended.
#[derive(Debug)]
pub struct CpuGroup {
    directory: PathBuf,
    /// The group below it that has the threads, with version 2.
    threads: Option<PathBuf>,
}

impl CpuGroup {
    /// Makes a group whose threads together get this share of one processor, from a tenth on.
    ///
    /// # Errors
    /// The controller is not available here, or making groups is not permitted.
    pub fn new(share: f64) -> io::Result<Self> {
        let (directory, is_v2) = create("cpu")?;
        let threads = is_v2.then(|| directory.join("threads"));
        let group = Self { directory, threads };
        let quota_us = (share * PERIOD_US as f64) as u64;
        if let Some(threads) = &group.threads {
            fs::create_dir(threads)?;
            fs::write(threads.join("cgroup.type"), "threaded")?;
            fs::write(group.directory.join("cgroup.subtree_control"), "+cpu")?;
            fs::write(threads.join("cpu.max"), format!("{quota_us} {PERIOD_US}"))?;
        } else {
            fs::write(group.directory.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
            fs::write(group.directory.join("cpu.cfs_quota_us"), quota_us.to_string())?;
        }
        Ok(group)
    }

    /// Limits a thread of a process.
    pub fn limit(&self, process: u32, thread: u32) -> io::Result<()> {
        match &self.threads {
            Some(threads) => {
                fs::write(self.directory.join("cgroup.procs"), process.to_string())?;
                fs::write(threads.join("cgroup.threads"), thread.to_string())
            }
            None => fs::write(self.directory.join("tasks"), thread.to_string()),
        }
    }

    /// Returns how many times the threads had to wait for the next share.
    pub fn throttled(&self) -> io::Result<u64> {
        let directory = self.threads.as_ref().unwrap_or(&self.directory);
        let text = fs::read_to_string(directory.join("cpu.stat"))?;
        let count = text.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.parse().ok());
        count.ok_or_else(|| io::Error::other(format!("no count of waits: {text:?}")))
    }
}

impl Drop for CpuGroup {
    fn drop(&mut self) {
        for directory in self.threads.iter().chain([&self.directory]) {
            let _ = fs::remove_dir(directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_thread_that_needs_more_than_its_share_has_to_wait() {
        let group = match CpuGroup::new(0.1) {
            Ok(group) => group,
            Err(error) => return crate::here::not_run(&error.to_string()),
        };
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        group.limit(child.id(), child.id()).unwrap();
        crate::until("it waits", || group.throttled().unwrap() > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        let directory = group.directory.clone();
        drop(group);
        assert!(!directory.exists());
    }
}
