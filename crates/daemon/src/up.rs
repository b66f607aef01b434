//! `weft up`: one interface from its configuration to its end, with everything undone.
//!
//! This is the control thread: it builds peers, talks to netlink and waits; packets move on the packet thread.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, mpsc};

use crate::background::{self, BackgroundError, Notifier, Output};
use crate::cli::UpArgs;
use crate::config::{self, Config, LoadError};
use crate::control::{AllowedIpChange, Control as _, ControlError, Controller, DeviceChange, PeerChange};
use crate::dataplane::{DataplaneError, Snapshot, StartError, tun_queues};
use crate::exit;
use crate::host::{self, Host, HostError, Recording};
use crate::interface::{self, Interface};
use crate::output;
use crate::resolve::{self, Cancel, ResolveError, Retries};
use crate::scheduling::Priority;
use crate::secrecy;
use crate::signals;
use crate::udp::{PathMtu, UdpConfig};

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
    /// The system could not be set up for it.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The packet thread ended by itself.
    #[error(transparent)]
    Dataplane(#[from] DataplaneError),
    /// The peers could not be set up.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// It cannot go to the background.
    #[error(transparent)]
    Background(#[from] BackgroundError),
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
            Self::Host(error) => error.exit_code(),
            _ => exit::Code::Failure,
        }
    }
}

/// A running interface, and the system set up for it. Dropping it takes everything down.
pub struct Daemon {
    // In the order of the clean-up: routes and the like first, then the device goes with its descriptors.
    host: Option<Host>,
    interface: Option<Interface>,
}

