//! The daemon's end of the control socket ([`weft_report::control_socket`]).

use weft_report::StatusReport;
use weft_report::control_socket::{CaptureRequest, ManageError, Reload, ReloadReport};

use crate::recording::Recording;

mod capture;
mod lines;
#[cfg_attr(unix, path = "socket/unix.rs")]
#[cfg_attr(windows, path = "socket/windows.rs")]
mod platform;
mod server;

pub use platform::{ListenError, remove_dead};
pub use server::Server;

/// The requests that a running interface serves on its control socket. Calls come from threads of the socket,
/// and may wait for the control thread.
pub trait Manage: Send + Sync + 'static {
    /// Returns a full report on the interface.
    fn status(&self) -> Result<StatusReport, ManageError>;

    /// Makes the interface what a configuration file says, or with `dry_run` only reports what that would do.
    fn reload(&self, _reload: &Reload) -> Result<ReloadReport, ManageError> {
        Err(ManageError::Failed("this interface does not support reloads".to_owned()))
    }

    /// Begins a capture.
    fn capture(&self, _request: &CaptureRequest) -> Result<Recording, ManageError> {
        Err(ManageError::Failed("this interface does not support captures".to_owned()))
    }

    /// Checks whether the interface can be asked to end. `within_command`: a command of its file asks.
    ///
    /// # Errors
    /// The end would wait for that command.
    fn check_stop(&self, _within_command: bool) -> Result<(), ManageError> {
        Ok(())
    }

    /// Notes that another program has removed the socket, or another file of its directory. Returns at once.
    fn tell_of_removed(&self) {}

    /// Asks the interface to end, and returns at once. [`Server::end`] tells the client what became of it;
    /// call that last, or drop the server.
    fn stop(&self);
}

#[cfg(test)]
mod tests;
