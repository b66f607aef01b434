//! The gateway: a real process with all its peers, in a namespace that is linked to the clients' namespace.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tempfile::TempDir;
use weft_lab::Namespace;
use weft_lab::client::{Client, socket};
use weft_tunnel::{PrivateKey, PublicKey};

use crate::implementation::{Daemon, Implementation};
use crate::interrupt::Interrupt;
use crate::machine::Usage;
use crate::site::{self, GATEWAY, Interface, Missing, Net, PORT, Peer, namespace, nth};

const LINK: Net = Net(0);
/// Number of addresses that the clients share on their side of the link.
const SOURCES: u8 = 250;

pub(crate) fn inner(peer: usize) -> Ipv4Addr {
    nth(Ipv4Addr::new(10, 1, 0, 0), peer)
}

/// The gateway's key and its peers. The first ones have a client.
pub(super) struct Roster {
    gateway: PrivateKey,
    pub(super) active: Vec<PrivateKey>,
    configured: usize,
}

impl Roster {
    /// Generates keys for `configured` peers, of which the first `active` have a client.
    pub(super) fn new(configured: usize, active: usize) -> Result<Self> {
        Ok(Self { gateway: site::key()?, active: site::keys(active)?, configured })
    }

    fn interface(&self) -> Result<Interface> {
        let peer = |number: usize| match self.active.get(number) {
            Some(key) => Peer::new(key.public_key(), inner(number), None),
            None => Peer::silent(number as u32, inner(number), None),
        };
        Interface::new(self.gateway.clone(), Some(PORT), GATEWAY, (0..self.configured).map(peer).collect())
    }

    /// Creates the client of a peer. Call it in the clients' namespace.
    pub(super) fn client(&self, number: usize) -> Result<Client> {
        let key = self.active.get(number).context("there is no such peer")?;
        let address = LINK.v4(2 + (number % usize::from(SOURCES)) as u8);
        let socket = socket::bind(address, 0).with_context(|| format!("no socket on {address}"))?;
        Ok(Client::over(socket, LINK.endpoint(1), inner(number), key, self.gateway.public_key())?)
    }
}

/// A running gateway, with its and the clients' namespaces.
pub(super) struct Gateway {
    pub(super) daemon: Daemon,
    pub(super) inside: Namespace,
    pub(super) clients: Namespace,
    /// Time from its start until it was configured with all peers.
    pub(super) configured_in: Duration,
    _files: TempDir,
}

impl Gateway {
    pub(super) fn start(
        implementation: &Implementation,
        roster: &Roster,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let (inside, clients) = (namespace("gateway")?, namespace("clients")?);
        LINK.join(&inside, &clients, 1 + SOURCES)?;
        let files = tempfile::tempdir()?;
        let start = Instant::now();
        let daemon = implementation.start(&inside, &roster.interface()?, files.path(), interrupt)?;
        Ok(Self { daemon, inside, clients, configured_in: start.elapsed(), _files: files })
    }

    pub(super) fn usage(&self) -> Result<Usage> {
        Usage::of(self.daemon.id())
    }

    /// Returns the bytes of WireGuard messages received from a peer and sent to it so far.
    pub(super) fn carried(&self, peer: &PublicKey) -> Result<[u64; 2]> {
        let state = weft_uapi::client::get(&self.daemon.interface)?.state;
        let peer =
            state.peers.iter().find(|of| of.public_key == *peer).context("the gateway has no such peer")?;
        Ok([peer.rx_bytes, peer.tx_bytes])
    }
}

/// Raises the limit of file descriptors to `count` sockets and some more.
pub(super) fn allow_sockets(count: usize) -> Result<()> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let wanted = count as u64 + 512;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < wanted {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted))
            .map_err(|error| Missing(error.into()))?;
    }
    Ok(())
}
