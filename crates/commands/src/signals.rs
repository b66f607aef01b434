//! The signals that end a program in good order.

use std::fmt;
use std::io;
use std::sync::mpsc;

/// A request to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT; on Windows Ctrl-C or Ctrl-Break.
    Interrupt,
    /// SIGTERM; on Windows the end of the system, or of the service.
    Terminate,
    /// SIGHUP; on Windows a console that closes.
    HangUp,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt if cfg!(unix) => "SIGINT",
            Self::Interrupt => "Ctrl-C",
            Self::Terminate if cfg!(unix) => "SIGTERM",
            Self::Terminate => "the system or the service ends",
            Self::HangUp if cfg!(unix) => "SIGHUP",
            Self::HangUp => "the console was closed",
        })
    }
}

/// Calls `on_signal` with the name of each SIGINT, SIGTERM and SIGHUP (a terminal that closes) that arrives,
/// on a dedicated thread. On Windows it is called for Ctrl-C and its like. Further signals call it again
/// and do not kill the process; further SIGHUPs are ignored. SIGHUP is always ignored if it was ignored when
/// the program started.
///
/// # Errors
/// When the operating system cannot install a handler or create the thread.
pub fn watch(on_signal: impl Fn(Signal) + Send + 'static) -> io::Result<()> {
    let (report, reported) = mpsc::sync_channel(1);
    std::thread::Builder::new().name("weft-signals".into()).spawn(move || {
        let _guard = weft_confine::EndProcessOnPanic;
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_io().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = report.send(Err(error));
                return;
            }
        };
        runtime.block_on(async {
            let mut next = match platform::Signals::install() {
                Ok(signals) => {
                    let _ = report.send(Ok(()));
                    signals
                }
                Err(error) => {
                    let _ = report.send(Err(error));
                    return;
                }
            };
            while let Some(signal) = next.next().await {
                on_signal(signal);
            }
        });
    })?;
    reported.recv().map_err(|_| io::Error::other("the signal thread ended"))?
}

#[cfg_attr(unix, path = "signals/unix.rs")]
#[cfg_attr(windows, path = "signals/windows.rs")]
mod platform;

#[cfg(unix)]
pub use platform::hear_of_children;
#[cfg(windows)]
pub use platform::terminate;
