//! Linux: `sendmsg` with UDP_SEGMENT out, `recvmmsg` with UDP_GRO in, readiness from tokio.

use crate::{PathMtu, system};

mod cmsg;
mod drain;
mod family;
mod program;
mod recv;
mod send;
mod socket;
mod steering;
#[cfg(test)]
mod tests;

pub(crate) use family::{BoundFamily, Family};
pub(crate) use send::Sender;

/// Maximum number of shards.
pub const MAX_SHARDS: usize = 64;

/// Returns the number of receiving sockets, of both address families together: for data, handshake messages
/// and initiations.
pub fn receiving_sockets(shards: usize) -> usize {
    // Of one socket in each group, the drain, nothing is received.
    2 * (steering::sockets_of(shards) - 1)
}

pub(crate) fn sender(gso: bool, path_mtu: PathMtu) -> Sender {
    Sender::new(gso, path_mtu, system::mangles_equal_segments())
}
