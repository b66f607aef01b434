//! The keys and addresses of the gateway and of all its peers.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Result, anyhow};
use weft_tunnel::{PrivateKey, PublicKey};

/// The gateway's address in the tunnels, and the prefix length of their network.
pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const INNER_PREFIX: u8 = 8;
/// The gateway's endpoint on the link, and the link's network (RFC 2544: for benchmarks).
pub(super) const GATEWAY_LINK: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 18, 0, 1), 51_820);
pub(super) const LINK_PREFIX: u8 = 15;
/// Number of addresses that the clients share on their side of the link.
pub(super) const SOURCES: u32 = 250;
const FIRST_SOURCE: u32 = u32::from_be_bytes([198, 18, 1, 1]);
const FIRST_INNER: u32 = u32::from_be_bytes([10, 1, 0, 0]);

/// The gateway's key and its peers. The first ones have a client.
pub(super) struct Roster {
    pub(super) gateway: PrivateKey,
    pub(super) active: Vec<PrivateKey>,
    silent: Vec<PublicKey>,
}

impl Roster {
    /// Generates keys for `configured` peers, of which the first `active` have a client.
    pub(super) fn new(configured: usize, active: usize) -> Result<Self> {
        let key = || PrivateKey::generate().map_err(|error| anyhow!("cannot make a key: {error}"));
        let active = (0..active).map(|_| key()).collect::<Result<Vec<_>>>()?;
        // No client needs the other private keys: any 32 bytes are a public key.
        let silent = (active.len()..configured).map(|_| Ok(PublicKey::from_bytes(*key()?.as_bytes())));
        let silent = silent.collect::<Result<Vec<_>>>()?;
        Ok(Self { gateway: key()?, active, silent })
    }

    /// Returns the gateway's configuration, with more lines in the first section.
    pub(super) fn config(&self, interface_lines: &str) -> String {
        let mut text = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = {}\n{interface_lines}",
            *self.gateway.to_base64(),
            GATEWAY_LINK.port()
        );
        let active = self.active.iter().map(PrivateKey::public_key);
        for (number, key) in active.chain(self.silent.iter().copied()).enumerate() {
            // Writing to a String cannot fail.
            let _ = write!(text, "[Peer]\nPublicKey = {key}\nAllowedIPs = {}/32\n", inner(number));
        }
        text
    }
}

/// Returns the address of a peer in the tunnel.
pub(crate) fn inner(peer: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST_INNER + peer as u32)
}

/// Returns a peer's source address on the link.
pub(super) fn source(peer: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST_SOURCE + peer as u32 % SOURCES)
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
