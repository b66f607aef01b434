//! What every measurement is made of: namespaces, the links between them, and WireGuard interfaces in them.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use anyhow::{Context as _, Result, anyhow};
use ipnet::{IpNet, Ipv4Net};
use weft_config::InterfaceName;
use weft_lab::Namespace;
use weft_lab::client::{Client, Flow};
use weft_lab::link::{self, LinkOptions};
use weft_tunnel::{PrivateKey, PublicKey};

/// The UDP port of every interface that has a fixed one.
pub(crate) const PORT: u16 = 51_820;
/// The MTU of the tunnels.
pub(crate) const MTU: u16 = 1420;
/// A gateway's address in the tunnels, and the prefix length of their network.
pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const INNER_PREFIX: u8 = 8;
/// The interface of a namespace that is joined with a gateway.
pub(crate) const OUTER: &str = "eth0";

/// A permission is missing, which has an exit code; contains the system's error.
#[derive(Debug, thiserror::Error)]
#[error("weft-bench has to run as root, for instance with sudo: {0}")]
pub(crate) struct Missing(pub(crate) std::io::Error);

pub(crate) fn namespace(name: &str) -> Result<Namespace> {
    Namespace::new(name).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => Missing(error).into(),
        _ => anyhow!(error).context("cannot make a network namespace"),
    })
}

/// Returns an error if the permission to bring up tunnels is missing.
pub(crate) fn check_permission() -> Result<()> {
    namespace("probe").map(drop)
}

pub(crate) fn key() -> Result<PrivateKey> {
    PrivateKey::generate().map_err(|error| anyhow!("cannot make a key: {error}"))
}

pub(crate) fn keys(count: usize) -> Result<Vec<PrivateKey>> {
    (0..count).map(|_| key()).collect()
}

pub(crate) fn nth(first: Ipv4Addr, number: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(first.to_bits() + number as u32)
}

/// The interface of one end of a tunnel.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    pub(crate) name: InterfaceName,
    pub(crate) key: PrivateKey,
    pub(crate) port: Option<u16>,
    pub(crate) address: Ipv4Net,
    pub(crate) peers: Vec<Peer>,
}

#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) key: PublicKey,
    /// The addresses in the tunnel.
    pub(crate) allowed: Ipv4Net,
    pub(crate) endpoint: Option<SocketAddr>,
}

impl Peer {
    pub(crate) fn new(key: PublicKey, inner: Ipv4Addr, endpoint: Option<SocketAddr>) -> Self {
        Self { key, allowed: inner.into(), endpoint }
    }

    /// Creates a peer without a client. No private key is needed: any 32 bytes are a public key.
    pub(crate) fn silent(number: u32, inner: Ipv4Addr, endpoint: Option<SocketAddr>) -> Self {
        let mut key = [0x5a; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        Self::new(PublicKey::from_bytes(key), inner, endpoint)
    }
}

/// Returns the flow of a client of the gateway between these ports.
pub(crate) fn to_gateway(client: &Client, from: u16, to: u16) -> Flow {
    Flow { source: (client.inner, from), destination: (GATEWAY, to) }
}

impl Interface {
    /// Creates an interface with a name that no other one of this machine has: daemons listen for wg(8) in a
    /// directory that all namespaces share.
    pub(crate) fn new(
        key: PrivateKey,
        port: Option<u16>,
        address: Ipv4Addr,
        peers: Vec<Peer>,
    ) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("wb{:x}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)).parse()?;
        Ok(Self { name, key, port, address: Ipv4Net::new(address, INNER_PREFIX)?, peers })
    }

    /// Creates the interface of a client of a gateway, which has all addresses of the tunnel.
    pub(crate) fn of_client(
        key: PrivateKey,
        inner: Ipv4Addr,
        gateway: PublicKey,
        endpoint: SocketAddr,
    ) -> Result<Self> {
        let allowed = Ipv4Net::new(inner, INNER_PREFIX)?.trunc();
        Self::new(key, None, inner, vec![Peer { key: gateway, allowed, endpoint: Some(endpoint) }])
    }

