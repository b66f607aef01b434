//! Keeps the tunnel's own packets out of a default route on systems whose routing does not look at marks
//! (macOS, FreeBSD, Windows): the default route is two halves, which are more specific than the system's, and
//! each endpoint has a host route along the way that it had without the tunnel.
//!
//! Decides only: `plan.rs` makes steps of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::iter::successors;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// How the system keeps the tunnel's own packets out of a default route into the tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// Rules of policy routing by mark, and a separate table.
    #[default]
    Rules,
    /// Two halves of the default route, and host routes to the endpoints. Has the routes of the main table;
    /// among those to one prefix the last is the one in use.
    Halves(Vec<FoundRoute>),
}

impl Routing {
    /// Returns how this system does it, without its routes.
    pub fn here() -> Self {
        if cfg!(any(target_os = "macos", target_os = "freebsd", windows)) {
            Self::Halves(Vec::new())
        } else {
            Self::Rules
        }
    }
}

/// A route as found in the system, whichever program added it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FoundRoute {
    pub prefix: IpNet,
    /// Where its packets go.
    pub via: Via,
    /// Whether its interface is connected. Windows keeps the routes of one that is not.
    pub is_up: bool,
}

impl FoundRoute {
    /// Reports whether it is the host route of an endpoint.
    pub(crate) fn is_host_route(&self, address: IpAddr, via: &Via) -> bool {
        self.prefix == IpNet::from(address) && self.via == *via
    }
}

/// Where the packets of a route go.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// To a gateway on an interface.
    Gateway {
        address: IpAddr,
        /// The name of the interface.
        interface: String,
    },
    /// To an interface: its network contains the destination.
    Interface(String),
    /// Nowhere.
    Blackhole,
}

impl Via {
    /// Returns the name of the interface, if the packets leave at all.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Gateway { interface, .. } | Self::Interface(interface) => Some(interface),
            Self::Blackhole => None,
        }
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gateway { address, interface } => write!(f, "via {address} dev {interface}"),
            Self::Interface(interface) => write!(f, "dev {interface}"),
            Self::Blackhole => f.write_str("to nowhere"),
        }
    }
}

/// Returns the index of the link that an address is one of: a link-local address has a zone, which decides
/// where its packets go, and not a route.
pub(crate) fn link_of(address: SocketAddr) -> Option<u32> {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
            Some(v6.scope_id()).filter(|link| *link != 0)
        }
        _ => None,
    }
}

/// Returns the two halves of a default route; any other prefix as it is.
pub(crate) fn halves(prefix: IpNet) -> Vec<IpNet> {
    if prefix.prefix_len() > 0 {
        return vec![prefix];
    }
    prefix.subnets(1).map_or_else(|_| vec![prefix], Iterator::collect)
}

