//! A control group with a limit of memory (cgroups(7)), version 2 or 1.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A control group. It is removed when this is dropped, which needs that its processes have ended.
#[derive(Debug)]
pub struct MemoryGroup {
    directory: PathBuf,
    is_v2: bool,
}

impl MemoryGroup {
    /// Makes a group with room for this number of bytes.
    ///
    /// # Errors
    /// The controller is not available here, or making groups is not permitted.
    pub fn new(bytes: u64) -> io::Result<Self> {
        let (directory, is_v2) = create("memory")?;
        let group = Self { directory, is_v2 };
        let limit = if is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        fs::write(group.directory.join(limit), bytes.to_string())?;
        Ok(group)
    }

    /// Makes a command run in the group.
    pub fn apply(&self, command: &mut Command) -> io::Result<()> {
        let mut members = File::options().write(true).open(self.members_file())?;
        // SAFETY: between fork and exec the closure makes a system call only. 0 is the process that writes.
        unsafe { command.pre_exec(move || members.write_all(b"0")) };
        Ok(())
    }

    /// Returns the processes in the group.
    pub fn members(&self) -> io::Result<Vec<u32>> {
        Ok(fs::read_to_string(self.members_file())?.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Returns how many processes were killed because they needed more.
    pub fn killed(&self) -> io::Result<u64> {
        let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.directory.join(file))?;
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok());
        count.ok_or_else(|| io::Error::other(format!("no count of killed processes: {text:?}")))
    }

    fn members_file(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Makes a group that this controller can limit, and returns it with whether it is of version 2.
pub(crate) fn create(controller: &str) -> io::Result<(PathBuf, bool)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (top, is_v2) = hierarchy(controller)?;
    let directory = top.join(format!("weft-lab-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)));
    fs::create_dir(&directory)?;
    Ok((directory, is_v2))
}

/// Returns the top of the hierarchy with this controller, and whether it is of version 2.
fn hierarchy(controller: &str) -> io::Result<(PathBuf, bool)> {
    for mount in fs::read_to_string("/proc/self/mounts")?.lines() {
        let fields: Vec<&str> = mount.split(' ').collect();
        let [_, place, kind, options, ..] = fields[..] else { continue };
        let place = Path::new(place);
        let offers = |file: &str| {
            fs::read_to_string(place.join(file))
                .is_ok_and(|text| text.split(' ').any(|it| it.trim() == controller))
        };
        match kind {
            "cgroup" if options.split(',').any(|option| option == controller) => {
                return Ok((place.to_owned(), false));
            }
            "cgroup2" if offers("cgroup.subtree_control") => return Ok((place.to_owned(), true)),
            _ => {}
        }
    }
    let message = format!("no hierarchy of cgroups has the {controller} controller");
    Err(io::Error::new(io::ErrorKind::Unsupported, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_needs_too_much_is_killed_and_counted() {
        let group = match MemoryGroup::new(16 << 20) {
            Ok(group) => group,
            Err(error) => return crate::here::not_run(&error.to_string()),
        };
        let run = |script: &str| {
            let mut command = Command::new("bash");
            command.args(["-c", script]);
            group.apply(&mut command).unwrap();
            command.output().unwrap()
        };
        let directory = group.directory.file_name().unwrap().to_str().unwrap();
        let own = run("cat /proc/self/cgroup");
        assert!(String::from_utf8_lossy(&own.stdout).contains(directory), "{own:?}");
        assert_eq!(group.killed().unwrap(), 0);
        let greedy = run("text=x; while :; do text=$text$text; done");
        assert!(!greedy.status.success() && group.killed().unwrap() > 0, "{greedy:?}");
    }
}
