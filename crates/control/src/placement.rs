//! Which packet thread serves which peer, and what each of them has to know of a change. No I/O.

use std::collections::HashMap;

use weft_tunnel::{Change, PeerConfig, PublicKey};

/// The share of a core below which a packet thread counts as idle.
const IDLE: f64 = 0.05;

/// The packet thread of each peer.
#[derive(Debug)]
pub(crate) struct Placement {
    shards: HashMap<PublicKey, u16>,
    /// Number of peers of each packet thread.
    peers: Vec<usize>,
    /// The share of a core that each packet thread takes, with a guess for the peers that were placed since.
    loads: Vec<f64>,
    /// The share of a core that a peer took on average.
    mean_load: f64,
}

impl Placement {
    /// Returns the placement of no peers on `count` packet threads.
    pub(crate) fn new(count: usize) -> Self {
        Self { shards: HashMap::new(), peers: vec![0; count], loads: vec![0.0; count], mean_load: 0.0 }
    }

    /// Takes the share of a core that each packet thread took lately. Less than [`IDLE`] counts as nothing.
    pub(crate) fn observe(&mut self, shares: &[f64]) {
        for (load, share) in self.loads.iter_mut().zip(shares) {
            *load = if *share < IDLE { 0.0 } else { *share };
        }
        let peers: usize = self.peers.iter().sum();
        self.mean_load = self.loads.iter().sum::<f64>() / peers.max(1) as f64;
    }

    /// Returns the number of peers.
    pub(crate) fn count(&self) -> usize {
        self.shards.len()
    }

    /// Returns the packet thread of a peer.
    pub(crate) fn shard_of(&self, key: &PublicKey) -> Option<u16> {
        self.shards.get(key).copied()
    }

    /// Records that a peer moved to another packet thread.
    pub(crate) fn moved(&mut self, key: PublicKey, to: u16) {
        if let Some(shard) = self.shards.get_mut(&key) {
            self.peers[usize::from(*shard)] -= 1;
            self.peers[usize::from(to)] += 1;
            *shard = to;
        }
    }

    /// Returns the changes for each packet thread, in order: those of a peer for the one that serves it, and
    /// what all have to know of it for the others.
    pub(crate) fn assign(&mut self, changes: Vec<Change>) -> Vec<Vec<Change>> {
        let mut each: Vec<Vec<Change>> = self.peers.iter().map(|_| Vec::new()).collect();
        for change in changes {
            match change {
                Change::AddPeer(config) => self.add(config, &mut each),
                Change::RemovePeer(key) => {
                    if let Some(shard) = self.shards.remove(&key) {
                        self.peers[usize::from(shard)] -= 1;
                    }
                    to_all(&mut each, || Change::RemovePeer(key));
                }
                Change::AllowedIps { peer, add, remove } => {
                    let (add, remove) = (&add, &remove);
                    to_all(&mut each, || Change::AllowedIps {
                        peer,
                        add: add.clone(),
                        remove: remove.clone(),
                    });
                }
                // The first packet thread admits initiations, more of them from addresses of peers.
                Change::Endpoint { peer, endpoint } => {
                    to_all(&mut each, || Change::Endpoint { peer, endpoint });
                }
                Change::PrivateKey(key) => to_all(&mut each, || Change::PrivateKey(key.clone())),
                Change::Mtu(mtu) => to_all(&mut each, || Change::Mtu(mtu)),
                Change::PersistentKeepalive { peer, .. }
                | Change::Limits { peer, .. }
                | Change::PresharedKey { peer, .. }
                | Change::EndSession(peer)
                | Change::PathChanged(peer)
                | Change::Resumed { peer, .. }
                | Change::Restore { peer, .. } => {
                    if let Some(shard) = self.shards.get(&peer) {
                        each[usize::from(*shard)].push(change);
                    }
                }
                // Only this module makes them.
                Change::AddForeignPeer { .. } => {}
            }
        }
        each
    }

    fn add(&mut self, config: Box<PeerConfig>, each: &mut [Vec<Change>]) {
        let key = config.public_key;
        let shard = match self.shards.get(&key) {
            Some(shard) => *shard,
            None => self.place(key),
        };
        for (other, changes) in (0..).zip(each.iter_mut()) {
            if other != shard {
                changes.push(Change::AddForeignPeer {
                    peer: key,
                    shard,
                    endpoint: config.endpoint,
                    allowed_ips: config.allowed_ips.clone(),
                });
            }
        }
        each[usize::from(shard)].push(Change::AddPeer(config));
    }

