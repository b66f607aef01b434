//! A tunnel of one implementation between two namespaces, with an iperf3 server at its far end.
//!
//! ```text
//!   near  eth0 ─────── veth, MTU 1500 ─────── eth0  far
//!    192.0.2.1                          192.0.2.2
//!     tunnel 10.99.0.1 ══ MTU 1420 ══ 10.99.0.2 tunnel, iperf3 -s
//! ```
//!
//! Every implementation has namespaces of its own and stays up while the others have their turn: an idle tunnel
//! costs nothing.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tempfile::TempDir;
use weft::lab::Namespace;
use weft::lab::link::{self, LinkOptions};

use crate::interrupt::Interrupt;
use crate::peers::{Daemon, End, Implementation, new_keys};
use crate::process::Process;

/// The inner addresses of the two ends.
const NEAR: &str = "10.99.0.1";
/// Where the iperf3 server is.
pub(crate) const FAR: &str = "10.99.0.2";
const PORT: u16 = 51820;
/// How long a first connection through a new tunnel may take.
const CONNECT: Duration = Duration::from_secs(30);

/// A tunnel that carries packets.
#[derive(Debug)]
pub(crate) struct Tunnel {
    // In the order of the clean-up.
    server: Process,
    daemons: [Daemon; 2],
    pub(crate) near: Namespace,
    /// What runs in a namespace ends with its last owner.
    _far: Namespace,
    files: TempDir,
}

impl Tunnel {
    /// Brings both ends up and waits until a connection has passed.
    pub(crate) fn start(implementation: &Implementation, weft: &Path, interrupt: &Interrupt) -> Result<Self> {
        let root = "weft-bench has to run as root";
        let (near, far) = (Namespace::new("near").context(root)?, Namespace::new("far").context(root)?);
        let options = LinkOptions {
            addresses_a: vec!["192.0.2.1/24".parse()?],
            addresses_b: vec!["192.0.2.2/24".parse()?],
            ..LinkOptions::default()
        };
        link::join(&near, &far, &options)?;
        let files = tempfile::tempdir()?;
        let [near_keys, far_keys] = [new_keys(weft)?, new_keys(weft)?];
        let end = |keys: &(String, String), other: &(String, String), addresses: [&str; 3]| End {
            private_key: keys.0.clone(),
            peer_public_key: other.1.clone(),
            port: PORT,
            address: addresses[0].to_owned(),
            peer_address: addresses[1].to_owned(),
            peer_endpoint: format!("{}:{PORT}", addresses[2]),
        };
        let start = |namespace: &Namespace, end: &End| {
            let directory = files.path().join(namespace.name());
            std::fs::create_dir(&directory)?;
            implementation.start(namespace, end, &directory, interrupt)
        };
        let far_daemon = start(&far, &end(&far_keys, &near_keys, [FAR, NEAR, "192.0.2.1"]))?;
        let mut near_daemon = start(&near, &end(&near_keys, &far_keys, [NEAR, FAR, "192.0.2.2"]))?;

        let listener = far.run(|| TcpListener::bind((FAR, 0))).context("cannot listen in the tunnel")?;
        let address: SocketAddr = listener.local_addr()?;
        near_daemon.wait_until(interrupt, "a connection through the tunnel", CONNECT, || {
            near.run(|| TcpStream::connect_timeout(&address, Duration::from_secs(1))).is_ok()
        })?;
        let words = ["iperf3", "-s", "--forceflush"].map(str::to_owned);
        let mut server = Process::start(&far, &words, files.path().join("iperf3-server.log"))?;
        server.wait_until(interrupt, "the iperf3 server", CONNECT, |server| {
            server.output().contains("Server listening")
        })?;
        Ok(Self { server, daemons: [near_daemon, far_daemon], near, _far: far, files })
    }

    /// An error if one of its programs has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.daemons.iter_mut().try_for_each(Daemon::check)?;
        self.server.check()
    }

    /// A file that goes with the tunnel.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }
}
