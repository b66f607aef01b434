//! The keys and addresses of the gateway and of all its peers.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::Result;
use weft_tunnel::PrivateKey;

use crate::site::{self, PeerSection, nth};

/// The gateway's endpoint on the link, and the link's network (RFC 2544: for benchmarks).
pub(super) const GATEWAY_LINK: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 18, 0, 1), 51_820);
pub(super) const LINK_PREFIX: u8 = 15;
/// Number of addresses that the clients share on their side of the link.
pub(super) const SOURCES: u32 = 250;
const FIRST_SOURCE: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
const FIRST_INNER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 0);

/// The gateway's key and its peers. The first ones have a client.
pub(super) struct Roster {
    pub(super) gateway: PrivateKey,
    pub(super) active: Vec<PrivateKey>,
    /// How many have none.
    silent: usize,
}

impl Roster {
    /// Generates keys for `configured` peers, of which the first `active` have a client.
    pub(super) fn new(configured: usize, active: usize) -> Result<Self> {
        let silent = configured.saturating_sub(active);
        Ok(Self { gateway: site::key()?, active: site::keys(active)?, silent })
    }

    /// Returns the gateway's configuration, with more lines in the first section.
    pub(super) fn config(&self, interface_lines: &str) -> String {
        let count = self.active.len();
        let active = self.active.iter().enumerate();
        let active = active.map(|(number, key)| PeerSection::new(key.public_key(), inner(number), None));
        let silent = (count..count + self.silent)
            .map(|number| PeerSection::silent(number as u32, inner(number), None));
        site::config(&self.gateway, Some(GATEWAY_LINK.port()), interface_lines, active.chain(silent))
    }
}

/// Returns the address of a peer in the tunnel.
pub(crate) fn inner(peer: usize) -> Ipv4Addr {
    nth(FIRST_INNER, peer)
}

/// Returns a peer's source address on the link.
pub(super) fn source(peer: usize) -> Ipv4Addr {
    nth(FIRST_SOURCE, peer % SOURCES as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_has_a_section_and_an_address_of_its_own() {
        let roster = Roster::new(300, 2).unwrap();
        let text = roster.config("MTU = 1420\n");
        assert_eq!(text.matches("[Peer]").count(), 300);
        assert!(
            text.contains(&format!(
                "PublicKey = {}\nAllowedIPs = 10.1.0.1/32",
                roster.active[1].public_key()
            ))
        );
        assert!(text.contains("AllowedIPs = 10.1.1.43/32"));
        assert_eq!((source(0), source(250)), (source(250), Ipv4Addr::new(198, 18, 1, 1)));
        assert_eq!(source(249), Ipv4Addr::new(198, 18, 1, 250));
    }
}
