//! `weft NAME`, a replacement for `wireguard-go NAME`: an interface that wg(8) configures with keys and
//! peers.
//!
//! Addresses, routes and the link state are set by other programs. The daemon ends on SIGINT, SIGTERM or
//! SIGHUP, when its device is deleted, and when the file of its UAPI socket is removed, which is how
//! wg-quick(8) ends it.

use std::env::consts::OS;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use weft_commands::output;
use weft_commands::signals::{self, Signal};
use weft_config::InterfaceName;
use weft_config::TunThreads;
use weft_config::exit::{self, Code};
use weft_config::metrics::MetricsConfig;
use weft_control::Controller;
use weft_dataplane::{DataplaneError, OnEvent};
use weft_host::network::{NetworkChange, Watch};
use weft_host::routes::{Netlink, RouteError, is_utun};
use weft_host::{HostError, Owner};
use weft_ipc::OutputFile;
use weft_ipc::holder::Held;
use weft_ipc::runtime_dir::runtime_dir;
use weft_uapi::{self as uapi, Control, Listener, Server, SocketError};
use weft_udp::UdpConfig;

use crate::background::{self, BackgroundError};
use crate::cli::drop_in::RunArgs;
use crate::control::Managed;
use crate::control::socket::Manage as _;
use crate::foreign;
use crate::interface::{self, Inherited, Interface, Options, StartError, TunQueues};
use crate::logging;
use crate::metrics;
use crate::network::{MtuChoice, NetworkKeeper};
use crate::scheduling::Priority;
use crate::secrecy;
use crate::service_manager::{self, StatusLine, Watchdog, Work};
use crate::status::Running;

mod environment;

pub use environment::log_level;
use environment::{Environment, InvalidVariable};

/// The MTU of a new device, the same as wireguard-go's: Ethernet's 1500 bytes less the overhead of WireGuard
/// over IPv6.
const MTU: u16 = 1500 - weft_config::OVERHEAD;

