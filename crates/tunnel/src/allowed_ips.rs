//! Cryptokey routing (whitepaper, section 2): finds the peer of an inner address by longest prefix.

use std::net::IpAddr;

use ip_network::{IpNetwork, Ipv4Network, Ipv6Network};
use ip_network_table::IpNetworkTable;
use ipnet::IpNet;

use crate::peer_id::PeerId;

/// Minimum number of cached addresses. The cache pays because a lookup in the table costs as much as all
/// other work on a header.
const REMEMBERED: usize = 256;
/// Maximum number of cached addresses, at 24 bytes each. Up to this the cache has two places per prefix, so
/// that the addresses of many peers seldom collide.
const MOST_REMEMBERED: usize = 16_384;

/// The allowed-ips of every peer. A prefix belongs to one peer only.
pub(crate) struct AllowedIps {
    table: IpNetworkTable<PeerId>,
    prefixes: usize,
    /// Cached lookups, each at the one place that the hash of its address selects. The number of places is a
    /// power of two.
    remembered: Box<[Option<(IpAddr, PeerId)>]>,
    /// Right shift that reduces a 64-bit hash to a place.
    shift: u32,
    /// Whether the cache holds anything, so that thousands of changes in a row clear it once.
    remembers: bool,
}

impl AllowedIps {
    pub(crate) fn new() -> Self {
        let remembered = vec![None; REMEMBERED].into_boxed_slice();
        let shift = shift_for(REMEMBERED);
        Self { table: IpNetworkTable::new(), prefixes: 0, remembered, shift, remembers: false }
    }

    /// Clears the cache, which may be wrong after a change.
    fn forget(&mut self) {
        if std::mem::take(&mut self.remembers) {
            self.remembered.fill(None);
        }
    }

    /// Enlarges the cache if there are more prefixes.
    fn grow(&mut self) {
        let places = (2 * self.prefixes).next_power_of_two().clamp(REMEMBERED, MOST_REMEMBERED);
        if places > self.remembered.len() {
            self.remembered = vec![None; places].into_boxed_slice();
            self.shift = shift_for(places);
        }
    }

    /// Assigns `network` to `peer`, and returns the peer that it belonged to before.
    pub(crate) fn insert(&mut self, network: IpNet, peer: PeerId) -> Option<PeerId> {
        self.forget();
        let before = self.table.insert(key_of(network)?, peer);
        if before.is_none() {
            self.prefixes += 1;
            self.grow();
        }
        before
    }

    /// Removes `network` from `peer`. Returns false if it does not belong to that peer.
    pub(crate) fn remove(&mut self, network: IpNet, peer: PeerId) -> bool {
        let Some(key) = key_of(network) else { return false };
        if self.table.exact_match(key) != Some(&peer) {
            return false;
        }
        self.forget();
        let had = self.table.remove(key).is_some();
        self.prefixes -= usize::from(had);
        had
    }

    /// Returns the peer that `address` belongs to.
    #[inline]
    pub(crate) fn peer_of(&mut self, address: IpAddr) -> Option<PeerId> {
        let place = place_of(address, self.shift);
        let place = &mut self.remembered[place];
        if let Some((known, peer)) = place
            && *known == address
        {
            return Some(*peer);
        }
        let peer = match address {
            IpAddr::V4(address) => self.table.longest_match_ipv4(address).map(|(_, peer)| *peer),
            IpAddr::V6(address) => self.table.longest_match_ipv6(address).map(|(_, peer)| *peer),
        }?;
        *place = Some((address, peer));
        self.remembers = true;
        Some(peer)
    }

    /// Removes all prefixes of `peer`.
    pub(crate) fn remove_peer(&mut self, peer: PeerId) {
        self.forget();
        let mut left = 0;
        self.table.retain(|_, owner| {
            let stays = *owner != peer;
            left += usize::from(stays);
            stays
        });
        self.prefixes = left;
    }
}

