//! The daemon's end of the control socket ([`weft_report::control_socket`]).

use weft_report::StatusReport;
use weft_report::control_socket::{CaptureRequest, ManageError, Reload, ReloadReport};

use crate::recording::Recording;

#[cfg(unix)]
mod capture;
#[cfg(unix)]
mod server;

#[cfg(not(unix))]
pub use crate::unsupported::control_socket::{ListenError, Server};
#[cfg(unix)]
pub use server::Server;
#[cfg(unix)]
pub use weft_ipc::listener::ListenError;

/// The requests that a running interface serves on its control socket. Calls come from threads of the socket,
/// and may wait for the control thread.
pub trait Manage: Send + Sync + 'static {
    /// Returns a full report on the interface.
    fn status(&self) -> Result<StatusReport, ManageError>;

    /// Makes the interface what a configuration file says, or with `dry_run` only reports what that would do.
    fn reload(&self, _reload: &Reload) -> Result<ReloadReport, ManageError> {
        Err(ManageError::Failed("this interface cannot be reloaded".to_owned()))
    }

    /// Begins a capture.
    fn capture(&self, _request: &CaptureRequest) -> Result<Recording, ManageError> {
        Err(ManageError::Failed("this interface cannot be captured".to_owned()))
    }

    /// Asks the interface to end, and returns at once. Drop the [`Server`] last: the end of the connection
    /// tells its clients that everything is undone.
    fn stop(&self);
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
