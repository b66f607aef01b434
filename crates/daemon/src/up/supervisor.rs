//! The control thread of a running interface: handles one message after the other.
//!
//! Everything that waits for the system (netlink, commands, name servers) waits here; packets continue
//! meanwhile.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use weft_commands::signals::Signal;
use weft_config::Config;
use weft_config::device::{DeviceChange, PeerChange};
use weft_control::Controller;
use weft_host::Host;
use weft_host::network::{NetworkChange, Watch};
use weft_report::control_socket::{ManageError, Reload, ReloadReport};
use weft_report::finding::{Finding, Level};
use weft_tunnel::{Event, PublicKey};
use weft_uapi::{self as uapi, Control as _, ControlError};
use zeroize::Zeroizing;

use self::end::End;
use self::hints::Hints;
use self::names::Names;
use self::told::Told;
use super::daemon::Daemon;
use super::handover::Kept;
use super::in_force;
use super::leaving::Leaving;
use super::look_up::{Found, InVain, addresses_of_names};
use super::message::{Inbox, Message};
use super::reload;
use super::served::Served;
use super::{Options, Overrides, UpError};
use crate::carried_over::Base;
use crate::control::socket::Manage as _;
use crate::control::{Managed, Phase, socket};
use crate::metrics;
use crate::service_manager::{self, StatusLine, Watchdog, Work};
use crate::speedtest::SpeedTests;
use crate::wiping_allocator;

mod end;
mod expiry;
mod files;
mod hints;
mod misrouted;
mod names;
mod told;
mod undone;

/// The pause between two looks at the tables of the packet filter. It doubles with each look that could not
/// restore them: a kill switch is missing.
const FIREWALL_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after a failure.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(60);
/// How long addresses of names are collected before they are written down: the record of all peers is written
/// for them, and after a change of the network each name may have another address.
const MEMORY_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Supervisor {
    daemon: Daemon,
    config: Config,
    overrides: Overrides,
    controller: Arc<Controller>,
    managed: Arc<Managed>,
    names: Names,
    watch: Option<Watch>,
    uapi: Option<uapi::Server>,
    socket: Option<socket::Server>,
    metrics: Option<metrics::Server>,
    speed_tests: Option<SpeedTests>,
    leaving: Option<Leaving>,
    status_line: StatusLine,
    watchdog: Option<Watchdog>,
    /// What the watchdog sees of this thread.
    work: Work,
    /// Whether the interface was changed over UAPI since this was last looked at.
    is_configured: Arc<AtomicBool>,
    hints: Hints,
    /// Peers of which a user without root was told that they do not answer.
    silent: HashSet<PublicKey>,
    /// When to look next whether the packet filter has its tables.
    firewall_due: Instant,
    firewall_pause: Duration,
    /// What does not go where the configuration means it to go, as last found.
    misrouted: Told,
    /// Why metrics are not where the file has them, since the last reload.
    metrics_in_vain: Option<Finding>,
    /// What is wrong with metrics, as last told.
    metrics_told: Told,
    /// That names are looked up past the tunnel, as last told.
    dns_past: Told,
    /// What another program has undone, as last told.
    undone: Told,
    /// When to look whether the files are there by which the interface is found.
    files_due: Option<Instant>,
    /// That they are not, as last told.
    not_found: Told,
    /// When to write down addresses that names have now.
    memory_due: Option<Instant>,
    /// The text of the file as it was loaded last, if the state is saved into it.
    pub(super) text: Option<Zeroizing<String>>,
    /// Called with a configuration that was loaded, and its text. Returns warnings for the user.
    pub(super) on_loaded: Option<Box<OnLoaded>>,
    /// Called as soon as the interface ends.
    pub(super) on_ending: Option<Box<dyn FnOnce()>>,
}

type OnLoaded = dyn Fn(&Config, &str) -> Vec<String>;

