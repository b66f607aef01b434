//! The names of peers, which are looked up again.

use std::collections::HashSet;
use std::net::SocketAddr;

use weft_config::{Endpoint, Peer};
use weft_host::resolve::{LookUp, Resolver, Tunnel, Watched};
use weft_tunnel::{Event, PublicKey};

use crate::up::look_up::InVain;
use crate::up::message::{Inbox, Message};

/// Looks names up on threads, past the tunnel.
pub(super) struct Names {
    resolver: Resolver,
    look_up: LookUp,
}

impl Names {
    pub(super) fn new(inbox: &Inbox) -> Self {
        let (resolved, look_up) = (inbox.clone(), LookUp::by_system());
        let on_change = move |peer, address| drop(resolved.send(Message::Resolved(peer, address)));
        Self { resolver: Resolver::by(look_up.clone(), on_change), look_up }
    }

    /// Watches the names of a tunnel's peers with their current addresses. A name that was not found is
    /// looked up until it resolves, whatever the peer's current address.
    pub(super) fn watch(
        &self,
        peers: &[Peer],
        tunnel: Option<Tunnel>,
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
        let watched: Vec<Watched> = watched.collect();
        self.look_up.lead_past(tunnel.filter(|_| !watched.is_empty()));
        self.resolver.set_peers(watched);
    }

    /// Looks names up again because the ways to the peers may have changed.
    pub(super) fn network_changed(&self) {
        self.resolver.network_changed();
    }

    /// Follows what happened to a peer: a peer that does not answer may have another address.
    pub(super) fn happened(&self, event: Event) {
        match event {
            Event::HandshakeComplete { peer } => self.resolver.handshake(peer),
            Event::HandshakeUnanswered { peer, initiations } => self.resolver.unanswered(peer, initiations),
            Event::HandshakeFailed { peer } => self.resolver.stale(peer),
            Event::EndpointChanged { peer, endpoint } => self.resolver.moved(peer, endpoint),
        }
    }
}
