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

    /// Counts the endpoint of a peer that changes from one address to another.
    pub(crate) fn replace(&mut self, before: Option<IpAddr>, after: Option<IpAddr>) {
        if before == after {
            return;
        }
        if let Some(before) = before
            && let std::collections::hash_map::Entry::Occupied(mut entry) = self.0.entry(before)
        {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
        if let Some(after) = after {
            *self.0.entry(after).or_default() += 1;
        }
    }
}
