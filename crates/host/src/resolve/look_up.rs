//! Looks up the addresses of an endpoint's name: by the system, or past the tunnel that the look-up is for.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, PoisonError};

use weft_config::endpoint::missing_scope;
use weft_config::{Endpoint, mapped};

use super::outside::Outside;
use super::tunnel::Tunnel;
use super::{ResolveError, no_address};

/// Looks names up. Clones know of the same tunnel.
#[derive(Clone, Debug, Default)]
pub struct LookUp {
    past: Arc<Mutex<Option<Past>>>,
}

/// The way past a tunnel.
#[derive(Clone, Debug)]
struct Past {
    tunnel: Tunnel,
    outside: Arc<Outside>,
}

impl LookUp {
    /// Looks names up by the system alone until [`Self::lead_past`] is called.
    pub fn by_system() -> Self {
        Self::default()
    }

    /// Looks names up past a tunnel, if there is one.
    pub fn past(tunnel: Option<Tunnel>) -> Self {
        let this = Self::default();
        this.lead_past(tunnel);
        this
    }

    /// Has look-ups lead past this tunnel from now on. To be called on a thread that may set marks, in the
    /// namespace of the look-ups.
    pub fn lead_past(&self, tunnel: Option<Tunnel>) {
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(tunnel) = tunnel else { return *past = None };
        let outside = match past.take() {
            Some(past) => Ok(past.outside),
            None => Outside::start().map(Arc::new),
        };
        *past = match outside {
            Ok(outside) => Some(Past { tunnel, outside }),
            // Other systems: names are looked up as the system does it.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => None,
            Err(error) => {
                tracing::warn!("names of endpoints are looked up through the tunnel: {error}");
                None
            }
        };
    }

    /// Returns all addresses of a name, the preferred ones first, without duplicates; at least one.
    ///
    /// # Errors
    /// The name has no address, or no name server answers.
    pub fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        // The system reads the zone of an address; no name server knows it.
        if host.contains('%') {
            return by_system(host, port);
        }
        let past = self.past.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(Past { tunnel, outside }) = past else { return by_system(host, port) };
        let Some(query) = outside.prepare(&tunnel, host) else { return by_system(host, port) };
        let system = || by_system(host, port);
        let outside = || match query.addresses() {
            Ok(found) => {
                Ok(found.into_iter().map(|address| mapped::endpoint((address, port).into())).collect())
            }
            Err(error) => Err(io::Error::new(error.kind(), format!("past the tunnel: {error}"))),
        };
        // Multicast DNS (RFC 6762) asks on the link, and needs no mark.
        if is_multicast(host) { in_turn(system, outside) } else { in_turn(outside, system) }
    }

    pub(super) fn first(&self, host: &str, port: u16) -> io::Result<SocketAddr> {
        self.addresses(host, port)?.first().copied().ok_or_else(no_address)
    }

    /// Returns the preferred address of an endpoint, with one attempt.
    ///
    /// # Errors
    /// Those of [`Self::addresses`].
    pub fn endpoint(&self, endpoint: &Endpoint) -> Result<SocketAddr, ResolveError> {
        match endpoint {
            Endpoint::Address(address) => Ok(*address),
            Endpoint::Name { host, port } => self
                .first(host, *port)
                .map_err(|error| ResolveError::Failed { endpoint: endpoint.clone(), error }),
        }
    }
}

type Found = io::Result<Vec<SocketAddr>>;

/// Tries one way, and another if it fails.
fn in_turn(first: impl FnOnce() -> Found, second: impl FnOnce() -> Found) -> Found {
    first().or_else(|failed| {
        tracing::debug!("{failed}; trying another way");
        second().map_err(|error| io::Error::new(error.kind(), format!("{failed}; {error}")))
    })
}

fn is_multicast(host: &str) -> bool {
    host.trim_end_matches('.').rsplit('.').next().is_some_and(|last| last.eq_ignore_ascii_case("local"))
}

/// Returns all addresses in the system's order (RFC 6724).
fn by_system(host: &str, port: u16) -> Found {
    if let Some(interface) = missing_scope(host) {
        let error = format!("there is no interface {interface}");
        return Err(io::Error::new(io::ErrorKind::NotFound, error));
    }
    let mut addresses = Vec::new();
    for address in (host, port).to_socket_addrs()?.map(mapped::endpoint) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() { Err(no_address()) } else { Ok(addresses) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> Vec<SocketAddr> {
        vec![([192, 0, 2, last], 7).into()]
    }

    #[test]
    fn the_second_way_is_taken_if_the_first_fails_and_both_are_told() {
        assert_eq!(in_turn(|| Ok(at(1)), || panic!("the first one answers")).unwrap(), at(1));
        let failed = |text: &'static str| move || Err(io::Error::other(text));
        assert_eq!(in_turn(failed("none"), || Ok(at(2))).unwrap(), at(2));
        assert_eq!(in_turn(failed("one"), failed("two")).unwrap_err().to_string(), "one; two");
    }

    #[test]
    fn names_of_the_link_are_told_from_others() {
        for (name, expected) in
            [("gw.local", true), ("gw.LOCAL.", true), ("local.example", false), ("gw", false)]
        {
            assert_eq!(is_multicast(name), expected, "{name}");
        }
    }
}
