//! Machines, the daemons on them, and the tools that configure these.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use weft_lab::mounts::Mounts;
use weft_lab::{self as lab, Namespace, here};
use weft_tunnel::{PresharedKey, PrivateKey, PublicKey};

mod daemon;
pub(crate) mod memory;
mod pair;

pub(crate) use daemon::{Daemon, Kind, daemon_of};
pub(crate) use pair::{Pair, inner};

/// The interface in most tests.
pub(crate) const NAME: &str = "wg0";
/// A network namespace with a private /run. Daemons in its background are killed with it.
pub(crate) struct Machine {
    pub(crate) namespace: Namespace,
    mounts: Mounts,
    files: TempDir,
}

impl Machine {
    /// `None` where that is not permitted or a tool is missing, which is said.
    pub(crate) fn new(tools: &[&str]) -> Option<Self> {
        if !here::tun_permitted() || !here::installed(tools) {
            return None;
        }
        let namespace = Namespace::new("machine").unwrap();
        match Mounts::with_empty(&["/var/run"]) {
            Ok(mounts) => Some(Self { namespace, mounts, files: tempfile::tempdir().unwrap() }),
            Err(error) => {
                here::not_run(&format!("cannot mount a /run: {error}"));
                None
            }
        }
    }

    /// A command on the machine, where `weft` is the one of this test. It is killed when the thread ends that
    /// spawned it.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.namespace.command(program);
        self.mounts.apply(&mut command).unwrap();
        let own = Path::new(env!("CARGO_BIN_EXE_weft")).parent().unwrap().display().to_string();
        let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
        command.env("PATH", format!("{own}:{path}"));
        for variable in ["RUST_LOG", "LOG_LEVEL", "WG_PROCESS_FOREGROUND", "WG_TUN_FD", "WG_UAPI_FD"] {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    #[track_caller]
    pub(crate) fn output(&self, program: &str, arguments: &[&str]) -> Output {
        self.command(program).args(arguments).output().unwrap()
    }

    /// Runs a command that has to succeed, and gives what it prints.
    #[track_caller]
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.output(program, arguments);
        assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// `wg` with these words, which has to succeed.
    #[track_caller]
    pub(crate) fn wg(&self, words: &str) -> String {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.run("wg", &words)
    }

    /// `wg` with these words, which has to fail, and says so on standard error.
    #[track_caller]
    pub(crate) fn wg_fails(&self, words: &str) -> String {
        let words: Vec<&str> = words.split_whitespace().collect();
        let output = self.output("wg", &words);
        assert!(!output.status.success(), "wg {words:?} went well: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Writes a file that only the owner may read, and gives its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.files.path().join(name);
        lab::write_private(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Runs `work` on a thread that sees the machine's network and files.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.namespace.run(|| {
            self.mounts.enter().unwrap();
            work()
        })
    }

    /// Whether the interface has a socket.
    pub(crate) fn has_socket(&self, name: &str) -> bool {
        let path = socket_of(name);
        self.inside(move || path.exists())
    }

    /// Whether there is such a network interface.
    pub(crate) fn has_link(&self, name: &str) -> bool {
        self.output("ip", &["link", "show", "dev", name]).status.success()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // They would hold the namespace otherwise.
        let names = self.inside(|| -> Vec<String> {
            let files = std::fs::read_dir("/run/wireguard").into_iter().flatten().flatten();
            let names = files.filter_map(|file| file.file_name().into_string().ok());
            names.filter_map(|name| name.strip_suffix(".sock").map(str::to_owned)).collect()
        });
        for name in names {
            // A test may have listened there itself, and a child that another thread forks holds the socket
            // open for a while.
            if let Some(pid) = daemon_of(self, &name).filter(|pid| *pid != nix::unistd::Pid::this()) {
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
        }
    }
}

/// Where wg(8) looks for the interface.
pub(crate) fn socket_of(name: &str) -> PathBuf {
    Path::new("/var/run/wireguard").join(format!("{name}.sock"))
}

/// A peer's or an interface's own key, always the same for the same number.
pub(crate) fn key(number: u8) -> PrivateKey {
    PrivateKey::from_bytes([number; 32])
}

pub(crate) fn public_key(number: u8) -> PublicKey {
    key(number).public_key()
}

pub(crate) fn preshared_key(number: u8) -> PresharedKey {
    PresharedKey::from_bytes([number; 32])
}
