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

pub(crate) use family::Family;
pub(crate) use send::Sender;

/// Number of receiving sockets, of both address families together: for data, handshake messages and
/// initiations.
pub const RECEIVING_SOCKETS: usize = 2 * steering::DRAIN;

pub(crate) fn sender(gso: bool, path_mtu: PathMtu) -> Sender {
    Sender::new(gso, path_mtu, system::mangles_equal_segments())
}
