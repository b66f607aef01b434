//! The control thread of a running interface: handles one message after the other.
//!
//! Everything that waits for the system (netlink, commands, name servers) waits here; packets continue
//! meanwhile.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Instant, SystemTime};

use weft_commands::signals::Signal;
use weft_config::device::{DeviceChange, PeerChange};
use weft_config::{Config, Endpoint, Peer};
use weft_dataplane::Controller;
use weft_host::network::{Change, Watch};
use weft_host::resolve::{Resolver, Watched};
use weft_host::{Host, Keep, Step};
use weft_report::control_socket::{ManageError, Reload, ReloadReport};
use weft_tunnel::{Event, PublicKey};
use weft_uapi::{self as uapi, Control as _, ControlError};
use zeroize::Zeroizing;

use super::daemon::Daemon;
use super::handover::Kept;
use super::leaving::{Leaving, Writer};
use super::look_up::{Found, InVain};
use super::reload;
use super::{Options, Overrides, UpError};
use crate::carried_over::Base;
use crate::control::socket::Manage as _;
use crate::control::{Managed, socket};
use crate::metrics;
use crate::service_manager::{self, StatusLine, Watchdog};
use crate::status::{FilePeer, Running};

/// Capacity of the inbox of the control thread. Events of peers that do not fit are dropped: a later event
/// says more.
pub(super) const MESSAGES: usize = 1024;

/// A message to the control thread.
pub(super) enum Message {
    /// A signal ends the interface.
    Signal(Signal),
    /// A client of the control socket asked for the end.
    Stop,
    /// The file of the UAPI socket was removed, which is how scripts end an interface.
    SocketRemoved,
    /// Packets have stopped.
    Ended,
    /// The network changed.
    Network(Change),
    /// Something happened to a peer.
    Peer(Event),
    /// The name of a peer's endpoint has a new address.
    Resolved(PublicKey, SocketAddr),
    /// The interface was changed over UAPI. A flag tells the same, in case that there is no room for the message.
    Configured,
    /// A new configuration.
    Reload(Reload, SyncSender<Result<ReloadReport, ManageError>>),
}

/// Sends messages to the control thread. Sending does not wait for the message to be handled.
pub(super) type Inbox = SyncSender<Message>;

/// Why an interface ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// SIGTERM, perhaps followed by a restart.
    Terminated,
    /// A user or a program asked for the end.
    Asked,
    /// Packets have stopped.
    Failed,
}

pub(super) struct Supervisor {
    daemon: Daemon,
    config: Config,
    overrides: Overrides,
    controller: Arc<Controller>,
    managed: Arc<Managed>,
    resolver: Option<Resolver>,
    watch: Option<Watch>,
    pub(super) uapi: Option<uapi::Server>,
    socket: Option<socket::Server>,
    pub(super) metrics: Option<metrics::Server>,
    leaving: Option<Leaving>,
    status_line: StatusLine,
    watchdog: Option<Watchdog>,
    /// Whether the interface was changed over UAPI since this was last looked at.
    is_configured: Arc<AtomicBool>,
}

impl Supervisor {
    /// Starts everything around the interface. Failures of optional parts are only logged.
    pub(super) fn start(
        daemon: Daemon,
        config: Config,
        overrides: Overrides,
        found: &Found,
        options: &Options,
        inbox: &Inbox,
        is_configured: Arc<AtomicBool>,
    ) -> Result<Self, UpError> {
        let controller = Arc::clone(daemon.controller().ok_or(ControlError::Ended)?);
        let stop = inbox.clone();
        let running = Running {
            tun_threads: options.tun_queues().with_threads(),
            tun_offload: daemon.opened().map(|opened| opened.offload).unwrap_or_default(),
            ..Running::new(config.interface.name.as_str())
        };
        let stop = move || drop(stop.send(Message::Stop));
        let to_load = inbox.clone();
        let reload = move |reload: &Reload| {
            let reload = Reload {
                text: Zeroizing::new(reload.text.to_string()),
                file: reload.file.clone(),
                dry_run: reload.dry_run,
            };
            let (answer, answered) = mpsc::sync_channel(1);
            to_load.send(Message::Reload(reload, answer)).map_err(|_| ManageError::Ended)?;
            answered.recv().map_err(|_| ManageError::Ended)?
        };
        let managed = Managed::new(Arc::clone(&controller), running, stop, Some(Box::new(reload)));
        let mut supervisor = Self {
            daemon,
            config,
            overrides,
            controller,
            managed,
            resolver: None,
            watch: None,
            uapi: None,
            socket: None,
            metrics: None,
            leaving: None,
            status_line: StatusLine::new(Instant::now()),
            watchdog: None,
            is_configured,
        };
        supervisor.remember();
        supervisor.show();
        supervisor.follow_network(inbox);
        supervisor.follow_names(found, inbox);
        supervisor.serve();
        Ok(supervisor)
    }

