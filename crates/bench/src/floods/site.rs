//! The namespaces and the daemons of one measurement.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipnet::{IpNet, Ipv4Net};
use tempfile::TempDir;
use weft_lab::Namespace;
use weft_lab::client::{Client, socket};
use weft_lab::flood::{self, Contents, Flood, Junk, ObservedMessage, Running, Sources};
use weft_lab::link;
use weft_tunnel::{PrivateKey, PublicKey};

use super::attack::{Attack, Kind};
use crate::implementation::{Daemon, Implementation};
use crate::interrupt::Interrupt;
use crate::site::{self, GATEWAY, Interface, Net, OUTER, PORT, Peer, namespace, nth};

/// The gateway's interfaces, and the name of the interface at the other ends.
const TO_CLIENT: &str = "to-client";
const TO_ATTACKER: &str = "to-attacker";
/// The links. Visitors share the client's namespace.
const TO_CLIENT_NET: Net = Net(1);
const TO_ATTACKER_NET: Net = Net(2);
/// Networks routed to the attacker: its source addresses.
const BEHIND_V4: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 0);
const BEHIND_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 1);

/// Patience with a data message of the client.
const LOOK: Duration = Duration::from_secs(10);
/// Complete initiations take a while to make, and each source needs one: more sources send random ones.
const COMPLETE: usize = 4096;
/// Strangers: peers without a session that want one during a flood.
const STRANGERS: usize = 4;

pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const FIRST_STRANGER: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 0);

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

    /// Starts a flood of the gateway with this key; an aimed one observes the client, which has to be
    /// sending.
    pub(crate) fn flood(&self, attack: Attack, key: PublicKey, time: Duration) -> Result<Running> {
        let Attack { kind, count, per_second, is_v6 } = attack;
        let (count, target, behind) = (count as usize, target(is_v6), behind_attacker(is_v6));
        let seen = kind.is_aimed().then(|| {
            let seen = ObservedMessage::on_path(&self.inside, TO_CLIENT, target, LOOK);
            seen.context("nothing is seen of the client")
        });
        let seen = seen.transpose()?;
        let mut sources = match kind {
            Kind::NoMac1 | Kind::Mac1 | Kind::Proven => Sources::addresses(behind, count),
            _ => Sources::ports(behind, count),
        };
        let kind = match (kind, seen) {
            (Kind::NoMac1, _) => flood::Kind::WithoutMac1,
            (Kind::Mac1, _) => flood::Kind::WithMac1(Contents::Random),
            (Kind::Proven, _) if count <= COMPLETE => flood::Kind::WithCookie(Contents::UnknownKey),
            (Kind::Proven, _) => flood::Kind::WithCookie(Contents::Random),
            (_, Some(seen)) => {
                if kind == Kind::AimedName {
                    sources = Sources::one(seen.source);
                }
                flood::Kind::Junk(Junk::ForIndex(seen.receiver_index))
            }
            (Kind::Data, _) => flood::Kind::Junk(Junk::Data),
            _ => flood::Kind::Junk(Junk::Mixed),
        };
        let flood = Flood { kind, target, key, sources, per_second, time };
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

pub(super) struct Site {
    // The daemons end before the namespaces.
    pub(super) gateway: Daemon,
    client_daemon: Daemon,
    pub(super) networks: Networks,
    /// The public key of the gateway.
    pub(super) key: PublicKey,
    strangers: Vec<PrivateKey>,
    is_v6: bool,
    _files: TempDir,
}

impl Site {
    /// Brings up the namespaces, links and daemons.
    pub(super) fn start(
        is_v6: bool,
        implementation: &Implementation,
        client_implementation: &Implementation,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let (networks, files) = (Networks::new()?, tempfile::tempdir()?);
        let (gateway_key, client_key, strangers) = (site::key()?, site::key()?, site::keys(STRANGERS)?);
        let key = gateway_key.public_key();
        let mut peers = vec![Peer::new(client_key.public_key(), CLIENT, None)];
        for (number, key) in strangers.iter().enumerate() {
            peers.push(Peer::new(key.public_key(), nth(FIRST_STRANGER, number), None));
        }
        let gateway = Interface::new(gateway_key, Some(PORT), GATEWAY, peers)?;
        let gateway = implementation
            .start(&networks.inside, &gateway, files.path(), interrupt)
            .context("the gateway does not come up")?;
        let client = Interface::of_client(client_key, CLIENT, key, target(is_v6))?;
        let client_daemon = client_implementation
            .start(&networks.client, &client, files.path(), interrupt)
            .context("the client does not come up")?;
        Ok(Self { gateway, client_daemon, networks, key, strangers, is_v6, _files: files })
    }

    pub(super) fn check(&self) -> Result<()> {
        self.gateway.check()?;
        self.client_daemon.check()
    }

    pub(super) fn strangers(&self) -> Result<Vec<Client>> {
        let stranger = |(number, key): (usize, &PrivateKey)| {
            let bind = || socket::bind(TO_CLIENT_NET.host(2, self.is_v6), 0);
            let socket = self.networks.client.run(bind)?;
            Ok(Client::over(socket, target(self.is_v6), nth(FIRST_STRANGER, number), key, self.key)?)
        };
        self.strangers.iter().enumerate().map(stranger).collect()
    }
}
