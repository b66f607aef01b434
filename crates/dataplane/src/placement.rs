//! Which packet thread serves which peer, and what each of them has to know of a change. No I/O.

use std::collections::HashMap;

use weft_tunnel::{Change, PeerConfig, PublicKey};

/// The packet thread of each peer.
#[derive(Debug)]
pub(crate) struct Placement {
    shards: HashMap<PublicKey, u16>,
    /// Number of peers of each packet thread.
    peers: Vec<usize>,
    /// Bytes that each packet thread moved between the last two snapshots.
    traffic: Vec<u64>,
    /// Bytes that each packet thread had moved at the last snapshot.
    moved: Vec<u64>,
}

impl Placement {
    /// Returns the placement of no peers on `count` packet threads.
    pub(crate) fn new(count: usize) -> Self {
        Self { shards: HashMap::new(), peers: vec![0; count], traffic: vec![0; count], moved: vec![0; count] }
    }

    /// Takes the bytes that each packet thread has moved so far.
    pub(crate) fn observe(&mut self, moved: impl Iterator<Item = u64>) {
        for (shard, now) in moved.enumerate().take(self.moved.len()) {
            let before = std::mem::replace(&mut self.moved[shard], now);
            self.traffic[shard] = now.saturating_sub(before);
        }
    }

    /// Returns the changes for each packet thread, in order: those of a peer for the one that serves it, and what
    /// all have to know of it for the others.
    pub(crate) fn distribute(&mut self, changes: Vec<Change>) -> Vec<Vec<Change>> {
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
                Change::AllowedIps { peer, add, remove } => to_all(&mut each, || Change::AllowedIps {
                    peer,
                    add: add.clone(),
                    remove: remove.clone(),
                }),
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

    /// Chooses the packet thread of a new peer: with few peers the one with the fewest, so that each has about as
    /// many; among equals the one with the least recent traffic.
    fn place(&mut self, key: PublicKey) -> u16 {
        let load = |shard: &usize| (self.peers[*shard], self.traffic[*shard]);
        let shard = (0..self.peers.len()).min_by_key(load).unwrap_or_default();
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
        let each = placement.distribute((1..=6).map(add).collect());
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
    fn a_removed_peer_leaves_room_and_traffic_decides_among_equals() {
        let mut placement = Placement::new(2);
        placement.distribute((1..=4).map(add).collect());
        let each = placement.distribute(vec![Change::RemovePeer(key(3)), Change::RemovePeer(key(2))]);
        assert!(each.iter().all(|changes| changes.len() == 2));
        placement.observe([1000, 500].into_iter());
        placement.observe([1100, 700].into_iter());
        assert_eq!(own(&placement.distribute(vec![add(5)])), [(0, 5)]);
        assert_eq!(own(&placement.distribute(vec![add(6)])), [(1, 6)]);
    }

    #[test]
    fn settings_go_to_the_thread_of_the_peer_and_what_routes_packets_to_all() {
        let mut placement = Placement::new(2);
        placement.distribute(vec![add(1), add(2)]);
        let each = placement.distribute(vec![
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
