//! A tunnel of one implementation between two namespaces.
//!
//! ```text
//!   near  eth0 ─── veth or emulated link ──── eth0  far
//!    198.18.0.1                          198.18.0.2
//!     tunnel 10.0.0.2 ══ MTU 1420 ══ 10.0.0.1 tunnel
//! ```
//!
//! Every implementation has separate namespaces and stays up during the others' turns: an idle tunnel costs
//! nothing. Without a tunnel the same traffic goes to the addresses of the link itself. Without root, traffic
//! begins in the namespace that the near daemon makes, or goes to ports of the loopback interface that the
//! near daemon forwards into the tunnel.

use std::fs::Permissions;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tempfile::TempDir;
use weft_lab::Namespace;
use weft_lab::counters::Counters;
use weft_lab::emulator::{Emulator, LinkSpec};
use weft_lab::link;
use weft_lab::traffic::TcpReceiver;

use crate::implementation::{Daemon, Implementation, Side, TRANSFER_PORT};
use crate::interrupt::Interrupt;
use crate::machine::Usage;
use crate::site::{self, GATEWAY, Interface, Net, OUTER, PORT, Peer, namespace};

const LINK: Net = Net(0);
pub(crate) const NEAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const CONNECT: Duration = Duration::from_secs(30);
/// Timeout for one attempt: longer than the round trip of an emulated link.
const ATTEMPT: Duration = Duration::from_secs(2);
/// The beginning of a flow: a seed and a byte.
const FIRST_BYTES: &[u8] = &[0; 9];
/// The congestion control of a namespace (ip-sysctl in the kernel's documentation).
const CONGESTION: &str = "net/ipv4/tcp_congestion_control";

/// Joins the namespaces by an emulated link, which has to be kept as long as they are to be joined, or by a
/// veth pair, as fast as the machine.
fn join(near: &Namespace, far: &Namespace, spec: Option<&LinkSpec>) -> Result<Option<Emulator>> {
    let options = LINK.link(OUTER, 2, 1500)?;
    let Some(spec) = spec else {
        link::join(near, far, &options)?;
        return Ok(None);
    };
    lift_tcp_limits(near)?;
    lift_tcp_limits(far)?;
    Ok(Some(Emulator::between(near, far, &options, spec).context("cannot emulate the link")?))
}

/// A tunnel that carries packets, or the bare link.
#[derive(Debug)]
pub(crate) struct Tunnel {
    /// The near daemon first; empty without a tunnel. Dropped before the namespaces.
    pub(crate) daemons: Vec<Daemon>,
    /// The emulated link; `None` for a veth. Dropped before the namespaces.
    pub(crate) emulator: Option<Emulator>,
    /// The namespace of the clients.
    pub(crate) near: Namespace,
    pub(crate) far: Namespace,
    /// Address of the far end, in the tunnel or on the bare link.
    pub(crate) server: IpAddr,
    /// What clients connect to: the far end, or the loopback interface where ports are forwarded.
    pub(crate) target: IpAddr,
    /// The namespace of the near daemon, which ends with it.
    _outside: Namespace,
    /// The directory with the files of the near end.
    pub(crate) near_directory: PathBuf,
    _files: TempDir,
}

impl Tunnel {
    /// Brings both ends up and waits until a connection has passed.
    pub(crate) fn start(side: &Side, link: Option<&LinkSpec>, interrupt: &Interrupt) -> Result<Self> {
        Self::bring_up(&side.implementation, link, interrupt)
            .with_context(|| format!("cannot bring up {}", side.name))
    }

