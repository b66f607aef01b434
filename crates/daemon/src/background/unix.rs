//! fork(2): the child continues, the parent waits for its report.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};

use nix::errno::Errno;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, fork, setsid};

use weft_commands::output;

use super::{BackgroundError, Output};
use crate::logging;

/// Reports to the waiting parent that the daemon is ready. Dropping it, or the end of the process, reports a
/// failure.
#[derive(Debug)]
pub struct Notifier {
    parent: PipeWriter,
}

/// Forks the process, before its first thread. Returns only in the child: the parent waits, and ends with
/// exit code 0 when the child is [`Notifier::ready`], or with the child's exit code when the child ends
/// before that.
///
/// Until then the child keeps the terminal: it prints its errors itself, and Ctrl-C ends both.
///
/// # Errors
/// When there are threads already, or the system refuses.
pub fn begin() -> Result<Notifier, BackgroundError> {
    // Checked only where /proc exists.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        return Err(BackgroundError::Threads(threads));
    }
    let failed = |action| move |errno: Errno| BackgroundError::System { action, source: errno.into() };
    // Close-on-exec: a pipe that stays open in a command of the configuration would keep the parent waiting.
    let (reader, writer) =
        io::pipe().map_err(|source| BackgroundError::System { action: "make a pipe", source })?;
    // SAFETY: the process has a single thread, so the child is a complete copy, in which every function may
    // be called.
    match unsafe { fork() }.map_err(failed("fork"))? {
        ForkResult::Parent { child } => {
            drop(writer);
            std::process::exit(wait(reader, child))
        }
        ForkResult::Child => {
            drop(reader);
            Ok(Notifier { parent: writer })
        }
    }
}

fn wait(mut word: PipeReader, child: Pid) -> i32 {
    const FAILURE: i32 = 1;
    // `read_exact` retries when it is interrupted.
    if matches!(word.read_exact(&mut [0]), Ok(())) {
        return 0;
    }
    loop {
        match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, code)) => return code,
            Ok(WaitStatus::Signaled(_, signal, _)) => {
                output::error(&format_args!("{signal:?} ended the daemon before it was ready"));
                return FAILURE;
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return FAILURE,
        }
    }
}

impl Notifier {
    /// Leaves the terminal and its session, and lets the parent end.
    ///
    /// # Errors
    /// When the system refuses one of these steps.
    pub fn ready(mut self, output: Output) -> Result<(), BackgroundError> {
        // What was logged until now still goes to the terminal.
        logging::queue::flush();
        let failed = |action| move |errno: Errno| BackgroundError::System { action, source: errno.into() };
        setsid().map_err(failed("leave the session"))?;
        let null = File::options().read(true).write(true).open("/dev/null");
        let null = null.map_err(|source| BackgroundError::System { action: "open /dev/null", source })?;
        dup2_stdin(&null).map_err(failed("leave standard input"))?;
        if output == Output::Discarded {
            dup2_stdout(&null).map_err(failed("leave standard output"))?;
            dup2_stderr(&null).map_err(failed("leave standard error"))?;
        }
        // The write fails if the parent was killed meanwhile, which does not matter.
        let _gone: io::Result<()> = self.parent.write_all(&[1]);
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_stays_where_it_is() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        // Owns the sender: a failure ends the thread too.
        std::thread::scope(move |scope| {
            scope.spawn(move || ended.recv());
            let error = begin().unwrap_err();
            assert!(matches!(error, BackgroundError::Threads(2..)), "{error}");
            drop(end);
        });
    }
}
