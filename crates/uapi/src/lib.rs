//! The cross-platform configuration protocol (UAPI), through which wg(8) reads and changes a running
//! interface.
//!
//! A client sends `get=1` or `set=1`, lines of `key=value` and an empty line, and receives an answer in the
//! same form. A connection may carry many requests. [`RequestParser`] and [`Answer`] do no I/O; [`Listener`]
//! and [`Server`] are the daemon's end of the socket, and [`client`] is the other end.

#[cfg(feature = "sockets")]
pub mod client;
mod control;
mod errno;
mod key;
#[cfg(feature = "sockets")]
mod lines;
mod request;
mod response;
#[cfg(feature = "sockets")]
mod server;
mod values;

pub use control::{Control, ControlError};
pub use errno::Errno;
pub use key::Key;
pub use request::{Problem, Request, RequestParser, Step};
pub use response::{Answer, write_errno};
#[cfg(feature = "sockets")]
pub use server::{Descriptor, Listener, Server, SocketError, path_of, remove_dead};

/// The directory in which wg(8) looks for the socket of an interface, `NAME.sock`.
pub const SOCKET_DIRECTORY: &str = "/var/run/wireguard";

#[cfg(test)]
#[cfg(feature = "sockets")]
mod properties;
