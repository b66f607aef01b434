//! `weft up`: one interface from its configuration to its end, with everything undone.
//!
//! This is the control thread: it builds peers, talks to netlink and waits; packets move on the packet thread.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::mpsc;

use weft_tun::TunConfig;
use weft_tunnel::{NewPeer, PeerBuilder, PeerConfig, TunnelConfig};

use crate::cli::{TunThreads, UpArgs};
use crate::config::{self, Config, LoadError};
use crate::dataplane::{Dataplane, DataplaneError, Setup, Snapshot, StartError, tun_queues};
use crate::exit;
use crate::memory_budget;
use crate::resolve::{self, Cancel, ResolveError, Retries};
use crate::routes::{Applied, Netlink, QueueLimits, RouteError};
use crate::scheduling::Priority;
use crate::secrecy;
use crate::signals;
use crate::udp::{PathMtu, UdpConfig};

/// How to run an interface, beside what its file says.
#[derive(Clone, Debug)]
pub struct Options {
    /// Queues of the TUN, each with its threads.
    pub tun_threads: TunThreads,
    /// Whether the TUN and the sockets take super-packets and batches.
    pub offload: bool,
    /// Whether datagrams may be fragmented on their way.
    pub path_mtu: PathMtu,
    /// Name of the packet thread, at most 15 bytes.
    pub thread_name: String,
    /// How the packet thread competes for a core.
    pub priority: Priority,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tun_threads: TunThreads::Auto,
            offload: true,
            path_mtu: PathMtu::default(),
            thread_name: "weft-packets".into(),
            priority: Priority::Ordinary,
        }
    }
}