impl Supervisor {
    /// Starts everything around the interface that is not there yet. Failures of optional parts are only
    /// logged.
    pub(super) fn start(
        daemon: Daemon,
        served: Served,
        config: Config,
        overrides: Overrides,
        found: &Found,
        inbox: &Inbox,
        is_configured: Arc<AtomicBool>,
    ) -> Result<Self, UpError> {
        let controller = Arc::clone(daemon.controller().ok_or(ControlError::Ended)?);
        let Served { managed, uapi, metrics, socket } = served;
        let mut supervisor = Self {
            daemon,
            config,
            overrides,
            controller,
            managed,
            names: Names::new(inbox),
            watch: None,
            uapi,
            socket,
            metrics,
            speed_tests: None,
            leaving: None,
            status_line: StatusLine::new(Instant::now()),
            watchdog: None,
            work: Work::default(),
            is_configured,
            hints: Hints::default(),
            silent: HashSet::new(),
            firewall_due: Instant::now(),
            firewall_pause: FIREWALL_PAUSE,
            misrouted: Told::default(),
            metrics_in_vain: None,
            metrics_told: Told::default(),
            dns_past: Told::default(),
            undone: Told::default(),
            files_due: None,
            not_found: Told::default(),
            memory_due: None,
            text: None,
            on_loaded: None,
            on_ending: None,
        };
        supervisor.remember();
        supervisor.show();
        supervisor.follow_network(inbox);
        supervisor.watch_names(&found.in_vain, |place, _| found.endpoints.get(place).copied().flatten());
        if let Err(error) = supervisor.allow_speed_tests() {
            tracing::warn!("{error}");
        }
        Ok(supervisor)
    }

    /// Reports what the device is, its counters in another network namespace, and those of the far end that a
    /// veth pair has.
    #[cfg(target_os = "linux")]
    pub(super) fn device_is_in(
        &self,
        proc_net: std::path::PathBuf,
        backing: &'static str,
        far_counters: Option<std::fs::File>,
    ) {
        let mut running = self.managed.running();
        running.proc_net = proc_net;
        running.backing = backing;
        running.far_counters = far_counters.map(Arc::new);
    }

    /// Reports the file that an interface without root was brought up from.
    #[cfg(target_os = "linux")]
    pub(super) fn is_from(&self, file: &Path) {
        self.managed.running().source = Some(file.to_owned());
    }

    /// Reports the connections of the stack that is in the place of a device.
    #[cfg(target_os = "linux")]
    pub(super) fn ends_in(&self, stack: weft_embed::Stack) {
        self.managed.running().stack = Some(stack);
    }

