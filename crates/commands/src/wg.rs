//! What wg(8) does, as commands of weft: they ask and tell the daemon of an interface over its UAPI socket, whichever
//! implementation that is.

pub mod conf;
mod draft;
mod file;
mod key_file;
pub mod set;
pub mod show;
pub mod showconf;
pub mod strip;
