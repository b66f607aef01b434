//! Every system but Linux: readiness from tokio, and calls over quinn-udp (`sendmsg` out, `recvmmsg` or `recvmsg`
//! in) or, on Windows, weft's own.
//!
//! Each address family has one socket. Handshake messages have none apart: they arrive with data, and the
//! queues of [`crate::RecvBuffers`] keep them apart from what other sources send. Nothing filters junk in the
//! kernel.

use crate::{PathMtu, system};

mod family;
mod pause;
mod recv;
mod send;
#[cfg_attr(windows, path = "windows.rs")]
mod socket;
#[cfg(test)]
#[cfg_attr(windows, path = "windows/tests.rs")]
mod tests;

pub(crate) use family::Family;
pub(crate) use send::Sender;

/// Number of receiving sockets, of both address families together.
pub const RECEIVING_SOCKETS: usize = 2;

pub(crate) fn sender(gso: bool, path_mtu: PathMtu) -> Sender {
    Sender::new(gso, path_mtu, system::mangles_equal_segments(), system::ENOBUFS_IS_A_FULL_QUEUE)
}
