//! UDP mappings: which addresses exchange datagrams, and since when they have not.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weft_ipc::Source;

use crate::budget::{Account, Charge};
use crate::reach::Reach;

/// A mapping ends after this time without a datagram (RFC 4787, section 4.3: at least 2 minutes).
pub(crate) const MAPPING_TIMEOUT: Duration = Duration::from_secs(120);
/// Mappings of a client.
pub(crate) const MAPPINGS: usize = 1024;
/// A host has a new source of a forward each time this has passed; 2048 at once if it had none for as long.
const NEW_SOURCE: Duration = Duration::from_millis(10);
const BURST: Duration = Duration::from_millis(10 * 2048);
/// Hosts that are remembered for that. An attacker with more addresses has more sources.
const HOSTS: usize = 8192;

/// What a mapping is about and when it was last used.
#[derive(Debug)]
struct LastUsed<K>(HashMap<K, Instant>);

impl<K> Default for LastUsed<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

/// The addresses that a socket has sent to, and that may send to it (address and port-dependent filtering,
/// RFC 4787, section 5). More than [`FREE_PEERS`] are charged to an account; when it has nothing left, the
/// ones that were not used for longest give way.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    last_used: LastUsed<SocketAddr>,
    /// Each for [`CHARGED_PEERS`].
    charges: Vec<Charge>,
}

const FREE_PEERS: usize = 16;
const CHARGED_PEERS: usize = 16;
/// What a peer takes in a map that has just grown.
const PEER_BYTES: usize = 128;

impl Peers {
    /// Records that something is sent to an address.
    pub(crate) fn insert(&mut self, peer: SocketAddr, account: &Arc<Account>) {
        let known = &self.last_used.0;
        if known.len() >= self.most() && known.len() < MAPPINGS && !known.contains_key(&peer) {
            self.charges.extend(account.charge(CHARGED_PEERS * PEER_BYTES));
        }
        self.last_used.insert_within(peer, self.most());
    }

    fn most(&self) -> usize {
        FREE_PEERS + self.charges.len() * CHARGED_PEERS
    }

    /// Records that something came from an address. Reports whether it may.
    pub(crate) fn refresh(&mut self, peer: SocketAddr) -> bool {
        self.last_used.refresh(peer)
    }

    /// Removes the addresses that have expired, and reports whether none is left.
    pub(crate) fn expire(&mut self) -> bool {
        let has_ended = self.last_used.expire(|_| ());
        let charged = self.last_used.0.len().saturating_sub(FREE_PEERS).div_ceil(CHARGED_PEERS);
        if charged < self.charges.len() {
            self.last_used.0.shrink_to_fit();
            self.charges.truncate(charged);
        }
        has_ended
    }
}

/// The sources of a forward. None of their addresses has more than [`MAPPINGS`].
///
/// What gives way to a new source is found without a search: else a flood of them would cost the thread its
/// time. The orders have a time at which each mapping was used. It may have been used again: that is looked
/// at when its turn has come.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// The tunnel that they are in; `None`: they are outside.
    tunnel: Option<Reach>,
    last_used: LastUsed<SocketAddr>,
    /// The time by which each is in the orders, and the host. A reload may give its address to another peer.
    ordered: HashMap<SocketAddr, (Instant, Source)>,
    /// All that one host may have, or one peer of the tunnel.
    hosts: HashMap<Source, OfHost>,
    /// By what they have; the last one gives way.
    order: BTreeSet<(usize, Rank, Source)>,
    /// Until when the new sources of each host would take with [`NEW_SOURCE`] between them.
    busy: HashMap<Source, Instant>,
}

/// How many sources an address has, when one was used that was not for longest, and the address.
type Rank = (usize, Reverse<Instant>, IpAddr);

#[derive(Debug, Default)]
struct OfHost {
    count: usize,
    addresses: HashMap<IpAddr, BTreeSet<(Instant, SocketAddr)>>,
    /// The address that gives way last.
    order: BTreeSet<Rank>,
}

impl OfHost {
    fn rank(&self, host: Source) -> Option<(usize, Rank, Source)> {
        Some((self.count, *self.order.last()?, host))
    }

    fn rank_of(&self, address: IpAddr) -> Option<Rank> {
        let sources = self.addresses.get(&address)?;
        Some((sources.len(), Reverse(sources.first()?.0), address))
    }
}

impl Sources {
    /// Creates an empty set for the clients of a reverse forward.
    pub(crate) fn of_tunnel(reach: Reach) -> Self {
        Self { tunnel: Some(reach), ..Self::default() }
    }

