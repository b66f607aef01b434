//! A running interface and the system set up for it, from start to stop.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use weft_config::device::{DeviceChange, PeerChange};
use weft_config::exit;
use weft_config::settings::PeerSettingsChange;
use weft_config::{Config, SAYS_ALL};
use weft_control::Controller;
use weft_dataplane::{DataplaneError, OnEvent, Snapshot};
use weft_host::network::{NetworkChange, Watch, WatchError};
use weft_host::{Host, HostError, Keep, Recording};
use weft_tunnel::{PublicKey, Remembered};
use weft_uapi::{Control as _, ControlError};
use weft_udp::UdpConfig;

use super::UpError;
use crate::interface::{self, Inherited, Interface, OpenedInterface, Options};
use crate::network::{MtuChoice, NetworkKeeper};
use crate::service_manager::{Watchdog, Work};

/// What an interface starts with, beside its configuration.
#[derive(Debug, Default)]
pub struct Beginning {
    /// The endpoints of the peers, in the order of the configuration.
    pub endpoints: Vec<Option<SocketAddr>>,
    /// Descriptors of a device or sockets that exist already.
    pub inherited: Inherited,
    pub port: u16,
    /// Key, mark and peers, if they differ from the configuration.
    pub state: Option<Resumed>,
    /// Whether another process holds the device too: then the device outlives this process unless it is
    /// removed.
    pub is_held_by_others: bool,
}

/// State of an interface that the previous daemon left and the configuration does not contain.
#[derive(Debug)]
pub struct Resumed {
    pub change: DeviceChange,
    /// The mark of outgoing packets; 0 means none.
    pub mark: u32,
    /// What the previous daemon knew of the peers.
    pub remembered: Vec<(PublicKey, Remembered)>,
    /// The endpoints that clients of UAPI set.
    pub set_endpoints: Vec<(PublicKey, SocketAddr)>,
}

/// An interface with an open device and open sockets, for which PreUp has run. Dropping it takes everything
/// down.
pub struct Opened<T> {
    around: T,
    interface: Interface,
    host: Host,
    is_new: bool,
    is_held_by_others: bool,
    /// The port that was opened.
    port: u16,
}

