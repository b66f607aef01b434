//! Foreign peers: peers of other shards of the interface. A tunnel knows which addresses are theirs and to
//! which shard to hand over their packets, and has no session with them.

use std::net::SocketAddr;

use ipnet::IpNet;

use crate::foreign_peers::ForeignPeer;
use crate::ip::IpHeader;
use crate::key::PublicKey;
use crate::peer::Peer;
use crate::peer_id::PeerId;
use crate::tunnel::Tunnel;

impl Tunnel {
    /// Returns the shard of the peer that an outbound packet is for, if it is another shard. `None` also for
    /// a packet that no peer gets: this tunnel refuses it.
    #[inline]
    pub fn shard_of(&mut self, packet: &[u8]) -> Option<u16> {
        if self.foreign.is_empty() {
            return None;
        }
        let id = self.allowed_ips.peer_of(IpHeader::parse(packet)?.destination)?;
        self.foreign.shard_of(id)
    }

    /// Adds a peer of another shard. An own peer with this key becomes foreign: its sessions end, and its
    /// staged packets are dropped. Returns false if `shard` is this shard, or none of the interface.
    pub(crate) fn add_foreign_peer(
        &mut self,
        key: PublicKey,
        shard: u16,
        endpoint: Option<SocketAddr>,
        allowed_ips: Vec<IpNet>,
    ) -> bool {
        let own = self.by_index.shard();
        if shard == own.number() || shard >= own.count() {
            return false;
        }
        let id = self.place_of(key);
        let prefixes = self.vacate(id);
        self.foreign.insert(id, ForeignPeer { address: None, prefixes, shard });
        self.set_foreign_endpoint(id, endpoint);
        self.set_allowed_ips(id, allowed_ips);
        true
    }

    /// Makes the place of a peer that moves to another shard that of a foreign peer, which keeps its prefixes
    /// and its address.
    pub(crate) fn foreign_in_place_of(&mut self, id: PeerId, peer: &Peer, shard: u16) {
        let address = peer.endpoint.map(|endpoint| endpoint.address.ip());
        self.foreign.insert(id, ForeignPeer { address, prefixes: peer.prefixes, shard });
    }