/// Returns the key of a network in the table. Truncating cannot fail, because the prefix length of an `IpNet`
/// is in range.
fn key_of(network: IpNet) -> Option<IpNetwork> {
    match network {
        IpNet::V4(net) => Ipv4Network::new_truncate(net.addr(), net.prefix_len()).ok().map(Into::into),
        IpNet::V6(net) => Ipv6Network::new_truncate(net.addr(), net.prefix_len()).ok().map(Into::into),
    }
}

/// Returns the place of an address in the cache. Consecutive addresses spread evenly (Fibonacci hashing).
#[inline]
fn place_of(address: IpAddr, shift: u32) -> usize {
    const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
    let bits = match address {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            bits as u64 ^ ((bits >> 64) as u64).rotate_left(32)
        }
    };
    (bits.wrapping_mul(GOLDEN_RATIO) >> shift) as usize
}

/// Returns the shift that leaves of a 64-bit hash an index below `places`, which is a power of two above 1.
fn shift_for(places: usize) -> u32 {
    u64::BITS - places.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_prefix_wins_and_the_later_peer_takes_it_over() {
        let (a, b) = (PeerId::for_test(0), PeerId::for_test(1));
        let mut table = AllowedIps::new();
        for (net, peer) in [("10.0.0.0/8", a), ("10.1.0.0/16", b), ("::/0", a), ("fd00::/8", b)] {
            table.insert(net.parse().unwrap(), peer);
        }
        let peer_of = |table: &mut AllowedIps, address: &str| table.peer_of(address.parse().unwrap());
        assert_eq!(peer_of(&mut table, "10.2.0.1"), Some(a));
        assert_eq!(peer_of(&mut table, "10.1.0.1"), Some(b));
        assert_eq!(peer_of(&mut table, "fd12::1"), Some(b));
        assert_eq!(peer_of(&mut table, "2001:db8::1"), Some(a));
        assert_eq!(peer_of(&mut table, "192.0.2.1"), None);
        table.insert("10.1.0.0/16".parse().unwrap(), a);
        assert_eq!(peer_of(&mut table, "10.1.0.1"), Some(a));
        table.remove_peer(a);
        assert_eq!(peer_of(&mut table, "10.1.0.1"), None);
        assert_eq!(peer_of(&mut table, "fd12::1"), Some(b));
    }

    #[test]
    fn addresses_that_count_up_have_places_of_their_own() {
        for base in ["10.0.0.0", "2001:db8::", "2001:db8:1:2::"] {
            let places = (0..REMEMBERED as u128).map(|number| match base.parse().unwrap() {
                IpAddr::V4(base) => {
                    place_of(IpAddr::V4((base.to_bits() + number as u32).into()), shift_for(REMEMBERED))
                }
                IpAddr::V6(base) => {
                    place_of(IpAddr::V6((base.to_bits() + number).into()), shift_for(REMEMBERED))
                }
            });
            let distinct = places.collect::<std::collections::HashSet<_>>().len();
            assert!(distinct > REMEMBERED / 2, "{base}: {distinct}");
        }
    }

    #[test]
    fn hosts_of_networks_that_count_up_spread_over_the_places() {
        let first = "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().to_bits();
        let hosts = (0..REMEMBERED as u128).map(|network| IpAddr::V6((first + (network << 64)).into()));
        let places = hosts.map(|host| place_of(host, shift_for(REMEMBERED)));
        let distinct = places.collect::<std::collections::HashSet<_>>().len();
        assert!(distinct > REMEMBERED / 2, "{distinct}");
    }

    #[test]
    fn prefixes_that_come_and_go_do_not_enlarge_the_cache() {
        let (network, peer) = ("10.0.0.0/8".parse().unwrap(), PeerId::for_test(0));
        let mut table = AllowedIps::new();
        for _ in 0..1000 {
            table.insert(network, peer);
            assert!(table.remove(network, peer));
        }
        assert_eq!(table.remembered.len(), REMEMBERED);
    }

    #[test]
    fn the_addresses_of_thousands_of_peers_are_remembered_and_a_change_is_seen() {
        let address = |peer: u32| IpAddr::V4((0x0a00_0000 + peer).into());
        let mut table = AllowedIps::new();
        for peer in 0..5000 {
            table.insert(address(peer).into(), PeerId::for_test(peer));
        }
        for _ in 0..2 {
            for peer in 0..5000 {
                assert_eq!(table.peer_of(address(peer)), Some(PeerId::for_test(peer)));
            }
        }
        let remembered = table.remembered.iter().flatten().count();
        assert!(remembered > 4000, "{remembered}");
        table.insert(address(7).into(), PeerId::for_test(8));
        assert_eq!(table.peer_of(address(7)), Some(PeerId::for_test(8)));
        table.remove_peer(PeerId::for_test(8));
        assert_eq!((table.peer_of(address(7)), table.prefixes), (None, 4998));
        assert!(table.remembered.len() <= MOST_REMEMBERED);
    }

    /// Few bits vary, so that prefixes nest and collide.
    fn address() -> impl Strategy<Value = IpAddr> {
        let v4 = (0..4_u32, 0..4_u32).prop_map(|(high, low)| IpAddr::V4((high << 30 | low).into()));
        let v6 = (0..4_u128, 0..4_u128).prop_map(|(high, low)| IpAddr::V6((high << 126 | low).into()));
        prop_oneof![v4, v6]
    }

    fn network() -> impl Strategy<Value = IpNet> {
        (address(), prop::sample::select(vec![0_u8, 1, 2, 8, 29, 30, 31, 32])).prop_map(
            |(address, from_end)| {
                let longest = if address.is_ipv4() { 32 } else { 128 };
                let len = if from_end < 8 { from_end } else { longest - (32 - from_end) };
                IpNet::new(address, len).unwrap().trunc()
            },
        )
    }

    #[derive(Clone, Debug)]
    enum Change {
        Insert(IpNet, u32),
        Withdraw(IpNet, u32),
        Remove(u32),
    }

    proptest! {
        #[test]
        fn any_changes_leave_what_a_scan_of_a_list_finds(
            changes in prop::collection::vec(
                prop_oneof![
                    8 => (network(), 0..4_u32).prop_map(|(network, peer)| Change::Insert(network, peer)),
                    2 => (network(), 0..4_u32).prop_map(|(network, peer)| Change::Withdraw(network, peer)),
                    1 => (0..4_u32).prop_map(Change::Remove),
                ],
                0..40,
            ),
            addresses in prop::collection::vec(address(), 1..20),
        ) {
            let mut table = AllowedIps::new();
            let mut list: Vec<(IpNet, u32)> = Vec::new();
            for change in changes {
                // Cached lookups must not survive the change.
                for address in &addresses {
                    table.peer_of(*address);
                }
                match change {
                    Change::Insert(network, peer) => {
                        table.insert(network, PeerId::for_test(peer));
                        list.retain(|(other, _)| *other != network);
                        list.push((network, peer));
                    }
                    Change::Withdraw(network, peer) => {
                        let had = list.contains(&(network, peer));
                        prop_assert_eq!(table.remove(network, PeerId::for_test(peer)), had);
                        list.retain(|entry| *entry != (network, peer));
                    }
                    Change::Remove(peer) => {
                        table.remove_peer(PeerId::for_test(peer));
                        list.retain(|(_, other)| *other != peer);
                    }
                }
            }
            for address in addresses {
                let longest = list
                    .iter()
                    .filter(|(network, _)| network.contains(&address))
                    .max_by_key(|(network, _)| network.prefix_len())
                    .map(|(_, peer)| PeerId::for_test(*peer));
                prop_assert_eq!(table.peer_of(address), longest, "{}", address);
            }
        }
    }
}