    fn host(&self, address: IpAddr) -> Source {
        self.tunnel.as_ref().map_or(address.into(), |reach| reach.source(address)).owner()
    }

    /// Reports whether a source that has no mapping may have one now, and counts it for its host.
    pub(crate) fn admit(&mut self, source: SocketAddr) -> bool {
        let now = Instant::now();
        if self.busy.len() >= HOSTS {
            self.busy.clear();
        }
        let busy = self.busy.entry(self.host(source.ip())).or_insert(now);
        let next = now.max(*busy) + NEW_SOURCE;
        let is_admitted = next <= now + BURST;
        if is_admitted {
            *busy = next;
        }
        is_admitted
    }

    /// Records that something came from a source that has a mapping, or gets one now. Returns the source of
    /// the same address that gave way, if it had too many.
    pub(crate) fn insert(&mut self, source: SocketAddr) -> Option<SocketAddr> {
        let now = Instant::now();
        if let Some(used) = self.last_used.0.get_mut(&source) {
            *used = now;
            return None;
        }
        let at = (self.host(source.ip()), source.ip());
        let is_full = self.of(at).is_some_and(|sources| sources.len() >= MAPPINGS);
        let oldest = if is_full { self.remove_oldest(|_| Some(at)) } else { None };
        self.last_used.0.insert(source, now);
        self.reorder(source, Some(now));
        oldest
    }

    /// Removes the source that was not used for longest, among those of the host that has most, and of the
    /// address that has most there: one host takes no place from the others.
    pub(crate) fn give_way(&mut self) -> Option<SocketAddr> {
        self.remove_oldest(|sources| sources.order.last().map(|(_, (_, _, address), host)| (*host, *address)))
    }

    fn of(&self, (host, address): (Source, IpAddr)) -> Option<&BTreeSet<(Instant, SocketAddr)>> {
        self.hosts.get(&host)?.addresses.get(&address)
    }

    /// Removes the source of an address of a host that was not used for longest.
    fn remove_oldest(&mut self, at: impl Fn(&Self) -> Option<(Source, IpAddr)>) -> Option<SocketAddr> {
        loop {
            let (ordered, source) = *self.of(at(self)?)?.first()?;
            let used = *self.last_used.0.get(&source)?;
            if used == ordered {
                self.remove(source);
                return Some(source);
            }
            // Once for each use at most.
            self.reorder(source, Some(used));
        }
    }

    /// Changes the time by which a source is in the orders; `None`: it ends.
    fn reorder(&mut self, source: SocketAddr, time: Option<Instant>) {
        let address = source.ip();
        let before = self.ordered.remove(&source);
        let of = before.map_or_else(|| self.host(address), |(_, host)| host);
        let host = self.hosts.entry(of).or_default();
        if let Some(rank) = host.rank(of) {
            self.order.remove(&rank);
        }
        if let Some(rank) = host.rank_of(address) {
            host.order.remove(&rank);
        }
        let sources = host.addresses.entry(address).or_default();
        if let Some((before, _)) = before {
            sources.remove(&(before, source));
            host.count -= 1;
        }
        if let Some(time) = time {
            self.ordered.insert(source, (time, of));
            sources.insert((time, source));
            host.count += 1;
        }
        match host.rank_of(address) {
            Some(rank) => drop(host.order.insert(rank)),
            None => drop(host.addresses.remove(&address)),
        }
        match host.rank(of) {
            Some(rank) => drop(self.order.insert(rank)),
            None => drop(self.hosts.remove(&of)),
        }
    }

    /// Records that something is sent to a source. Reports whether it may.
    pub(crate) fn refresh(&mut self, source: SocketAddr) -> bool {
        self.last_used.refresh(source)
    }

    pub(crate) fn remove(&mut self, source: SocketAddr) {
        if self.last_used.0.remove(&source).is_some() {
            self.reorder(source, None);
        }
    }

    /// Removes the sources that have expired, and calls `ended` with each.
    pub(crate) fn expire(&mut self, mut ended: impl FnMut(SocketAddr)) {
        let mut expired = Vec::new();
        self.last_used.expire(|source| expired.push(source));
        for source in expired {
            self.reorder(source, None);
            ended(source);
        }
        let now = Instant::now();
        self.busy.retain(|_, until| *until > now);
    }
}

