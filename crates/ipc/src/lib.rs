//! Sockets between processes of one machine: UAPI, the control socket, HTTP.
//!
//! [`runtime_dir`] holds one directory for each running interface and defines which users a client trusts.
//! `listener` creates the file of a Unix socket, accessible to its owner only, and `pipe` a named pipe of
//! Windows for administrators. [`serve_each`] serves a bounded number of clients; slow or silent clients give
//! way to new ones. [`holder`] tells which process has a port, a socket or a device, and [`proc_net`] lists
//! sockets. [`ServerThread`] is the thread of a server, and [`Connection`] a client's end. [`OutputFile`] is
//! what a command writes. `watch` tells that files are gone.

mod clients;
mod connection;
pub mod holder;
#[cfg(unix)]
pub mod listener;
mod output_file;
#[cfg(windows)]
pub mod pipe;
#[cfg(any(windows, test))]
#[cfg_attr(not(windows), allow(unreachable_pub, reason = "used by tests alone on other systems"))]
mod pipe_rules;
pub mod proc_net;
mod refusals;
pub mod runtime_dir;
#[cfg(windows)]
pub mod security;
mod server_thread;
#[cfg(unix)]
pub mod watch;

pub use clients::{Place, Places, Source, Stream, serve_each};
pub use connection::{Connection, MAY_CONNECT};
pub use output_file::OutputFile;
pub use refusals::Refusals;
pub use server_thread::ServerThread;
