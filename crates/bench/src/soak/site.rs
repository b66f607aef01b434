//! The namespaces, the gateway as a service, and its client.
//!
//! ```text
//!   client  eth0 ─── to-client   gateway   to-attacker ─── eth0  attacker: frames from any source
//!     weft, bulk, requests,      a service       to-peers ─── eth0  peers that come, go and roam
//!     pings, numbered flows
//! ```

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use ipnet::Ipv4Net;
use weft_lab::flood::{self, Flood, Running};
use weft_lab::link;
use weft_lab::{Namespace, counters::Counters};
use weft_tunnel::{PrivateKey, PublicKey};

use super::SoakArgs;
use super::schedule::{Attack, Sources};
use super::service::Service;
use crate::implementation::{Daemon, Implementation, Setup};
use crate::interrupt::Interrupt;
use crate::peers::client::{Client, MTU};
use crate::peers::roster;
use crate::peers::socket;
use crate::site::{self, Net, OUTER, PeerSection};
use crate::site::{GATEWAY, INNER_PREFIX};
use crate::topology;

const START: Duration = Duration::from_secs(60);
const PORT: u16 = 51_820;
const TO_ATTACKER: &str = "to-attacker";
/// The links.
const TO_CLIENT_NET: Net = Net(1);
const TO_ATTACKER_NET: Net = Net(2);
const TO_PEERS_NET: Net = Net(3);
const PEER_ADDRESSES: u8 = 250;
/// The network routed to the attacker.
const BEHIND: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 0);
/// The client's address in the tunnel.
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Silent peers in every other configuration.
const CHANGING: u8 = 50;

/// Everything that runs beside this process.
pub(super) struct Site {
    // The daemons end before the namespaces.
    pub(super) service: Service,
    pub(super) client_daemon: Daemon,
    pub(super) gateway: Namespace,
    pub(super) client: Namespace,
    attacker: Namespace,
    pub(super) peers: Peers,
    variant: u8,
    keys: Keys,
}

struct Keys {
    gateway: PrivateKey,
    client: PrivateKey,
    peers: Vec<PublicKey>,
}

/// What the peers that come and go need.
#[derive(Clone)]
pub(super) struct Peers {
    pub(super) namespace: Namespace,
    pub(super) keys: Vec<PrivateKey>,
    pub(super) interface: String,
    gateway: PublicKey,
}

impl Site {
    /// Brings everything up; files and logs go to `directory`.
    pub(super) fn start(
        args: &SoakArgs,
        implementation: &Implementation,
        directory: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let Implementation::Weft { path, arguments } = implementation else {
            return Err(anyhow!("only a weft is loaded"));
        };
        let [gateway, client, attacker, outside] =
            ["gateway", "client", "attacker", "peers"].map(topology::namespace);
        let (gateway, client, attacker, outside) = (gateway?, client?, attacker?, outside?);
        TO_CLIENT_NET.join(&gateway, "to-client", &client, 2, false)?;
        TO_ATTACKER_NET.join(&gateway, TO_ATTACKER, &attacker, 2, false)?;
        TO_PEERS_NET.join(&gateway, "to-peers", &outside, 1 + PEER_ADDRESSES, false)?;
        link::add_route(&gateway, Ipv4Net::new(BEHIND, 16)?.into(), TO_ATTACKER_NET.v4(2).into())?;
        let keys = site::keys(args.peers as usize)?;
        let public = keys.iter().map(PrivateKey::public_key).collect();
        let own = Keys { gateway: site::key()?, client: site::key()?, peers: public };
        let interface = format!("ws{:x}", std::process::id());
        let file = directory.join(format!("{interface}.conf"));
        weft_lab::write_private(&file, &own.gateway_config(0))?;
        let service = Service::start(&gateway, path, arguments, &file, interrupt)
            .context("the gateway does not come up")?;
        let setup = Setup {
            interface: &format!("{interface}c"),
            addresses: &[Ipv4Net::new(CLIENT, INNER_PREFIX)?.into()],
            mtu: MTU,
            lines: "Table = off\n",
            config: &|lines| own.client_config(lines),
            limit: START,
        };
        let for_client = directory.join("client");
        std::fs::create_dir_all(&for_client)?;
        let client_daemon = implementation
            .bring_up(&client, &setup, &for_client, interrupt)
            .context("the client does not come up")?;
        let peers = Peers { namespace: outside, keys, interface, gateway: own.gateway.public_key() };
        Ok(Self { service, client_daemon, gateway, client, attacker, peers, variant: 0, keys: own })
    }

