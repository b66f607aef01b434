//! Where packets are sent: what no peer has is refused at once, as the kernel does.

use std::io;
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};

use ipnet::IpNet;

/// The prefixes that the peers of the tunnel have.
#[derive(Default)]
pub(crate) struct Routes(RwLock<Vec<IpNet>>);

impl Routes {
    pub(crate) fn set(&self, routes: Vec<IpNet>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = routes;
    }

    /// Fails where no route leads.
    pub(crate) fn check(&self, to: IpAddr) -> io::Result<()> {
        let routes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let is_routed = routes.iter().any(|route| route.contains(&to));
        if is_routed { Ok(()) } else { Err(io::ErrorKind::NetworkUnreachable.into()) }
    }
}
