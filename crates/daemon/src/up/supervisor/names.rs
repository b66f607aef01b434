//! The names of peers, which are looked up again.

use std::collections::HashSet;
use std::net::SocketAddr;

use weft_config::{Endpoint, Peer};
use weft_host::resolve::{Resolver, Watched};
use weft_tunnel::{Event, PublicKey};

use super::message::{Inbox, Message};
use crate::up::look_up::InVain;

/// Looks names up on threads.
pub(super) struct Names(Resolver);

impl Names {
    pub(super) fn new(inbox: &Inbox) -> Self {
        let resolved = inbox.clone();
        Self(Resolver::new(move |peer, address| drop(resolved.send(Message::Resolved(peer, address)))))
    }

    /// Watches the names of peers with their current addresses. A name that was not found is looked up
    /// until it resolves, whatever the peer's current address.
    pub(super) fn watch(
        &self,
        peers: &[Peer],
        in_vain: &[InVain],
        current: impl Fn(usize, &PublicKey) -> Option<SocketAddr>,
    ) {
        let in_vain: HashSet<PublicKey> = in_vain.iter().map(|name| name.peer).collect();
        let current =
            |place, peer: &PublicKey| if in_vain.contains(peer) { None } else { current(place, peer) };
        let watched = peers.iter().enumerate().filter_map(|(place, peer)| {
            let endpoint =
                peer.endpoint.clone().filter(|endpoint| matches!(endpoint, Endpoint::Name { .. }))?;
            Some(Watched { peer: peer.public_key, endpoint, current: current(place, &peer.public_key) })
        });
        self.0.set_peers(watched.collect());
    }

    /// Looks names up again because the ways to the peers may have changed.
    pub(super) fn network_changed(&self) {
        self.0.network_changed();
    }

    /// Follows what happened to a peer: a peer that does not answer may have another address.
    pub(super) fn happened(&self, event: Event) {
        match event {
            Event::HandshakeComplete { peer } => self.0.handshake(peer),
            Event::HandshakeUnanswered { peer, initiations } => self.0.unanswered(peer, initiations),
            Event::HandshakeFailed { peer } => self.0.stale(peer),
            Event::EndpointChanged { peer, endpoint } => self.0.moved(peer, endpoint),
        }
    }
}
