//! The daemon's end of the control socket ([`weft_report::control_socket`]).

use weft_report::StatusReport;
use weft_report::control_socket::{CaptureRequest, ManageError, Reload, ReloadReport};

use crate::recording::Recording;

#[cfg(unix)]
mod capture;
#[cfg(unix)]
mod server;
#[cfg(not(unix))]
mod unsupported;

#[cfg(unix)]
pub use server::Server;
#[cfg(not(unix))]
pub use unsupported::{ListenError, Server};
#[cfg(unix)]
pub use weft_ipc::listener::ListenError;

/// What a running interface does for the clients of its socket. Calls may wait for the control thread; they come from
/// threads of the socket.
pub trait Manage: Send + Sync + 'static {
    /// Everything that is known of the interface now.
    fn status(&self) -> Result<StatusReport, ManageError>;

    /// Makes the interface what a configuration file says, or only says what that would do.
    fn reload(&self, _reload: &Reload) -> Result<ReloadReport, ManageError> {
        Err(ManageError::Failed(
            "this interface is not run from a configuration file: use `wg syncconf`".to_owned(),
        ))
    }

    /// Begins a capture.
    fn capture(&self, _request: &CaptureRequest) -> Result<Recording, ManageError> {
        Err(ManageError::Failed("this interface cannot be captured".to_owned()))
    }

    /// Asks the interface to end, and returns at once. The [`Server`] should be dropped last: its clients then know
    /// that everything is undone.
    fn stop(&self);
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
