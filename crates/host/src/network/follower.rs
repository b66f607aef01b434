//! Finds out what a change of the network means to the peers: which peers have another route now, and which
//! MTU the device should have.
//!
//! A route has changed if the routing table chooses another source address for it than before, or if there
//! was none before. Other changes do not concern a peer: on a machine where containers start and stop all
//! day, an address that a peer was told to use (a server's second address, say) must not be given up each
//! time.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use weft_config::tunnel_mtu;
use weft_tunnel::PublicKey;

use super::{NetworkChange, way_to};
use crate::routes::{Netlink, USUAL_MTU};

/// The route to an address, according to the routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The source address of packets that take the route.
    pub source: IpAddr,
    /// The MTU of the path in bytes, if it is known: that of the route, or less if the kernel has learnt less
    /// from an ICMP message. Any host can forge one.
    pub mtu: Option<u32>,
}

/// What determines the device's MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MtuPolicy {
    Fixed,
    /// The routes to the peers.
    Automatic {
        /// The MTU that the device has now, in bytes.
        current: u16,
        /// Whether IPv6 is in the tunnel, which needs an MTU of at least 1280.
        ipv6: bool,
    },
}

/// The reaction to a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaction {
    /// Peers with a changed route.
    pub moved: Vec<PublicKey>,
    /// How long the machine slept, if it did: every peer then has to hear from this end.
    pub slept: Option<Duration>,
    /// The MTU in bytes that the device is to have, if it changes.
    pub mtu: Option<u16>,
}

/// Follows the routes to the peers of one interface.
#[derive(Debug)]
pub struct Follower {
    fw_mark: u32,
    mtu: MtuPolicy,
    ways: HashMap<SocketAddr, Option<Way>>,
}

impl Follower {
    /// Creates a follower for an interface that marks its packets so (0: no mark).
    pub fn new(fw_mark: u32, mtu: MtuPolicy) -> Self {
        Self { fw_mark, mtu, ways: HashMap::new() }
    }

    /// Sets the mark of outgoing packets.
    pub fn set_mark(&mut self, fw_mark: u32) {
        self.fw_mark = fw_mark;
    }

    /// Leaves the MTU as it is from now on.
    pub fn fix_mtu(&mut self) {
        self.mtu = MtuPolicy::Fixed;
    }

    /// Looks up the routes for the first time.
    pub fn observe(&mut self, peers: &[(PublicKey, SocketAddr)], paths: &Netlink) -> Reaction {
        self.react(&NetworkChange::default(), peers, paths)
    }

    /// Looks up the routes to the endpoints of all peers, in the network namespace of this thread, which is
    /// that of `paths`. This takes some microseconds per endpoint.
    pub fn react(
        &mut self,
        change: &NetworkChange,
        peers: &[(PublicKey, SocketAddr)],
        paths: &Netlink,
    ) -> Reaction {
        let fw_mark = self.fw_mark;
        let mtu_towards = |endpoint: SocketAddr| paths.mtu_towards(endpoint, fw_mark).ok();
        self.react_with(change, peers, |endpoint| way_to(endpoint, fw_mark), mtu_towards)
    }

    fn react_with(
        &mut self,
        change: &NetworkChange,
        peers: &[(PublicKey, SocketAddr)],
        mut look: impl FnMut(SocketAddr) -> io::Result<Way>,
        mtu_towards: impl FnMut(SocketAddr) -> Option<u32>,
    ) -> Reaction {
        let before = std::mem::take(&mut self.ways);
        let mut reaction = Reaction { slept: change.slept, ..Reaction::default() };
        for (key, endpoint) in peers {
            let way = *self.ways.entry(*endpoint).or_insert_with(|| look(*endpoint).ok());
            let moved = match (before.get(endpoint), way) {
                (Some(Some(before)), Some(way)) => before.source != way.source,
                (Some(None), Some(_)) => true,
                // The endpoint is new, or has no route now.
                (None, _) | (Some(_), None) => false,
            };
            if moved {
                reaction.moved.push(*key);
            }
        }
        reaction.mtu = self.new_mtu(mtu_towards);
        reaction
    }