impl<T> Opened<T> {
    /// Opens the interface in the network namespace of this thread, on a system that was prepared for it, and
    /// runs PreUp. `on_event` receives events of peers, on the packet thread. `on_open` is called when the
    /// interface answers requests, before any command of the configuration runs; what it opens is returned
    /// in the end, and dropped first after a failure. `on_end` is called when packets have stopped, for any
    /// reason.
    pub fn open(
        mut host: Host,
        config: &Config,
        beginning: Beginning,
        options: &Options,
        on_event: Option<OnEvent>,
        on_open: impl FnOnce(&Interface) -> Result<T, UpError>,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Self, UpError> {
        let Beginning { endpoints: _, inherited, port, state, is_held_by_others } = beginning;
        let fwmark = state.as_ref().map_or(host.mark(), |state| state.mark);
        let udp = UdpConfig { port, fwmark, ..UdpConfig::default() };
        let name = config.interface.name.as_str();
        let mut interface = Interface::open(name, inherited, udp, options, on_event, on_end)?;
        let is_new = state.is_none();
        // What waits in the queues and the sockets is for the peers that there were. Handshakes begin now:
        // they do not have to wait for the host's setup.
        let resume = |Resumed { change, remembered, set_endpoints, .. }| {
            interface.controller().resume(&change, remembered, &set_endpoints)
        };
        let changes = state.map(resume).unwrap_or_default();
        // Packets may move from here on: when the routes bring the first packet, the event loop is running.
        interface.run(host.mtu(), changes)?;
        let around = on_open(&interface)?;
        host.before()?;
        let port = interface.opened().port;
        Ok(Self { around, interface, host, is_new, is_held_by_others, port })
    }

    /// Returns the system around the interface, for changes.
    pub fn host_mut(&mut self) -> &mut Host {
        &mut self.host
    }

    /// Sets the keys and peers, and everything around the interface, and returns when all is in place. Port,
    /// mark, key and peers that PreUp has set are replaced, as `wg setconf` in wg-quick does.
    pub fn complete(
        self,
        config: &Config,
        endpoints: &[Option<SocketAddr>],
        options: &Options,
    ) -> Result<(Daemon, T), UpError> {
        let Self { around, interface, mut host, is_new, is_held_by_others, port } = self;
        let own = &config.interface;
        let mtu = host.mtu();
        if let Some(link) = host.link() {
            host.netlink().set_queue_limits(link, interface::limits_at_start(options.tun_queues(), mtu));
        }
        let controller = interface.controller();
        controller.set_mtu(mtu)?;
        let mut keepalives = DeviceChange::default();
        if is_new {
            let mut change = config.change(endpoints);
            keepalives.peers = change.peers.iter_mut().filter_map(held_back).collect();
            // A random port that was opened stays.
            let was_changed = controller.listen_port() != port;
            change.settings.listen_port =
                Some(own.settings.listen_port).filter(|port| *port != 0 || was_changed);
            change.settings.fw_mark = Some(host.mark());
            controller.apply(&change)?;
        }
        host.up(|| Ok::<_, UpError>(controller.apply(&keepalives)?))?;
        let mut daemon =
            Daemon { host: Some(host), keeper: None, interface: Some(interface), is_held_by_others };
        daemon.keep_in_step(config)?;
        Ok((daemon, around))
    }
}

/// A running interface, and the system set up for it. Dropping it takes everything down, except a kill switch
/// that existed before, or any kill switch in a panic.
pub struct Daemon {
    // In the order of the clean-up: routes and the like first; the device goes last, with its descriptors.
    host: Option<Host>,
    keeper: Option<NetworkKeeper>,
    interface: Option<Interface>,
    is_held_by_others: bool,
}

impl Daemon {
    /// Brings the interface up in the network namespace of this thread, and returns when the device, the
    /// sockets and everything around them are in place. A failure leaves nothing behind. `on_end` is called
    /// when packets have stopped, for any reason. No record is written: a crash leaves firewall rules and the
    /// like behind.
    pub fn start(
        config: &Config,
        endpoints: &[Option<SocketAddr>],
        options: &Options,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Self, UpError> {
        let host = Host::prepare(config, None, &known(endpoints), &Recording::Nowhere)?;
        let beginning = Beginning {
            endpoints: endpoints.to_vec(),
            port: config.interface.settings.listen_port,
            ..Beginning::default()
        };
        let on_open = |_: &Interface| Ok(());
        let (daemon, ()) = Self::start_on(host, config, beginning, options, None, on_open, on_end)?;
        daemon.report(config, options);
        Ok(daemon)
    }

    /// Brings the interface up as [`Self::start`] does, on a system that was prepared for it: see
    /// [`Opened::open`].
    pub fn start_on<T>(
        host: Host,
        config: &Config,
        beginning: Beginning,
        options: &Options,
        on_event: Option<OnEvent>,
        on_open: impl FnOnce(&Interface) -> Result<T, UpError>,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<(Self, T), UpError> {
        let endpoints = beginning.endpoints.clone();
        let opened = Opened::open(host, config, beginning, options, on_event, on_open, on_end)?;
        opened.complete(config, &endpoints, options)
    }

    /// Logs that the interface is up. Called once everything around it is in place: scripts and people act
    /// on it.
    pub fn report(&self, config: &Config, options: &Options) {
        let (Some(host), Some(interface)) = (&self.host, &self.interface) else { return };
        let (opened, queues) = (interface.opened(), options.tun_queues());
        let port = interface.controller().listen_port();
        tracing::info!(
            name: SAYS_ALL,
            interface = opened.interface,
            port,
            mtu = host.mtu(),
            public_key =
                config.interface.settings.private_key.as_ref().map(|key| key.public_key().to_string()),
            peers = config.peers.len(),
            packet_threads = opened.packet_threads,
            tun_threads = queues.with_threads(),
            tun_queues = queues.count,
            tcp_offload = opened.offload.tcp,
            udp_offload = opened.offload.udp,
            "{} is up: port {port}, {}",
            opened.interface,
            if config.peers.len() == 1 { "1 peer".to_owned() } else { format!("{} peers", config.peers.len()) },
        );
    }

    /// Records the paths to the peers, so that later changes are noticed. Called at the start and after the
    /// configuration changed.
    pub fn keep_in_step(&mut self, config: &Config) -> Result<(), ControlError> {
        let own = &config.interface;
        let (Some(host), Some(controller)) = (&self.host, self.controller()) else { return Ok(()) };
        let Some(link) = host.link() else { return Ok(()) };
        let chosen = match own.mtu {
            Some(_) => MtuChoice::Configured,
            None if host.mtu_by_hand() == Some(host.mtu()) => MtuChoice::ByHand,
            None => MtuChoice::Automatic,
        };
        self.keeper = Some(NetworkKeeper::new(
            Arc::clone(controller),
            link.clone(),
            host.mtu(),
            chosen,
            config.carries_ipv6(),
            host.paths(),
        )?);
        Ok(())
    }

    /// Reads the device's MTU, which the next decisions depend on. An MTU that was set by another program
    /// stays, unless the configuration in force sets one.
    pub fn see_mtu(&mut self, config: &Config) -> Result<(), ControlError> {
        let (Some(keeper), Some(host)) = (&mut self.keeper, &mut self.host) else { return Ok(()) };
        keeper.see_mtu(host.netlink())?;
        let stays = keeper.mtu_choice() == MtuChoice::ByHand && config.interface.mtu.is_none();
        host.note_mtu(keeper.mtu(), stays);
        Ok(())
    }

    /// Watches the network of this thread's namespace for changes that concern the interface. Pass each
    /// change to [`Self::network_changed`].
    pub fn watch_network(
        &self,
        on_change: impl FnMut(NetworkChange) + Send + 'static,
    ) -> Result<Watch, WatchError> {
        Watch::start(self.host.as_ref().and_then(Host::link_here), on_change)
    }

    /// Reacts to a change of the network. Call it in the namespace that the interface was started in.
    pub fn network_changed(&mut self, change: &NetworkChange) -> Result<(), ControlError> {
        if let Some(host) = &mut self.host {
            host.restore_routing(change);
        }
        if change.concerns_ways() {
            self.endpoints_changed()?;
        }
        let (Some(keeper), Some(host)) = (&mut self.keeper, &self.host) else { return Ok(()) };
        keeper.react(change, host.netlink(), host.paths())
    }

    /// Adapts what depends on the endpoints of the peers, where the system does not route by marks: host
    /// routes past the tunnel, and the kill switch. A failure is logged: the next change tries it again.
    pub fn endpoints_changed(&mut self) -> Result<(), ControlError> {
        if !weft_host::FOLLOWS_ENDPOINTS {
            return Ok(());
        }
        let Some(controller) = self.controller() else { return Ok(()) };
        let endpoints: Vec<SocketAddr> =
            controller.snapshot()?.peers.iter().filter_map(|peer| peer.endpoint).collect();
        match self.host.as_mut().map(|host| host.follow(&endpoints)) {
            Some(Ok(true)) => tracing::info!("renewed the routes to the peers past the tunnel"),
            Some(Err(error)) => tracing::warn!("{error}"),
            Some(Ok(false)) | None => {}
        }
        Ok(())
    }

    /// Returns the MTU of the device in bytes, or that of the plan if the system has no device.
    pub fn mtu(&self) -> u16 {
        let planned = || self.host.as_ref().map_or(0, Host::mtu);
        self.keeper.as_ref().map_or_else(planned, NetworkKeeper::mtu)
    }

    /// Returns the controller, which changes the interface and reports its state.
    pub fn controller(&self) -> Option<&Arc<Controller>> {
        self.interface.as_ref().map(Interface::controller)
    }

    /// Returns what was opened, as it was at the start.
    pub fn opened(&self) -> Option<&OpenedInterface> {
        self.interface.as_ref().map(Interface::opened)
    }

    /// Returns the UDP port that was opened at the start.
    pub fn port(&self) -> u16 {
        self.interface.as_ref().map_or(0, |interface| interface.opened().port)
    }

    /// Starts the watchdog, which proves to the service manager that packets can move and the control thread
    /// works, if the service manager wants that.
    pub fn watchdog(&self, work: &Work) -> Option<Watchdog> {
        self.interface.as_ref().and_then(|interface| Watchdog::start(interface, work))
    }

    /// Returns every counter and peer at this moment.
    pub fn snapshot(&self) -> Result<Snapshot, DataplaneError> {
        Ok(self.controller().ok_or(DataplaneError::Ended)?.snapshot()?)
    }

    /// Returns the system around the interface.
    pub fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// Returns the system around the interface, for changes.
    pub fn host_mut(&mut self) -> Option<&mut Host> {
        self.host.as_mut()
    }

    /// Takes the interface down, with the commands of PreDown and PostDown: routes and the like, device,
    /// sockets and threads, except what `keep` names. `before` is called after PreDown, before anything is
    /// removed, and returns what failed. Returns everything that failed, in sentences; each was logged when
    /// it happened.
    ///
    /// # Errors
    /// Packets had stopped before this call.
    pub fn stop_after(
        mut self,
        keep: Keep,
        before: impl FnOnce(&Self) -> Option<String>,
    ) -> Result<Vec<String>, DataplaneError> {
        let failures = self.host.as_ref().map_or_else(Vec::new, Host::before_down);
        let mut failures = sentences(&failures);
        failures.extend(before(&self));
        let (more, ended) = self.take_down(keep);
        failures.extend(more);
        ended.map(|()| failures)
    }

    /// Writes the state of the interface into its file, which had `text` when it was last read. Returns what
    /// failed, which is logged too.
    pub fn save(&self, config: &Config, file: &Path, text: Option<&str>) -> Option<String> {
        let (host, controller) = (self.host.as_ref()?, self.controller()?);
        let interface = &config.interface.name;
        let device = controller.get().map_err(|error| exit::Error::new(exit::Code::Failure, error));
        match device.and_then(|device| Ok(host.save(config, file, text, &device)?)) {
            Ok(true) => {
                tracing::info!(%interface, file = %file.display(), "saved the state of the interface");
            }
            Ok(false) => tracing::debug!(%interface, "nothing to save: the file is up to date"),
            Err(error) => {
                tracing::warn!("{error}");
                return Some(error.to_string());
            }
        }
        None
    }

    /// Records that everything stays in force for the daemon of the service's next run; `invocation` is this
    /// run (`INVOCATION_ID`). Call [`Self::leave`] next. On an error nothing was recorded and nothing
    /// changed.
    pub fn hand_over(&mut self, invocation: &str) -> Result<(), HostError> {
        self.host.as_mut().map_or(Ok(()), |host| host.hand_over(invocation))
    }

    /// Ends, and leaves the device to the other processes that hold it.
    pub fn leave(mut self) -> Result<(), DataplaneError> {
        self.interface.take().map_or(Ok(()), Interface::leave)
    }

    /// Takes the interface down as [`Self::stop_after`] does, and keeps and saves nothing.
    pub fn stop(self) -> Result<(), DataplaneError> {
        self.stop_after(Keep::Nothing, |_| None).map(drop)
    }

    /// Returns what failed, which is logged too, and whether packets had stopped before.
    fn take_down(&mut self, keep: Keep) -> (Vec<String>, Result<(), DataplaneError>) {
        let mut failures = self.host.as_mut().map_or_else(Vec::new, |host| host.down(keep));
        let ended = self.interface.take().map_or(Ok(()), Interface::stop);
        if let Some(host) = self.host.as_ref().filter(|_| self.is_held_by_others) {
            failures.extend(host.remove_device().err());
        }
        if let Some(host) = self.host.take() {
            failures.extend(host.after());
        }
        (sentences(&failures), ended)
    }
}

fn sentences(failures: &[HostError]) -> Vec<String> {
    failures.iter().map(HostError::to_string).collect()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.interface.is_none() {
            return;
        }
        let has_outlived_another = self.host.as_ref().is_some_and(Host::found_kill_switch);
        // A panic counts as a crash.
        let is_kept = has_outlived_another || std::thread::panicking();
        let _ = self.take_down(if is_kept { Keep::KillSwitch } else { Keep::Nothing });
    }
}

/// Takes the keepalive out of a change, and returns it as another one: it begins a handshake, and a start
/// that is refused sends none.
fn held_back(change: &mut PeerChange) -> Option<PeerChange> {
    let persistent_keepalive = change.settings.persistent_keepalive.take().filter(Option::is_some);
    persistent_keepalive.is_some().then(|| {
        let settings = PeerSettingsChange { persistent_keepalive, ..PeerSettingsChange::default() };
        PeerChange { settings, ..PeerChange::new(change.public_key) }
    })
}

pub(super) fn known(endpoints: &[Option<SocketAddr>]) -> Vec<SocketAddr> {
    endpoints.iter().flatten().copied().collect()
}
