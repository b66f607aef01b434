//! What keeps an interface from being brought up on this machine, as far as that is known before: routes of
//! others that are in the way, and endpoints on interfaces that do not exist.

use std::net::SocketAddr;

use weft_config::endpoint::missing_scope;
use weft_config::{Config, Endpoint, HookPhase};

use crate::misrouted;

/// What keeps an interface from being brought up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// A route cannot be added: the error that a start gives.
    Route { error: String },
    /// An endpoint is on an interface that does not exist.
    Scope { endpoint: Endpoint, interface: String },
}

/// Returns what keeps this configuration from being brought up now. A device of its name does not count.
/// Nothing is known where commands of PreUp may change it.
pub fn obstacles(config: &Config) -> Vec<Obstacle> {
    if config.interface.host.hooks_of(HookPhase::PreUp).next().is_some() {
        return Vec::new();
    }
    let endpoints: Vec<SocketAddr> = config.endpoint_addresses().into_iter().flatten().collect();
    let scopes = config.peers.iter().filter_map(|peer| {
        let endpoint = peer.endpoint.as_ref()?;
        let Endpoint::Name { host, .. } = endpoint else { return None };
        let interface = missing_scope(host)?.to_owned();
        Some(Obstacle::Scope { endpoint: endpoint.clone(), interface })
    });
    let routes = misrouted::in_the_way(config, &endpoints).into_iter();
    scopes.chain(routes.map(|error| Obstacle::Route { error: error.to_string() })).collect()
}
