//! The start of an interface: what a previous daemon left, the names of endpoints, the host, the sockets that
//! serve it. Then the control thread works (`supervisor.rs`).

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::{Instant, SystemTime};

use weft_commands::signals;
use weft_config::Config;
use weft_host::{Host, Recording};
use weft_ipc::holder::Held;
use weft_ipc::runtime_dir::runtime_dir;
use weft_report::control_socket::Client;
use weft_uapi as uapi;
use zeroize::Zeroizing;

use super::daemon::{Beginning, Daemon, Resumed, known};
use super::handover::{Adopted, Handover, Kept};
use super::look_up::addresses_of_names;
use super::message::{MESSAGES, Message};
use super::served::Served;
use super::supervisor::Supervisor;
use super::{Options, Overrides, UpError, known_endpoints, resolve_endpoints};
use crate::background::{Notifier, Output};
use crate::interface::Interface;
use crate::{logging, metrics};

/// Runs an interface until something ends it. `text` is that of its file, if its state is saved into it.
pub(super) fn run(
    config: Config,
    text: Option<Zeroizing<String>>,
    overrides: Overrides,
    file: &Path,
    options: &Options,
    notifier: Option<Notifier>,
) -> Result<(), UpError> {
    let began = (Instant::now(), SystemTime::now());
    let _log = logging::queue::start();
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
    // Nothing is set up yet, so a signal during the look-ups may end the process directly.
    let found = match handover.addresses(&config) {
        Some(places) => known_endpoints(&config, &places),
        None => resolve_endpoints(&config)?,
    };
    let (inbox, messages) = mpsc::sync_channel(MESSAGES);
    let signal = inbox.clone();
    signals::watch(move |received| drop(signal.send(Message::Signal(received)))).map_err(UpError::Signals)?;
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
    let mut host = prepare(&config, Some(file), &known(&found.endpoints), &recording)?;
    if host.needs_memory() {
        // Before the kill switch is in force: a crash at any moment after that needs them.
        host.remember(addresses_of_names(&config, |place, _| found.endpoints.get(place).copied().flatten()))?;
    }
    let (beginning, kept) = begin(handover, &config, found.endpoints.clone(), host.mark(), options)?;
    let (ended, happened) = (inbox.clone(), inbox.clone());
    let on_event = Box::new(move |event| drop(happened.try_send(Message::Peer(event))));
    let on_end = move || drop(ended.send(Message::Ended));
    let is_configured = Arc::<AtomicBool>::default();
    let mtu = host.mtu();
    let on_open = |interface: &Interface| {
        let name = &config.interface.name;
        let mut served =
            Served::open(interface, &config, options, &inbox, Some(Client::path_of(name)), metrics)?;
        served.managed.running().mtu = mtu;
        served.managed.running().source = Some(file.to_owned());
        served.serve_uapi(name, interface.controller(), &inbox, &is_configured);
        Ok(served)
    };
    let (daemon, served) =
        Daemon::start_on(host, &config, beginning, options, Some(on_event), on_open, on_end)?;
    let mut supervisor =
        Supervisor::start(daemon, served, config, overrides, &found, &inbox, Arc::clone(&is_configured))?;
    supervisor.text = text;
    if let Some(kept) = kept {
        supervisor.keep_for_the_next(kept, began);
    }
    if let Some(notifier) = notifier {
        // In a file the log may be read later; an open pipe would keep its reader waiting.
        let is_file = std::fs::metadata("/dev/stderr").is_ok_and(|stderr| stderr.is_file());
        notifier.ready(if is_file { Output::Kept } else { Output::Discarded })?;
    }
    supervisor.ready();
    supervisor.work(messages, file)
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
    });
    if handover.has_device() {
        tracing::info!(
            interface = %config.interface.name,
            peers = state.as_ref().map(|state| state.change.peers.len()),
            "going on with the interface that was left"
        );
    }
    let Adopted { inherited, port, kept } = handover.open(config, options.tun_queues().count)?;
    let beginning = Beginning { endpoints, inherited, port, state, is_held_by_others: kept.is_some() };
    Ok((beginning, kept))
}
