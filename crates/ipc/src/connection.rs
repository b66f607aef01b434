//! The client's end of a connection to a daemon on this machine: a Unix socket, or a named pipe on Windows.
//! Calls block, at most until a deadline.

#[cfg_attr(unix, path = "connection/unix.rs")]
#[cfg_attr(windows, path = "connection/windows.rs")]
mod platform;
#[cfg(test)]
mod tests;

pub use platform::{Connection, MAY_CONNECT};