    /// Puts what the next daemon needs into the service manager's store.
    pub(super) fn keep_for_the_next(&mut self, kept: Kept, began: (Instant, SystemTime)) {
        let name = self.config.interface.name.clone();
        match Leaving::start(kept, name, Arc::clone(&self.controller), self.base(), began) {
            Ok(leaving) => self.leaving = Some(leaving),
            Err(error) => tracing::warn!("a restart will interrupt the interface: {error}"),
        }
    }

    fn base(&self) -> Base {
        Base::of(&self.config, self.daemon.host().map_or(0, Host::mark))
    }

    /// Updates what the control socket reports as in force.
    fn show(&self) {
        let Some(host) = self.daemon.host() else { return };
        let name = &self.config.interface.name;
        let of_file = |peer: &Peer| {
            let file = FilePeer { settings: peer.report.clone(), has_endpoint: peer.endpoint.is_some() };
            (peer.public_key, file)
        };
        let mut guard = self.managed.running();
        let running = &mut *guard;
        running.mtu = self.daemon.mtu();
        running.file = self.config.peers.iter().map(of_file).collect();
        for list in [&mut running.addresses, &mut running.routes, &mut running.dns, &mut running.firewall] {
            list.clear();
        }
        for step in host.in_force() {
            match step {
                Step::Address(address) => running.addresses.push(address.to_string()),
                Step::Route { prefix, table } if *table == weft_host::routes::MAIN_TABLE => {
                    running.routes.push(prefix.to_string());
                }
                Step::Route { prefix, table } => running.routes.push(format!("{prefix} table {table}")),
                Step::Rule(_) | Step::EndpointRoute { .. } => {
                    running.routes.push(step.doing(name).to_string());
                }
                Step::Dns(dns) => running.dns.push(dns.to_string()),
                Step::Firewall(firewall) => running.firewall.push(firewall.to_string()),
                Step::Mtu(_) | Step::LinkUp | Step::Sysctl { .. } | Step::Hook(_) => {}
            }
        }
    }

    /// Writes down the addresses of endpoints that are given by name, for a start behind a kill switch.
    fn remember(&mut self) {
        let Ok(state) = self.controller.get() else { return };
        let current: HashMap<PublicKey, Option<SocketAddr>> =
            state.peers.iter().map(|peer| (peer.public_key, peer.endpoint)).collect();
        let known = self.config.peers.iter().filter_map(|peer| {
            let endpoint =
                peer.endpoint.as_ref().filter(|endpoint| matches!(endpoint, Endpoint::Name { .. }))?;
            Some((endpoint.to_string(), current.get(&peer.public_key).copied().flatten()?))
        });
        let known = known.collect();
        if let Some(Err(error)) = self.daemon.host_mut().map(|host| host.remember(known)) {
            tracing::warn!("{error}");
        }
    }

    fn follow_network(&mut self, inbox: &Inbox) {
        let changed = inbox.clone();
        match self.daemon.watch_network(move |change| drop(changed.send(Message::Network(change)))) {
            Ok(watch) => self.watch = Some(watch),
            Err(error) => tracing::warn!("{error}"),
        }
        // Catches changes from before the watch began. Names were looked up a moment ago.
        self.react(&Change { missed: true, ..Change::default() });
    }

    fn follow_names(&mut self, found: &Found, inbox: &Inbox) {
        let resolved = inbox.clone();
        match Resolver::start(move |peer, address| drop(resolved.send(Message::Resolved(peer, address)))) {
            Ok(resolver) => self.resolver = Some(resolver),
            Err(error) => {
                tracing::warn!("cannot start a thread for names: {error}; they are not looked up again");
            }
        }
        self.watch_names(&found.in_vain, |place, _| found.endpoints.get(place).copied().flatten());
    }

