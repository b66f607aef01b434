//! The namespaces, the gateway as a service, and its client.
//!
//! ```text
//!   client  eth0 ─── to-client   gateway   to-attacker ─── eth0  attacker: frames from any source
//!     weft, bulk, requests,      a service       to-peers ─── eth0  peers that come, go and roam
//!     pings, numbered flows
//! ```

use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use weft_config::InterfaceName;
use weft_lab::flood::Running;
use weft_lab::link::receive_on_one_cpu;
use weft_lab::{Namespace, counters::Counters, write_private};
use weft_tunnel::{PrivateKey, PublicKey};

use super::SoakArgs;
use super::service::Service;
use crate::floods::attack::Attack;
use crate::floods::attacker::of_stranger;
use crate::floods::site::{CLIENT, Networks, target};
use crate::implementation::{Daemon, Implementation};
use crate::interrupt::Interrupt;
use crate::peers::client::Client;
use crate::peers::gateway::inner;
use crate::peers::socket;
use crate::site::{self, GATEWAY, Interface, Net, OUTER, PORT, Peer, namespace};

const TO_PEERS: &str = "to-peers";
const TO_PEERS_NET: Net = Net(3);
const PEER_ADDRESSES: u8 = 250;
/// Silent peers in every other configuration.
const CHANGING: u8 = 50;

/// Everything that runs beside this process.
pub(super) struct Site {
    // The daemons end before the namespaces.
    pub(super) service: Service,
    pub(super) client_daemon: Daemon,
    pub(super) networks: Networks,
    pub(super) peers: Peers,
    file: PathBuf,
    variant: u8,
    interface: Interface,
}

/// What the peers that come and go need.
#[derive(Clone)]
pub(super) struct Peers {
    namespace: Namespace,
    pub(super) keys: Vec<PrivateKey>,
    pub(super) interface: InterfaceName,
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
        let networks = Networks::new()?;
        let outside = namespace("peers")?;
        TO_PEERS_NET.join_network(&networks.inside, TO_PEERS, &outside, 1 + PEER_ADDRESSES)?;
        for (namespace, name) in [
            (&networks.inside, TO_PEERS),
            (&outside, OUTER),
            (&networks.inside, "to-client"),
            (&networks.client, OUTER),
        ] {
            // Where that is refused, packets are only more likely to be displaced, and the message says so.
            let _ = receive_on_one_cpu(namespace, name)
                .inspect_err(|error| eprintln!("{name} may displace packets: {error}"));
        }
        let (key, client_key, keys) = (site::key()?, site::key()?, site::keys(args.peers as usize)?);
        let peer = |(number, key): (usize, &PrivateKey)| Peer::new(key.public_key(), inner(number), None);
        let peers = keys.iter().enumerate().map(peer);
        let peers: Vec<Peer> = peers.chain([Peer::new(client_key.public_key(), CLIENT, None)]).collect();
        let interface = Interface::new(key.clone(), Some(PORT), GATEWAY, peers)?;
        let name = interface.name.clone();
        let file = directory.join(format!("{name}.conf"));
        write_private(&file, &text(&interface, 0))?;
        let service = Service::start(&networks.inside, path, arguments, &file, interrupt)
            .context("the gateway does not come up")?;
        let client = Interface::of_client(client_key, CLIENT, key.public_key(), target(false))?;
        let client_daemon = implementation
            .start(&networks.client, &client, directory, interrupt)
            .context("the client does not come up")?;
        let peers = Peers { namespace: outside, keys, interface: name, gateway: key.public_key() };
        Ok(Self { service, client_daemon, networks, peers, file, variant: 0, interface })
    }

    /// Changes the configuration file, and lets the daemon reload it.
    pub(super) fn reload(&mut self) -> Result<()> {
        self.variant += 1;
        write_private(&self.file, &text(&self.interface, self.variant))?;
        self.service.reload()
    }

    /// Starts a flood.
    pub(super) fn flood(&self, attack: Attack, time: Duration) -> Result<Running> {
        self.networks.flood(of_stranger(attack, &self.networks, self.peers.gateway, time)?)
    }

    /// Returns the packets that the kernel dropped in all namespaces so far, outside of weft's own counters.
    pub(super) fn kernel_drops(&self) -> Result<u64> {
        let mut drops = 0;
        for namespace in [&self.networks.inside, &self.networks.client, &self.peers.namespace] {
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
        let gateway = TO_PEERS_NET.endpoint(1);
        Client::over(self.socket(place)?, gateway, inner(number), &self.keys[number], self.gateway)
    }

    /// Opens a socket on one of the addresses of the link.
    pub(super) fn socket(&self, place: usize) -> Result<UdpSocket> {
        let address = TO_PEERS_NET.v4(2 + (place % usize::from(PEER_ADDRESSES)) as u8);
        Ok(self.namespace.run(|| socket::bind(address, 0))?)
    }
}

/// Returns the file of the gateway. Two that follow each other differ in peers and settings.
fn text(interface: &Interface, variant: u8) -> String {
    let is_odd = variant % 2 == 1;
    let mut interface = interface.clone();
    let changing = (0..if is_odd { CHANGING } else { 0 }).map(|number| {
        let id = u32::from_be_bytes([0x10, 0, variant, number]);
        Peer::silent(id, Ipv4Addr::new(10, 200, variant, number), None)
    });
    let last = interface.peers.len().saturating_sub(1);
    interface.peers.splice(last..last, changing);
    // A setting of the last peer.
    interface.file() + if is_odd { "PersistentKeepalive = 25\n" } else { "" }
}
