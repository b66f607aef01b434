//! The named pipe.

use std::path::Path;

pub use weft_ipc::pipe::ListenError;
pub(super) use weft_ipc::pipe::Pipe as Listener;

/// Never returns: no other program removes a pipe.
pub(super) async fn until_one_is_gone(_: &Path) {
    std::future::pending::<()>().await;
}

/// Returns false: a dead daemon leaves no pipe behind.
///
/// # Errors
/// Never.
pub fn remove_dead(_: &Path) -> Result<bool, ListenError> {
    Ok(false)
}
