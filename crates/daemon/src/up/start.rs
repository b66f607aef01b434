//! The start of an interface: what a previous daemon left, the host, the sockets that serve it, PreUp, and
//! the names of endpoints. Then the control thread works (`supervisor.rs`).

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver};
use std::time::{Instant, SystemTime};

use weft_commands::signals;
use weft_config::{Config, HookPhase, LoadError};
use weft_host::{Host, Recording};
use weft_ipc::holder::Held;
use weft_ipc::runtime_dir::runtime_dir;
use weft_report::control_socket::Client;
use weft_tunnel::PublicKey;
use weft_uapi as uapi;
use zeroize::Zeroizing;

use super::daemon::{Beginning, Opened, Resumed, known};
use super::handover::{Adopted, Handover, Kept};
use super::interruption::Interruption;
use super::look_up::{BeforeStart, Found, addresses_of_names};
use super::message::{MESSAGES, Message};
use super::served::Served;
use super::supervisor::Supervisor;
use super::{Options, Overrides, UpError};
use crate::background::{Notifier, Output};
use crate::interface::Interface;
use crate::{logging, metrics, service_manager};

/// Runs an interface until something ends it. `text` is that of its file.
pub(super) fn run(
    config: Config,
    text: Zeroizing<String>,
    overrides: Overrides,
    file: &Path,
    options: &Options,
    notifier: Option<Notifier>,
) -> Result<(), UpError> {
    let _log = logging::queue::start();
    let interruption = Interruption::default();
    let interface = config.interface.name.clone();
    let started = start(config, text, overrides, file, options, notifier, &interruption);
    // What another process has set up is not what an earlier one left.
    let is_held = matches!(&started, Err(UpError::Host(error)) if error.is_held());
    if started.is_err() && !is_held {
        weft_host::tell_what_is_left(&runtime_dir(), &interface);
    }
    match started {
        Ok((supervisor, messages)) => supervisor.work(messages, file),
        // The service manager asked for it, and would call it a failure of the service.
        Err(error) if interruption.is_asked() && service_manager::is_present() => {
            tracing::info!("the start was stopped on request, and is undone: {error}");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Brings an interface up. Returns its control thread, with the messages for it.
fn start(
    mut config: Config,
    text: Zeroizing<String>,
    overrides: Overrides,
    file: &Path,
    options: &Options,
    notifier: Option<Notifier>,
    interruption: &Interruption,
) -> Result<(Supervisor, Receiver<Message>), UpError> {
    let began = (Instant::now(), SystemTime::now());
    let directory = runtime_dir();
    weft_host::wait_for_predecessor(&directory, &config.interface.name)?;
    // Before anything else: an unusable address is then the only error to report, and nothing has to be
    // undone.
    let metrics = match metrics::inherited() {
        Some(inherited) => Some(inherited),
        None => match metrics::open(config.interface.host.metrics.address.as_ref()) {
            Ok(opened) => opened,
            Err(error) => {
                // A start at the same time may have been faster: that is the cause then.
                weft_host::wait_for_predecessor(&directory, &config.interface.name)?;
                return Err(error.into());
            }
        },
    };
    let handover = Handover::take(&config.interface.name);
    if !handover.has_device() {
        let name = config.interface.name.as_str();
        weft_host::wait_for_release(&directory, Held::Device(name));
        weft_host::wait_for_release(&directory, Held::Udp(config.interface.settings.listen_port));
        if let Some(socket) = uapi::path_of(&config.interface.name) {
            weft_host::wait_for_release(&directory, Held::Socket(&socket));
        }
    }
    handover.fill_in(&mut config);
    if handover.has_state() && !config.interface.host.keys_to_come.is_empty() {
        config = parse_again(&config, &text, &overrides, file)?;
    }
    let (inbox, messages) = mpsc::sync_channel(MESSAGES);
    let (signal, interrupt) = (inbox.clone(), interruption.clone());
    let on_signal = move |received| {
        interrupt.interrupt();
        drop(signal.send(Message::Signal(received)));
    };
    signals::watch(on_signal).map_err(UpError::Signals)?;
    // An interface that goes on does not run PreUp, and its packets wait.
    let before = BeforeStart::of(&directory, &config);
    let left = handover.addresses(&config).map(|places| before.known_endpoints(&config, &places));
    let recording = Recording::In(directory);
    let prepare = if handover.has_device() {
        Host::adopt
    } else {
        // Removes the socket of a crashed daemon before anything can fail: a start that fails leaves none.
        if let Err(error) = uapi::remove_dead(&config.interface.name) {
            tracing::debug!("the socket for wg(8) stays: {error}");
        }
        Host::prepare
    };
    let endpoints =
        left.as_ref().map_or_else(|| config.endpoint_addresses(), |found| found.endpoints.clone());
    let host = prepare(&config, Some(file), &known(&endpoints), &recording)?;
    let (beginning, kept) = begin(handover, &config, endpoints, host.mark(), options)?;
    let (ended, happened) = (inbox.clone(), inbox.clone());
    let on_event = Box::new(move |event| drop(happened.try_send(Message::Peer(event))));
    let on_end = move || drop(ended.send(Message::Ended));
    let is_configured = Arc::<AtomicBool>::default();
    let mtu = host.mtu();
    let on_open = |interface: &Interface| {
        let name = &config.interface.name;
        let mut served = Served::open(
            interface,
            &config,
            options,
            &inbox,
            interruption,
            Some(Client::path_of(name)),
            metrics,
        )?;
        served.managed.running().mtu = mtu;
        served.managed.running().source = Some(file.to_owned());
        served.managed.running().source_hash = Some(weft_host::text_hash(&text));
        served.serve_uapi(name, interface.controller(), &inbox, &is_configured);
        Ok(served)
    };
    let mut opened = Opened::open(host, &config, beginning, options, Some(on_event), on_open, on_end)?;
    let found = match left {
        Some(found) => found,
        None => settle(&mut config, &text, &overrides, file, &mut opened, before, interruption)?,
    };
    if opened.host_mut().needs_memory() {
        // Before the kill switch and the rules are in force: a crash at any moment after that needs them, and
        // other tunnels look then.
        let found = |place: usize, _: &PublicKey| found.endpoints.get(place).copied().flatten();
        opened.host_mut().remember(addresses_of_names(&config, found), &config, found)?;
    }
    let (daemon, served) = opened.complete(&config, &found.endpoints, options)?;
    let text = Some(text).filter(|_| config.interface.host.save_config);
    let mut supervisor =
        Supervisor::start(daemon, served, config, overrides, &found, &inbox, Arc::clone(&is_configured))?;
    supervisor.text = text;
    if let Some(kept) = kept {
        supervisor.keep_for_the_next(kept, began);
    }
    supervisor.report(options);
    supervisor.tell_of_same_key();
    if let Some(notifier) = notifier {
        notifier.ready(Output::Files)?;
    }
    supervisor.ready();
    Ok((supervisor, messages))
}

/// Does what comes after PreUp, which may have written key files or brought the network: reads the keys,
/// looks names of endpoints up, and plans the rest by what there is then.
fn settle<T>(
    config: &mut Config,
    text: &str,
    overrides: &Overrides,
    file: &Path,
    opened: &mut Opened<T>,
    before: BeforeStart,
    interruption: &Interruption,
) -> Result<Found, UpError> {
    let runs_pre_up = config.interface.host.hooks_of(HookPhase::PreUp).next().is_some();
    if runs_pre_up {
        *config = parse_again(config, text, overrides, file)?;
    }
    let found = before.resolve_endpoints(config, interruption.cancel())?;
    interruption.check()?;
    if runs_pre_up || found.endpoints != config.endpoint_addresses() {
        opened.host_mut().plan_after_pre_up(config, &known(&found.endpoints))?;
    }
    Ok(found)
}

/// Parses the file with its key files, which have to be there now.
fn parse_again(config: &Config, text: &str, overrides: &Overrides, file: &Path) -> Result<Config, LoadError> {
    let mut config = weft_config::parse(text, file, config.interface.name.clone())?.config;
    overrides.apply(&mut config);
    Ok(config)
}

/// Returns what the interface starts with, and what stays in the store while it runs.
fn begin(
    handover: Handover,
    config: &Config,
    endpoints: Vec<Option<SocketAddr>>,
    mark: u32,
    options: &Options,
) -> Result<(Beginning, Option<Kept>), UpError> {
    let state = handover.change(config, &endpoints).map(|change| Resumed {
        change,
        mark: handover.left().map_or(mark, |left| left.mark(config, mark)),
        remembered: handover.remembered(),
        set_endpoints: handover.set_endpoints(),
    });
    if handover.has_device() {
        tracing::info!(
            interface = %config.interface.name,
            peers = state.as_ref().map(|state| state.change.peers.len()),
            "continuing with the interface that the previous process left"
        );
    }
    let Adopted { inherited, port, kept } = handover.open(config, options.tun_queues().count)?;
    let beginning = Beginning { endpoints, inherited, port, state, is_held_by_others: kept.is_some() };
    Ok((beginning, kept))
}
