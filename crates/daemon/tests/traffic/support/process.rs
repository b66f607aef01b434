//! weft as a process of its own.

use std::io::{self, BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use weft::lab::Namespace;

use super::{Conf, NAME, PATIENCE, wait_until};

/// How a process ended, and what it had said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
}

/// `weft up` as a process of its own. Dropping it kills it.
pub(crate) struct WeftProcess {
    child: Child,
    log: Arc<Log>,
    reader: Option<JoinHandle<()>>,
    _directory: Option<TempDir>,
}

#[derive(Default)]
struct Log {
    state: Mutex<LogState>,
    changed: Condvar,
}

#[derive(Default)]
struct LogState {
    lines: Vec<String>,
    is_closed: bool,
}

impl WeftProcess {
    /// Starts `weft up` with this configuration and these arguments in a namespace, and waits until it is up.
    #[track_caller]
    pub(crate) fn up(namespace: &Namespace, conf: &Conf, arguments: &[&str]) -> Self {
        let process = Self::start(namespace, conf, arguments);
        process.wait_until_up();
        process
    }

    /// The same without waiting.
    #[track_caller]
    pub(crate) fn start(namespace: &Namespace, conf: &Conf, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = conf.write(directory.path(), NAME);
        let mut command = Self::command(namespace, &file);
        command.args(arguments);
        let mut process = Self::spawn(namespace, command).unwrap();
        process._directory = Some(directory);
        process
    }

    /// The command `weft up FILE`, to be changed and given to [`Self::spawn`].
    pub(crate) fn command(namespace: &Namespace, file: &Path) -> Command {
        let mut command = namespace.command(env!("CARGO_BIN_EXE_weft"));
        command.env_remove("RUST_LOG").arg("up").arg(file);
        // Beside the file: both ends have an interface of the same name.
        command.env("WEFT_RUNTIME_DIR", file.parent().unwrap());
        command
    }

    /// Starts a command, and collects what it says on standard error.
    pub(crate) fn spawn(namespace: &Namespace, mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = namespace.start(command)?;
        let log = Arc::<Log>::default();
        let stderr = child.stderr.take().unwrap();
        let shared = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                shared.lock().lines.push(line);
                shared.changed.notify_all();
            }
            shared.lock().is_closed = true;
            shared.changed.notify_all();
        });
        Ok(Self { child, log, reader: Some(reader), _directory: None })
    }

    /// Waits for the line that says that everything is in place.
    #[track_caller]
    pub(crate) fn wait_until_up(&self) {
        self.wait_for_line("interface is up");
    }

    /// Waits for a line on standard error that contains `text`, and gives it.
    #[track_caller]
    pub(crate) fn wait_for_line(&self, text: &str) -> String {
        let start = Instant::now();
        let mut state = self.log.lock();
        loop {
            if let Some(line) = state.lines.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            let left = PATIENCE.saturating_sub(start.elapsed());
            assert!(
                !state.is_closed && !left.is_zero(),
                "weft did not say {text:?}, but:\n{}",
                state.lines.join("\n")
            );
            state = self.log.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What it has said so far.
    pub(crate) fn stderr(&self) -> String {
        self.log.lock().lines.join("\n")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Waits until it ends.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Ended {
        let status = wait_for_exit(&mut self.child);
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        Ended { code: status.code(), stderr: self.stderr() }
    }

    /// Ends it with SIGTERM, and asserts that it ends well.
    #[track_caller]
    pub(crate) fn stop(self) -> Ended {
        self.signal(Signal::SIGTERM);
        let ended = self.wait();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended
    }
}

impl Drop for WeftProcess {
    fn drop(&mut self) {
        // It has been waited for already if these fail.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[track_caller]
fn wait_for_exit(child: &mut Child) -> ExitStatus {
    wait_until("the process to end", || child.try_wait().unwrap())
}