/// Returns the host routes that keep packets to these endpoints out of the tunnel, to which `tunnel` is
/// routed. An endpoint that a more specific route leads past the tunnel already needs none, nor does one of a
/// link. Without another route the packets go nowhere: in the tunnel they would be encrypted again.
pub(crate) fn endpoint_routes(
    device: &str,
    tunnel: impl IntoIterator<Item = IpNet>,
    endpoints: impl IntoIterator<Item = SocketAddr>,
    found: &[FoundRoute],
) -> BTreeMap<IpAddr, Via> {
    let tunnel: HashSet<IpNet> = tunnel.into_iter().collect();
    let past: HashMap<IpNet, &Via> = found
        .iter()
        .filter(|route| route.is_up && route.via.interface() != Some(device))
        .map(|route| (route.prefix, &route.via))
        .collect();
    let mut routes = BTreeMap::new();
    for endpoint in endpoints.into_iter().filter(|endpoint| link_of(*endpoint).is_none()) {
        let host = IpNet::from(endpoint.ip());
        let containing = || successors(Some(host), IpNet::supernet);
        let Some(covering) = containing().find(|prefix| tunnel.contains(prefix)) else { continue };
        // Both routes cannot exist; the configuration says that the endpoint is in the tunnel.
        if covering == host {
            continue;
        }
        let best = containing().find_map(|prefix| Some((prefix, *past.get(&prefix)?)));
        match best {
            Some((prefix, _)) if prefix.prefix_len() > covering.prefix_len() => {}
            Some((_, via)) => drop(routes.insert(endpoint.ip(), via.clone())),
            None => drop(routes.insert(endpoint.ip(), Via::Blackhole)),
        }
    }
    routes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(prefix: &str, via: Via) -> FoundRoute {
        FoundRoute { prefix: prefix.parse().unwrap(), via, is_up: true }
    }

    fn gateway(address: &str) -> Via {
        Via::Gateway { address: address.parse().unwrap(), interface: "en0".to_owned() }
    }

    fn routes(tunnel: &[&str], endpoint: &str, found: &[FoundRoute]) -> Option<Via> {
        let tunnel = tunnel.iter().map(|prefix| prefix.parse().unwrap());
        let endpoint: SocketAddr = endpoint.parse().unwrap();
        endpoint_routes("utun7", tunnel, [endpoint], found).remove(&endpoint.ip())
    }

    #[test]
    fn a_default_route_has_two_halves_in_either_family() {
        let of = |prefix: &str| -> Vec<String> {
            halves(prefix.parse().unwrap()).iter().map(IpNet::to_string).collect()
        };
        assert_eq!(of("0.0.0.0/0"), ["0.0.0.0/1", "128.0.0.0/1"]);
        assert_eq!(of("::/0"), ["::/1", "8000::/1"]);
        assert_eq!(of("10.0.0.0/8"), ["10.0.0.0/8"]);
    }

    #[test]
    fn an_endpoint_in_the_tunnel_keeps_the_way_that_it_had() {
        let system = [
            found("0.0.0.0/0", gateway("192.168.1.1")),
            found("192.168.1.0/24", Via::Interface("en0".to_owned())),
            found("198.51.100.0/24", gateway("192.168.1.9")),
            found("0.0.0.0/1", Via::Interface("utun7".to_owned())),
        ];
        let halves = ["0.0.0.0/1", "128.0.0.0/1"];
        assert_eq!(routes(&halves, "192.0.2.1:1", &system), Some(gateway("192.168.1.1")));
        assert_eq!(routes(&halves, "192.168.1.7:1", &system), None, "its network is more specific");
        assert_eq!(routes(&["198.51.0.0/16"], "198.51.100.1:1", &system), None);
        assert_eq!(routes(&["198.51.100.0/25"], "198.51.100.1:1", &system), Some(gateway("192.168.1.9")));
        assert_eq!(routes(&["10.0.0.0/8"], "192.0.2.1:1", &system), None, "it is not in the tunnel");
        assert_eq!(routes(&["192.0.2.1/32"], "192.0.2.1:1", &system), None);
    }

    #[test]
    fn of_several_ways_the_preferred_one_counts_unless_its_interface_is_disconnected() {
        let unused = found("0.0.0.0/0", gateway("192.168.1.1"));
        let preferred = found("0.0.0.0/0", gateway("172.16.0.1"));
        let way = |found: &[FoundRoute]| routes(&["0.0.0.0/1"], "1.2.3.4:1", found);
        assert_eq!(way(&[unused.clone(), preferred.clone()]), Some(gateway("172.16.0.1")));
        let disconnected = FoundRoute { is_up: false, ..preferred };
        assert_eq!(way(&[unused, disconnected.clone()]), Some(gateway("192.168.1.1")));
        assert_eq!(way(&[disconnected]), Some(Via::Blackhole));
    }

    #[test]
    fn without_a_way_an_endpoint_goes_nowhere_rather_than_into_the_tunnel() {
        let own = [found("::/1", Via::Interface("utun7".to_owned()))];
        let to = |endpoint: &str| routes(&["::/1", "8000::/1"], endpoint, &own);
        assert_eq!(to("[2001:db8::1]:1"), Some(Via::Blackhole));
        assert_eq!(to("[fe80::1%4]:1"), None, "its zone is its way");
    }
}
