//! Sockets between processes of one machine: UAPI, the control socket, HTTP.
//!
//! [`runtime_dir`] holds one directory for each running interface and says which users a client may believe; [`listener`]
//! makes the file of a Unix socket for its owner alone; [`serve_each`] serves a bounded number of clients, and those that
//! are slow or silent give way to others.

mod clients;
#[cfg(unix)]
pub mod listener;
pub mod runtime_dir;

pub use clients::{Place, Places, Source, serve_each};
