//! A network of an ordinary user: a user and a network namespace whose only way out is a device of weft.
//!
//! ```text
//! join the process of a command: finds the tunnel of its file, or forks the process that runs it
//!   Members             the process of the tunnel: commands come and go, and the last one ends it
//!   Namespace::make     … forks a child before the first thread; it makes the namespaces and stays in them
//!   Namespace::device   … a TUN, or a veth pair in its place: made by that child
//!   Namespace::netlink  … addresses and routes, over a socket of the namespace: this process owns it
//!   Inside              the process of a command: a child in the namespaces makes sockets, and name servers
//!   Entrance            a command enters the namespaces, without capabilities
//! ```
//!
//! Descriptors pass between the processes over socket pairs (SCM_RIGHTS). A child ends with its parent, and
//! the namespaces with the last process in them: nothing stays on the host, also after SIGKILL.

#![cfg(target_os = "linux")]

mod ask;
mod channel;
mod descriptors;
mod enter;
mod families;
mod inside;
mod join;
mod keeper;
mod look_ups;
mod members;
mod names;
mod namespace;
mod probe;
mod sockets;
mod sysctl;
mod veth;
mod view;

pub use ask::RootlessError;
pub use enter::{ENTRY_FAILED, Entrance};
pub use inside::Inside;
pub use join::{Member, News, join};
pub use members::{Members, TunnelState};
pub use names::Names;
pub use namespace::{Backing, Device, Namespace};
pub use probe::{Cause, Refused, Step};
pub use sockets::Sockets;
pub use veth::FAR_END;
