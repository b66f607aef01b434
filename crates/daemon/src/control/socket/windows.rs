//! The named pipe.

pub use weft_ipc::pipe::ListenError;
pub(super) use weft_ipc::pipe::Pipe as Listener;