/// Why an interface could not be brought up, or ended.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// The configuration is wrong or cannot be read.
    #[error(transparent)]
    Config(#[from] LoadError),
    /// An endpoint's name has no address.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// Device, sockets or thread could not be had.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Addresses or routes could not be set.
    #[error(transparent)]
    Routes(#[from] RouteError),
    /// The packet thread ended by itself.
    #[error(transparent)]
    Dataplane(#[from] DataplaneError),
    /// The signals that end the daemon cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(#[source] std::io::Error),
}

impl UpError {
    /// The exit code that says so.
    pub fn exit_code(&self) -> exit::Code {
        match self {
            Self::Config(error) => error.exit_code(),
            Self::Start(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                exit::Code::Permission
            }
            Self::Routes(error) => error.exit_code(),
            _ => exit::Code::Failure,
        }
    }
}

/// A running interface. Dropping it takes everything down.
pub struct Daemon {
    // In the order of the clean-up: routes and addresses first, then the device goes with its descriptors.
    applied: Applied,
    netlink: Netlink,
    dataplane: Option<Dataplane>,
}

impl Daemon {
    /// Brings the interface up in the network namespace of this thread, and returns once device, sockets,
    /// addresses and routes are in place. A failure leaves nothing behind. `on_end` is called when packets have
    /// stopped, whatever the reason.
    pub fn start(
        config: &Config,
        endpoints: &[Option<SocketAddr>],
        options: &Options,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Self, UpError> {
        let netlink = Netlink::open()?;
        let interface = &config.interface;
        let peers = build_peers(config, endpoints);
        let mut dataplane = Dataplane::open(
            Setup {
                tun: TunConfig {
                    threads: tun_queues(options.tun_threads),
                    offload: options.offload,
                    ..TunConfig::new(interface.name.as_str())
                },
                udp: UdpConfig {
                    port: interface.listen_port,
                    fwmark: interface.fw_mark,
                    gso: options.offload,
                    path_mtu: options.path_mtu,
                },
                private_key: interface.private_key.clone(),
                tunnel: TunnelConfig { mtu: 0, staging_bytes: memory_budget::staging_bytes() },
                thread_name: options.thread_name.clone(),
                priority: options.priority,
            },
            on_end,
        )?;
        let link = netlink.link(&interface.name)?;
        let known: Vec<SocketAddr> = endpoints.iter().flatten().copied().collect();
        let mtu = match interface.mtu {
            Some(mtu) => mtu,
            None => netlink.default_mtu(interface, &known),
        };
        netlink.set_queue_limits(&link, queue_limits(mtu));
        // Packets may move from here on: the first that the routes bring finds the event loop running.
        dataplane.run(mtu, peers)?;
        let applied = netlink.apply(&link, config, mtu)?;
        let opened = dataplane.opened();
        tracing::info!(
            interface = opened.interface,
            port = opened.port,
            mtu,
            public_key = %interface.private_key.public_key(),
            peers = config.peers.len(),
            tun_threads = tun_queues(options.tun_threads),
            tcp_offload = opened.offload.tcp,
            udp_offload = opened.offload.udp,
            "interface is up"
        );
        Ok(Self { applied, netlink, dataplane: Some(dataplane) })
    }

    /// The UDP port in use.
    pub fn port(&self) -> u16 {
        self.dataplane.as_ref().map_or(0, |dataplane| dataplane.opened().port)
    }

    /// Every counter and peer at this moment.
    pub fn snapshot(&self) -> Result<Snapshot, DataplaneError> {
        self.dataplane.as_ref().ok_or(DataplaneError::Ended)?.snapshot()
    }

    /// Takes the interface down: routes, addresses, device, sockets, threads. Gives the reason if packets had
    /// stopped by themselves.
    pub fn stop(mut self) -> Result<(), DataplaneError> {
        self.take_down()
    }

    fn take_down(&mut self) -> Result<(), DataplaneError> {
        for error in self.applied.undo(&self.netlink) {
            tracing::warn!("{error}");
        }
        self.dataplane.take().map_or(Ok(()), Dataplane::stop)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.dataplane.is_some() {
            let _ = self.take_down();
        }
    }
}

impl From<UpError> for exit::Error {
    fn from(error: UpError) -> Self {
        Self::new(error.exit_code(), error)
    }
}

/// `weft up`: runs the interface that the arguments name until SIGINT or SIGTERM.
///
/// # Errors
/// Those of [`UpError`]; nothing is left behind.
pub fn run(args: &UpArgs) -> Result<(), exit::Error> {
    let options = Options {
        tun_threads: args.tun.tun_threads,
        offload: !args.tun.no_offload,
        priority: if args.realtime { Priority::Realtime } else { Priority::Ordinary },
        ..Options::default()
    };
    Ok(run_until_signal(&args.target, &options)?)
}

fn run_until_signal(target: &str, options: &Options) -> Result<(), UpError> {
    secrecy::forbid_core_dumps();
    let parsed = config::load(target)?;
    for warning in &parsed.warnings {
        tracing::warn!("{warning}");
    }
    let config = parsed.config;
    // Nothing is set up yet, so a signal during the look-ups may simply end the process.
    let endpoints = resolve_endpoints(&config)?;
    let (end, ended) = mpsc::channel();
    let signal = end.clone();
    signals::watch(move |name| {
        let _ = signal.send(Some(name));
    })
    .map_err(UpError::Signals)?;
    let daemon = Daemon::start(&config, &endpoints, options, move || {
        let _ = end.send(None);
    })?;
    if let Ok(Some(name)) = ended.recv() {
        tracing::info!(signal = name, "taking the interface down");
    }
    daemon.stop()?;
    tracing::info!(interface = %config.interface.name, "interface is down");
    Ok(())
}

fn resolve_endpoints(config: &Config) -> Result<Vec<Option<SocketAddr>>, ResolveError> {
    let (retries, cancel) = (Retries::from_environment(), Cancel::default());
    config
        .peers
        .iter()
        .map(|peer| {
            peer.endpoint.as_ref().map(|endpoint| resolve::resolve(endpoint, retries, &cancel)).transpose()
        })
        .collect()
}

/// Builds every peer, with an index of its own.
fn build_peers(config: &Config, endpoints: &[Option<SocketAddr>]) -> Vec<NewPeer> {
    let builder = PeerBuilder::new(&config.interface.private_key);
    let mut taken = HashSet::new();
    config
        .peers
        .iter()
        .enumerate()
        .map(|(place, peer)| {
            let mut config = PeerConfig {
                public_key: peer.public_key,
                preshared_key: peer.preshared_key.clone(),
                endpoint: endpoints.get(place).copied().flatten(),
                allowed_ips: peer.allowed_ips.clone(),
                persistent_keepalive: peer.persistent_keepalive,
            };
            loop {
                let built = builder.build(config);
                if taken.insert(built.index()) {
                    return built;
                }
                config = built.into_config();
            }
        })
        .collect()
}

/// Super-packets that usually fit one GSO send once they are sealed, headers as long as TCP over IPv6 with
/// timestamps makes them.
fn queue_limits(mtu: u16) -> QueueLimits {
    const HEADERS: usize = 40 + 32;
    const SEALED: usize = 32;
    let mtu = usize::from(mtu);
    let segments = (weft_tunnel::MAX_BATCH_BYTES / (mtu + SEALED)).clamp(1, weft_tunnel::MAX_BATCH_SEGMENTS);
    let bytes = segments * mtu.saturating_sub(HEADERS) + HEADERS;
    QueueLimits {
        tx_queue_len: Some(1000),
        gso_max_bytes: u32::try_from(bytes.max(mtu)).ok(),
        gso_max_segments: u32::try_from(segments).ok(),
    }
}