    /// Changes the configuration file, and lets the daemon reload it.
    pub(super) fn reload(&mut self) -> Result<()> {
        self.variant += 1;
        weft_lab::write_private(self.service.file(), &self.keys.gateway_config(self.variant))?;
        self.service.reload()
    }

    /// Starts a flood.
    pub(super) fn flood(&self, attack: Attack, per_second: u32, time: Duration) -> Result<Running> {
        let first = Ipv4Addr::from_bits(BEHIND.to_bits() + 1).into();
        let sources = match attack.sources {
            Sources::Addresses(count) => flood::Sources::addresses(first, count),
            Sources::Ports(count) => flood::Sources::ports(first, count),
        };
        let target = SocketAddr::from((TO_ATTACKER_NET.v4(1), PORT));
        let key = self.keys.gateway.public_key();
        let flood = Flood { kind: attack.kind, target, key, sources, per_second, time };
        flood.start(&self.attacker, OUTER, &self.gateway, TO_ATTACKER).context("the flood does not begin")
    }

    /// Returns the packets that the kernel dropped in all namespaces so far, outside of weft's own counters.
    pub(super) fn kernel_drops(&self) -> Result<u64> {
        let mut drops = 0;
        for namespace in [&self.gateway, &self.client, &self.peers.namespace] {
            let counters = Counters::read(namespace)?;
            drops += counters.udp_receive_buffer_full() + counters.udp_send_buffer_full();
            drops += counters.interfaces.values().map(|each| each.rx_dropped + each.tx_dropped).sum::<u64>();
        }
        Ok(drops)
    }
}

impl Peers {
    /// Creates a peer on one of the addresses of the link.
    pub(super) fn client(&self, number: usize, place: usize) -> Result<Client> {
        let gateway = SocketAddrV4::new(TO_PEERS_NET.v4(1), PORT);
        Client::over(
            self.socket(place)?,
            gateway.into(),
            roster::inner(number),
            &self.keys[number],
            self.gateway,
        )
    }

    /// Opens a socket on one of the addresses of the link.
    pub(super) fn socket(&self, place: usize) -> Result<UdpSocket> {
        let address = TO_PEERS_NET.v4(2 + (place % usize::from(PEER_ADDRESSES)) as u8);
        Ok(self.namespace.run(|| socket::bind(address, 0))?)
    }
}

impl Keys {
    /// Returns the configuration of the gateway. Two that follow each other differ in peers and settings.
    fn gateway_config(&self, variant: u8) -> String {
        let is_odd = variant % 2 == 1;
        let lines = format!("Address = {GATEWAY}/{INNER_PREFIX}\nMTU = {MTU}\n");
        let client = PeerSection::new(self.client.public_key(), CLIENT, None);
        let peers = self.peers.iter().enumerate();
        let peers = peers.map(|(number, key)| PeerSection::new(*key, roster::inner(number), None));
        let changing = (0..if is_odd { CHANGING } else { 0 }).map(|number| {
            let id = u32::from_be_bytes([0x10, 0, variant, number]);
            PeerSection::silent(id, Ipv4Addr::new(10, 200, variant, number), None)
        });
        // A setting of the last peer.
        let keepalive = if is_odd { "PersistentKeepalive = 25\n" } else { "" };
        let peers = peers.chain(changing).chain([client]);
        site::config(&self.gateway, Some(PORT), &lines, peers) + keepalive
    }

    fn client_config(&self, lines: &str) -> String {
        let endpoint = SocketAddr::from((TO_CLIENT_NET.v4(1), PORT));
        site::client_config(&self.client, lines, self.gateway.public_key(), endpoint)
    }
}
