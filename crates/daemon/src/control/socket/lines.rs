//! Requests and answers as lines of JSON.

use serde::Serialize;
use weft_report::control_socket::line::{Answer, Done, Request, RequestVersion, WireError, to_line};
use weft_report::control_socket::{ManageError, VERSION};
use zeroize::Zeroizing;

/// Initial capacity for a line; a status with many peers grows beyond it.
const LINE_ROOM: usize = 4096;

/// Parses a request.
pub(super) fn parse(line: &[u8]) -> Result<Request<'_>, ManageError> {
    match serde_json::from_slice::<RequestVersion>(line) {
        Ok(RequestVersion { version: VERSION }) => {}
        Ok(RequestVersion { version }) => {
            return Err(ManageError::Failed(format!(
                "the daemon understands version {VERSION} of the control socket, not {version}: restart the \
                 interface with the weft that is installed"
            )));
        }
        Err(error) => return Err(not_a_request(&error)),
    }
    serde_json::from_slice(line).map_err(|error| not_a_request(&error))
}

/// Returns an error with the kind and the column of the syntax error, without the text, which may contain a
/// key.
fn not_a_request(error: &serde_json::Error) -> ManageError {
    ManageError::Failed(format!("not a request: {:?} error in column {}", error.classify(), error.column()))
}

/// Returns the line that reports an error.
pub(super) fn error_line(error: &ManageError) -> Zeroizing<Vec<u8>> {
    let error: Answer<Done> = Answer { version: VERSION, ok: None, error: Some(WireError::from(error)) };
    to_line(&error, LINE_ROOM).unwrap_or_default()
}

pub(super) type Line = serde_json::Result<Zeroizing<Vec<u8>>>;

pub(super) fn ok(content: &impl Serialize) -> Line {
    to_line(&Answer { version: VERSION, ok: Some(content), error: None }, LINE_ROOM)
}
