//! The peer of each prefix, and so of each address: for the control side, which has to know where a change
//! moves addresses from one peer to another. No I/O.

use std::collections::{BTreeMap, HashMap, HashSet};

use ipnet::IpNet;
use weft_tunnel::PublicKey;

/// The prefixes of all peers.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    owners: HashMap<IpNet, PublicKey>,
    peers: HashMap<PublicKey, HashSet<IpNet>>,
    /// Number of prefixes by address family and length.
    lengths: BTreeMap<(bool, u8), usize>,
}

impl Routes {
    /// Assigns a prefix to a peer, and removes it from the peer that it belongs to.
    pub(crate) fn add(&mut self, prefix: IpNet, peer: PublicKey) {
        let prefix = prefix.trunc();
        if let Some(before) = self.owners.get(&prefix) {
            self.remove(prefix, *before);
        }
        self.owners.insert(prefix, peer);
        self.peers.entry(peer).or_default().insert(prefix);
        *self.lengths.entry(kind_of(prefix)).or_default() += 1;
    }

    /// Removes a prefix from a peer, if it belongs to that.
    pub(crate) fn remove(&mut self, prefix: IpNet, peer: PublicKey) {
        let prefix = prefix.trunc();
        let Some(prefixes) = self.peers.get_mut(&peer) else { return };
        if !prefixes.remove(&prefix) {
            return;
        }
        if prefixes.is_empty() {
            self.peers.remove(&peer);
        }
        self.owners.remove(&prefix);
        if let Some(count) = self.lengths.get_mut(&kind_of(prefix)) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&kind_of(prefix));
            }
        }
    }

    /// Removes all prefixes of a peer.
    pub(crate) fn remove_peer(&mut self, peer: PublicKey) {
        let prefixes: Vec<IpNet> = self.of(peer).collect();
        prefixes.into_iter().for_each(|prefix| self.remove(prefix, peer));
    }

    /// Returns the prefixes of a peer.
    pub(crate) fn of(&self, peer: PublicKey) -> impl Iterator<Item = IpNet> {
        self.peers.get(&peer).into_iter().flatten().copied()
    }

    /// Returns the peer of the addresses of a prefix, except those that have a longer one.
    pub(crate) fn peer_of(&self, prefix: IpNet) -> Option<PublicKey> {
        let (family, longest) = kind_of(prefix);
        let lengths = self.lengths.range((family, 0)..=(family, longest)).rev();
        let covering = lengths.filter_map(|((_, length), _)| IpNet::new(prefix.addr(), *length).ok());
        covering.into_iter().find_map(|covering| self.owners.get(&covering.trunc()).copied())
    }
}

fn kind_of(prefix: IpNet) -> (bool, u8) {
    (prefix.addr().is_ipv4(), prefix.prefix_len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_peer_with_the_longest_prefix() {
        let (a, b) = (PublicKey::from_bytes([1; 32]), PublicKey::from_bytes([2; 32]));
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let mut routes = Routes::default();
        routes.add(net("10.0.0.7/8"), a);
        routes.add(net("10.1.0.0/16"), b);
        routes.add(net("::/0"), b);
        let owners = |routes: &Routes| {
            ["10.1.2.0/24", "10.1.0.0/16", "10.0.0.0/12", "0.0.0.0/0", "2001:db8::/32"]
                .map(|prefix| routes.peer_of(net(prefix)))
        };
        assert_eq!(owners(&routes), [Some(b), Some(b), Some(a), None, Some(b)]);
        routes.remove(net("10.1.0.0/16"), a);
        assert_eq!(routes.peer_of(net("10.1.0.0/16")), Some(b), "it is not a's");
        routes.add(net("10.1.0.0/16"), a);
        assert_eq!((routes.of(a).count(), routes.of(b).count()), (2, 1));
        routes.remove_peer(a);
        assert_eq!(owners(&routes), [None, None, None, None, Some(b)]);
        routes.remove(net("::/0"), b);
        assert!(routes.owners.is_empty() && routes.peers.is_empty() && routes.lengths.is_empty());
    }
}