    fn bring_up(
        implementation: &Implementation,
        link: Option<&LinkSpec>,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let (near, far) = (namespace("near")?, namespace("far")?);
        let emulator = join(&near, &far, link)?;
        remember_nothing(&near)?;
        remember_nothing(&far)?;
        let files = tempfile::tempdir()?;
        // An end without root has a directory in it.
        std::fs::set_permissions(files.path(), Permissions::from_mode(0o711))?;
        let (near_key, far_key) = (site::key()?, site::key()?);
        let [near_peer, far_peer] = [
            Peer::new(near_key.public_key(), NEAR, Some(LINK.endpoint(1))),
            Peer::new(far_key.public_key(), GATEWAY, Some(LINK.endpoint(2))),
        ];
        let near_end = Interface::new(near_key, Some(PORT), NEAR, vec![far_peer])?;
        let far_end = Interface::new(far_key, Some(PORT), GATEWAY, vec![near_peer])?;
        let near_directory = files.path().join(near_end.name.as_str());
        let mut daemons = Vec::new();
        if !matches!(implementation, Implementation::Bare) {
            let far_daemon = implementation.of_far_end().start(&far, &far_end, files.path(), interrupt)?;
            daemons.extend([implementation.start(&near, &near_end, files.path(), interrupt)?, far_daemon]);
        }
        let clients = match daemons.first().and_then(|daemon| daemon.inside) {
            Some(process) => {
                Namespace::of_process("inside", process).context("cannot enter its namespace")?
            }
            None => near.clone(),
        };
        remember_nothing(&clients)?;
        let server = IpAddr::from(if daemons.is_empty() { LINK.v4(2) } else { GATEWAY });
        let target = if implementation.forwards_ports() { Ipv4Addr::LOCALHOST.into() } else { server };
        let tunnel = Self {
            daemons,
            emulator,
            near: clients,
            far,
            server,
            target,
            _outside: near,
            near_directory,
            _files: files,
        };

        let receiver = tunnel.listen()?;
        let target = tunnel.transfer_address();
        interrupt.wait_for("a connection through the tunnel", CONNECT, || {
            tunnel.check()?;
            // A forwarder accepts before it knows whether the other end does.
            let connection = tunnel.near.run(|| TcpStream::connect_timeout(&target, ATTEMPT));
            let Ok(mut connection) = connection else { return Ok(None) };
            let sent = connection.write_all(FIRST_BYTES);
            let begun = Instant::now();
            while sent.is_ok() && receiver.bytes() == 0 && begun.elapsed() < ATTEMPT {
                interrupt.sleep(Duration::from_millis(5))?;
            }
            Ok((receiver.bytes() > 0).then_some(()))
        })?;
        Ok(tunnel)
    }

    /// Starts a receiver at the far end; clients reach it at [`Self::transfer_address`].
    pub(crate) fn listen(&self) -> Result<TcpReceiver> {
        let listen = || TcpReceiver::listen((self.server, TRANSFER_PORT).into());
        self.far.run(listen).context("cannot listen in the tunnel")
    }

    pub(crate) fn transfer_address(&self) -> SocketAddr {
        (self.target, TRANSFER_PORT).into()
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.daemons.iter().try_for_each(Daemon::check)
    }

    pub(crate) fn usages(&self) -> Result<Vec<Usage>> {
        self.daemons.iter().map(Daemon::usage).collect()
    }

    pub(crate) fn counters(&self) -> Result<[Counters; 2]> {
        Ok([Counters::read(&self.near)?, Counters::read(&self.far)?])
    }

    /// Returns the congestion control of TCP connections that name none.
    pub(crate) fn congestion(&self) -> Result<String> {
        self.near.sysctl(CONGESTION).context("cannot read which congestion control a namespace uses")
    }
}

/// Disables the metrics cache of TCP: results must not depend on the order of the runs.
fn remember_nothing(namespace: &Namespace) -> Result<()> {
    Ok(namespace.set_sysctl("net/ipv4/tcp_no_metrics_save", "1")?)
}

/// Raises the TCP buffer limits to several bandwidth-delay products.
fn lift_tcp_limits(namespace: &Namespace) -> Result<()> {
    /// Four times the bytes in flight and queued at 500 Mbit/s and 100 ms; a receiver counts the memory of
    /// its buffers, about twice their contents.
    const LIMIT: &str = "67108864";
    for name in ["net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem"] {
        let sizes = namespace.sysctl(name)?;
        let mut sizes: Vec<&str> = sizes.split_whitespace().collect();
        if let Some(limit) = sizes.last_mut() {
            *limit = LIMIT;
        }
        namespace.set_sysctl(name, &sizes.join(" "))?;
    }
    Ok(())
}
