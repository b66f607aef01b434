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
