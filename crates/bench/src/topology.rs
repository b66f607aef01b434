//! A tunnel of one implementation between two namespaces.
//!
//! ```text
//!   near  eth0 ─── veth or emulated link ──── eth0  far
//!    192.0.2.1                          192.0.2.2
//!     tunnel 10.99.0.1 ══ MTU 1420 ══ 10.99.0.2 tunnel
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

use anyhow::{Context as _, Result, anyhow};
use tempfile::TempDir;
use weft_lab::Namespace;
use weft_lab::counters::Counters;
use weft_lab::emulator::{Emulator, LinkSpec};
use weft_lab::link::{self, LinkOptions};
use weft_lab::traffic::TcpReceiver;
use weft_tunnel::PrivateKey;

use crate::congestion;
use crate::implementation::{Daemon, End, Implementation, TRANSFER_PORT};
use crate::interrupt::Interrupt;
use crate::site;
use crate::usage::Usage;

/// The addresses of the link's two ends.
const NEAR_LINK: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const FAR_LINK: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// The addresses of the tunnel's two ends.
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
const PORT: u16 = 51820;
/// WireGuard's overhead over IPv6: 40 + 8 + 16 + 16 bytes.
const OVERHEAD: u32 = 80;
/// Timeout for the first connection through a new tunnel.
const CONNECT: Duration = Duration::from_secs(30);
/// Timeout for one attempt: longer than the round trip of an emulated link.
const ATTEMPT: Duration = Duration::from_secs(2);
/// The beginning of a flow: a seed and a byte.
const FIRST_BYTES: &[u8] = &[0; 9];

/// The connection between the two namespaces.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Wire {
    /// A veth pair: as fast as the machine, without delay, loss or a queue.
    #[default]
    Veth,
    /// A link with rate, delay, queue, losses and reordering.
    Emulated(LinkSpec),
}

impl From<Option<LinkSpec>> for Wire {
    fn from(spec: Option<LinkSpec>) -> Self {
        spec.map_or(Self::Veth, Self::Emulated)
    }
}

impl Wire {
    /// Joins the namespaces; both ends have their addresses and pass packets of up to `mtu` bytes. Returns
    /// the emulator, which has to be kept as long as they are to be joined.
    fn join(&self, near: &Namespace, far: &Namespace, mtu: u32) -> Result<Option<Emulator>> {
        let options = LinkOptions {
            mtu,
            addresses_a: vec![format!("{NEAR_LINK}/24").parse()?],
            addresses_b: vec![format!("{FAR_LINK}/24").parse()?],
            ..LinkOptions::default()
        };
        match self {
            Self::Veth => {
                link::join(near, far, &options)?;
                Ok(None)
            }
            Self::Emulated(spec) => {
                for namespace in [near, far] {
                    lift_tcp_limits(namespace)?;
                }
                let emulator = Emulator::between(near, far, &options, spec);
                Ok(Some(emulator.context("cannot emulate the link")?))
            }
        }
    }
}

/// A tunnel that carries packets, or the bare link.
#[derive(Debug)]
pub(crate) struct Tunnel {
    /// The near daemon first; empty without a tunnel. Dropped before the namespaces.
    daemons: Vec<Daemon>,
    /// Dropped before the namespaces.
    emulator: Option<Emulator>,
    /// The namespace of the clients.
    pub(crate) near: Namespace,
    pub(crate) far: Namespace,
    /// Address of the far end, in the tunnel or on the bare link.
    pub(crate) server: IpAddr,
    /// What clients connect to: the far end, or the loopback interface where ports are forwarded.
    pub(crate) target: IpAddr,
    /// The namespace of the near daemon.
    pub(crate) outside: Namespace,
    files: TempDir,
}