impl Daemon {
    /// Brings the interface up in the network namespace of this thread, and returns once device, sockets and
    /// everything around them are in place. A failure leaves nothing behind. `on_end` is called when packets have
    /// stopped, whatever the reason. Nothing is written down: a crash leaves rules and the like behind.
    pub fn start(
        config: &Config,
        endpoints: &[Option<SocketAddr>],
        options: &Options,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Self, UpError> {
        let host = Host::prepare(config, None, &known(endpoints), &Recording::Nowhere)?;
        Self::start_on(host, config, endpoints, options, on_end)
    }

    /// The same on a system that was prepared for it.
    pub fn start_on(
        mut host: Host,
        config: &Config,
        endpoints: &[Option<SocketAddr>],
        options: &Options,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Self, UpError> {
        let own = &config.interface;
        let udp = UdpConfig { port: own.listen_port, fwmark: host.mark(), ..UdpConfig::default() };
        let path_mtu = if own.host.path_mtu_discovery { PathMtu::On } else { options.path_mtu };
        let options = &Options { path_mtu, ..options.clone() };
        let mut interface = Interface::open(own.name.as_str(), Vec::new(), udp, options, None, on_end)?;
        host.before()?;
        let mtu = host.mtu();
        if let Some(link) = host.link() {
            host.netlink().set_queue_limits(link, interface::queue_limits(mtu));
        }
        // Packets may move from here on: the first that the routes bring finds the event loop running.
        interface.run(mtu)?;
        interface.controller().set(device_change(config, endpoints))?;
        host.up()?;
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
        Ok(Self { host: Some(host), interface: Some(interface) })
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

    /// The system around the interface.
    pub fn host(&mut self) -> Option<&mut Host> {
        self.host.as_mut()
    }

    /// Takes the interface down, with the commands of PreDown and PostDown: routes and the like, device, sockets,
    /// threads. `save` is called after PreDown, when all is still there. Gives the reason if packets had stopped by
    /// themselves.
    pub fn stop_after(mut self, save: impl FnOnce(&Self)) -> Result<(), DataplaneError> {
        if let Some(host) = &self.host {
            host.before_down();
        }
        save(&self);
        self.take_down()
    }

    /// Writes the state of the interface into its file. What fails is warned of.
    pub fn save(&self, config: &Config, file: &Path) {
        let (Some(host), Some(controller)) = (&self.host, self.controller()) else { return };
        let interface = &config.interface.name;
        let device = controller.get().map_err(|error| exit::Error::new(exit::Code::Failure, error));
        match device.and_then(|device| Ok(host.save(config, file, &device)?)) {
            Ok(true) => {
                tracing::info!(%interface, file = %file.display(), "saved the state of the interface")
            }
            Ok(false) => tracing::debug!(%interface, "nothing to save: the file says it all"),
            Err(error) => tracing::warn!("{error}"),
        }
    }

    /// The same with nothing to save.
    pub fn stop(self) -> Result<(), DataplaneError> {
        self.stop_after(|_| {})
    }

    fn take_down(&mut self) -> Result<(), DataplaneError> {
        if let Some(host) = &mut self.host {
            host.down();
        }
        let ended = self.interface.take().map_or(Ok(()), Interface::stop);
        if let Some(host) = self.host.take() {
            host.after();
        }
        ended
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.interface.is_some() {
            let _ = self.take_down();
        }
    }
}

fn known(endpoints: &[Option<SocketAddr>]) -> Vec<SocketAddr> {
    endpoints.iter().flatten().copied().collect()
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
    let config = load(args)?;
    if args.host.dry_run {
        return dry_run(&config);
    }
    // A relative path means another file once somebody has changed the directory.
    let file = config::path_of(&args.target);
    let file = std::path::absolute(&file).unwrap_or(file);
    // Before the first thread.
    let notifier = if args.host.daemon { Some(background::begin().map_err(UpError::from)?) } else { None };
    Ok(run_until_signal(&config, &file, &options, notifier)?)
}

/// The configuration with what the command line says instead; what is odd is warned of.
fn load(args: &UpArgs) -> Result<Config, LoadError> {
    secrecy::forbid_core_dumps();
    let parsed = config::load(&args.target)?;
    for warning in &parsed.warnings {
        tracing::warn!("{warning}");
    }
    let mut config = parsed.config;
    if let Some(mode) = args.host.kill_switch {
        config.interface.host.kill_switch = mode.into();
    }
    Ok(config)
}

/// Prints what would be done.
fn dry_run(config: &Config) -> Result<(), exit::Error> {
    // A name that cannot be resolved now is none that the plan could not do without.
    let resolve = |endpoint| resolve::resolve(endpoint, Retries::Limited(0), &Cancel::default()).ok();
    let endpoints: Vec<SocketAddr> =
        config.peers.iter().filter_map(|peer| peer.endpoint.as_ref().and_then(resolve)).collect();
    output::print(host::plan(config, &endpoints)?.to_string().as_bytes())
}

fn run_until_signal(
    config: &Config,
    file: &Path,
    options: &Options,
    notifier: Option<Notifier>,
) -> Result<(), UpError> {
    // Nothing is set up yet, so a signal during the look-ups may simply end the process.
    let endpoints = resolve_endpoints(config)?;
    let (end, ended) = mpsc::channel();
    let signal = end.clone();
    signals::watch(move |name| {
        let _ = signal.send(Some(name));
    })
    .map_err(UpError::Signals)?;
    let recording = Recording::In(host::directory());
    let host = Host::prepare(config, Some(file), &known(&endpoints), &recording)?;
    let daemon = Daemon::start_on(host, config, &endpoints, options, move || {
        let _ = end.send(None);
    })?;
    if let Some(notifier) = notifier {
        // In a file somebody may look for it later; a pipe would keep whoever reads it waiting.
        let is_file = std::fs::metadata("/dev/stderr").is_ok_and(|stderr| stderr.is_file());
        notifier.ready(if is_file { Output::Kept } else { Output::Discarded })?;
    }
    if let Ok(Some(name)) = ended.recv() {
        tracing::info!(signal = name, "taking the interface down");
    }
    daemon.stop_after(|daemon| {
        if config.interface.host.save_config {
            daemon.save(config, file);
        }
    })?;
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
