//! The namespaces and the daemons of one measurement.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use ipnet::{IpNet, Ipv4Net};
use tempfile::TempDir;
use weft_lab::Namespace;
use weft_lab::link::{self, LinkOptions};
use weft_tunnel::{PrivateKey, PublicKey};

use super::attack::{Attack, Kind};
use crate::implementation::{Daemon, Implementation, Setup};
use crate::interrupt::Interrupt;
use crate::peers::client::{Client, MTU};
use crate::peers::roster::{GATEWAY, INNER_PREFIX};
use crate::peers::socket;
use crate::topology;

/// Timeout for a daemon to be configured with all its peers.
const START: Duration = Duration::from_secs(120);
const CONNECT: Duration = Duration::from_secs(30);
const PORT: u16 = 51_820;
/// The gateway's interfaces, and the name of the interface at the other ends.
pub(super) const TO_CLIENT: &str = "to-client";
pub(super) const TO_ATTACKER: &str = "to-attacker";
pub(super) const OUTER: &str = "eth0";
/// Networks of the links: the gateway is host 1 on each, the namespace at the other end host 2. Visitors
/// share the client's namespace.
const CLIENT_V4: [u8; 3] = [198, 18, 1];
const ATTACKER_V4: [u8; 3] = [198, 18, 2];
const CLIENT_LINK_V6: u16 = 1;
const ATTACKER_LINK_V6: u16 = 2;
/// Networks routed to the attacker: its source addresses, and the endpoints of absent peers.
const BEHIND_V4: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 0);
const BEHIND_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 1);

/// Strangers: peers without a session that want one during a flood.
pub(super) const STRANGERS: usize = 4;
/// Awaited peers: without a session, but the gateway has a packet for them.
pub(super) const AWAITED: usize = 16;
const STRANGERS_PORT: u16 = 40_000;
const AWAITED_PORT: u16 = 41_000;

/// Addresses in the tunnels.
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SCANNER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const FIRST_STRANGER: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 0);
const FIRST_AWAITED: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 0);
const FIRST_ABSENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 0);

/// A gateway, the client and the attacker, with their namespaces.
pub(super) struct Site {
    /// Dropped before the namespaces.
    pub(super) gateway: Daemon,
    client_daemon: Daemon,
    pub(super) inside: Namespace,
    pub(super) client: Namespace,
    pub(super) attacker: Namespace,
    keys: Keys,
    is_v6: bool,
    absent: usize,
    _files: TempDir,
}

struct Keys {
    gateway: PrivateKey,
    client: PrivateKey,
    scanner: PrivateKey,
    strangers: Vec<PrivateKey>,
    awaited: Vec<PrivateKey>,
}

impl Keys {
    fn new() -> Result<Self> {
        let key = || PrivateKey::generate().map_err(|error| anyhow!("cannot make a key: {error}"));
        Ok(Self {
            gateway: key()?,
            client: key()?,
            scanner: key()?,
            strangers: (0..STRANGERS).map(|_| key()).collect::<Result<_>>()?,
            awaited: (0..AWAITED).map(|_| key()).collect::<Result<_>>()?,
        })
    }
}