    pub(crate) fn text(&self) -> String {
        self.with_lines("")
    }

    pub(crate) fn file(&self) -> String {
        self.with_lines(&format!("Address = {}\nMTU = {MTU}\nTable = off\n", self.address))
    }

    fn with_lines(&self, lines: &str) -> String {
        let mut text = format!("[Interface]\nPrivateKey = {}\n", *self.key.to_base64());
        // Writing to a String cannot fail.
        let _ = self.port.map(|port| writeln!(text, "ListenPort = {port}"));
        text += lines;
        for Peer { key, allowed, endpoint } in &self.peers {
            let _ = write!(text, "[Peer]\nPublicKey = {key}\nAllowedIPs = {allowed}\n");
            let _ = endpoint.map(|endpoint| writeln!(text, "Endpoint = {endpoint}"));
        }
        text
    }
}

/// One of the networks between a gateway, host 1, and another namespace, host 2 and possibly more (RFC 2544:
/// for benchmarks).
#[derive(Clone, Copy)]
pub(crate) struct Net(pub(crate) u8);

impl Net {
    pub(crate) fn v4(self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.0, host)
    }

    fn v6(self, host: u8) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, self.0.into(), 0, 0, 0, 0, host.into())
    }

    pub(crate) fn host(self, host: u8, is_v6: bool) -> IpAddr {
        if is_v6 { self.v6(host).into() } else { self.v4(host).into() }
    }

    pub(crate) fn endpoint(self, host: u8) -> SocketAddr {
        SocketAddr::from((self.v4(host), PORT))
    }

    /// Returns the options of the link, on which the second namespace has hosts 2 to `last`.
    pub(crate) fn link(self, name: &str, last: u8, mtu: u32) -> Result<LinkOptions> {
        let v4 = |host| Ipv4Net::new(self.v4(host), 24).map(IpNet::from);
        Ok(LinkOptions {
            name_a: name.to_owned(),
            name_b: OUTER.to_owned(),
            mtu,
            addresses_a: vec![v4(1)?],
            addresses_b: (2..=last).map(v4).collect::<Result<_, _>>()?,
        })
    }

    /// Joins two namespaces without IPv6, of which the kernel's control traffic would be counted.
    pub(crate) fn join(self, gateway: &Namespace, other: &Namespace, last: u8) -> Result<()> {
        for namespace in [gateway, other] {
            // This fails only where there is no IPv6.
            let _ = namespace.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1");
        }
        Ok(link::join(gateway, other, &self.link(OUTER, last, 1500)?)?)
    }

    /// Joins the gateway with another namespace by IPv4 and IPv6, and routes all of its traffic to the
    /// gateway. Sources may be spoofed, as on most networks.
    pub(crate) fn join_network(
        self,
        gateway: &Namespace,
        name: &str,
        other: &Namespace,
        last: u8,
    ) -> Result<()> {
        let mut options = self.link(name, last, 1500)?;
        options.addresses_a.push(IpNet::new(self.v6(1).into(), 64)?);
        options.addresses_b.push(IpNet::new(self.v6(2).into(), 64)?);
        link::join(gateway, other, &options)?;
        link::add_route(other, "::/0".parse()?, self.v6(1).into())?;
        link::add_route(other, "0.0.0.0/0".parse()?, self.v4(1).into())?;
        for conf in ["all", "default", name] {
            gateway.set_sysctl(&format!("net/ipv4/conf/{conf}/rp_filter"), "0")?;
            gateway.set_sysctl(&format!("net/ipv4/conf/{conf}/send_redirects"), "0")?;
        }
        Ok(())
    }
}

/// Returns the congestion controls that the kernel provides. An error names the first unavailable one of
/// those that are asked for.
pub(crate) fn congestion_controls(asked: &[String]) -> Result<Vec<String>> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .context("cannot read which congestion controls there are")?;
    let available: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    match asked.iter().find(|control| !available.contains(control)) {
        Some(control) => {
            Err(anyhow!("the kernel has no congestion control {control}, only {}", available.join(", ")))
        }
        None => Ok(available),
    }
}
