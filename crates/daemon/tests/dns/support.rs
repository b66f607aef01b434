//! A machine for one test: its paths, programs and mounts.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::mount::{MsFlags, mount};
use weft_config::Dns;
use weft_host::dns::{Places, System};
use weft_host::routes::Link;
use weft_lab::mounts;

/// What the file says before the first daemon.
pub(crate) const BEFORE: &str = "# by dhcp\nnameserver 192.0.2.53\nsearch home.example\noptions timeout:1\n";

/// A directory with an `etc`, a `state` and a `bin`.
pub(crate) struct Machine {
    pub(crate) root: tempfile::TempDir,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let machine = Self { root: tempfile::tempdir().unwrap() };
        for directory in ["etc", "bin", "run"] {
            fs::create_dir(machine.path(directory)).unwrap();
        }
        machine
    }

    /// A machine with a plain file as resolv.conf.
    pub(crate) fn with_file() -> Self {
        let machine = Self::new();
        fs::write(machine.resolv_conf(), BEFORE).unwrap();
        machine
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn resolv_conf(&self) -> PathBuf {
        self.path("etc/resolv.conf")
    }

    pub(crate) fn places(&self) -> Places {
        places(self.root.path())
    }

    pub(crate) fn system(&self) -> System {
        System::new(self.places())
    }

    pub(crate) fn text(&self) -> String {
        fs::read_to_string(self.resolv_conf()).unwrap()
    }

    /// The servers in the file.
    pub(crate) fn servers(&self) -> Vec<String> {
        let text = self.text();
        text.lines().filter_map(|line| line.strip_prefix("nameserver ")).map(str::to_owned).collect()
    }

    /// The path of the former content, which the file names.
    pub(crate) fn backup(&self) -> PathBuf {
        let text = self.text();
        let named = text.lines().find_map(|line| {
            line.strip_prefix("# What was here before is ")?.strip_suffix(" and comes back")
        });
        named.unwrap().into()
    }

    /// Names of what is left beside the lock file in weft's state, and of temporary files.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        ["state", "etc"]
            .iter()
            .filter_map(|directory| fs::read_dir(self.path(directory)).ok())
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "lock" && name != "resolv.conf")
            .collect()
    }

    /// Makes a program. By a process that has no other threads: were the file open for writing in a child
    /// that another test just forked, it could not be run.
    pub(crate) fn program(&self, name: &str, script: &str) {
        let mut shell = Command::new("sh")
            .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
            .arg(self.path("bin").join(name))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(shell.wait().unwrap().success());
    }
}

/// The places of a machine below this directory, without a bus.
pub(crate) fn places(root: &Path) -> Places {
    Places {
        resolv_conf: root.join("etc/resolv.conf"),
        bound: Arc::default(),
        nsswitch: root.join("etc/nsswitch.conf"),
        state: root.join("state"),
        interface_order: root.join("etc/interface-order"),
        no_stub: root.join("run/no-stub-resolv.conf"),
        resolvers: root.join("etc/resolver"),
        programs: vec![root.join("none"), root.join("bin")],
        bus: Some(format!("unix:path={}", root.join("run/bus").display())),
    }
}

pub(crate) fn link(name: &str, index: u32) -> Link {
    Link { name: name.to_owned(), index, mtu: 1420 }
}

pub(crate) fn settings(servers: &[&str], search: &[&str], routing: &[&str]) -> Dns {
    let domains = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect();
    let servers = servers.iter().map(|server| server.parse().unwrap()).collect();
    Dns { servers, search: domains(search), routing: domains(routing) }
}

/// Runs `work` on a thread with private mounts; reports where that is not permitted.
pub(crate) fn with_own_mounts(work: impl FnOnce() + Send) {
    mounts::run_separate(|| Ok(()), work);
}

/// Mounts a file or directory over another, in the mount namespace of this thread.
pub(crate) fn bind(source: &Path, target: &Path) {
    let none = None::<&Path>;
    mount(Some(source), target, none, MsFlags::MS_BIND, none).unwrap();
}

/// Makes a mount read-only.
pub(crate) fn read_only(target: &Path) {
    let none = None::<&Path>;
    mount(none, target, none, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, none).unwrap();
}