impl Tunnel {
    /// Brings both ends up and waits until a connection has passed. `congestion` is TCP's congestion control
    /// at both ends; `None` keeps the machine's default.
    pub(crate) fn start(
        implementation: &Implementation,
        wire: &Wire,
        mtu: u16,
        congestion: Option<&str>,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let (near, far) = (namespace("near")?, namespace("far")?);
        let emulator = wire.join(&near, &far, (u32::from(mtu) + OVERHEAD).max(1500))?;
        let prepare = |namespace: &Namespace| {
            // Disable the metrics cache: results must not depend on the order of the runs.
            namespace.set_sysctl("net/ipv4/tcp_no_metrics_save", "1")?;
            congestion.map_or(Ok(()), |control| congestion::choose(namespace, control))
        };
        prepare(&near)?;
        prepare(&far)?;
        let files = tempfile::tempdir()?;
        // An end without root has a directory in it.
        std::fs::set_permissions(files.path(), Permissions::from_mode(0o711))?;
        let (near_key, far_key) = (site::key()?, site::key()?);
        let start = |implementation: &Implementation,
                     namespace: &Namespace,
                     key: &PrivateKey,
                     peer: &PrivateKey,
                     [own, other, link]: [Ipv4Addr; 3]| {
            let directory = files.path().join(namespace.name());
            std::fs::create_dir(&directory)?;
            let end = End {
                private_key: key.clone(),
                peer_public_key: peer.public_key(),
                port: PORT,
                address: own,
                peer_address: other,
                peer_endpoint: SocketAddr::from((link, PORT)),
                mtu,
            };
            implementation.start(namespace, &end, &directory, interrupt)
        };
        let far_daemon =
            start(&implementation.of_far_end(), &far, &far_key, &near_key, [FAR, NEAR, NEAR_LINK])?;
        let near_daemon = start(implementation, &near, &near_key, &far_key, [NEAR, FAR, FAR_LINK])?;
        let inside = near_daemon.as_ref().and_then(Daemon::process_inside);
        let clients = match inside {
            Some(process) => {
                Namespace::of_process("inside", process).context("cannot enter its namespace")?
            }
            None => near.clone(),
        };
        prepare(&clients)?;
        let daemons: Vec<Daemon> = near_daemon.into_iter().chain(far_daemon).collect();
        let server = IpAddr::from(if daemons.is_empty() { FAR_LINK } else { FAR });
        let target = if implementation.forwards_ports() { Ipv4Addr::LOCALHOST.into() } else { server };
        let mut tunnel = Self { daemons, emulator, near: clients, far, server, target, outside: near, files };

        let receiver = tunnel.listen()?;
        let target = SocketAddr::new(tunnel.target, TRANSFER_PORT);
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

    /// Starts a receiver at the far end; clients reach it at [`TRANSFER_PORT`] of the target.
    pub(crate) fn listen(&self) -> Result<TcpReceiver> {
        let listen = || TcpReceiver::listen((self.server, TRANSFER_PORT).into());
        self.far.run(listen).context("cannot listen in the tunnel")
    }

    /// Returns an error if one of its daemons has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.daemons.iter_mut().try_for_each(Daemon::check)
    }

    /// Ends the near daemon: what is started in its place has the same key.
    pub(crate) fn end_near_daemon(&mut self) {
        if !self.daemons.is_empty() {
            self.daemons.remove(0);
        }
    }

    /// Returns the directory with the files of the near end.
    pub(crate) fn near_directory(&self) -> PathBuf {
        self.files.path().join(self.outside.name())
    }

    /// Returns the emulated link.
    ///
    /// # Errors
    /// The ends are joined by a veth.
    pub(crate) fn emulator(&self) -> Result<&Emulator> {
        self.emulator.as_ref().context("the ends are not joined by an emulated link")
    }

    /// Returns the process IDs of its daemons, the near one first; empty without a tunnel.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.daemons.iter().map(Daemon::id).collect()
    }

    /// Reads the usage of its daemons, the near one first; empty without a tunnel.
    pub(crate) fn usages(&self) -> Result<Vec<Usage>> {
        self.daemons.iter().map(Daemon::usage).collect()
    }

    /// Reads the kernel's counters of the near end and of the far end.
    pub(crate) fn counters(&self) -> Result<[Counters; 2]> {
        Ok([Counters::read(&self.near)?, Counters::read(&self.far)?])
    }

    /// Returns the path of a file that is removed with the tunnel.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }
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

/// A permission is missing, which has an exit code; contains the system's error.
#[derive(Debug, thiserror::Error)]
#[error("weft-bench has to run as root, for instance with sudo: {0}")]
pub(crate) struct Missing(pub(crate) std::io::Error);

/// Returns an error if the permission to bring up tunnels is missing.
pub(crate) fn check_permission() -> Result<()> {
    namespace("probe").map(drop)
}

pub(crate) fn namespace(name: &str) -> Result<Namespace> {
    Namespace::new(name).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => Missing(error).into(),
        _ => anyhow!(error).context("cannot make a network namespace"),
    })
}

#[cfg(test)]
mod tests {
    use weft_lab::here;

    use super::*;

    #[test]
    fn a_congestion_control_is_of_both_ends_and_not_of_the_host() {
        if !here::namespaces_permitted() {
            return;
        }
        let host = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
        let (before, interrupt) = (host(), Interrupt::default());
        let start =
            |congestion| Tunnel::start(&Implementation::Bare, &Wire::Veth, 1420, congestion, &interrupt);
        // Every kernel has reno, and permits it in every namespace.
        let tunnel = start(Some("reno")).unwrap();
        for end in [&tunnel.near, &tunnel.far] {
            assert_eq!(congestion::in_use(end).unwrap(), "reno");
        }
        let error = start(Some("none-such")).unwrap_err();
        assert!(format!("{error:#}").contains("none-such"), "{error:#}");
        assert_eq!(host(), before);
    }
}
