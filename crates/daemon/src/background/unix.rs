//! fork(2): the child continues, the parent waits for its report, and passes signals on to it.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, fork, getpid, setsid};

use weft_commands::output;
use weft_commands::signals;

use super::{BackgroundError, Output};
use crate::logging;

mod descriptors;
#[cfg_attr(target_os = "linux", path = "unix/orphan.rs")]
#[cfg_attr(not(target_os = "linux"), path = "unix/no_orphan.rs")]
mod orphan;

/// Reports to the waiting parent that the daemon is ready. Dropping it, or the end of the process, reports a
/// failure.
#[derive(Debug)]
pub struct Notifier {
    parent: PipeWriter,
    /// Descriptors of the caller, beside the standard ones.
    of_the_caller: Vec<RawFd>,
}

/// Forks the process, before its first thread. Returns only in the child: the parent waits, and ends with
/// exit code 0 when the child is [`Notifier::ready`], or with the child's exit code when the child ends
/// before that.
///
/// Until then the child keeps the terminal and the descriptors of the caller: it prints its errors itself,
/// and its commands have what they have in the foreground. A signal to the parent ends the start: the parent
/// waits until it is undone. On Linux the start ends as well if the parent is killed.
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
    let parent = getpid();
    // SAFETY: the process has a single thread, so the child is a complete copy, in which every function may
    // be called.
    match unsafe { fork() }.map_err(failed("fork"))? {
        ForkResult::Parent { child } => {
            drop(writer);
            std::process::exit(wait(reader, child))
        }
        ForkResult::Child => {
            drop(reader);
            orphan::end_with(parent).map_err(failed("follow the end of the command"))?;
            Ok(Notifier { parent: writer, of_the_caller: descriptors::inherited() })
        }
    }
}

/// What the parent has heard first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heard {
    Nothing,
    /// A signal, which it passed on: the end of the child is what counts.
    Signal(signals::Signal),
    /// The child is ready, and on its own.
    Ready,
}

fn wait(mut word: PipeReader, child: Pid) -> i32 {
    const FAILURE: i32 = 1;
    let heard = Arc::new(Mutex::new(Heard::Nothing));
    let of_signals = Arc::clone(&heard);
    let pass_on = move |signal| {
        let mut heard = of_signals.lock().unwrap_or_else(PoisonError::into_inner);
        if *heard != Heard::Ready {
            *heard = Heard::Signal(signal);
            // The child may have ended meanwhile, and is not reaped before this process ends.
            let _gone = kill(child, number_of(signal));
        }
    };
    if let Err(error) = signals::watch(pass_on) {
        // The parent would end without its child.
        output::warning(&format_args!("a signal does not end the start: {error}"));
    }
    // `read_exact` retries when it is interrupted.
    let is_ready = matches!(word.read_exact(&mut [0]), Ok(()));
    let heard = {
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        if is_ready && *heard == Heard::Nothing {
            *heard = Heard::Ready;
        }
        *heard
    };
    if heard == Heard::Ready {
        return 0;
    }
    loop {
        match waitpid(child, None) {
            // The signal came when the interface was up already, and has taken it down.
            Ok(WaitStatus::Exited(_, 0)) if is_ready => {
                if let Heard::Signal(signal) = heard {
                    output::error(&format_args!("{signal} took the interface down again"));
                }
                return FAILURE;
            }
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

fn number_of(signal: signals::Signal) -> Signal {
    match signal {
        signals::Signal::Interrupt => Signal::SIGINT,
        signals::Signal::Terminate => Signal::SIGTERM,
        signals::Signal::HangUp => Signal::SIGHUP,
    }
}

impl Notifier {
    /// Leaves the terminal, its session and every descriptor of the caller, and lets the parent end.
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
        let leaves = |stream: &dyn AsFd| match output {
            Output::Kept => false,
            Output::Files => !descriptors::is_file(stream.as_fd()),
            Output::Discarded => true,
        };
        if leaves(&io::stdout()) {
            dup2_stdout(&null).map_err(failed("leave standard output"))?;
        }
        if leaves(&io::stderr()) {
            dup2_stderr(&null).map_err(failed("leave standard error"))?;
        }
        descriptors::close(&self.of_the_caller);
        orphan::stay().map_err(failed("leave the command"))?;
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