/// Why an interface could not be started.
#[derive(Debug, thiserror::Error)]
enum RunError {
    /// The name is not valid for an interface.
    #[error(
        "{0:?} is not the name of an interface: write up to 15 letters, digits, `_`, `=`, `+`, `.` and `-`"
    )]
    Name(String),
    /// macOS has no tunnel of that name.
    #[error(
        "{0} cannot be: macOS names tunnels `utun` and a number; write that, or `utun` for the first free one, whose \
         name WG_TUN_NAME_FILE gets"
    )]
    NotUtun(InterfaceName),
    /// An environment variable cannot be understood.
    #[error(transparent)]
    Variable(#[from] InvalidVariable),
    /// The process cannot go to the background.
    #[error(transparent)]
    Background(#[from] BackgroundError),
    /// The signals that end the daemon cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(#[source] std::io::Error),
    /// Another process runs the interface.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The UAPI socket for wg(8) could not be opened.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The UAPI socket cannot be served.
    #[error("cannot serve the UAPI socket: {0}")]
    Server(#[source] std::io::Error),
    /// The device, the sockets or the packet thread could not be set up.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The packet thread ended by itself.
    #[error(transparent)]
    Dataplane(#[from] DataplaneError),
    /// Metrics cannot be served at the requested address.
    #[error(transparent)]
    Metrics(#[from] metrics::ListenError),
    /// The interface's name cannot be written to the file.
    #[error("cannot write the interface's name to {} (WG_TUN_NAME_FILE): {source}", path.display())]
    NameFile {
        /// The path in WG_TUN_NAME_FILE.
        path: PathBuf,
        source: std::io::Error,
    },
}

impl From<RunError> for exit::Error {
    fn from(error: RunError) -> Self {
        let code = match &error {
            RunError::Name(_) | RunError::NotUtun(_) | RunError::Variable(_) => Code::Usage,
            RunError::Host(error) => error.exit_code(),
            RunError::Socket(error) => error.exit_code(),
            RunError::Metrics(error) => error.exit_code(),
            RunError::Start(error) => error.exit_code(),
            _ => Code::Failure,
        };
        if code == Code::Permission && matches!(error, RunError::Socket(_)) {
            const ADVICE: &str =
                "run weft as root (sudo), or use `weft exec` or `weft proxy`, which do not need it";
            return Self::new(code, format!("{error}; {ADVICE}"));
        }
        Self::new(code, error)
    }
}

/// Messages to the main thread of the daemon; most of them end it.
enum End {
    Signal(Signal),
    Device,
    SocketRemoved,
    /// Another program has removed the control socket or the lock. Does not end the daemon.
    Removed,
    /// The network changed. Does not end the daemon.
    Network(NetworkChange),
    /// Something happened to a peer, which may change the line for the service manager. Does not end the
    /// daemon.
    Peer,
    Asked,
}

/// Runs `weft NAME` until it is ended, in the background unless asked to stay in the foreground. The process
/// must have no other thread.
///
/// # Errors
/// When it cannot be started; nothing is left behind.
pub fn run(args: &RunArgs) -> Result<(), exit::Error> {
    Ok(run_interface(args)?)
}

/// Says that the interface has nothing of the file of its name, which another command runs. wg-quick sets all
/// of it next.
fn note_of_file(name: &InterfaceName, file: &Path, is_of_wg_quick: bool) -> Option<String> {
    (!is_of_wg_quick && file.exists()).then(|| {
        format!(
            "{name} is empty, without keys, peers and addresses, for wg(8) to configure; `weft up {name}` runs {}",
            file.display()
        )
    })
}

fn run_interface(args: &RunArgs) -> Result<(), RunError> {
    let name: InterfaceName = args.name.parse().map_err(|_| RunError::Name(args.name.clone()))?;
    let environment = Environment::read(&name)?;
    let choice = match environment.queues.is_empty() {
        true => name_choice(OS, &name).ok_or_else(|| RunError::NotUtun(name.clone()))?,
        false => NameChoice::Given,
    };
    // Before the process forks.
    let is_of_wg_quick = foreign::interface_of_wg_quick().is_some();
    let file = weft_config::path_of(name.as_str());
    if let Some(note) = note_of_file(&name, &file, is_of_wg_quick) {
        output::note(&note);
    }
    let notifier = if args.foreground || environment.foreground { None } else { Some(background::begin()?) };
    secrecy::forbid_core_dumps();
    weft_confine::enable();
    let _log = logging::queue::start();
    let directory = runtime_dir();
    let Environment { name, queues, socket, name_file, output, .. } = environment;
    if choice == NameChoice::Given {
        weft_host::wait_for_predecessor(&directory, &name)?;
    }
    if queues.is_empty() {
        weft_host::wait_for_release(&directory, Held::Device(name.as_str()));
    }
    if let Some(path) = uapi::path_of(&name).filter(|_| socket.is_none()) {
        weft_host::wait_for_release(&directory, Held::Socket(&path));
    }
    // A signal that comes earlier ends the process: nothing is set up yet.
    let (end, ended) = mpsc::channel();
    let (signal, network) = (end.clone(), end.clone());
    signals::watch(move |received| drop(signal.send(End::Signal(received)))).map_err(RunError::Signals)?;

    // Dropped last of all: the next daemon then finds nothing in its way.
    let mut claim = None;
    if choice == NameChoice::Given {
        claim = claim_of(&name)?;
    }
    let mut watched = MetricsConfig::default();
    args.metrics.apply(&mut watched);
    let metrics = metrics::open(watched.address.as_ref())?;
    let listener = match socket {
        Some(descriptor) => Some(Listener::adopt(descriptor)?),
        None if choice == NameChoice::Given => Some(Listener::open(&name)?),
        None => None,
    };
    let mut options = Options {
        packet_threads: args.tun.packet_threads,
        pin: args.tun.pin,
        tun_threads: args.tun.tun_threads,
        offload: !args.tun.no_offload,
        ring_bytes: args.tun.ring_bytes(),
        priority: if args.realtime { Priority::Realtime } else { Priority::Ordinary },
        ..Options::default()
    };
    if let Some(handed_in) = u16::try_from(queues.len()).ok().filter(|count| *count > 0) {
        (options.tun_threads, options.inline_queues) = (TunThreads::Fixed(0), handed_in);
    }
    let udp = UdpConfig::default();
    let is_new = queues.is_empty();
    let inherited = Inherited { queues, ..Inherited::default() };
    let device_end = end.clone();
    let on_end = move || drop(device_end.send(End::Device));
    let happened = end.clone();
    let on_event: OnEvent = Box::new(move |_| drop(happened.send(End::Peer)));
    let on_event = Some(on_event).filter(|_| service_manager::shows_status());
    let mut interface = Interface::open(name.as_str(), inherited, udp, &options, on_event, on_end)?;
    let actual = &interface.opened().interface;
    let name: InterfaceName = actual.parse().map_err(|_| RunError::Name(actual.clone()))?;
    if choice == NameChoice::FirstFree {
        claim = claim_of(&name)?;
    }
    let listener = match listener {
        Some(listener) => listener,
        None => Listener::open(&name)?,
    };
    let mtu = set_up_link(&name, is_new, options.tun_queues());
    interface.run(mtu, Vec::new())?;
    let control: Arc<dyn Control> = Arc::<Controller>::clone(interface.controller());
    let (asked, removed) = (end.clone(), end.clone());
    let on_gone = move || drop(end.send(End::SocketRemoved));
    let server = Server::start(listener, control, on_gone).map_err(RunError::Server)?;
    let running = Running {
        mtu,
        tun_threads: options.tun_queues().with_threads(),
        tun_offload: interface.opened().offload,
        ..Running::new(name.as_str())
    };
    let stop = move |_| drop(asked.send(End::Asked));
    let managed = Managed::new(Arc::clone(interface.controller()), running, stop, None);
    managed.when_removed(move || drop(removed.send(End::Removed)));
    if is_of_wg_quick {
        managed.leave_the_end_to_wg_quick();
    }
    // Dropped behind all that follows: a client that waits for the end of its connection then knows that
    // everything is undone.
    let mut socket = managed.serve(&name);
    let metrics = metrics.map(|listener| metrics::serve(listener, &watched.hosts, managed.clone()));
    let metrics = metrics.transpose()?;
    if let Some(path) = name_file {
        let written = OutputFile::write_whole(&path, 0o666, format!("{name}\n").as_bytes());
        written.map_err(|source| RunError::NameFile { path, source })?;
    }
    tracing::info!(interface = %name, port = interface.opened().port, "wg(8) can configure the interface");
    if let Some(notifier) = notifier {
        notifier.ready(output)?;
    }
    let following = follow_network(&name, interface.controller(), &network);
    let work = Work::default();
    let watchdog = Watchdog::start(&interface, &work);
    wait_for_end(&ended, following, &managed, &work, || {
        if let Some(Err(error)) = claim.as_ref().map(Owner::claim_again) {
            tracing::warn!("{error}");
        }
        managed.keep_served(&mut socket);
    });
    if let Some(claim) = &claim {
        claim.note_end();
    }
    service_manager::stopping();
    drop((metrics, watchdog));
    server.stop();
    match interface.stop() {
        // Deleting the device is a way to end it.
        Ok(()) | Err(DataplaneError::DeviceGone) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Claims the interface, as `weft up` does; waits for a predecessor that is ending. Without a directory for
/// its lock, or with one that is not trusted, the interface works all the same.
fn claim_of(name: &InterfaceName) -> Result<Option<Owner>, HostError> {
    match Owner::claim(&runtime_dir(), name) {
        Err(error @ (HostError::Running { .. } | HostError::Ending { .. })) => Err(error),
        other => Ok(other.inspect_err(|error| tracing::debug!("the interface is not claimed: {error}")).ok()),
    }
}

/// Which process chooses the name of a new device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameChoice {
    /// The user, or the program that handed the device in.
    Given,
    /// The system: the name is known once the device exists.
    FirstFree,
}

/// Returns how the name of a new device is chosen; `None` if this system cannot have it. wireguard-go takes
/// the same names.
fn name_choice(system: &str, name: &InterfaceName) -> Option<NameChoice> {
    match name.as_str() {
        _ if system != "macos" => Some(NameChoice::Given),
        "utun" => Some(NameChoice::FirstFree),
        name => is_utun(name).then_some(NameChoice::Given),
    }
}

/// Watches the network for changes that concern the interface. On an error the interface works without it, as
/// long as the network stays as it is.
fn follow_network(
    name: &InterfaceName,
    controller: &Arc<Controller>,
    changes: &mpsc::Sender<End>,
) -> Option<(Watch, NetworkKeeper, Netlink)> {
    let changes = changes.clone();
    let on_change = move |change| drop(changes.send(End::Network(change)));
    let begin = || -> Result<_, String> {
        let netlink = Netlink::open().map_err(|error| error.to_string())?;
        let link = netlink.link(name).map_err(|error| error.to_string())?;
        let watch = Watch::start(Some(&link), on_change).map_err(|error| error.to_string())?;
        let mtu = u16::try_from(link.mtu).unwrap_or(u16::MAX);
        // The program that configures the interface chooses its MTU.
        let keeper =
            NetworkKeeper::new(Arc::clone(controller), link, mtu, MtuChoice::Configured, false, &netlink);
        Ok((watch, keeper.map_err(|error| error.to_string())?, netlink))
    };
    begin().inspect_err(|error| tracing::warn!("{error}")).ok()
}

fn wait_for_end(
    ended: &mpsc::Receiver<End>,
    mut following: Option<(Watch, NetworkKeeper, Netlink)>,
    managed: &Managed,
    work: &Work,
    mut keep_files: impl FnMut(),
) {
    let mut status_line = StatusLine::new(Instant::now());
    status_line.ready(|| managed.status().ok());
    loop {
        work.end();
        let next = status_line.next(ended, || managed.status().ok());
        work.begin();
        match next {
            Some(End::Peer) => {
                status_line.touch(Instant::now());
                continue;
            }
            Some(End::Removed) => {
                keep_files();
                continue;
            }
            Some(End::Network(change)) => {
                if let Some((_, keeper, netlink)) = &mut following
                    && let Err(error) = keeper.react(&change, netlink, netlink)
                {
                    // Packets have stopped: the message that ends the daemon follows.
                    tracing::debug!(%error, "cannot follow the network");
                }
                continue;
            }
            Some(End::Signal(signal)) => tracing::info!(%signal, "taking the interface down"),
            Some(End::SocketRemoved) => {
                tracing::info!("the UAPI socket was removed; taking the interface down");
            }
            Some(End::Asked) => tracing::info!("asked to take the interface down"),
            Some(End::Device) | None => tracing::info!("the TUN device is gone"),
        }
        return;
    }
}

/// Sets the MTU of a new device and the queue limits; a device that was handed in keeps its MTU. Returns the
/// MTU. A failure is only logged: the device works without these settings.
fn set_up_link(name: &InterfaceName, is_new: bool, queues: TunQueues) -> u16 {
    let set_up = || -> Result<u16, RouteError> {
        let netlink = Netlink::open()?;
        let link = netlink.link(name)?;
        netlink.make_silent(&link)?;
        let mtu = if is_new {
            netlink.set_mtu(&link, MTU)?;
            MTU
        } else {
            u16::try_from(link.mtu).unwrap_or(u16::MAX)
        };
        netlink.set_queue_limits(&link, interface::limits_at_start(queues, mtu));
        Ok(mtu)
    };
    set_up().unwrap_or_else(|error| {
        tracing::warn!("{error}");
        MTU
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_without_what_is_in_its_file_is_noted() {
        let directory = tempfile::tempdir().unwrap();
        let (name, file) = ("wg0".parse().unwrap(), directory.path().join("wg0.conf"));
        assert_eq!(note_of_file(&name, &file, false), None);
        std::fs::write(&file, "").unwrap();
        let note = note_of_file(&name, &file, false).unwrap();
        assert!(note.starts_with("wg0 is empty") && note.contains("`weft up wg0` runs /"), "{note}");
        assert_eq!(note_of_file(&name, &file, true), None);
    }

    #[test]
    fn macos_takes_the_names_that_wireguard_go_takes_there() {
        let choice = |system, name: &str| name_choice(system, &name.parse().unwrap());
        assert_eq!(choice("macos", "utun7"), Some(NameChoice::Given));
        assert_eq!(choice("macos", "utun"), Some(NameChoice::FirstFree));
        for name in ["wg0", "utunx", "utun07", "tun0"] {
            assert_eq!(choice("macos", name), None, "{name}");
            let error = exit::Error::from(RunError::NotUtun(name.parse().unwrap()));
            assert_eq!(error.code(), Code::Usage);
            assert!(
                error.to_string().starts_with(&format!("{name} cannot be: macOS names tunnels")),
                "{error}"
            );
        }
        for system in ["linux", "freebsd", "windows"] {
            assert_eq!(choice(system, "wg0"), Some(NameChoice::Given));
            assert_eq!(choice(system, "utun"), Some(NameChoice::Given));
        }
    }
}
