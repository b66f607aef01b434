//! The memory limit of the process's cgroup and of those above it (cgroups(7)), in version 2 and version 1.

use std::fs;
use std::path::{Component, Path};

/// Version 1 writes "no limit" as the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 62;

/// The lowest limit that applies to this process. `root` is `/`, or a copy of what is read below it.
pub(super) fn limit(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    mounts.lines().filter_map(Mount::parse).filter_map(|mount| mount.limit(root, &groups)).min()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A mounted hierarchy of cgroups that can limit memory.
struct Mount {
    version: Version,
    /// The cgroup that is at `point`: not the topmost one in a container.
    top: String,
    point: String,
}

impl Mount {
    /// Reads a line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
    fn parse(line: &str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut file_system = file_system.split(' ');
        let version = match file_system.next()? {
            "cgroup2" => Version::V2,
            "cgroup" if has_memory(file_system.nth(1)?) => Version::V1,
            _ => return None,
        };
        let mut fields = mount.split(' ').skip(3).map(unescape);
        Some(Self { version, top: fields.next()?, point: fields.next()? })
    }

    fn limit(&self, root: &Path, groups: &str) -> Option<u64> {
        let group = Path::new(self.group(groups)?).strip_prefix(&self.top).ok()?;
        if group.components().any(|part| part == Component::ParentDir) {
            // The process is outside of what its cgroup namespace shows.
            return None;
        }
        let point = root.join(self.point.trim_start_matches('/'));
        let file = match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        let limit_of = |group: &Path| {
            let limit: u64 = fs::read_to_string(point.join(group).join(file)).ok()?.trim().parse().ok()?;
            (limit < NO_LIMIT).then_some(limit)
        };
        group.ancestors().filter_map(limit_of).min()
    }

    /// The process's cgroup in this hierarchy, from /proc/self/cgroup.
    fn group<'a>(&self, groups: &'a str) -> Option<&'a str> {
        groups.lines().find_map(|line| {
            let (id, rest) = line.split_once(':')?;
            let (controllers, group) = rest.split_once(':')?;
            let is_it = match self.version {
                Version::V1 => has_memory(controllers),
                Version::V2 => id == "0" && controllers.is_empty(),
            };
            is_it.then_some(group)
        })
    }
}

fn has_memory(controllers: &str) -> bool {
    controllers.split(',').any(|controller| controller == "memory")
}

