//! A running interface and the system set up for it, from beginning to end.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use weft_config::Config;
use weft_config::device::{AllowedIpChange, DeviceChange, PeerChange};
use weft_config::exit;
use weft_host::network::{Change, Watch, WatchError};
use weft_host::{Host, HostError, Keep, Recording};
use weft_tunnel::{PublicKey, Remembered};
use weft_uapi::{Control as _, ControlError};
use weft_udp::UdpConfig;

use super::UpError;
use crate::control::Controller;
use crate::dataplane::{DataplaneError, OnEvent, Opened, Snapshot};
use crate::interface::{self, Inherited, Interface, Options};
use crate::keeper::{Keeper, MtuChoice};
use crate::service_manager::Watchdog;

/// What an interface begins with, beside its configuration.
#[derive(Debug, Default)]
pub struct Beginning {
    /// The addresses of the endpoints of its peers.
    pub endpoints: Vec<Option<SocketAddr>>,
    /// Descriptors that were there before.
    pub inherited: Inherited,
    /// The UDP port to listen on.
    pub port: u16,
    /// What it is to be, if not what the configuration says.
    pub state: Option<Resumed>,
    /// Whether others hold the device as well: it does not go with this process alone.
    pub is_held_by_others: bool,
}

/// An interface of which a daemon before this one left more than the configuration says.
#[derive(Debug)]
pub struct Resumed {
    /// Key and peers.
    pub change: DeviceChange,
    /// The mark of outgoing packets; 0: none.
    pub mark: u32,
    /// What was known of the peers.
    pub remembered: Vec<(PublicKey, Remembered)>,
}