impl Site {
    /// Brings up the namespaces, links and daemons, and waits until a connection has passed the tunnel.
    pub(super) fn start(
        attack: Attack,
        implementation: &Implementation,
        client_implementation: &Implementation,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let (inside, client) = (topology::namespace("gateway")?, topology::namespace("client")?);
        let attacker = topology::namespace("attacker")?;
        join(&inside, TO_CLIENT, &client, CLIENT_V4, CLIENT_LINK_V6)?;
        join(&inside, TO_ATTACKER, &attacker, ATTACKER_V4, ATTACKER_LINK_V6)?;
        link::add_route(&inside, Ipv4Net::new(BEHIND_V4, 16)?.into(), v4(ATTACKER_V4, 2).into())?;
        let behind: IpNet = IpNet::new(BEHIND_V6.into(), 48)?.trunc();
        link::add_route(&inside, behind, v6(ATTACKER_LINK_V6, 2).into())?;
        for name in ["all", "default", TO_CLIENT, TO_ATTACKER] {
            // No reverse-path filter, as on most networks: the gateway cannot tell that a source is spoofed.
            inside.set_sysctl(&format!("net/ipv4/conf/{name}/rp_filter"), "0")?;
            inside.set_sysctl(&format!("net/ipv4/conf/{name}/send_redirects"), "0")?;
        }
        // Forwarding lets peers reach each other through the gateway.
        inside.set_sysctl("net/ipv4/ip_forward", "1")?;
        let files = tempfile::tempdir()?;
        let keys = Keys::new()?;
        let absent = if attack.kind == Kind::Scan { attack.count as usize } else { 0 };
        let is_v6 = attack.is_v6;
        let address = |address| Ipv4Net::new(address, INNER_PREFIX).map(IpNet::from);
        let interface = |end: &str| format!("wf{:x}{end}", std::process::id());
        let bring_up = |implementation: &Implementation,
                        namespace,
                        end: &str,
                        inner,
                        config: &dyn Fn(&str) -> String| {
            let directory = files.path().join(end);
            std::fs::create_dir(&directory)?;
            let setup = Setup {
                interface: &interface(end),
                addresses: &[address(inner)?],
                mtu: MTU,
                lines: "Table = off\n",
                config,
                limit: START,
            };
            implementation.bring_up(namespace, &setup, &directory, interrupt)
        };
        let gateway = bring_up(implementation, &inside, "g", GATEWAY, &|lines| {
            keys.gateway_config(is_v6, absent, lines)
        })
        .context("the gateway does not come up")?;
        let client_daemon =
            bring_up(client_implementation, &client, "c", CLIENT, &|lines| keys.client_config(is_v6, lines))
                .context("the client does not come up")?;
        let mut site =
            Self { gateway, client_daemon, inside, client, attacker, keys, is_v6, absent, _files: files };
        let listener =
            site.inside.run(|| TcpListener::bind((GATEWAY, 0))).context("cannot listen in the tunnel")?;
        let address: SocketAddr = listener.local_addr()?;
        interrupt.wait_for("a connection through the tunnel", CONNECT, || {
            site.check()?;
            let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(1));
            Ok(site.client.run(connect).is_ok().then_some(()))
        })?;
        Ok(site)
    }

    /// Returns an error if a daemon has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.gateway.check()?;
        self.client_daemon.check()
    }

    /// Returns the address and port where the gateway listens.
    pub(super) fn target(&self) -> SocketAddr {
        outer_gateway(self.is_v6)
    }

    /// Returns the public key of the gateway.
    pub(super) fn key(&self) -> PublicKey {
        self.keys.gateway.public_key()
    }

    /// Returns the first of the addresses that are routed to the attacker.
    pub(super) fn behind_attacker(&self) -> IpAddr {
        if self.is_v6 { BEHIND_V6.into() } else { Ipv4Addr::from_bits(BEHIND_V4.to_bits() + 1).into() }
    }

    /// Returns the number of absent peers.
    pub(super) fn absent(&self) -> usize {
        self.absent
    }

    /// Returns the key of the peer that attacks.
    pub(super) fn attacking_key(&self) -> PrivateKey {
        self.keys.scanner.clone()
    }

    /// Creates the peer that attacks.
    pub(super) fn scanner(&self) -> Result<Client> {
        let bind = || {
            socket::bind(
                if self.is_v6 { v6(ATTACKER_LINK_V6, 2).into() } else { IpAddr::from(v4(ATTACKER_V4, 2)) },
                0,
            )
        };
        Client::over(self.attacker.run(bind)?, self.target(), SCANNER, &self.keys.scanner, self.key())
    }

    pub(super) fn strangers(&self) -> Result<Vec<Client>> {
        self.visitors(&self.keys.strangers, FIRST_STRANGER, STRANGERS_PORT)
    }

    /// Creates the awaited peers, of which the gateway knows the endpoints.
    pub(super) fn awaited(&self) -> Result<Vec<Client>> {
        self.visitors(&self.keys.awaited, FIRST_AWAITED, AWAITED_PORT)
    }

    fn visitors(&self, keys: &[PrivateKey], first: Ipv4Addr, port: u16) -> Result<Vec<Client>> {
        let visitor = |(number, key): (usize, &PrivateKey)| {
            let socket = self.client.run(|| socket::bind(outer_client(self.is_v6), port + number as u16))?;
            Client::over(socket, self.target(), nth(first, number), key, self.key())
        };
        keys.iter().enumerate().map(visitor).collect()
    }
}

