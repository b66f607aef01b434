//! Which network carries a connection, and how it is opened: the tunnel for what its AllowedIPs contain; the
//! rest is refused, or goes by the host's own network.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use ipnet::IpNet;
use weft_ipc::Source;
use weft_network::{CONNECT_TIMEOUT, Connection, LookUpError, Network, connect_first};

use crate::destination::{Destination, Host};
use crate::machine::{Machine, Near};

/// The networks that destinations are reached by.
#[derive(Clone)]
pub struct Reach {
    tunnel: Arc<dyn Network>,
    allowed: Arc<RwLock<Vec<Vec<IpNet>>>>,
    elsewhere: Option<Elsewhere>,
}

/// The host's own network, for destinations outside the tunnel. It does not lead to the machine itself, nor
/// to what this machine alone is next to.
#[derive(Clone)]
pub struct Elsewhere {
    network: Arc<dyn Network>,
    machine: Arc<Machine>,
}

impl Elsewhere {
    /// Reaches destinations by the network of this machine, those in `allowed` also if they are of the
    /// machine or near it. Addresses of the loopback are always refused.
    pub fn new(network: Arc<dyn Network>, allowed: Vec<IpNet>) -> Self {
        Self { network, machine: Arc::new(Machine::new(allowed)) }
    }
}

impl std::fmt::Debug for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reach").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

/// Why a destination is not reached.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// The name has no address.
    #[error(transparent)]
    Name(#[from] LookUpError),
    /// No peer of the tunnel has the address.
    #[error("{0} is in the AllowedIPs of no peer (and --elsewhere is refuse)")]
    Outside(IpAddr),
    /// An address of this machine, which no proxy gives access to.
    #[error("{0} is an address of this machine itself")]
    Own(IpAddr),
    /// An address of this machine or near it, which the host's network is not used for.
    #[error("{0} {1} (--elsewhere-allow {0} lets clients reach it)")]
    Near(IpAddr, Near),
    /// The destination did not accept the connection in time.
    #[error("{0} did not answer within {secs} s", secs = CONNECT_TIMEOUT.as_secs())]
    Silent(Destination),
    /// The connection failed.
    #[error("cannot connect to {0}: {1}")]
    Connect(Destination, #[source] io::Error),
}

impl Reach {
    /// Reaches the addresses in `allowed`, the networks of each peer, by the tunnel, and others by
    /// `elsewhere`, if there is one.
    pub fn new(tunnel: Arc<dyn Network>, allowed: Vec<Vec<IpNet>>, elsewhere: Option<Elsewhere>) -> Self {
        Self { tunnel, allowed: Arc::new(RwLock::new(allowed)), elsewhere }
    }

    /// Reaches the addresses in `allowed` by the tunnel from now on, also for clones of this.
    pub fn allow(&self, allowed: Vec<Vec<IpNet>>) {
        *self.allowed.write().unwrap_or_else(PoisonError::into_inner) = allowed;
    }

    /// Returns the source of a client that is in the tunnel, at the peer with the longest prefix that has its
    /// address.
    pub(crate) fn source(&self, address: IpAddr) -> Source {
        let address = address.to_canonical();
        let allowed = self.allowed.read().unwrap_or_else(PoisonError::into_inner);
        let of = allowed.iter().flat_map(|peer| peer.iter().map(move |prefix| (prefix, &peer[0])));
        let of = of.filter(|(prefix, _)| prefix.contains(&address));
        of.max_by_key(|(prefix, _)| prefix.prefix_len()).map_or(address.into(), |(_, first)| Source::Tunnel {
            peer: (first.network(), first.prefix_len()),
            address,
        })
    }

    /// Returns the tunnel.
    pub fn tunnel(&self) -> &Arc<dyn Network> {
        &self.tunnel
    }

    /// Returns the network for an address.
    ///
    /// # Errors
    /// [`ReachError::Outside`], [`ReachError::Own`] and [`ReachError::Near`].
    pub fn network_for(&self, address: IpAddr) -> Result<&Arc<dyn Network>, ReachError> {
        let address = address.to_canonical();
        // Also if the AllowedIPs are everything.
        if address.is_loopback() || address.is_unspecified() {
            return Err(ReachError::Own(address));
        }
        if self
            .allowed
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .flatten()
            .any(|prefix| prefix.contains(&address))
        {
            return Ok(&self.tunnel);
        }
        let Some(elsewhere) = &self.elsewhere else { return Err(ReachError::Outside(address)) };
        match elsewhere.machine.is_near(address) {
            Some(near) => Err(ReachError::Near(address, near)),
            None => Ok(&elsewhere.network),
        }
    }

    /// Returns the addresses of a destination in the order in which to try them, each with its network; at
    /// least one. A name is looked up through the tunnel, wherever its addresses are. If some of them are in
    /// the tunnel, the others are left out.
    ///
    /// # Errors
    /// When the name has no address, and when no network has one of the addresses.
    pub async fn routes(&self, to: &Destination) -> Result<Vec<(SocketAddr, Arc<dyn Network>)>, ReachError> {
        let addresses = match &to.host {
            Host::Address(address) => vec![*address],
            // The kernel connects to an IPv4 address that is mapped into IPv6, also to one of this machine.
            Host::Name(name) => {
                let addresses = self.tunnel.look_up(name).await?.into_iter();
                addresses.map(|address| address.to_canonical()).collect()
            }
        };
        if let Some(elsewhere) = &self.elsewhere {
            elsewhere.machine.look_again();
        }
        let mut refused = None;
        let (mut inside, mut outside) = (Vec::new(), Vec::new());
        for address in addresses {
            match self.network_for(address) {
                Ok(network) => {
                    let is_inside = Arc::ptr_eq(network, &self.tunnel);
                    let routes = if is_inside { &mut inside } else { &mut outside };
                    routes.push((SocketAddr::new(address, to.port), Arc::clone(network)));
                }
                Err(error) => refused = Some(error),
            }
        }
        let routes = if inside.is_empty() { outside } else { inside };
        match refused {
            Some(refused) if routes.is_empty() => Err(refused),
            _ => Ok(routes),
        }
    }

    /// Opens a connection to the first address of the destination that accepts it.
    ///
    /// # Errors
    /// Those of [`ReachError`].
    pub async fn connect(&self, to: &Destination) -> Result<Box<dyn Connection>, ReachError> {
        connect_first(self.routes(to).await?).await.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => ReachError::Silent(to.clone()),
            _ => ReachError::Connect(to.clone(), error),
        })
    }
}

#[cfg(test)]
#[path = "reach/tests.rs"]
mod tests;
