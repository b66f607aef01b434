//! The namespaces and the daemons of one measurement.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipnet::{IpNet, Ipv4Net};
use tempfile::TempDir;
use weft_lab::Namespace;
use weft_lab::flood::{Flood, Running};
use weft_lab::link;
use weft_tunnel::{PrivateKey, PublicKey};

use super::attack::{Attack, Kind};
use crate::implementation::{Daemon, Implementation};
use crate::interrupt::Interrupt;
use crate::peers::client::Client;
use crate::peers::socket;
use crate::site::{self, GATEWAY, Interface, Net, OUTER, PORT, Peer, namespace, nth};

const CONNECT: Duration = Duration::from_secs(30);
/// The gateway's interfaces, and the name of the interface at the other ends.
pub(super) const TO_CLIENT: &str = "to-client";
const TO_ATTACKER: &str = "to-attacker";
/// The links. Visitors share the client's namespace.
const TO_CLIENT_NET: Net = Net(1);
const TO_ATTACKER_NET: Net = Net(2);
/// Networks routed to the attacker: its source addresses, and the endpoints of absent peers.
const BEHIND_V4: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 0);
const BEHIND_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 1);

/// Strangers: peers without a session that want one during a flood.
const STRANGERS: usize = 4;
/// Awaited peers: without a session, but the gateway has a packet for them.
const AWAITED: usize = 16;
const STRANGERS_PORT: u16 = 40_000;
const AWAITED_PORT: u16 = 41_000;

/// Addresses in the tunnels.
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SCANNER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const FIRST_STRANGER: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 0);
const FIRST_AWAITED: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 0);
const FIRST_ABSENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 0);

/// A gateway's namespace with networks to a client and to an attacker, to whom more addresses are routed.
pub(crate) struct Networks {
    pub(crate) inside: Namespace,
    pub(crate) client: Namespace,
    pub(crate) attacker: Namespace,
}

impl Networks {
    pub(crate) fn new() -> Result<Self> {
        let (inside, client, attacker) =
            (namespace("gateway")?, namespace("client")?, namespace("attacker")?);
        TO_CLIENT_NET.join_network(&inside, TO_CLIENT, &client, 2)?;
        TO_ATTACKER_NET.join_network(&inside, TO_ATTACKER, &attacker, 2)?;
        link::add_route(&inside, Ipv4Net::new(BEHIND_V4, 16)?.into(), TO_ATTACKER_NET.v4(2).into())?;
        let behind: IpNet = IpNet::new(BEHIND_V6.into(), 48)?.trunc();
        link::add_route(&inside, behind, TO_ATTACKER_NET.host(2, true))?;
        Ok(Self { inside, client, attacker })
    }

    /// Starts a flood of the attacker.
    pub(crate) fn flood(&self, flood: Flood) -> Result<Running> {
        let running = flood.start(&self.attacker, OUTER, &self.inside, TO_ATTACKER);
        running.context("the flood does not begin")
    }
}

/// Returns the address and port where the gateway listens for its client, and its attacker.
pub(crate) fn target(is_v6: bool) -> SocketAddr {
    SocketAddr::new(TO_CLIENT_NET.host(1, is_v6), PORT)
}

/// Returns the first of the addresses that are routed to the attacker.
pub(crate) fn behind_attacker(is_v6: bool) -> IpAddr {
    if is_v6 { BEHIND_V6.into() } else { nth(BEHIND_V4, 1).into() }
}

/// A gateway, the client and the attacker.
pub(super) struct Site {
    // The daemons end before the namespaces.
    pub(super) gateway: Daemon,
    client_daemon: Daemon,
    pub(super) networks: Networks,
    /// The public key of the gateway.
    pub(super) key: PublicKey,
    scanner: PrivateKey,
    strangers: Vec<PrivateKey>,
    awaited: Vec<PrivateKey>,
    is_v6: bool,
    /// The number of absent peers.
    pub(super) absent: usize,
    _files: TempDir,
}