/// A running interface, and the system set up for it. Dropping it takes everything down, but a kill switch that was
/// there before, and in a panic any kill switch.
pub struct Daemon {
    // In the order of the clean-up: routes and the like first, then the device goes with its descriptors.
    host: Option<Host>,
    keeper: Option<Keeper>,
    interface: Option<Interface>,
    is_held_by_others: bool,
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
        let beginning = Beginning {
            endpoints: endpoints.to_vec(),
            port: config.interface.listen_port,
            ..Beginning::default()
        };
        Self::start_on(host, config, beginning, options, None, |_| {}, on_end)
    }

    /// The same on a system that was prepared for it. `on_event` is told what happens to peers, on the packet thread.
    /// `on_open` is called when the interface can be asked, before any command of the configuration runs.
    pub fn start_on(
        mut host: Host,
        config: &Config,
        beginning: Beginning,
        options: &Options,
        on_event: Option<OnEvent>,
        on_open: impl FnOnce(&Arc<Controller>),
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Self, UpError> {
        let own = &config.interface;
        let Beginning { endpoints, inherited, port, state, is_held_by_others } = beginning;
        let fwmark = state.as_ref().map_or(host.mark(), |state| state.mark);
        let udp = UdpConfig { port, fwmark, ..UdpConfig::default() };
        let mut interface = Interface::open(own.name.as_str(), inherited, udp, options, on_event, on_end)?;
        let mtu = host.mtu();
        // Packets may move from here on: the first that the routes bring finds the event loop running.
        interface.run(mtu)?;
        on_open(interface.controller());
        host.before()?;
        if let Some(link) = host.link() {
            host.netlink().set_queue_limits(link, interface::limits_at_start(options.tun_queues(), mtu));
        }
        match state {
            None => interface.controller().set(device_change(config, &endpoints))?,
            Some(Resumed { change, remembered, .. }) => {
                interface.controller().set(change)?;
                // Handshakes begin now: what the host still has to do is no reason to be silent.
                interface.controller().restore(remembered)?;
            }
        }
        host.up()?;
        let (opened, queues) = (interface.opened(), options.tun_queues());
        tracing::info!(
            interface = opened.interface,
            port = opened.port,
            mtu,
            public_key = own.private_key.as_ref().map(|key| key.public_key().to_string()),
            peers = config.peers.len(),
            tun_threads = queues.with_threads(),
            tun_queues = queues.count,
            tcp_offload = opened.offload.tcp,
            udp_offload = opened.offload.udp,
            "interface is up"
        );
        let mut daemon =
            Self { host: Some(host), keeper: None, interface: Some(interface), is_held_by_others };
        daemon.keep_in_step(config)?;
        Ok(daemon)
    }

    /// Looks at the ways to the peers, so that a change of them is noticed: at the start, and after the configuration
    /// changed.
    pub fn keep_in_step(&mut self, config: &Config) -> Result<(), ControlError> {
        let own = &config.interface;
        let (Some(host), Some(controller)) = (&self.host, self.controller()) else { return Ok(()) };
        let Some(link) = host.link() else { return Ok(()) };
        let ipv6 = own.addresses.iter().any(|address| address.addr().is_ipv6());
        let chosen = match own.mtu {
            Some(_) => MtuChoice::Configured,
            None if host.mtu_by_hand() == Some(host.mtu()) => MtuChoice::ByHand,
            None => MtuChoice::Automatic,
        };
        self.keeper = Some(Keeper::new(Arc::clone(controller), link.clone(), host.mtu(), chosen, ipv6)?);
        Ok(())
    }

    /// Looks at the device's MTU, for what is decided next. One that somebody set stays, unless this configuration, which
    /// is in force, has one.
    pub fn see_mtu(&mut self, config: &Config) -> Result<(), ControlError> {
        let (Some(keeper), Some(host)) = (&mut self.keeper, &mut self.host) else { return Ok(()) };
        keeper.see_mtu(host.netlink())?;
        let stays = keeper.mtu_choice() == MtuChoice::ByHand && config.interface.mtu.is_none();
        host.note_mtu(keeper.mtu(), stays);
        Ok(())
    }

    /// Watches the network of this thread's namespace for what concerns the interface. What is told is to be given to
    /// [`Self::network_changed`].
    pub fn watch_network(&self, on_change: impl FnMut(Change) + Send + 'static) -> Result<Watch, WatchError> {
        Watch::start(self.host.as_ref().and_then(Host::link), on_change)
    }

    /// Does what a change of the network asks for, in the namespace that the interface was started in.
    pub fn network_changed(&mut self, change: &Change) -> Result<(), ControlError> {
        let (Some(keeper), Some(host)) = (&mut self.keeper, &self.host) else { return Ok(()) };
        keeper.react(change, host.netlink())
    }

    /// The MTU of the device in bytes, as far as is known.
    pub fn mtu(&self) -> u16 {
        self.keeper.as_ref().map_or(0, Keeper::mtu)
    }

    /// What changes the interface and tells what it is.
    pub fn controller(&self) -> Option<&Arc<Controller>> {
        self.interface.as_ref().map(Interface::controller)
    }

    /// What was opened, as it was in the beginning.
    pub fn opened(&self) -> Option<&Opened> {
        self.interface.as_ref().map(Interface::opened)
    }

    /// The UDP port that was opened.
    pub fn port(&self) -> u16 {
        self.interface.as_ref().map_or(0, |interface| interface.opened().port)
    }

    /// Proves to the service manager that packets can move, if it wants that.
    pub fn watchdog(&self) -> Option<Watchdog> {
        self.interface.as_ref().and_then(Watchdog::start)
    }

    /// Every counter and peer at this moment.
    pub fn snapshot(&self) -> Result<Snapshot, DataplaneError> {
        self.controller().ok_or(DataplaneError::Ended)?.snapshot()
    }

    /// The system around the interface.
    pub fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// The system around the interface, to be changed.
    pub fn host_mut(&mut self) -> Option<&mut Host> {
        self.host.as_mut()
    }

    /// Takes the interface down, with the commands of PreDown and PostDown: routes and the like, device, sockets,
    /// threads; not what is to be kept. `save` is called after PreDown, when all is still there. Gives the reason if
    /// packets had stopped by themselves.
    pub fn stop_after(mut self, keep: Keep, save: impl FnOnce(&Self)) -> Result<(), DataplaneError> {
        if let Some(host) = &self.host {
            host.before_down();
        }
        save(&self);
        self.take_down(keep)
    }

    /// Writes the state of the interface into its file. What fails is warned of.
    pub fn save(&self, config: &Config, file: &Path) {
        let (Some(host), Some(controller)) = (&self.host, self.controller()) else { return };
        let interface = &config.interface.name;
        let device = controller.get().map_err(|error| exit::Error::new(exit::Code::Failure, error));
        match device.and_then(|device| Ok(host.save(config, file, &device)?)) {
            Ok(true) => {
                tracing::info!(%interface, file = %file.display(), "saved the state of the interface");
            }
            Ok(false) => tracing::debug!(%interface, "nothing to save: the file says it all"),
            Err(error) => tracing::warn!("{error}"),
        }
    }

    /// Leaves the system as it is to the daemon of the run after this one (`INVOCATION_ID`); [`Self::leave`] is next. An
    /// error says that it cannot be written down, and that all is as it was.
    pub fn hand_over(&mut self, invocation: &str) -> Result<(), HostError> {
        self.host.as_mut().map_or(Ok(()), |host| host.hand_over(invocation))
    }

    /// Ends, and leaves the device to whoever holds it as well.
    pub fn leave(mut self) -> Result<(), DataplaneError> {
        self.interface.take().map_or(Ok(()), Interface::stop)
    }

    /// Takes the interface down as [`Self::stop_after`] does, with nothing to keep or to save.
    pub fn stop(self) -> Result<(), DataplaneError> {
        self.stop_after(Keep::Nothing, |_| {})
    }

    fn take_down(&mut self, keep: Keep) -> Result<(), DataplaneError> {
        if let Some(host) = &mut self.host {
            host.down(keep);
        }
        let ended = self.interface.take().map_or(Ok(()), Interface::stop);
        if let Some(host) = self.host.as_ref().filter(|_| self.is_held_by_others) {
            host.remove_device();
        }
        if let Some(host) = self.host.take() {
            host.after();
        }
        ended
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.interface.is_none() {
            return;
        }
        let has_outlived_another = self.host.as_ref().is_some_and(Host::found_kill_switch);
        // A panic is a crash like any other.
        let is_kept = has_outlived_another || std::thread::panicking();
        let _ = self.take_down(if is_kept { Keep::KillSwitch } else { Keep::Nothing });
    }
}

pub(super) fn known(endpoints: &[Option<SocketAddr>]) -> Vec<SocketAddr> {
    endpoints.iter().flatten().copied().collect()
}

/// All that the tunnel has to know of a configuration, whose endpoints are at these addresses.
pub(super) fn device_change(config: &Config, endpoints: &[Option<SocketAddr>]) -> DeviceChange {
    let peers = config.peers.iter().enumerate().map(|(place, peer)| PeerChange {
        preshared_key: Some(peer.preshared_key.clone()),
        endpoint: endpoints.get(place).copied().flatten(),
        persistent_keepalive: Some(peer.persistent_keepalive),
        limits: Some(peer.limits),
        replace_allowed_ips: true,
        allowed_ips: peer.allowed_ips.iter().copied().map(AllowedIpChange::Add).collect(),
        ..PeerChange::new(peer.public_key)
    });
    DeviceChange {
        // Without one it stays as it is: a command gives it.
        private_key: config.interface.private_key.clone().map(Some),
        replace_peers: true,
        peers: peers.collect(),
        ..DeviceChange::default()
    }
}
