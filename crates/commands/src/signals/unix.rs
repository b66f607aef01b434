//! SIGINT, SIGTERM and SIGHUP.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` where it was ignored when the program began, as with nohup(1).
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

    pub(super) async fn next(&mut self) -> Option<&'static str> {
        let Self { interrupt, terminate, hang_up } = self;
        let hung_up = async {
            match hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            signal = interrupt.recv() => signal.map(|()| "SIGINT"),
            signal = terminate.recv() => signal.map(|()| "SIGTERM"),
            signal = hung_up => signal.map(|()| {
                ignore_hang_up();
                "SIGHUP"
            }),
        }
    }
}

fn hang_up_is_ignored() -> io::Result<bool> {
    // SAFETY: a sigaction of zeros is a valid one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed without a new action; the old one is written to, and lives until after the call.
    match unsafe { libc::sigaction(libc::SIGHUP, std::ptr::null(), &raw mut action) } {
        0 => Ok(action.sa_sigaction == libc::SIG_IGN),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A session that ends sends it twice: the shell at first, and the kernel when the shell is gone, also to commands that run for
/// the end of an interface. They begin with what is ignored here.
fn ignore_hang_up() {
    // SAFETY: no handler is put in place; whoever still waits for the old one's word waits for ever.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
}
