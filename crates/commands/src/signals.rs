//! The signals that end the daemon in good order.

use std::io;
use std::sync::mpsc;

/// Calls `on_signal` with the signal's name when SIGINT, SIGTERM or SIGHUP (a terminal that closes) arrives (Ctrl-C on
/// platforms without signals), on a thread of its own. A signal during the clean-up that follows is ignored, and so is
/// SIGHUP where it was ignored when the program began.
///
/// # Errors
/// When the operating system refuses the handler or the thread.
pub fn watch(on_signal: impl Fn(&'static str) + Send + 'static) -> io::Result<()> {
    let (report, reported) = mpsc::sync_channel(1);
    std::thread::Builder::new().name("weft-signals".into()).spawn(move || {
        let _guard = weft_tun::thread_guard::EndProcessOnPanic;
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
            while let Some(name) = next.next().await {
                on_signal(name);
            }
        });
    })?;
    reported.recv().map_err(|_| io::Error::other("the signal thread ended"))?
}

#[cfg_attr(unix, path = "signals/unix.rs")]
#[cfg_attr(not(unix), path = "signals/other.rs")]
mod platform;