    /// Watches the names of peers with their current addresses. A name whose look-up failed is looked up
    /// until it resolves, whatever the peer's current address.
    fn watch_names(&self, in_vain: &[InVain], current: impl Fn(usize, &PublicKey) -> Option<SocketAddr>) {
        let Some(resolver) = &self.resolver else { return };
        let in_vain: HashSet<PublicKey> = in_vain.iter().map(|name| name.peer).collect();
        let current =
            |place, peer: &PublicKey| if in_vain.contains(peer) { None } else { current(place, peer) };
        let watched = self.config.peers.iter().enumerate().filter_map(|(place, peer)| {
            let endpoint =
                peer.endpoint.clone().filter(|endpoint| matches!(endpoint, Endpoint::Name { .. }))?;
            Some(Watched { peer: peer.public_key, endpoint, current: current(place, &peer.public_key) })
        });
        resolver.handle().set_peers(watched.collect());
    }

    fn serve(&mut self) {
        self.socket = self.managed.serve(&self.config.interface.name);
    }

    pub(super) fn serve_metrics(
        &self,
        listener: metrics::Listener,
    ) -> Result<metrics::Server, metrics::ListenError> {
        let hosts = &self.config.interface.host.metrics.hosts;
        metrics::Server::start(listener, hosts, Arc::<Managed>::clone(&self.managed))
    }

    /// Serves metrics at the address of the configuration. If that fails, they stay at the previous address,
    /// and the next reload tries again.
    fn move_metrics(&mut self) -> Result<(), metrics::ListenError> {
        let wanted = &self.config.interface.host.metrics;
        if let Some(server) = &self.metrics {
            server.allow(&wanted.hosts);
            if server.is_at_place(wanted) {
                return Ok(());
            }
        }
        let listener = wanted.address.as_ref().map(metrics::Listener::open).transpose()?;
        self.metrics = listener.map(|listener| self.serve_metrics(listener)).transpose()?;
        Ok(())
    }

    /// Reports to the service manager that everything is in place, at first or after a reload.
    pub(super) fn ready(&mut self) {
        if self.watchdog.is_none() {
            self.watchdog = self.daemon.watchdog();
        }
        let Self { status_line, managed, .. } = self;
        status_line.ready(|| managed.status().ok());
    }

    fn next(&mut self, messages: &Receiver<Message>) -> Option<Message> {
        let Self { status_line, managed, .. } = self;
        status_line.next(messages, || managed.status().ok())
    }

    pub(super) fn work(mut self, messages: Receiver<Message>, file: &Path) -> Result<(), UpError> {
        let mut end = End::Asked;
        while let Some(message) = self.next(&messages) {
            match message {
                Message::Signal(signal) => {
                    tracing::info!(%signal, "ending");
                    end = if signal == Signal::Terminate { End::Terminated } else { End::Asked };
                    break;
                }
                Message::Stop => {
                    tracing::info!("asked to take the interface down");
                    break;
                }
                Message::SocketRemoved => {
                    tracing::info!("the UAPI socket was removed: taking the interface down");
                    break;
                }
                Message::Ended => {
                    end = End::Failed;
                    break;
                }
                Message::Network(change) => self.network_changed(&change),
                Message::Peer(event) => {
                    self.status_line.touch(Instant::now());
                    self.happened(event);
                }
                Message::Resolved(peer, address) => self.resolved(peer, address),
                // What it reports is handled below, as when there was no room for the message.
                Message::Configured => {}
                Message::Reload(reload, answer) => {
                    let _gone = answer.try_send(self.reload(&reload));
                }
            }
            if self.is_configured.swap(false, Ordering::Relaxed) {
                self.configured();
            }
        }
        // From here on senders fail at once instead of waiting.
        drop(messages);
        self.end(end, file)
    }

    fn end(self, end: End, file: &Path) -> Result<(), UpError> {
        service_manager::stopping();
        let Self { mut daemon, config, watch, resolver, uapi, socket, leaving, watchdog, metrics, .. } = self;
        drop((watchdog, watch, resolver, uapi, metrics));
        if let Some(mut writer) = leaving.and_then(Leaving::finish) {
            if end == End::Terminated
                && let Some(invocation) = invocation_to_leave_for(&daemon, &mut writer)
            {
                if config.interface.host.save_config {
                    daemon.save(&config, file);
                }
                match daemon.hand_over(&invocation) {
                    Ok(()) => {
                        daemon.leave()?;
                        tracing::info!(interface = %config.interface.name, "left as it is, to be started again");
                        drop(socket);
                        return Ok(());
                    }
                    Err(error) => tracing::warn!("the interface cannot be left to the next daemon: {error}"),
                }
            }
            // After a failure the service is started again, and uses what is in the store.
            if end != End::Failed {
                writer.withdraw();
            }
        }
        tracing::info!(interface = %config.interface.name, "taking the interface down");
        // This end was not requested: the kill switch stays, so that no packet leaves past the tunnel because
        // of it.
        let keep = if end == End::Failed { Keep::KillSwitch } else { Keep::Nothing };
        daemon.stop_after(keep, |daemon| {
            if config.interface.host.save_config {
                daemon.save(&config, file);
            }
        })?;
        tracing::info!(interface = %config.interface.name, "interface is down");
        // Last: a client that waits for the end of its connection then knows that everything is undone.
        drop(socket);
        Ok(())
    }

