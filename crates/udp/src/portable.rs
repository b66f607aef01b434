//! Every system but Linux: readiness from tokio, and calls over quinn-udp (`sendmsg` out, `recvmmsg` or
//! `recvmsg` in) or, on Windows, weft's own.
//!
//! Each address family has one socket. Handshake messages have none apart: they arrive with data, and the
//! queues of [`crate::RecvBuffers`] keep them apart from what other sources send. Nothing filters junk in the
//! kernel.

use crate::{PathMtu, system};

mod family;
mod filled;
mod pause;
mod recv;
mod send;
#[cfg_attr(windows, path = "windows.rs")]
mod socket;
#[cfg(test)]
#[cfg_attr(windows, path = "windows/tests.rs")]
mod tests;

pub(crate) use family::{BoundFamily, Family};
pub(crate) use send::Sender;

/// Maximum number of shards: the kernel does not know which socket is for which datagram.
pub const MAX_SHARDS: usize = 1;

/// Returns the number of receiving sockets, of both address families together.
pub fn receiving_sockets(shards: usize) -> usize {
    2 * shards
}

pub(crate) fn sender(gso: bool, path_mtu: PathMtu) -> Sender {
    Sender::new(gso, path_mtu, system::mangles_equal_segments(), system::ENOBUFS_IS_A_FULL_QUEUE)
}