impl<K: Copy + Eq + std::hash::Hash> LastUsed<K> {
    /// Records a use now. If there are more than `most` mappings, the one that was not used for longest gives
    /// way; returns it.
    fn insert_within(&mut self, key: K, most: usize) -> Option<K> {
        let is_new = self.0.insert(key, Instant::now()).is_none();
        if !is_new || self.0.len() <= most {
            return None;
        }
        let oldest = self.oldest(|other| *other != key)?;
        self.0.remove(&oldest);
        Some(oldest)
    }

    /// Returns the mapping that was not used for longest among some.
    fn oldest(&self, is_among: impl Fn(&K) -> bool) -> Option<K> {
        let among = self.0.iter().filter(|(key, _)| is_among(key));
        among.min_by_key(|(_, used)| **used).map(|(key, _)| *key)
    }

    /// Records a use now of a mapping that exists. Reports whether it does.
    fn refresh(&mut self, key: K) -> bool {
        let now = Instant::now();
        let used = self.0.get_mut(&key).filter(|used| now.duration_since(**used) < MAPPING_TIMEOUT);
        used.map(|used| *used = now).is_some()
    }

    /// Removes the mappings that have ended, calls `ended` with each, and reports whether none is left.
    fn expire(&mut self, mut ended: impl FnMut(K)) -> bool {
        let now = Instant::now();
        self.0.retain(|key, used| {
            let is_current = now.duration_since(*used) < MAPPING_TIMEOUT;
            if !is_current {
                ended(*key);
            }
            is_current
        });
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    #[tokio::test(start_paused = true)]
    async fn a_mapping_ends_two_minutes_after_its_last_datagram() {
        let mut peers = Peers::default();
        let account = Budget::new(1 << 20).account();
        let (a, b) = ("192.0.2.1:53".parse().unwrap(), "192.0.2.1:54".parse().unwrap());
        peers.insert(a, &account);
        assert!(peers.refresh(a) && !peers.refresh(b));
        tokio::time::advance(MAPPING_TIMEOUT - Duration::from_millis(1)).await;
        assert!(peers.refresh(a) && !peers.expire());
        tokio::time::advance(MAPPING_TIMEOUT).await;
        assert!(!peers.refresh(a), "it had ended");
        assert!(peers.expire());
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_that_many_associations_send_to_take_no_more_than_the_budget() {
        const ALL: usize = 1 << 20;
        let budget = Budget::new(ALL);
        let account = budget.account();
        let mut associations: Vec<(Peers, _)> =
            (0..100).map(|_| (Peers::default(), budget.account())).collect();
        for (peers, account) in &mut associations {
            for port in 1..=2000 {
                peers.insert(([192, 0, 2, 1], port).into(), account);
            }
            let known = peers.last_used.0.len();
            assert!((FREE_PEERS..=MAPPINGS).contains(&known), "{known}");
            assert!(peers.refresh(([192, 0, 2, 1], 2000).into()), "the last one is there");
        }
        assert_eq!(associations[0].0.last_used.0.len(), MAPPINGS, "one alone has all");
        let known: usize = associations.iter().map(|(peers, _)| peers.last_used.0.len()).sum();
        assert!(known * PEER_BYTES <= ALL + 100 * FREE_PEERS * PEER_BYTES, "{known}");
        tokio::time::advance(MAPPING_TIMEOUT).await;
        assert!(associations.iter_mut().all(|(peers, _)| peers.expire()));
        assert_eq!(account.free(), ALL);
    }

    #[tokio::test(start_paused = true)]
    async fn the_source_that_was_not_used_for_longest_gives_way_of_the_address_that_has_most() {
        let at = |address: u8, port: usize| SocketAddr::from(([192, 0, 2, address], port as u16));
        let mut sources = Sources::default();
        assert_eq!((sources.insert(at(1, 1)), sources.insert(at(2, 1))), (None, None));
        for port in 2..=MAPPINGS {
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(sources.insert(at(2, port)), None);
        }
        assert!(sources.refresh(at(2, 1)));
        assert_eq!(sources.insert(at(2, MAPPINGS + 1)), Some(at(2, 2)));
        assert_eq!(sources.insert(at(2, MAPPINGS + 1)), None, "it is there already");
        // The other address has the oldest of all, but only that one.
        assert_eq!(sources.give_way(), Some(at(2, 3)));
        sources.remove(at(2, 4));
        assert_eq!(sources.give_way(), Some(at(2, 5)));
        for port in 6..MAPPINGS {
            assert_eq!(sources.give_way(), Some(at(2, port)));
        }
        let last: Vec<_> = std::iter::from_fn(|| sources.give_way()).collect();
        assert_eq!(last.len(), 4, "{last:?}");
        assert!(sources.hosts.is_empty() && sources.order.is_empty() && sources.ordered.is_empty());
        sources.insert(at(1, 1));
        tokio::time::advance(MAPPING_TIMEOUT).await;
        sources.expire(|ended| assert_eq!(ended, at(1, 1)));
        assert!(sources.hosts.is_empty() && sources.last_used.0.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_with_many_addresses_takes_no_place_from_another_one() {
        let mut sources = Sources::default();
        let honest = "192.0.2.1:1".parse().unwrap();
        sources.insert(honest);
        for (prefix, least) in [("127.0.0.", 1), ("2001:db8::", 1)] {
            for address in 0..9 {
                tokio::time::advance(Duration::from_millis(1)).await;
                let ip: IpAddr = format!("{prefix}{}", address + least).parse().unwrap();
                sources.insert(SocketAddr::new(ip, 1));
            }
            for _ in 0..8 {
                assert_ne!(sources.give_way(), Some(honest));
            }
        }
        assert_eq!((sources.hosts.len(), sources.give_way()), (3, Some(honest)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_with_many_addresses_takes_no_place_from_another_one() {
        let peer = |prefixes: &[&str]| -> Vec<ipnet::IpNet> {
            prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect()
        };
        let [many, fewer] = [peer(&["10.1.0.0/16", "2001:db8::/32"]), peer(&["10.2.0.0/16"])];
        let network: Arc<dyn weft_network::Network> = Arc::new(weft_network::Kernel::of_this_thread());
        let reach = Reach::new(network, vec![many, fewer], None);
        let mut sources = Sources::of_tunnel(reach.clone());
        let honest: Vec<SocketAddr> = (1..=3).map(|port| ([10, 2, 0, 1], port).into()).collect();
        honest.iter().for_each(|source| assert_eq!(sources.insert(*source), None));
        for host in 0..10 {
            tokio::time::advance(Duration::from_millis(1)).await;
            sources.insert(([10, 1, host, 1], 1).into());
            sources.insert(SocketAddr::new(format!("2001:db8:{host}::1").parse().unwrap(), 1));
        }
        for _ in 0..17 {
            let source = sources.give_way().unwrap();
            assert!(!honest.contains(&source), "{source}");
        }
        // They are where they were when a reload has changed the peers.
        reach.allow(vec![]);
        assert_eq!(std::iter::from_fn(|| sources.give_way()).count(), 6);
        assert!(sources.hosts.is_empty() && sources.order.is_empty() && sources.ordered.is_empty());
        // New ones are counted by peer too.
        reach.allow(vec![peer(&["10.1.0.0/16"])]);
        let admitted = (0..10_000_u16).filter(|number| {
            let [high, low] = number.to_be_bytes();
            sources.admit(([10, 1, high, low], 1).into())
        });
        assert_eq!(admitted.count(), 2048);
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_was_used_again_does_not_give_way_for_what_it_was_before() {
        let mut sources = Sources::default();
        let at: Vec<SocketAddr> = (1..=6).map(|host| ([192, 0, 2, host], 1).into()).collect();
        for source in &at {
            sources.insert(*source);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(sources.refresh(at[0]) && sources.insert(at[2]).is_none());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(sources.refresh(at[1]));
        let order: Vec<_> = std::iter::from_fn(|| sources.give_way()).collect();
        let of_others = [at[3], at[4], at[5]];
        assert_eq!((&order[..3], order.last(), order.len()), (&of_others[..], Some(&at[1]), 6));
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_has_many_new_sources_at_once_and_then_a_hundred_new_ones_a_second() {
        let mut sources = Sources::default();
        let mut admitted = |host: u8, count: u16| {
            (0..count).filter(|port| sources.admit(([127, 0, 0, host], *port).into())).count()
        };
        assert_eq!(admitted(1, 10_000), 2048);
        assert_eq!(admitted(2, 10_000), 0, "it is the same host");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(admitted(1, 10_000), 100);
        let mut other = (0..5).map(|port| sources.admit(([192, 0, 2, 1], port).into()));
        assert!(other.all(|is_admitted| is_admitted));
        tokio::time::advance(BURST).await;
        sources.expire(|_| ());
        assert!(sources.busy.is_empty());
        for host in 0..=2 * HOSTS as u32 {
            assert!(sources.admit((std::net::Ipv4Addr::from(host << 8), 1).into()));
        }
        assert!(sources.busy.len() <= HOSTS);
    }
}
