//! Ctrl-C and Ctrl-Break; a console that closes; the end of the system.

use std::io;

use tokio::signal::windows::{
    CtrlBreak, CtrlC, CtrlClose, CtrlShutdown, ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown,
};
use tokio::sync::Notify;

use super::Signal;

/// The service control manager ends this process. Remembered until a program watches.
static TERMINATED: Notify = Notify::const_new();

/// Delivers [`Signal::Terminate`], for a service: no signal reaches it.
pub fn terminate() {
    TERMINATED.notify_one();
}

pub(super) struct Signals {
    interrupt: CtrlC,
    stop: CtrlBreak,
    /// The system ends the process some seconds later.
    close: CtrlClose,
    shut_down: CtrlShutdown,
}

impl Signals {
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self {
            interrupt: ctrl_c()?,
            stop: ctrl_break()?,
            close: ctrl_close()?,
            shut_down: ctrl_shutdown()?,
        })
    }

    pub(super) async fn next(&mut self) -> Option<Signal> {
        tokio::select! {
            signal = self.interrupt.recv() => signal.map(|()| Signal::Interrupt),
            signal = self.stop.recv() => signal.map(|()| Signal::Interrupt),
            signal = self.close.recv() => signal.map(|()| Signal::HangUp),
            signal = self.shut_down.recv() => signal.map(|()| Signal::Terminate),
            () = TERMINATED.notified() => Some(Signal::Terminate),
        }
    }
}
