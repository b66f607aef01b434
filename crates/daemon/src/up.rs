//! `weft up`: one interface from its configuration to its end, with everything undone.
//!
//! This is the control thread: it builds peers, talks to netlink and waits; packets move on the packet thread.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};

use crate::cli::UpArgs;
use crate::config::{self, Config, LoadError};
use crate::control::{AllowedIpChange, Control as _, ControlError, Controller, DeviceChange, PeerChange};
use crate::dataplane::{DataplaneError, Snapshot, StartError, tun_queues};
use crate::exit;
use crate::interface::{self, Interface};
use crate::resolve::{self, Cancel, ResolveError, Retries};
use crate::routes::{Applied, Netlink, RouteError};
use crate::scheduling::Priority;
use crate::secrecy;
use crate::signals;
use crate::udp::UdpConfig;

pub use crate::interface::Options;

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
    /// The peers could not be set up.
    #[error(transparent)]
    Control(#[from] ControlError),
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

/// A running interface with its addresses and routes. Dropping it takes everything down.
pub struct Daemon {
    // In the order of the clean-up: routes and addresses first, then the device goes with its descriptors.
    applied: Applied,
    netlink: Netlink,
    interface: Option<Interface>,
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
        let own = &config.interface;
        let udp = UdpConfig { port: own.listen_port, fwmark: own.fw_mark, gso: true };
        let mut interface = Interface::open(own.name.as_str(), Vec::new(), udp, options, None, on_end)?;
        let link = netlink.link(&own.name)?;
        let known: Vec<SocketAddr> = endpoints.iter().flatten().copied().collect();
        let mtu = match own.mtu {
            Some(mtu) => mtu,
            None => netlink.default_mtu(own, &known),
        };
        netlink.set_queue_limits(&link, interface::queue_limits(mtu));
        // Packets may move from here on: the first that the routes bring finds the event loop running.
        interface.run(mtu)?;
        interface.controller().set(device_change(config, endpoints))?;
        let applied = netlink.apply(&link, config, mtu)?;
        let opened = interface.opened();
        tracing::info!(
            interface = opened.interface,
            port = opened.port,
            mtu,
            public_key = %own.private_key.public_key(),
            peers = config.peers.len(),
            tun_threads = tun_queues(options.tun_threads),
            tcp_offload = opened.offload.tcp,
            udp_offload = opened.offload.udp,
            "interface is up"
        );
        Ok(Self { applied, netlink, interface: Some(interface) })
    }

    /// What changes the interface and tells what it is.
    pub fn controller(&self) -> Option<&Arc<Controller>> {
        self.interface.as_ref().map(Interface::controller)
    }

    /// The UDP port that was opened.
    pub fn port(&self) -> u16 {
        self.interface.as_ref().map_or(0, |interface| interface.opened().port)
    }

    /// Every counter and peer at this moment.
    pub fn snapshot(&self) -> Result<Snapshot, DataplaneError> {
        self.controller().ok_or(DataplaneError::Ended)?.snapshot()
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
        self.interface.take().map_or(Ok(()), Interface::stop)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.interface.is_some() {
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

/// All that the tunnel has to know of a configuration, whose endpoints are at these addresses.
fn device_change(config: &Config, endpoints: &[Option<SocketAddr>]) -> DeviceChange {
    let peers = config.peers.iter().enumerate().map(|(place, peer)| PeerChange {
        preshared_key: Some(peer.preshared_key.clone()),
        endpoint: endpoints.get(place).copied().flatten(),
        persistent_keepalive: Some(peer.persistent_keepalive),
        replace_allowed_ips: true,
        allowed_ips: peer.allowed_ips.iter().copied().map(AllowedIpChange::Add).collect(),
        ..PeerChange::new(peer.public_key)
    });
    DeviceChange {
        private_key: Some(Some(config.interface.private_key.clone())),
        replace_peers: true,
        peers: peers.collect(),
        ..DeviceChange::default()
    }
}