impl Site {
    /// Brings up the namespaces, links and daemons, and waits until a connection has passed the tunnel.
    pub(super) fn start(
        attack: Attack,
        implementation: &Implementation,
        client_implementation: &Implementation,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let networks = Networks::new()?;
        // Forwarding lets peers reach each other through the gateway.
        networks.inside.set_sysctl("net/ipv4/ip_forward", "1")?;
        let files = tempfile::tempdir()?;
        let absent = if attack.kind == Kind::Scan { attack.count as usize } else { 0 };
        let is_v6 = attack.is_v6;
        let (gateway_key, client_key, scanner) = (site::key()?, site::key()?, site::key()?);
        let (strangers, awaited) = (site::keys(STRANGERS)?, site::keys(AWAITED)?);
        let key = gateway_key.public_key();

        let mut peers = vec![
            Peer::new(client_key.public_key(), CLIENT, None),
            Peer::new(scanner.public_key(), SCANNER, None),
        ];
        for (number, key) in strangers.iter().enumerate() {
            peers.push(Peer::new(key.public_key(), nth(FIRST_STRANGER, number), None));
        }
        for (number, key) in awaited.iter().enumerate() {
            let endpoint = SocketAddr::new(TO_CLIENT_NET.host(2, is_v6), AWAITED_PORT + number as u16);
            peers.push(Peer::new(key.public_key(), awaited_peer(number), Some(endpoint)));
        }
        for number in 0..absent {
            let behind = if is_v6 {
                IpAddr::V6(Ipv6Addr::from_bits(BEHIND_V6.to_bits() + ((number as u128) << 64)))
            } else {
                nth(BEHIND_V4, number).into()
            };
            let endpoint = SocketAddr::new(behind, PORT);
            peers.push(Peer::silent(number as u32, absent_peer(number), Some(endpoint)));
        }
        let gateway = Interface::new(gateway_key, Some(PORT), GATEWAY, peers)?;
        let gateway = implementation
            .start(&networks.inside, &gateway, files.path(), interrupt)
            .context("the gateway does not come up")?;
        let client = Interface::of_client(client_key, CLIENT, key, target(is_v6))?;
        let client_daemon = client_implementation
            .start(&networks.client, &client, files.path(), interrupt)
            .context("the client does not come up")?;
        let site = Self {
            gateway,
            client_daemon,
            networks,
            key,
            scanner,
            strangers,
            awaited,
            is_v6,
            absent,
            _files: files,
        };
        let listen = || TcpListener::bind((GATEWAY, 0));
        let listener = site.networks.inside.run(listen).context("cannot listen in the tunnel")?;
        let address: SocketAddr = listener.local_addr()?;
        interrupt.wait_for("a connection through the tunnel", CONNECT, || {
            site.check()?;
            let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(1));
            Ok(site.networks.client.run(connect).is_ok().then_some(()))
        })?;
        Ok(site)
    }

    /// Returns an error if a daemon has ended.
    pub(super) fn check(&self) -> Result<()> {
        self.gateway.check()?;
        self.client_daemon.check()
    }

    /// Creates the peer that attacks.
    pub(super) fn scanner(&self) -> Result<Client> {
        let bind = || socket::bind(TO_ATTACKER_NET.host(2, self.is_v6), 0);
        let socket = self.networks.attacker.run(bind)?;
        Client::over(socket, target(self.is_v6), SCANNER, &self.scanner, self.key)
    }

    pub(super) fn strangers(&self) -> Result<Vec<Client>> {
        self.visitors(&self.strangers, FIRST_STRANGER, STRANGERS_PORT)
    }

    /// Creates the awaited peers, of which the gateway knows the endpoints.
    pub(super) fn awaited(&self) -> Result<Vec<Client>> {
        self.visitors(&self.awaited, FIRST_AWAITED, AWAITED_PORT)
    }

    fn visitors(&self, keys: &[PrivateKey], first: Ipv4Addr, port: u16) -> Result<Vec<Client>> {
        let visitor = |(number, key): (usize, &PrivateKey)| {
            let bind = || socket::bind(TO_CLIENT_NET.host(2, self.is_v6), port + number as u16);
            let socket = self.networks.client.run(bind)?;
            Client::over(socket, target(self.is_v6), nth(first, number), key, self.key)
        };
        keys.iter().enumerate().map(visitor).collect()
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
