//! SIGINT and SIGTERM.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    pub(super) async fn next(&mut self) -> Option<&'static str> {
        tokio::select! {
            signal = self.interrupt.recv() => signal.map(|()| "SIGINT"),
            signal = self.terminate.recv() => signal.map(|()| "SIGTERM"),
        }
    }
}