    fn new_mtu(&mut self, mtu_towards: impl FnMut(SocketAddr) -> Option<u32>) -> Option<u16> {
        let MtuPolicy::Automatic { current, ipv6 } = &mut self.mtu else { return None };
        // Without a route the MTU stays: the next route is likely to have the MTU of the last one.
        let outer = smallest_mtu(&self.ways, mtu_towards)?;
        let mtu = tunnel_mtu(outer, *ipv6);
        (mtu != *current).then(|| {
            *current = mtu;
            mtu
        })
    }
}

/// Returns the smallest MTU of the routes. `mtu_towards` asks for that of one route. The MTU of a path is no
/// more than that of its route, so a path that carries as much as the routes found before is not asked about.
fn smallest_mtu(
    ways: &HashMap<SocketAddr, Option<Way>>,
    mut mtu_towards: impl FnMut(SocketAddr) -> Option<u32>,
) -> Option<u32> {
    let known =
        |(endpoint, way): (&SocketAddr, &Option<Way>)| Some(((*way)?.mtu?, (*way)?.source, *endpoint));
    let mut paths: Vec<_> = ways.iter().filter_map(known).collect();
    paths.sort_unstable();
    // A wide device may be one that packets do not leave the machine by, such as the loopback: its route
    // counts for less. A path from another source is likely to be one of another device.
    let mut smallest: HashMap<(IpAddr, bool), u32> = HashMap::new();
    for (mtu, source, endpoint) in paths {
        let of_source = smallest.get(&(source, mtu > USUAL_MTU));
        if of_source.is_none_or(|smallest| mtu < *smallest)
            && let Some(mtu_of_route) = mtu_towards(endpoint)
        {
            let of_source = smallest.entry((source, mtu > USUAL_MTU)).or_insert(mtu_of_route);
            *of_source = mtu_of_route.min(*of_source);
        }
    }
    smallest.into_values().min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::NO_CHANGE;

    const AUTOMATIC: MtuPolicy = MtuPolicy::Automatic { current: 1420, ipv6: true };
    const ROUTES: NetworkChange = NetworkChange { routes: true, ..NO_CHANGE };

    fn peer(number: u8) -> (PublicKey, SocketAddr) {
        (PublicKey::from_bytes([number; 32]), SocketAddr::from(([192, 0, 2, number], 51820)))
    }

    fn way(source: u8, mtu: u32) -> Way {
        Way { source: IpAddr::from([198, 51, 100, source]), mtu: Some(mtu) }
    }

    /// The MTU of a route that is as usual.
    fn route(_: SocketAddr) -> Option<u32> {
        Some(1500)
    }

    fn lost() -> io::Result<Way> {
        Err(io::ErrorKind::NetworkUnreachable.into())
    }

    /// A follower that has seen peers 1 and 2, reached from address 1 over 1500 bytes.
    fn settled(mtu: MtuPolicy) -> Follower {
        let mut follower = Follower::new(0, mtu);
        let first =
            follower.react_with(&NetworkChange::default(), &[peer(1), peer(2)], |_| Ok(way(1, 1500)), route);
        assert_eq!(first, Reaction::default());
        follower
    }

    #[test]
    fn a_peer_has_moved_when_it_is_reached_from_another_address() {
        let mut follower = settled(AUTOMATIC);
        let mut react = |from: [u8; 2]| {
            let look = |endpoint| Ok(way(from[usize::from(endpoint == peer(2).1)], 1500));
            follower.react_with(&ROUTES, &[peer(1), peer(2)], look, route).moved
        };
        assert_eq!(react([1, 1]), []);
        assert_eq!(react([1, 7]), [peer(2).0]);
        assert_eq!(react([1, 7]), []);
        assert_eq!(react([7, 1]), [peer(1).0, peer(2).0]);
    }

    #[test]
    fn a_peer_that_was_out_of_reach_has_moved_when_it_is_back() {
        let mut follower = settled(AUTOMATIC);
        let peers = [peer(1)];
        let gone = follower.react_with(&ROUTES, &peers, |_| lost(), route);
        assert_eq!(gone, Reaction::default(), "there is nowhere to send to, and the MTU stays");
        assert_eq!(follower.react_with(&ROUTES, &peers, |_| Ok(way(1, 1500)), route).moved, [peer(1).0]);
    }

    #[test]
    fn a_new_endpoint_is_no_move() {
        let mut follower = settled(AUTOMATIC);
        assert_eq!(follower.react_with(&ROUTES, &[peer(3)], |_| Ok(way(7, 1500)), route).moved, []);
    }

    #[test]
    fn peers_at_one_endpoint_are_looked_at_once() {
        let mut follower = settled(AUTOMATIC);
        let peers = [(peer(1).0, peer(1).1), (peer(2).0, peer(1).1)];
        let mut looks = 0;
        let reaction = follower.react_with(
            &ROUTES,
            &peers,
            |_| {
                looks += 1;
                Ok(way(2, 1500))
            },
            route,
        );
        assert_eq!((looks, reaction.moved.len()), (1, 2));
    }

    #[test]
    fn the_mtu_is_the_smallest_of_the_ways_less_80_and_told_when_it_changes() {
        let mut follower = settled(AUTOMATIC);
        let mut react = |mtus: [u32; 2]| {
            let mtu = |endpoint| mtus[usize::from(endpoint == peer(2).1)];
            let (look, route) = (|endpoint| Ok(way(1, mtu(endpoint))), |endpoint| Some(mtu(endpoint)));
            follower.react_with(&ROUTES, &[peer(1), peer(2)], look, route).mtu
        };
        assert_eq!(react([1500, 1500]), None);
        assert_eq!(react([1500, 1400]), Some(1320));
        assert_eq!(react([9000, 1400]), None);
        assert_eq!(react([9000, 9000]), Some(8920));
        assert_eq!(react([1000, 9000]), Some(1280));
        assert_eq!(react([1 << 20, 1 << 20]), Some(weft_config::MAX_MTU));
    }

    #[test]
    fn what_was_learnt_of_a_path_changes_nothing_and_one_route_is_asked_about_for_many_paths() {
        let peers: Vec<_> = (1..=100).map(peer).collect();
        let learnt = |endpoint: SocketAddr| match endpoint {
            endpoint if endpoint == peer(1).1 => 552,
            endpoint if endpoint == peer(2).1 => 1280,
            _ => 1500,
        };
        let mut follower = settled(AUTOMATIC);
        let mut asked = Vec::new();
        let route = |endpoint| {
            asked.push(endpoint);
            Some(1500)
        };
        let reaction = follower.react_with(&ROUTES, &peers, |endpoint| Ok(way(1, learnt(endpoint))), route);
        assert_eq!(reaction.mtu, None);
        assert_eq!(asked, [peer(1).1, peer(2).1]);
        // Where the route cannot be asked about, the MTU stays.
        let reaction =
            follower.react_with(&ROUTES, &peers, |endpoint| Ok(way(1, learnt(endpoint))), |_| None);
        assert_eq!(reaction.mtu, None);
    }

    #[test]
    fn a_configured_mtu_stays() {
        let mut follower = settled(MtuPolicy::Fixed);
        assert_eq!(follower.react_with(&ROUTES, &[peer(1)], |_| Ok(way(1, 1400)), route).mtu, None);
    }

    #[test]
    fn a_sleep_is_passed_on() {
        let mut follower = settled(AUTOMATIC);
        let slept = Some(Duration::from_secs(60));
        let reaction =
            follower.react_with(&NetworkChange { slept, ..ROUTES }, &[peer(1)], |_| Ok(way(1, 1500)), route);
        assert_eq!(reaction, Reaction { slept, ..Reaction::default() });
    }
}