    /// Chooses the packet thread of a new peer: the one with the least recent traffic; among equals, as on an
    /// idle gateway, the one with the fewest peers. Peers that were just added count with the load of an
    /// average one, so that not all of many go to the same thread.
    fn place(&mut self, key: PublicKey) -> u16 {
        let order = |a: &usize, b: &usize| {
            self.loads[*a].total_cmp(&self.loads[*b]).then(self.peers[*a].cmp(&self.peers[*b]))
        };
        let shard = (0..self.peers.len()).min_by(order).unwrap_or_default();
        self.loads[shard] += self.mean_load;
        self.peers[shard] += 1;
        self.shards.insert(key, shard as u16);
        shard as u16
    }
}

fn to_all(each: &mut [Vec<Change>], change: impl Fn() -> Change) {
    each.iter_mut().for_each(|changes| changes.push(change()));
}

#[cfg(test)]
mod tests {
    use weft_tunnel::PeerSettings;

    use super::*;

    fn key(number: u8) -> PublicKey {
        PublicKey::from_bytes([number; 32])
    }

    fn add(number: u8) -> Change {
        Change::AddPeer(Box::new(PeerConfig {
            public_key: key(number),
            endpoint: None,
            allowed_ips: vec![format!("10.0.0.{number}/32").parse().unwrap()],
            settings: PeerSettings::default(),
        }))
    }

    /// Returns the packet thread that gets each peer as its own.
    fn own(each: &[Vec<Change>]) -> Vec<(usize, u8)> {
        let of = |(shard, changes): (usize, &Vec<Change>)| {
            let own = changes.iter().filter_map(|change| match change {
                Change::AddPeer(config) => Some(config.public_key.as_bytes()[0]),
                _ => None,
            });
            own.map(|peer| (shard, peer)).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = each.iter().enumerate().flat_map(of).collect();
        all.sort_by_key(|(_, peer)| *peer);
        all
    }

    #[test]
    fn each_peer_is_one_threads_own_and_foreign_to_the_others() {
        let mut placement = Placement::new(3);
        let each = placement.assign((1..=6).map(add).collect());
        assert_eq!(own(&each), [(0, 1), (1, 2), (2, 3), (0, 4), (1, 5), (2, 6)]);
        for (number, changes) in each.iter().enumerate() {
            assert_eq!(changes.len(), 6);
            let foreign = changes.iter().filter(|change| {
                matches!(change, Change::AddForeignPeer { shard, allowed_ips, .. }
                    if usize::from(*shard) != number && allowed_ips.len() == 1)
            });
            assert_eq!(foreign.count(), 4);
        }
    }

    #[test]
    fn a_removed_peer_leaves_room() {
        let mut placement = Placement::new(2);
        placement.assign((1..=4).map(add).collect());
        let each = placement.assign(vec![Change::RemovePeer(key(3)), Change::RemovePeer(key(1))]);
        assert!(each.iter().all(|changes| changes.len() == 2));
        placement.observe(&[0.02, 0.01]);
        assert_eq!(own(&placement.assign(vec![add(5), add(6)])), [(0, 5), (0, 6)]);
    }

    #[test]
    fn a_new_peer_goes_where_there_is_the_least_traffic_and_many_do_not_all_go_there() {
        let mut placement = Placement::new(3);
        placement.assign((0..30).map(add).collect());
        placement.observe(&[0.9, 0.6, 0.3]);
        assert_eq!(own(&placement.assign(vec![add(30)])), [(2, 30)]);
        // An average peer takes 0.06: the others go where they even out.
        placement.observe(&[0.9, 0.6, 0.3]);
        placement.assign((31..=60).map(add).collect());
        assert_eq!(placement.peers, [15, 20, 26]);
    }

    #[test]
    fn a_peer_that_moved_gets_its_changes_at_its_new_thread() {
        let mut placement = Placement::new(3);
        placement.assign((1..=3).map(add).collect());
        placement.moved(key(1), 2);
        assert_eq!((placement.shard_of(&key(1)), &placement.peers[..]), (Some(2), &[0, 1, 2][..]));
        let each = placement.assign(vec![Change::EndSession(key(1))]);
        assert_eq!(each.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 1]);
        placement.moved(key(9), 1);
        placement.assign(vec![Change::RemovePeer(key(9))]);
    }

    #[test]
    fn settings_go_to_the_thread_of_the_peer_and_what_routes_packets_to_all() {
        let mut placement = Placement::new(2);
        placement.assign(vec![add(1), add(2)]);
        let each = placement.assign(vec![
            Change::EndSession(key(2)),
            Change::AllowedIps { peer: key(1), add: Vec::new(), remove: Vec::new() },
            Change::Endpoint { peer: key(2), endpoint: "192.0.2.1:1".parse().unwrap() },
            Change::Mtu(1400),
            Change::PathChanged(key(9)),
        ]);
        assert_eq!([each[0].len(), each[1].len()], [3, 4]);
        assert!(matches!(each[1][0], Change::EndSession(_)));
    }
}
