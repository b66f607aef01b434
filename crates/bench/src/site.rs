//! What the gateways of several commands have in common: keys, configuration files, addresses and links.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Result, anyhow};
use ipnet::{IpNet, Ipv4Net};
use weft_lab::Namespace;
use weft_lab::link::{self, LinkOptions};
use weft_tunnel::{PrivateKey, PublicKey};

/// A gateway's address in the tunnels, and the prefix length of their network.
pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const INNER_PREFIX: u8 = 8;
/// The interface of a namespace that is joined with a gateway.
pub(crate) const OUTER: &str = "eth0";

/// Generates a key.
pub(crate) fn key() -> Result<PrivateKey> {
    PrivateKey::generate().map_err(|error| anyhow!("cannot make a key: {error}"))
}

/// Generates several keys.
pub(crate) fn keys(count: usize) -> Result<Vec<PrivateKey>> {
    (0..count).map(|_| key()).collect()
}

/// A `[Peer]` section.
pub(crate) struct PeerSection {
    pub(crate) key: PublicKey,
    /// The addresses in the tunnel.
    pub(crate) allowed: Ipv4Net,
    pub(crate) endpoint: Option<SocketAddr>,
}

impl PeerSection {
    /// Creates the section of a peer with one address.
    pub(crate) fn new(key: PublicKey, inner: Ipv4Addr, endpoint: Option<SocketAddr>) -> Self {
        Self { key, allowed: inner.into(), endpoint }
    }

    /// Creates the section of a peer without a client. No private key is needed: any 32 bytes are a public
    /// key.
    pub(crate) fn silent(number: u32, inner: Ipv4Addr, endpoint: Option<SocketAddr>) -> Self {
        let mut key = [0x5a; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        Self::new(PublicKey::from_bytes(key), inner, endpoint)
    }
}

/// Returns a configuration file, with these lines in its first section.
pub(crate) fn config(
    key: &PrivateKey,
    port: Option<u16>,
    lines: &str,
    peers: impl IntoIterator<Item = PeerSection>,
) -> String {
    let mut text = format!("[Interface]\nPrivateKey = {}\n", *key.to_base64());
    // Writing to a String cannot fail.
    let _ = port.map(|port| writeln!(text, "ListenPort = {port}"));
    text += lines;
    for PeerSection { key, allowed, endpoint } in peers {
        let _ = write!(text, "[Peer]\nPublicKey = {key}\nAllowedIPs = {allowed}\n");
        let _ = endpoint.map(|endpoint| writeln!(text, "Endpoint = {endpoint}"));
    }
    text
}

/// Returns the configuration file of a client of a gateway, which has all addresses of the tunnel.
pub(crate) fn client_config(
    key: &PrivateKey,
    lines: &str,
    gateway: PublicKey,
    endpoint: SocketAddr,
) -> String {
    let allowed = Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), INNER_PREFIX);
    config(key, None, lines, [PeerSection { key: gateway, allowed, endpoint: Some(endpoint) }])
}

/// Returns the address with this number.
pub(crate) fn nth(first: Ipv4Addr, number: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(first.to_bits() + number as u32)
}

/// One of the networks between a gateway, host 1, and another namespace, host 2 and possibly more.
#[derive(Clone, Copy)]
pub(crate) struct Net(pub(crate) u8);

impl Net {
    pub(crate) fn v4(self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.0, host)
    }

    pub(crate) fn v6(self, host: u8) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, self.0.into(), 0, 0, 0, 0, host.into())
    }

    pub(crate) fn host(self, host: u8, is_v6: bool) -> IpAddr {
        if is_v6 { self.v6(host).into() } else { self.v4(host).into() }
    }

    /// Joins the gateway with another namespace, as hosts 2 to `last`, and routes all of its traffic to the
    /// gateway. Sources may be spoofed, as on most networks. Over IPv4 alone, the link keeps the order of
    /// packets.
    pub(crate) fn join(
        self,
        gateway: &Namespace,
        name: &str,
        other: &Namespace,
        last: u8,
        has_v6: bool,
    ) -> Result<()> {
        let v4 = |host| Ipv4Net::new(self.v4(host), 24).map(IpNet::from);
        let v6 = |host| has_v6.then(|| IpNet::new(self.v6(host).into(), 64));
        let options = LinkOptions {
            name_a: name.to_owned(),
            name_b: OUTER.to_owned(),
            addresses_a: [v4(1)].into_iter().chain(v6(1)).collect::<Result<_, _>>()?,
            addresses_b: (2..=last).map(v4).chain(v6(2)).collect::<Result<_, _>>()?,
            ..LinkOptions::default()
        };
        if has_v6 {
            link::join(gateway, other, &options)?;
            link::add_route(other, "::/0".parse()?, self.v6(1).into())?;
        } else {
            link::join_in_order(gateway, other, &options)?;
        }
        link::add_route(other, "0.0.0.0/0".parse()?, self.v4(1).into())?;
        for conf in ["all", "default", name] {
            gateway.set_sysctl(&format!("net/ipv4/conf/{conf}/rp_filter"), "0")?;
            gateway.set_sysctl(&format!("net/ipv4/conf/{conf}/send_redirects"), "0")?;
        }
        Ok(())
    }
}