    /// Sets or clears the endpoint of a foreign peer. Returns false if the peer is not foreign.
    pub(crate) fn set_foreign_endpoint(&mut self, id: PeerId, endpoint: Option<SocketAddr>) -> bool {
        let Some(peer) = self.foreign.get_mut(id) else { return false };
        let after = endpoint.map(|endpoint| endpoint.ip());
        let before = std::mem::replace(&mut peer.address, after);
        self.endpoints.replace(before, after);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::change::Change;
    use crate::config::{PeerConfig, PeerSettings};
    use crate::control_queue::ControlQueue;
    use crate::cookie::CookieRoot;
    use crate::key::PrivateKey;
    use crate::limits::PeerLimits;
    use crate::packet::PlainSlab;
    use crate::restore::Remembered;
    use crate::shard::Shard;
    use crate::transmit::{Ecn, RecvMeta};
    use crate::tunnel::TunnelConfig;
    use crate::{DropReason, Inbound};

    fn tunnel() -> Tunnel {
        let config = TunnelConfig { mtu: 1420, staging_bytes: 1 << 20 };
        let cookies = CookieRoot::generate(Instant::now());
        Tunnel::of_shard(PrivateKey::generate().unwrap(), config, Shard::new(1, 3), &cookies)
    }

    fn key() -> PublicKey {
        PrivateKey::generate().unwrap().public_key()
    }

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn endpoint(host: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, host], 51820))
    }

    fn foreign(peer: PublicKey, shard: u16, host: u8, prefixes: &[&str]) -> Change {
        Change::AddForeignPeer { peer, shard, endpoint: Some(endpoint(host)), allowed_ips: nets(prefixes) }
    }

    fn own(public_key: PublicKey, host: u8, prefixes: &[&str]) -> Change {
        let settings = PeerSettings::default();
        let endpoint = Some(endpoint(host));
        Change::AddPeer(Box::new(PeerConfig { public_key, endpoint, allowed_ips: nets(prefixes), settings }))
    }

    /// The owner of 10.0.0.`host`: `Ok` with the shard of a foreign peer, `Err` with its own peer, if any.
    fn owner(tunnel: &mut Tunnel, host: u8) -> Result<u16, Option<PublicKey>> {
        let id = tunnel.allowed_ips.peer_of([10, 0, 0, host].into());
        let shard = id.and_then(|id| tunnel.foreign.shard_of(id));
        shard.ok_or_else(|| id.and_then(|id| tunnel.peer_key(id)))
    }

    fn is_known(tunnel: &Tunnel, host: u8) -> bool {
        tunnel.endpoints.has_address([192, 0, 2, host].into())
    }

    #[test]
    fn a_foreign_peer_takes_24_bytes() {
        assert_eq!(size_of::<Option<ForeignPeer>>(), 24);
    }

    #[test]
    fn a_peer_moves_with_the_prefixes_that_it_is_given_and_no_others() {
        let (mut tunnel, a, b, now) = (tunnel(), key(), key(), Instant::now());
        assert!(tunnel.apply(foreign(a, 0, 1, &["10.0.0.1/32", "10.0.0.2/32"]), now));
        assert!(tunnel.apply(own(b, 2, &["10.0.0.3/32"]), now));
        assert_eq!([1, 2, 3].map(|host| owner(&mut tunnel, host)), [Ok(0), Ok(0), Err(Some(b))]);
        assert!(!tunnel.apply(own(b, 2, &[]), now), "it is there already");

        // To another shard, and then to this one.
        assert!(tunnel.apply(foreign(a, 2, 3, &["10.0.0.2/32", "10.0.0.2/32", "10.0.0.3/32"]), now));
        assert_eq!([1, 2, 3].map(|host| owner(&mut tunnel, host)), [Err(None), Ok(2), Ok(2)]);
        assert_eq!([1, 2, 3].map(|host| is_known(&tunnel, host)), [false, true, true]);
        assert!(tunnel.apply(own(a, 4, &["10.0.0.1/32"]), now));
        assert_eq!([1, 2, 3].map(|host| owner(&mut tunnel, host)), [Err(Some(a)), Err(None), Err(None)]);
        assert_eq!([3, 4].map(|host| is_known(&tunnel, host)), [false, true]);
        assert_eq!((tunnel.by_key.len(), tunnel.peers().count()), (2, 2));

        assert!(tunnel.apply(foreign(a, 0, 5, &["10.0.0.1/32"]), now));
        assert_eq!((tunnel.by_key.len(), tunnel.peers().count()), (2, 1));
        assert_eq!([4, 5].map(|host| is_known(&tunnel, host)), [false, true]);
        assert!(tunnel.apply(Change::RemovePeer(a), now) && !tunnel.apply(Change::RemovePeer(a), now));
        assert_eq!((owner(&mut tunnel, 1), is_known(&tunnel, 5)), (Err(None), false));
        // The place is another peer's next.
        let c = key();
        assert!(tunnel.apply(own(c, 6, &["10.0.0.7/32"]), now));
        assert_eq!((owner(&mut tunnel, 7), tunnel.peers.len()), (Err(Some(c)), 2));
    }

    #[test]
    fn a_foreign_peer_belongs_to_another_shard_of_the_interface() {
        let (mut tunnel, peer, now) = (tunnel(), key(), Instant::now());
        for shard in [1, 3] {
            assert!(!tunnel.apply(foreign(peer, shard, 1, &["10.0.0.1/32"]), now));
        }
        assert!(tunnel.by_key.is_empty() && !is_known(&tunnel, 1));
    }

    #[test]
    fn changes_of_a_foreign_peer_that_are_for_its_owner_have_no_effect() {
        let (mut tunnel, peer, now) = (tunnel(), key(), Instant::now());
        assert!(tunnel.apply(foreign(peer, 2, 1, &["10.0.0.1/32"]), now));
        for change in [
            Change::PersistentKeepalive { peer, interval: std::num::NonZeroU16::new(1) },
            Change::Limits { peer, limits: PeerLimits::default() },
            Change::PresharedKey { peer, key: None },
            Change::EndSession(peer),
            Change::PathChanged(peer),
            Change::Resumed { peer, slept: std::time::Duration::from_secs(1000) },
            Change::Restore { peer, remembered: Remembered { has_session: true, ..Remembered::default() } },
        ] {
            let text = format!("{change:?}");
            assert!(!tunnel.apply(change, now), "{text}");
        }
        assert_eq!(tunnel.poll_timeout(), None);
        assert!(tunnel.apply(Change::Endpoint { peer, endpoint: endpoint(9) }, now));
        assert_eq!([1, 9].map(|host| is_known(&tunnel, host)), [false, true]);
    }

    #[test]
    fn a_message_for_another_shard_costs_nothing_of_the_budget_and_is_not_dropped() {
        let (mut tunnel, now) = (tunnel(), Instant::now());
        let (mut plain, mut control) = (PlainSlab::new(1 << 16), ControlQueue::new(4));
        tunnel.gate.budget.grow(now);
        let before = format!("{:?}", tunnel.gate.budget);
        for (kind, at, len) in [(2, 8, 92), (3, 4, 64), (4, 4, 100)] {
            let mut datagram = vec![0; len];
            datagram[0] = kind;
            for (last, inbound) in [(3, Ok(Inbound::Elsewhere(0))), (5, Ok(Inbound::Elsewhere(2)))] {
                datagram[at + 3] = last;
                let meta = RecvMeta { source: endpoint(1), local: None, ecn: Ecn::NotEct, len, stride: len };
                let result = tunnel.handle_datagram(&meta, &mut datagram, now, &mut plain, &mut control);
                assert_eq!(result, inbound);
                assert_eq!(tunnel.drops().total(), 0);
            }
        }
        assert_eq!(format!("{:?}", tunnel.gate.budget), before);
        let mut own = [4, 0, 0, 0, 0, 0, 0, 4].repeat(8);
        let meta = RecvMeta { source: endpoint(1), local: None, ecn: Ecn::NotEct, len: 64, stride: 64 };
        let result = tunnel.handle_datagram(&meta, &mut own, now, &mut plain, &mut control);
        assert_eq!(result, Err(DropReason::UnknownReceiverIndex));
    }
}
