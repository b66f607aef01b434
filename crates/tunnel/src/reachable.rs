//! What the sockets may know of the peers: where they are, and which receiver indices their messages carry.

use std::net::SocketAddr;

use crate::tunnel::Tunnel;

impl Tunnel {
    /// Whether a peer is at `address`: an authenticated message came from there last, or the configuration says so.
    pub fn has_endpoint(&self, address: SocketAddr) -> bool {
        self.peers.iter().flatten().any(|peer| peer.endpoint.is_some_and(|known| known.address == address))
    }

    /// Changes whenever [`Self::receiver_indices`] does.
    pub fn receiver_indices_version(&self) -> u64 {
        0
    }

    /// Every receiver index, all 32 bits, that a data message, a handshake response or a cookie reply may carry now, in no
    /// particular order.
    pub fn receiver_indices(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::empty()
    }
}
