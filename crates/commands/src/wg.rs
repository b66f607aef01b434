//! The commands of wg(8). They talk to the daemon of an interface over its UAPI socket, whichever
//! implementation the daemon is.

pub mod conf;
mod endpoints;
mod file;
mod key_file;
#[cfg(unix)]
mod names;
pub mod set;
pub mod show;
pub mod showconf;
pub mod strip;

#[cfg(not(unix))]
use crate::unsupported as names;
use weft_config::InterfaceName;
use weft_report::StatusReport;
use weft_report::control_socket::{Client, ClientError};

/// Asks the daemon of an interface for what other daemons than weft's do not know, such as the names of the
/// peers; `None` if it is one of those.
fn weft_status(interface: &InterfaceName) -> Result<Option<StatusReport>, ClientError> {
    match Client::connect(interface).and_then(|mut client| client.status()) {
        Ok(report) => Ok(Some(report)),
        Err(ClientError::NotRunning { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