/// Names in mountinfo have these characters in octal; systemd's have backslashes.
fn unescape(name: &str) -> String {
    name.replace(r"\040", " ").replace(r"\011", "\t").replace(r"\012", "\n").replace(r"\134", r"\")
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory";
    const V2: &str = "36 23 0:33 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
    /// Of a system that has both: what limits memory is version 1.
    const HYBRID: &str = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
    const OTHERS: &str = "23 1 0:21 / / rw - ext4 /dev/memory rw,memory\n\
                          33 31 0:30 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct";
    const NONE: &str = "9223372036854771712";

    /// The limit in a tree with these files.
    fn limit_with(groups: &str, mounts: &[&str], files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        let mounts = [&[OTHERS], mounts].concat().join("\n");
        let proc = [("proc/self/cgroup", groups), ("proc/self/mountinfo", &mounts)];
        for (file, text) in proc.iter().chain(files) {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{text}\n")).unwrap();
        }
        limit(root.path())
    }

    #[test]
    fn version_2_has_the_lowest_limit_up_to_the_top() {
        let groups = "0::/weft.slice/weft@wg0.service";
        let service = "sys/fs/cgroup/weft.slice/weft@wg0.service/memory.max";
        let slice = "sys/fs/cgroup/weft.slice/memory.max";
        assert_eq!(limit_with(groups, &[V2], &[(service, "1000000"), (slice, "max")]), Some(1_000_000));
        assert_eq!(limit_with(groups, &[V2], &[(service, "max"), (slice, "2000000")]), Some(2_000_000));
        assert_eq!(limit_with(groups, &[V2], &[(service, "3000000"), (slice, "2000000")]), Some(2_000_000));
        assert_eq!(limit_with(groups, &[V2], &[(service, "max"), (slice, "max")]), None);
    }

    #[test]
    fn version_1_has_the_lowest_limit_up_to_the_top() {
        let groups = "5:devices:/\n4:cpuset,memory:/vpn/weft\n1:cpu,cpuacct:/elsewhere";
        let own = "sys/fs/cgroup/memory/vpn/weft/memory.limit_in_bytes";
        let above = "sys/fs/cgroup/memory/vpn/memory.limit_in_bytes";
        let top = ("sys/fs/cgroup/memory/memory.limit_in_bytes", NONE);
        assert_eq!(limit_with(groups, &[V1], &[(own, "1000000"), (above, NONE), top]), Some(1_000_000));
        assert_eq!(limit_with(groups, &[V1], &[(own, NONE), (above, "2000000"), top]), Some(2_000_000));
        assert_eq!(limit_with(groups, &[V1], &[(own, "3000000"), (above, "2000000"), top]), Some(2_000_000));
        assert_eq!(limit_with(groups, &[V1], &[(own, NONE), (above, NONE), top]), None);
    }

    #[test]
    fn of_a_hybrid_system_version_1_limits_memory() {
        let groups = "4:memory:/weft\n0::/weft";
        let own = ("sys/fs/cgroup/memory/weft/memory.limit_in_bytes", "1000000");
        assert_eq!(limit_with(groups, &[V1, HYBRID], &[own]), Some(1_000_000));
        // Where no cgroup has the controller in version 1, its line is about the topmost one.
        let groups = "4:memory:/\n0::/weft";
        let top = ("sys/fs/cgroup/memory/memory.limit_in_bytes", NONE);
        let own = ("sys/fs/cgroup/unified/weft/memory.max", "2000000");
        assert_eq!(limit_with(groups, &[V1, HYBRID], &[top, own]), Some(2_000_000));
    }

    #[test]
    fn a_container_sees_its_own_cgroup_at_the_mount_point() {
        let mount = r"35 31 0:32 /docker/a\134x2db /sys/fs/cgroup\040of/memory ro - cgroup cgroup rw,memory";
        let own = ("sys/fs/cgroup of/memory/memory.limit_in_bytes", "1000000");
        assert_eq!(limit_with(r"4:memory:/docker/a\x2db", &[mount], &[own]), Some(1_000_000));
        let below = ("sys/fs/cgroup of/memory/weft/memory.limit_in_bytes", "500000");
        assert_eq!(limit_with(r"4:memory:/docker/a\x2db/weft", &[mount], &[own, below]), Some(500_000));
        // Which cgroup another container has does not matter.
        assert_eq!(limit_with("4:memory:/docker/c", &[mount], &[own]), None);
    }

    #[test]
    fn a_cgroup_outside_of_the_namespace_has_no_limit_that_is_seen() {
        let other = ("sys/fs/cgroup/memory.max", "1000000");
        assert_eq!(limit_with("0::/../weft", &[V2], &[other, ("sys/fs/weft/memory.max", "1000000")]), None);
    }

    #[test]
    fn what_is_missing_limits_nothing() {
        assert_eq!(limit_with("0::/weft", &[], &[]), None);
        assert_eq!(limit_with("0::/weft", &[V1], &[]), None);
        assert_eq!(limit_with("4:memory:/weft", &[V1, V2], &[]), None);
        assert_eq!(limit_with("", &[V1, V2], &[("sys/fs/cgroup/memory.max", "1000000")]), None);
        assert_eq!(limit_with("0::/", &[V2], &[("sys/fs/cgroup/memory.max", "nonsense")]), None);
        assert_eq!(limit(tempfile::tempdir().unwrap().path()), None);
    }
}
