//! The names of peers, which are looked up again.

use std::collections::HashSet;
use std::net::SocketAddr;

use weft_config::{Endpoint, Peer};
use weft_host::resolve::{Resolver, Watched};
use weft_tunnel::{Event, PublicKey};

use super::message::{Inbox, Message};
use crate::up::look_up::InVain;

/// The thread that looks names up; `None` if it could not be started.
pub(super) struct Names(Option<Resolver>);

impl Names {
    pub(super) fn start(inbox: &Inbox) -> Self {
        let resolved = inbox.clone();
        match Resolver::start(move |peer, address| drop(resolved.send(Message::Resolved(peer, address)))) {
            Ok(resolver) => Self(Some(resolver)),
            Err(error) => {
                tracing::warn!("cannot start a thread for names: {error}; they are not looked up again");
                Self(None)
            }
        }
    }

    /// Watches the names of peers with their current addresses. A name that was not found is looked up
    /// until it resolves, whatever the peer's current address.
    pub(super) fn watch(
        &self,
        peers: &[Peer],
        in_vain: &[InVain],
        current: impl Fn(usize, &PublicKey) -> Option<SocketAddr>,
    ) {
        let Some(resolver) = &self.0 else { return };
        let in_vain: HashSet<PublicKey> = in_vain.iter().map(|name| name.peer).collect();
        let current =
            |place, peer: &PublicKey| if in_vain.contains(peer) { None } else { current(place, peer) };
        let watched = peers.iter().enumerate().filter_map(|(place, peer)| {
            let endpoint =
                peer.endpoint.clone().filter(|endpoint| matches!(endpoint, Endpoint::Name { .. }))?;
            Some(Watched { peer: peer.public_key, endpoint, current: current(place, &peer.public_key) })
        });
        resolver.handle().set_peers(watched.collect());
    }

    /// Looks names up again because the ways to the peers may have changed.
    pub(super) fn network_changed(&self) {
        if let Some(resolver) = &self.0 {
            resolver.handle().network_changed();
        }
    }

    /// Follows what happened to a peer: a peer that does not answer may have another address.
    pub(super) fn happened(&self, event: Event) {
        let Some(resolver) = &self.0 else { return };
        match event {
            Event::HandshakeComplete { peer } => resolver.handle().handshake(peer),
            Event::HandshakeUnanswered { peer, initiations } => {
                resolver.handle().unanswered(peer, initiations);
            }
            Event::HandshakeFailed { peer } => resolver.handle().stale(peer),
            Event::EndpointChanged { peer, endpoint } => resolver.handle().moved(peer, endpoint),
        }
    }
}
