//! Endpoints of peers, and their addresses, by which the gate recognizes senders.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// Where to send datagrams for a peer: from its last authenticated message, or from the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    /// The local address that the peer sends to, used as the source of datagrams to it.
    pub(crate) source: Option<IpAddr>,
}

/// Number of peers whose endpoint is at each address. An endpoint comes from the last authenticated message
/// or from the configuration.
#[derive(Debug, Default)]
pub(crate) struct Endpoints(HashMap<IpAddr, u32>);

impl Endpoints {
    /// Reports whether the endpoint of a peer has this address.
    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        self.0.contains_key(&address)
    }

    pub(crate) fn add(&mut self, endpoint: SocketAddr) {
        *self.0.entry(endpoint.ip()).or_default() += 1;
    }

    pub(crate) fn remove(&mut self, endpoint: SocketAddr) {
        if let std::collections::hash_map::Entry::Occupied(mut entry) = self.0.entry(endpoint.ip()) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}
