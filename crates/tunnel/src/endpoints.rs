//! Addresses of the peers' endpoints, by which the gate recognizes senders.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::peer::{Endpoint, PeerId};
use crate::tunnel::Tunnel;

/// Number of peers whose endpoint is at each address. An endpoint comes from the last authenticated message
/// or from the configuration.
#[derive(Debug, Default)]
pub(crate) struct Endpoints(HashMap<IpAddr, u32>);

impl Endpoints {
    /// Reports whether the endpoint of a peer has this address.
    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        self.0.contains_key(&address)
    }

    fn add(&mut self, endpoint: SocketAddr) {
        *self.0.entry(endpoint.ip()).or_default() += 1;
    }

    fn remove(&mut self, endpoint: SocketAddr) {
        if let std::collections::hash_map::Entry::Occupied(mut entry) = self.0.entry(endpoint.ip()) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

impl Tunnel {
    /// Sets or clears the endpoint of a peer, and keeps the count of addresses in step.
    pub(crate) fn set_peer_endpoint(&mut self, id: PeerId, endpoint: Option<Endpoint>) {
        let Some(peer) = self.peers.get_mut(id.place()).and_then(Option::as_deref_mut) else { return };
        let before = std::mem::replace(&mut peer.endpoint, endpoint).map(|endpoint| endpoint.address);
        let after = endpoint.map(|endpoint| endpoint.address);
        if before != after {
            if let Some(before) = before {
                self.endpoints.remove(before);
            }
            if let Some(after) = after {
                self.endpoints.add(after);
            }
        }
    }

    /// Iterates over the receiver indices (all 32 bits) that a data message, handshake response or cookie
    /// reply to us may carry now, in no particular order.
    pub fn receiver_indices(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_index.iter()
    }

    /// Returns a number that changes whenever [`Self::receiver_indices`] changes.
    pub fn receiver_indices_version(&self) -> u64 {
        self.by_index.version()
    }
}
