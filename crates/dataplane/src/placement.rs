//! Which packet thread serves which peer, and what each of them has to know of a change. No I/O.

use std::collections::HashMap;

use ipnet::IpNet;
use weft_tunnel::{Change, PeerConfig, PublicKey};

use crate::routes::Routes;

/// The share of a core below which a packet thread counts as idle.
const IDLE: f64 = 0.05;
/// The weight of the changes that all packet threads make at the same time, about: while they make them, they
/// read nothing for less than a millisecond.
const STEP_WEIGHT: usize = 512;

/// Changes for each packet thread, in order.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) each: Vec<Vec<Change>>,
    /// Whether addresses change from a peer of one packet thread to that of another. Packets to them that are
    /// under way between the two would find no peer, so all have to make the changes while there are none.
    pub(crate) reroutes: bool,
}

/// The packet thread of each peer.
#[derive(Debug)]
pub(crate) struct Placement {
    shards: HashMap<PublicKey, u16>,
    routes: Routes,
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
        Self {
            shards: HashMap::new(),
            routes: Routes::default(),
            peers: vec![0; count],
            loads: vec![0.0; count],
            mean_load: 0.0,
        }
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

    /// Returns the changes for the packet threads, in as few steps as possible.
    pub(crate) fn distribute(&mut self, changes: Vec<Change>) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        let mut changes = changes.into_iter().peekable();
        while changes.peek().is_some() {
            let mut weight = 0;
            let some = std::iter::from_fn(|| {
                let next = changes.next_if(|_| weight < STEP_WEIGHT)?;
                weight += next.weight();
                Some(next)
            });
            let some: Vec<Change> = some.collect();
            let before = self.shards_behind(&some);
            let mut each = self.assign(some);
            let reroutes = |(prefix, before): &(IpNet, u16)| {
                let peer = self.routes.peer_of(*prefix);
                peer.and_then(|peer| self.shard_of(&peer)).is_some_and(|after| after != *before)
            };
            let reroutes = before.iter().any(reroutes);
            match steps.last_mut().filter(|last| !reroutes && !last.reroutes) {
                Some(last) => {
                    last.each.iter_mut().zip(&mut each).for_each(|(all, more)| all.append(more));
                }
                None => steps.push(Step { each, reroutes }),
            }
        }
        steps
    }

    /// Returns the packet thread of the present peer of each prefix in these changes, if it has one.
    fn shards_behind(&self, changes: &[Change]) -> Vec<(IpNet, u16)> {
        let prefixes = changes.iter().flat_map(|change| match change {
            Change::AddPeer(config) => config.allowed_ips.clone(),
            Change::AllowedIps { add, remove, .. } => [&add[..], &remove[..]].concat(),
            Change::RemovePeer(key) => self.routes.of(*key).collect(),
            _ => Vec::new(),
        });
        let shard = |prefix| Some((prefix, self.shard_of(&self.routes.peer_of(prefix)?)?));
        prefixes.filter_map(shard).collect()
    }

    /// Returns the changes for each packet thread, in order: those of a peer for the one that serves it, and
    /// what all have to know of it for the others.
    fn assign(&mut self, changes: Vec<Change>) -> Vec<Vec<Change>> {
        let mut each: Vec<Vec<Change>> = self.peers.iter().map(|_| Vec::new()).collect();
        for change in changes {
            match change {
                Change::AddPeer(config) => self.add(config, &mut each),
                Change::RemovePeer(key) => {
                    if let Some(shard) = self.shards.remove(&key) {
                        self.peers[usize::from(shard)] -= 1;
                    }
                    self.routes.remove_peer(key);
                    to_all(&mut each, || Change::RemovePeer(key));
                }
                Change::AllowedIps { peer, add, remove } => {
                    if self.shards.contains_key(&peer) {
                        add.iter().for_each(|prefix| self.routes.add(*prefix, peer));
                        remove.iter().for_each(|prefix| self.routes.remove(*prefix, peer));
                    }
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
        config.allowed_ips.iter().for_each(|prefix| self.routes.add(*prefix, key));
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

    /// Gives the addresses of peer `number` to it and takes them from the peer that has them, or only removes
    /// them.
    fn give(number: u8, prefix: &str) -> Change {
        Change::AllowedIps { peer: key(number), add: vec![prefix.parse().unwrap()], remove: Vec::new() }
    }

    fn take(number: u8, prefix: &str) -> Change {
        Change::AllowedIps { peer: key(number), add: Vec::new(), remove: vec![prefix.parse().unwrap()] }
    }

    #[test]
    fn all_make_changes_at_the_same_time_that_move_addresses_between_them_and_no_others() {
        let mut placement = Placement::new(2);
        let mut reroutes = |changes| {
            let steps = placement.distribute(changes);
            steps.iter().map(|step| step.reroutes).collect::<Vec<_>>()
        };
        assert_eq!(reroutes((1..=4).map(add).collect()), [false]);
        assert_eq!(reroutes(vec![give(1, "10.0.0.3/32")]), [false], "both belong to the first thread");
        assert_eq!(reroutes(vec![give(2, "10.0.0.3/32")]), [true]);
        assert_eq!(reroutes(vec![give(2, "10.0.0.3/32")]), [false], "it has that");
        assert_eq!(reroutes(vec![give(1, "10.0.0.0/8")]), [false], "they belonged to no peer");
        assert_eq!(reroutes(vec![give(4, "10.7.0.0/16")]), [true], "they belonged to a shorter prefix");
        assert_eq!(reroutes(vec![take(4, "10.7.0.0/16"), Change::Mtu(1400)]), [true], "and do again");
        assert_eq!(reroutes(vec![take(1, "10.0.0.0/8")]), [false], "they belong to no peer now");
        // A peer that has a new key is another peer.
        let replaced =
            vec![take(2, "10.0.0.2/32"), Change::RemovePeer(key(2)), add(9), give(9, "10.0.0.2/32")];
        assert_eq!(reroutes(replaced), [false], "it is at the same thread");
        assert_eq!(reroutes(vec![Change::RemovePeer(key(1)), add(5), give(4, "10.0.0.1/32")]), [true]);
    }

    #[test]
    fn many_changes_of_which_few_move_addresses_take_few_steps() {
        let mut placement = Placement::new(2);
        let net = |number: u32| IpNet::from(std::net::IpAddr::from((0x0a80_0000 + number).to_be_bytes()));
        let many = |range: std::ops::Range<u32>| Change::AllowedIps {
            peer: key(2),
            add: range.map(net).collect(),
            remove: Vec::new(),
        };
        placement.distribute(vec![add(1), add(2)]);
        let mut changes: Vec<_> = (0..20).map(|number| many(256 * number..256 * (number + 1))).collect();
        changes.insert(9, give(2, "10.0.0.1/32"));
        let steps = placement.distribute(changes);
        assert_eq!(steps.iter().map(|step| step.reroutes).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(steps.iter().map(|step| step.each[0].len()).sum::<usize>(), 21);
        let weight: usize = steps[1].each[0].iter().map(Change::weight).sum();
        assert!(weight < STEP_WEIGHT + 257, "{weight}");
    }
}
