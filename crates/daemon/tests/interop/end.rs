//! One end of a tunnel, described once and written down for either implementation.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use weft_tunnel::{PresharedKey, PrivateKey, PublicKey};

/// The inner IPv4 address of an end.
pub(crate) fn inner_v4(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 7, 0, number).into()
}

/// The inner IPv6 address of an end.
pub(crate) fn inner_v6(number: u8) -> IpAddr {
    Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, number.into()).into()
}

/// An interface and the peers it knows.
#[derive(Clone)]
pub(crate) struct End {
    /// The addresses of the interface, with their prefix lengths.
    pub(crate) addresses: Vec<IpNet>,
    pub(crate) key: PrivateKey,
    pub(crate) port: u16,
    pub(crate) peers: Vec<Peer>,
}

#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) key: PublicKey,
    pub(crate) preshared_key: Option<PresharedKey>,
    pub(crate) endpoint: Option<SocketAddr>,
    pub(crate) allowed_ips: Vec<IpNet>,
    pub(crate) persistent_keepalive: Option<u16>,
}

impl End {
    /// An end with the usual addresses and a new key.
    pub(crate) fn new(number: u8, port: u16) -> Self {
        let addresses =
            vec![IpNet::new(inner_v4(number), 24).unwrap(), IpNet::new(inner_v6(number), 64).unwrap()];
        Self { addresses, key: PrivateKey::generate().unwrap(), port, peers: Vec::new() }
    }

    pub(crate) fn public_key(&self) -> PublicKey {
        self.key.public_key()
    }

    /// This end as others know it.
    pub(crate) fn as_peer(&self, endpoint: Option<SocketAddr>) -> Peer {
        Peer {
            key: self.public_key(),
            preshared_key: None,
            endpoint,
            allowed_ips: self.addresses.iter().map(|address| address.addr().into()).collect(),
            persistent_keepalive: None,
        }
    }

    /// For `wg setconf`.
    pub(crate) fn wg_text(&self) -> String {
        self.text(&[])
    }

    /// For `weft up`.
    pub(crate) fn wg_quick_text(&self) -> String {
        self.text(&self.addresses)
    }

    fn text(&self, addresses: &[IpNet]) -> String {
        let mut text = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = {}\n",
            self.key.to_base64().as_str(),
            self.port
        );
        for address in addresses {
            writeln!(text, "Address = {address}").unwrap();
        }
        for peer in &self.peers {
            writeln!(text, "[Peer]\nPublicKey = {}", peer.key).unwrap();
            if let Some(key) = &peer.preshared_key {
                writeln!(text, "PresharedKey = {}", key.to_base64().as_str()).unwrap();
            }
            if let Some(endpoint) = peer.endpoint {
                writeln!(text, "Endpoint = {endpoint}").unwrap();
            }
            for prefix in &peer.allowed_ips {
                writeln!(text, "AllowedIPs = {prefix}").unwrap();
            }
            if let Some(seconds) = peer.persistent_keepalive {
                writeln!(text, "PersistentKeepalive = {seconds}").unwrap();
            }
        }
        text
    }
}
