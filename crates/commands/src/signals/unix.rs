//! SIGINT, SIGTERM and SIGHUP.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Signal as Caught;

pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if SIGHUP was ignored when the program started, as with nohup(1).
    hang_up: Option<Signal>,
}

impl Signals {
    pub(super) fn install() -> io::Result<Self> {
        let hang_up = if hang_up_is_ignored()? { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up,
        })
    }

    pub(super) async fn next(&mut self) -> Option<Caught> {
        let Self { interrupt, terminate, hang_up } = self;
        let hung_up = async {
            match hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            signal = interrupt.recv() => signal.map(|()| Caught::Interrupt),
            signal = terminate.recv() => signal.map(|()| Caught::Terminate),
            signal = hung_up => signal.map(|()| {
                ignore_hang_up();
                Caught::HangUp
            }),
        }
    }
}

fn hang_up_is_ignored() -> io::Result<bool> {
    // SAFETY: a zeroed sigaction is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call changes nothing without a new action; it writes the old action, which outlives the
    // call.
    match unsafe { libc::sigaction(libc::SIGHUP, std::ptr::null(), &raw mut action) } {
        0 => Ok(action.sa_sigaction == libc::SIG_IGN),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets this process learn how its programs and child processes end: a caller that ignores SIGCHLD hands that
/// down, and then the kernel forgets it.
pub fn hear_of_children() {
    // SAFETY: the disposition has no handler, and there is no other thread that changes it.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Ignores SIGHUP from now on. At the end of a terminal session SIGHUP arrives twice: first from the shell,
/// then from the kernel when the shell is gone. It also reaches the commands that run while an interface goes
/// down; they inherit that the signal is ignored.
fn ignore_hang_up() {
    // SAFETY: SIG_IGN installs no handler. A task that still waits for the previous handler waits forever.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
}