impl Keys {
    fn gateway_config(&self, is_v6: bool, absent: usize, lines: &str) -> String {
        let mut text =
            format!("[Interface]\nPrivateKey = {}\nListenPort = {PORT}\n{lines}", *self.gateway.to_base64());
        let mut peer = |key: PublicKey, inner: Ipv4Addr, endpoint: Option<SocketAddr>| {
            // Writing to a String cannot fail.
            let _ = write!(text, "[Peer]\nPublicKey = {key}\nAllowedIPs = {inner}/32\n");
            if let Some(endpoint) = endpoint {
                let _ = writeln!(text, "Endpoint = {endpoint}");
            }
        };
        peer(self.client.public_key(), CLIENT, None);
        peer(self.scanner.public_key(), SCANNER, None);
        for (number, key) in self.strangers.iter().enumerate() {
            peer(key.public_key(), nth(FIRST_STRANGER, number), None);
        }
        for (number, key) in self.awaited.iter().enumerate() {
            let endpoint = SocketAddr::new(outer_client(is_v6), AWAITED_PORT + number as u16);
            peer(key.public_key(), nth(FIRST_AWAITED, number), Some(endpoint));
        }
        for number in 0..absent {
            // No private key is needed: any 32 bytes are a public key.
            let mut key = *self.client.public_key().as_bytes();
            key[..4].copy_from_slice(&(number as u32).to_le_bytes());
            let behind = if is_v6 {
                IpAddr::V6(Ipv6Addr::from_bits(BEHIND_V6.to_bits() + ((number as u128) << 64)))
            } else {
                IpAddr::V4(Ipv4Addr::from_bits(BEHIND_V4.to_bits() + number as u32))
            };
            peer(PublicKey::from_bytes(key), absent_peer(number), Some(SocketAddr::new(behind, PORT)));
        }
        text
    }

    fn client_config(&self, is_v6: bool, lines: &str) -> String {
        format!(
            "[Interface]\nPrivateKey = {}\n{lines}[Peer]\nPublicKey = {}\nAllowedIPs = 10.0.0.0/{INNER_PREFIX}\n\
             Endpoint = {}\n",
            *self.client.to_base64(),
            self.gateway.public_key(),
            outer_gateway(is_v6)
        )
    }
}

/// Returns the address in the tunnel of an absent peer.
pub(super) fn absent_peer(number: usize) -> Ipv4Addr {
    nth(FIRST_ABSENT, number)
}

/// Returns the address in the tunnel of an awaited peer.
pub(super) fn awaited_peer(number: usize) -> Ipv4Addr {
    nth(FIRST_AWAITED, number)
}

fn nth(first: Ipv4Addr, number: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(first.to_bits() + number as u32)
}

fn v4([a, b, c]: [u8; 3], host: u8) -> Ipv4Addr {
    Ipv4Addr::new(a, b, c, host)
}

fn v6(net: u16, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, net, 0, 0, 0, 0, host)
}

fn outer_gateway(is_v6: bool) -> SocketAddr {
    let address = if is_v6 { v6(CLIENT_LINK_V6, 1).into() } else { IpAddr::from(v4(CLIENT_V4, 1)) };
    SocketAddr::new(address, PORT)
}

fn outer_client(is_v6: bool) -> IpAddr {
    if is_v6 { v6(CLIENT_LINK_V6, 2).into() } else { v4(CLIENT_V4, 2).into() }
}

/// Joins the gateway, as host 1, with another namespace, as host 2, and routes all of host 2's traffic to the
/// gateway.
fn join(gateway: &Namespace, name: &str, other: &Namespace, net_v4: [u8; 3], net_v6: u16) -> Result<()> {
    let addresses = |host: u8| -> Result<Vec<IpNet>> {
        Ok(vec![
            format!("{}/24", v4(net_v4, host)).parse()?,
            format!("{}/64", v6(net_v6, host.into())).parse()?,
        ])
    };
    let options = LinkOptions {
        name_a: name.to_owned(),
        name_b: OUTER.to_owned(),
        addresses_a: addresses(1)?,
        addresses_b: addresses(2)?,
        ..LinkOptions::default()
    };
    link::join(gateway, other, &options)?;
    link::add_route(other, "0.0.0.0/0".parse()?, v4(net_v4, 1).into())?;
    link::add_route(other, "::/0".parse()?, v6(net_v6, 1).into())?;
    Ok(())
}