    /// Reports the processes that use an interface without root.
    #[cfg(target_os = "linux")]
    pub(super) fn is_used_by(&self, processes: Arc<std::sync::Mutex<Vec<u32>>>) {
        self.managed.running().members = processes;
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

    /// Writes down where peers are, for a start behind a kill switch and for other tunnels.
    fn remember(&mut self) {
        self.memory_due = None;
        if !self.daemon.host().is_some_and(Host::needs_memory) {
            return;
        }
        let Ok(current) = self.endpoints() else { return };
        let endpoint = |_: usize, key: &PublicKey| current.get(key).copied();
        let Self { daemon, config, .. } = self;
        let known = addresses_of_names(config, endpoint);
        if let Some(Err(error)) = daemon.host_mut().map(|host| host.remember(known, config, endpoint)) {
            tracing::warn!("{error}");
        }
    }

    fn endpoints(&self) -> Result<HashMap<PublicKey, SocketAddr>, ControlError> {
        let peers = self.controller.get()?.peers;
        Ok(peers.iter().filter_map(|peer| Some((peer.public_key, peer.endpoint?))).collect())
    }

    fn follow_network(&mut self, inbox: &Inbox) {
        let changed = inbox.clone();
        match self.daemon.watch_network(move |change| drop(changed.send(Message::Network(change)))) {
            Ok(watch) => self.watch = Some(watch),
            Err(error) => tracing::warn!("{error}"),
        }
        // Catches changes from before the watch began. Names were looked up a moment ago.
        self.react(&NetworkChange { missed: true, ..NetworkChange::default() });
    }

    fn watch_names(&self, in_vain: &[InVain], current: impl Fn(usize, &PublicKey) -> Option<SocketAddr>) {
        let tunnel = self.daemon.host().and_then(Host::tunnel);
        self.names.watch(&self.config.peers, tunnel, in_vain, current);
    }

    /// Updates what the control socket reports as in force.
    fn show(&self) {
        in_force::show(&self.daemon, &self.config, &mut self.managed.running());
    }

    fn serve_metrics(&self, listener: metrics::Listener) -> Result<metrics::Server, metrics::ListenError> {
        let hosts = &self.config.interface.host.metrics.hosts;
        metrics::serve(listener, hosts, Arc::<Managed>::clone(&self.managed))
    }

    /// Serves metrics at the address of the configuration. If that fails, they stay at the previous address,
    /// which the configuration in force has then, so that the next reload tries again.
    fn follow_metrics(&mut self, report: &mut ReloadReport) {
        let failed = self.move_metrics().err();
        if let Some(error) = &failed {
            let wanted = &mut self.config.interface.host.metrics.address;
            let step = reload::metrics_step(wanted.as_ref());
            if let Some(place) = report.steps.iter().position(|told| *told == step) {
                report.steps.remove(place);
                report.tunnel_steps -= 1;
            }
            *wanted = self.metrics.as_ref().map(|server| server.address().clone());
            report.refused.push(error.to_string());
        }
        self.metrics_in_vain = failed.map(|error| {
            Finding::new("metrics", Level::Warning, error.to_string()).advise("`weft reload` tries it again")
        });
    }

    /// Tells that metrics cannot be served, or are served at an address that this machine does not have.
    fn tell_of_metrics(&mut self) {
        let addresses = &self.config.interface.addresses;
        let served = self.metrics.as_ref().filter(|server| !server.is_inherited());
        let elsewhere = served
            .filter(|_| !self.overrides.is_rootless)
            .and_then(|server| weft_commands::doctor::metrics_elsewhere(server.address(), addresses));
        let found = self.metrics_in_vain.iter().cloned().chain(elsewhere).collect();
        self.metrics_told.tell(found, &self.managed);
    }

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

    /// Answers speed tests of peers, or none, as the configuration has it.
    fn allow_speed_tests(&mut self) -> Result<(), String> {
        let Self { config, managed, speed_tests, .. } = self;
        if !config.interface.host.speed_test {
            *speed_tests = None;
        } else if speed_tests.is_none() {
            *speed_tests = Some(SpeedTests::answer(&config.interface.name, managed)?);
        }
        Ok(())
    }

    /// Logs that everything is in place.
    pub(super) fn report(&self, options: &Options) {
        self.daemon.report(&self.config, options);
    }

    /// Reports to the service manager that everything is in place, at first or after a reload.
    pub(super) fn ready(&mut self) {
        if self.watchdog.is_none() {
            self.watchdog = self.daemon.watchdog(&self.work);
        }
        let Self { status_line, managed, .. } = self;
        status_line.ready(|| managed.status().ok());
        wiping_allocator::give_back();
    }

    fn next(&mut self, messages: &Receiver<Message>) -> Option<Message> {
        loop {
            let due = [
                self.look_after_firewall(),
                self.look_after_dns(),
                self.look_after_expiry(),
                self.look_after_memory(),
                self.look_after_files(),
                self.hear_answers(),
            ];
            let due = due.into_iter().flatten().min();
            let Self { status_line, managed, work, .. } = self;
            work.end();
            let next = status_line.next_until(due, messages, || managed.status().ok());
            work.begin();
            match next {
                Err(RecvTimeoutError::Timeout) => {}
                other => return other.ok(),
            }
        }
    }

    /// Restores what another program removes from the packet filter. Returns when to look again.
    fn look_after_firewall(&mut self) -> Option<Instant> {
        let host = self.daemon.host_mut().filter(|host| host.has_firewall())?;
        if self.firewall_due <= Instant::now() {
            let after_failure = (self.firewall_pause * 2).min(PAUSE_AFTER_FAILURE);
            self.firewall_pause = if host.restore_firewall() { FIREWALL_PAUSE } else { after_failure };
            self.firewall_due = Instant::now() + self.firewall_pause;
            self.tell_of_undone();
        }
        Some(self.firewall_due)
    }

    /// Writes down addresses that names got a moment ago. Returns when to do that.
    fn look_after_memory(&mut self) -> Option<Instant> {
        if self.memory_due.is_some_and(|due| due <= Instant::now()) {
            self.remember();
        }
        self.memory_due
    }

    pub(super) fn work(mut self, messages: Receiver<Message>, file: &Path) -> Result<(), UpError> {
        let mut end = End::Asked;
        self.managed.enter(Phase::Running);
        while let Some(message) = self.next(&messages) {
            match message {
                Message::Signal(signal) => {
                    tracing::info!(%signal, "ending");
                    end = if signal == Signal::Terminate { End::Terminated } else { End::Signalled };
                    break;
                }
                Message::Stop => {
                    tracing::info!("asked to take the interface down");
                    break;
                }
                Message::SocketRemoved => {
                    tracing::info!("the UAPI socket was removed: taking the interface down");
                    end = End::Signalled;
                    break;
                }
                Message::Ended => {
                    end = End::Failed;
                    break;
                }
                Message::Removed => self.files_due = Some(Instant::now()),
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
        if self.memory_due.is_some() {
            self.remember();
        }
        self.managed.enter(Phase::Ending);
        // Commands of PreDown may take long; the service manager has a time for the end.
        self.work.end();
        self.end(end, messages, file)
    }

    fn network_changed(&mut self, change: &NetworkChange) {
        if change.concerns_ways() {
            self.names.network_changed();
        }
        self.react(change);
    }

    /// Has the interface react to a change of the network. Does not look up names of peers.
    fn react(&mut self, change: &NetworkChange) {
        if let Err(error) = self.daemon.network_changed(change) {
            // Packets have stopped: the message that ends the daemon follows.
            tracing::debug!(%error, "cannot follow the network");
        }
        self.managed.running().mtu = self.daemon.mtu();
        self.look_for_misrouted();
        self.tell_of_metrics();
        self.tell_of_undone();
    }

    /// Says once that a peer does not answer: the user of a command waits for it, and sees nothing else.
    fn tell_of_silence(&mut self, event: Event) {
        match event {
            Event::HandshakeUnanswered { peer, .. } if self.silent.insert(peer) => {
                let in_file = self.config.peers.iter().find(|config| config.public_key == peer);
                let endpoint = in_file.and_then(|peer| peer.endpoint.as_ref());
                let at = endpoint.map(|endpoint| format!(" at {endpoint}")).unwrap_or_default();
                tracing::warn!(
                    "peer {peer}{at} does not answer: check its Endpoint, that it has this public key, and what is \
                     between (UDP); weft goes on trying"
                );
            }
            Event::HandshakeComplete { peer } => drop(self.silent.remove(&peer)),
            _ => {}
        }
    }

    /// Learns what an event says of a peer beside its session, for reports and the log.
    fn learn(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::HandshakeUnanswered { peer, .. } if self.hints.may_ask(now) => {
                let Ok(state) = self.controller.get() else { return };
                let endpoint = state.peers.iter().find(|state| state.public_key == peer);
                if let Some(endpoint) = endpoint.and_then(|peer| peer.endpoint) {
                    self.hints.ask(peer, endpoint, state.settings.fw_mark, now);
                }
                // No program is told that wg(8) has changed the mark.
                self.look_for_misrouted();
            }
            Event::HandshakeComplete { peer } => {
                if let Some(hints) = self.managed.running().hints.get_mut(&peer) {
                    hints.refusal = None;
                }
            }
            Event::EndpointChanged { peer, endpoint } => {
                let Some(found) = self.hints.moved(peer, endpoint, now) else { return };
                let mut running = self.managed.running();
                let hints = running.hints.entry(peer).or_default();
                let is_known = hints.alternation.replace(found);
                if is_known.is_none_or(|known| now.duration_since(known.latest) >= hints::WINDOW) {
                    tracing::warn!(%peer, "the peer's endpoint goes back and forth: two machines seem to have its key");
                }
            }
            _ => {}
        }
    }

    /// Records what ICMP says of endpoints. Returns when to look again.
    fn hear_answers(&mut self) -> Option<Instant> {
        let (answers, due) = self.hints.answers(Instant::now());
        for (peer, refusal) in answers {
            let mut running = self.managed.running();
            let hints = running.hints.entry(peer).or_default();
            let (endpoint, says) = (refusal.endpoint, refusal.says.clone());
            let before = hints.refusal.replace(refusal);
            if before.is_none_or(|before| before.endpoint != endpoint || before.says != says) {
                tracing::warn!(%peer, %endpoint, "the peer does not answer: {says}");
            }
        }
        due
    }

    fn happened(&mut self, event: Event) {
        self.learn(event);
        if self.overrides.is_rootless {
            self.tell_of_silence(event);
        }
        if let Event::EndpointChanged { .. } = event {
            self.memory_due.get_or_insert_with(|| Instant::now() + MEMORY_PAUSE);
            if let Err(error) = self.daemon.endpoints_changed() {
                tracing::debug!(%error, "cannot follow the endpoint");
            }
        }
        if let Some(leaving) = &self.leaving {
            leaving.changed();
        }
        self.names.happened(event);
    }

    fn resolved(&mut self, peer: PublicKey, address: SocketAddr) {
        let endpoint = PeerChange { endpoint: Some(address), update_only: true, ..PeerChange::new(peer) };
        let change = DeviceChange { peers: vec![endpoint], ..DeviceChange::default() };
        tracing::info!(%peer, endpoint = %address, "the name of the peer's endpoint has another address");
        if let Err(error) = self.controller.apply(&change) {
            tracing::debug!(%error, "cannot send to another address");
        }
        if let Err(error) = self.daemon.endpoints_changed() {
            tracing::debug!(%error, "cannot follow the endpoint");
        }
        self.memory_due.get_or_insert_with(|| Instant::now() + MEMORY_PAUSE);
    }

    /// Records the paths to new peers, so that later changes of these paths are noticed.
    fn configured(&mut self) {
        if let Some(leaving) = &self.leaving {
            leaving.changed();
        }
        self.react(&NetworkChange { routes: true, ..NetworkChange::default() });
    }

    fn reload(&mut self, reload: &Reload) -> Result<ReloadReport, ManageError> {
        if reload.dry_run {
            return self.load(reload);
        }
        service_manager::reloading();
        let outcome = self.load(reload);
        // Also where nothing differs from the file.
        self.firewall_due = Instant::now();
        // A failed reload changed nothing, and the interface continues.
        self.ready();
        outcome
    }

    fn load(&mut self, reload: &Reload) -> Result<ReloadReport, ManageError> {
        // What has to be done differs from what the file says otherwise.
        self.look_after_expiry();
        let Self { daemon, config, controller, overrides, .. } = self;
        let (mut outcome, in_vain) = reload::reload(daemon, config, overrides, controller, reload)?;
        if !reload.dry_run || reload.is_saved {
            self.managed.running().source_hash = Some(weft_host::text_hash(&reload.text));
            self.text = self.config.interface.host.save_config.then(|| reload.text.clone());
        }
        if !reload.dry_run {
            self.follow_metrics(&mut outcome);
            if let Err(error) = self.allow_speed_tests() {
                outcome.warnings.push(error);
            }
            self.daemon.keep_in_step(&self.config).map_err(reload::control_failed)?;
            self.remember();
            self.show();
            if let Some(on_loaded) = &self.on_loaded {
                outcome.warnings.extend(on_loaded(&self.config, &reload.text));
            }
            let current = self.endpoints().map_err(|_| ManageError::Ended)?;
            self.watch_names(&in_vain, |_, key| current.get(key).copied());
            if let Some(leaving) = &self.leaving {
                leaving.loaded(self.base());
            }
            self.react(&NetworkChange { device_changed: true, ..NetworkChange::default() });
            outcome.warnings.extend(self.daemon.host().into_iter().flat_map(Host::lacks).map(str::to_owned));
        }
        Ok(outcome)
    }
}
