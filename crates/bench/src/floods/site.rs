//! The namespaces and the daemons of one measurement.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipnet::{IpNet, Ipv4Net};
use tempfile::TempDir;
use weft_lab::Namespace;
use weft_lab::link;
use weft_tunnel::{PrivateKey, PublicKey};

use super::attack::{Attack, Kind};
use crate::implementation::{Daemon, Implementation, Setup};
use crate::interrupt::Interrupt;
use crate::peers::client::{Client, MTU};
use crate::peers::socket;
use crate::site::{self, Net, PeerSection, nth};
use crate::site::{GATEWAY, INNER_PREFIX};
use crate::topology;

/// Timeout for a daemon to be configured with all its peers.
const START: Duration = Duration::from_secs(120);
const CONNECT: Duration = Duration::from_secs(30);
const PORT: u16 = 51_820;
/// The gateway's interfaces, and the name of the interface at the other ends.
pub(super) const TO_CLIENT: &str = "to-client";
pub(super) const TO_ATTACKER: &str = "to-attacker";
/// The links. Visitors share the client's namespace.
const TO_CLIENT_NET: Net = Net(1);
const TO_ATTACKER_NET: Net = Net(2);
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
        TO_CLIENT_NET.join(&inside, TO_CLIENT, &client, 2, true)?;
        TO_ATTACKER_NET.join(&inside, TO_ATTACKER, &attacker, 2, true)?;
        link::add_route(&inside, Ipv4Net::new(BEHIND_V4, 16)?.into(), TO_ATTACKER_NET.v4(2).into())?;
        let behind: IpNet = IpNet::new(BEHIND_V6.into(), 48)?.trunc();
        link::add_route(&inside, behind, TO_ATTACKER_NET.v6(2).into())?;
        // Forwarding lets peers reach each other through the gateway.
        inside.set_sysctl("net/ipv4/ip_forward", "1")?;
        let files = tempfile::tempdir()?;
        let keys = Keys {
            gateway: site::key()?,
            client: site::key()?,
            scanner: site::key()?,
            strangers: site::keys(STRANGERS)?,
            awaited: site::keys(AWAITED)?,
        };
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
        let bind = || socket::bind(TO_ATTACKER_NET.host(2, self.is_v6), 0);
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
        let sections = |keys: &[PrivateKey], first, port: Option<u16>| {
            let section = move |(number, key): (usize, &PrivateKey)| {
                let port = port.map(|port| port + number as u16);
                let endpoint = port.map(|port| SocketAddr::new(outer_client(is_v6), port));
                PeerSection::new(key.public_key(), nth(first, number), endpoint)
            };
            keys.iter().enumerate().map(section).collect::<Vec<_>>()
        };
        let absent = (0..absent).map(|number| {
            let behind = if is_v6 {
                IpAddr::V6(Ipv6Addr::from_bits(BEHIND_V6.to_bits() + ((number as u128) << 64)))
            } else {
                nth(BEHIND_V4, number).into()
            };
            PeerSection::silent(number as u32, absent_peer(number), Some(SocketAddr::new(behind, PORT)))
        });
        let mut peers = vec![
            PeerSection::new(self.client.public_key(), CLIENT, None),
            PeerSection::new(self.scanner.public_key(), SCANNER, None),
        ];
        peers.extend(sections(&self.strangers, FIRST_STRANGER, None));
        peers.extend(sections(&self.awaited, FIRST_AWAITED, Some(AWAITED_PORT)));
        site::config(&self.gateway, Some(PORT), lines, peers.into_iter().chain(absent))
    }

    fn client_config(&self, is_v6: bool, lines: &str) -> String {
        site::client_config(&self.client, lines, self.gateway.public_key(), outer_gateway(is_v6))
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

fn outer_gateway(is_v6: bool) -> SocketAddr {
    SocketAddr::new(TO_CLIENT_NET.host(1, is_v6), PORT)
}

fn outer_client(is_v6: bool) -> IpAddr {
    TO_CLIENT_NET.host(2, is_v6)
}