    fn network_changed(&mut self, change: &Change) {
        if let Some(resolver) = self.resolver.as_ref().filter(|_| change.concerns_ways()) {
            resolver.handle().network_changed();
        }
        self.react(change);
    }

    /// Has the interface react to a change of the network. Does not look up names of peers.
    fn react(&mut self, change: &Change) {
        if let Err(error) = self.daemon.network_changed(change) {
            // Packets have stopped: the message that ends the daemon follows.
            tracing::debug!(%error, "cannot follow the network");
        }
        self.managed.running().mtu = self.daemon.mtu();
    }

    fn happened(&mut self, event: Event) {
        if let Event::EndpointChanged { .. } = event
            && let Err(error) = self.daemon.endpoints_changed()
        {
            tracing::debug!(%error, "cannot follow the endpoint");
        }
        if let Some(leaving) = &self.leaving {
            leaving.changed();
        }
        let Some(resolver) = &self.resolver else { return };
        match event {
            Event::HandshakeComplete { peer } => resolver.handle().handshake(peer),
            Event::HandshakeUnanswered { peer, initiations } => {
                resolver.handle().unanswered(peer, initiations);
            }
            Event::HandshakeFailed { peer } => resolver.handle().stale(peer),
            Event::EndpointChanged { peer, endpoint } => resolver.handle().moved(peer, endpoint),
        }
    }

    fn resolved(&mut self, peer: PublicKey, address: SocketAddr) {
        let endpoint = PeerChange { endpoint: Some(address), update_only: true, ..PeerChange::new(peer) };
        let change = DeviceChange { peers: vec![endpoint], ..DeviceChange::default() };
        tracing::info!(%peer, endpoint = %address, "the name of the peer's endpoint has another address");
        if let Err(error) = self.controller.set(change) {
            tracing::debug!(%error, "cannot send to another address");
        }
        if let Err(error) = self.daemon.endpoints_changed() {
            tracing::debug!(%error, "cannot follow the endpoint");
        }
        self.remember();
    }

    /// Records the paths to new peers, so that later changes of these paths are noticed.
    fn configured(&mut self) {
        if let Some(leaving) = &self.leaving {
            leaving.changed();
        }
        self.react(&Change { routes: true, ..Change::default() });
    }

    fn reload(&mut self, reload: &Reload) -> Result<ReloadReport, ManageError> {
        if reload.dry_run {
            return self.load(reload);
        }
        service_manager::reloading();
        let outcome = self.load(reload);
        // A failed reload changed nothing, and the interface continues.
        self.ready();
        outcome
    }

    fn load(&mut self, reload: &Reload) -> Result<ReloadReport, ManageError> {
        let Self { daemon, config, controller, overrides, .. } = self;
        let (mut outcome, in_vain) = reload::reload(daemon, config, overrides, controller, reload)?;
        if !reload.dry_run {
            if let Err(error) = self.move_metrics() {
                outcome.warnings.push(error.to_string());
            }
            self.daemon.keep_in_step(&self.config).map_err(reload::control_failed)?;
            self.remember();
            self.show();
            let state = self.controller.get().map_err(|_| ManageError::Ended)?;
            let current = |key: &PublicKey| state.peers.iter().find(|peer| peer.public_key == *key)?.endpoint;
            self.watch_names(&in_vain, |_, key| current(key));
            if let Some(leaving) = &self.leaving {
                leaving.loaded(self.base());
            }
        }
        Ok(outcome)
    }
}

/// Returns the invocation ID of this run of the service, if the service is being restarted and the interface
/// can be left to the next run.
fn invocation_to_leave_for(daemon: &Daemon, writer: &mut Writer) -> Option<String> {
    let invocation = service_manager::invocation()?;
    daemon.host().filter(|host| host.can_be_handed_over())?;
    match writer.leave() {
        Ok(is_restart) => is_restart.then_some(invocation),
        Err(error) => {
            tracing::warn!("a restart would interrupt the interface: {error}");
            None
        }
    }
}
