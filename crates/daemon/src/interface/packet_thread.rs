//! The packet threads: each has a single-threaded runtime with the event loop of `weft_dataplane`, which only
//! moves packets. Usually there is one; several share the peers.
//!
//! The split of work between threads is defined here and nowhere else. Slow work runs on the control thread,
//! reaches the event loops as a [`Command`], and its results return as a snapshot.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::mpsc as async_mpsc;
use weft_config::exit;
use weft_confine::{EndProcessOnPanic, Role};
use weft_control::Handle;
use weft_dataplane::{Command, DataplaneError, EventLoop, OnEvent, Siblings};
use weft_embed::EndpointTun;
use weft_ipc::holder::{Held, Holder};
use weft_tun::{Device, OpenError, Pulse, Tun, TunConfig, TunOffload, TunStatsSnapshot};
use weft_tunnel::{Change, CookieRoot, PrivateKey, Shard, Tunnel, TunnelConfig};
use weft_udp::{self as udp, BindError, ShardSockets, UdpConfig, UdpSockets};

use super::descriptors;
use crate::scheduling::{self, Priority};

/// Why the packet thread could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The TUN device could not be opened.
    #[error(transparent)]
    Tun(#[from] weft_tun::OpenError),
    /// The UDP sockets could not be opened.
    #[error(transparent)]
    Udp(#[from] udp::BindError),
    /// The thread may not have real-time priority.
    #[error(
        "cannot take real-time priority: {0}; it needs CAP_SYS_NICE or RLIMIT_RTPRIO (LimitRTPRIO=1 in a unit), or \
         leave --realtime out"
    )]
    Realtime(#[source] io::Error),
    /// The process may not open enough descriptors.
    #[error(
        "{shards} packet threads need {needed} descriptors, and this process may open {limit}: raise the limit (ulimit -n, \
         LimitNOFILE= of a unit), or lower --packet-threads"
    )]
    Descriptors { shards: usize, needed: usize, limit: String },
    /// A thread cannot be pinned.
    #[error(
        "cannot pin packet thread {number} to a processor: {source}; leave --pin out, or lower --packet-threads"
    )]
    Pin { number: u16, source: io::Error },
    /// Another process has the device or the port.
    #[error("{error}; process {id} ({program}) has it")]
    Held {
        /// What failed.
        error: Box<Self>,
        /// The process.
        id: u32,
        /// The name of its program.
        program: String,
    },
    /// The operating system refused a thread or a runtime.
    #[error("cannot start the packet thread: {0}")]
    Thread(#[source] io::Error),
}

impl StartError {
    /// Returns the exit code for the error.
    pub fn exit_code(&self) -> exit::Code {
        match self {
            Self::Descriptors { .. } | Self::Pin { .. } => exit::Code::Usage,
            Self::Held { error, .. } => error.exit_code(),
            _ if self.kind() == io::ErrorKind::PermissionDenied => exit::Code::Permission,
            _ => exit::Code::Failure,
        }
    }

    /// Adds the process that has what could not be opened, if one is found. The packet thread itself may not
    /// look for it.
    pub(super) fn with_holder(self) -> Self {
        let holder = match &self {
            Self::Tun(OpenError::Exists { name }) => Holder::of(Held::Device(name)),
            Self::Udp(BindError::PortInUse { address }) => Holder::of(Held::Udp(address.port())),
            _ => Holder::Unknown,
        };
        match holder {
            Holder::Process { id, program } => Self::Held { error: Box::new(self), id, program },
            Holder::Unknown | Holder::OutOfSight => self,
        }
    }

    /// Returns the kind of the underlying I/O error; [`io::ErrorKind::Other`] if there is none.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Tun(error) => error.kind(),
            Self::Held { error, .. } => error.kind(),
            Self::Udp(BindError::Fwmark { source, .. } | BindError::Io { source, .. }) => source.kind(),
            Self::Udp(BindError::FwmarkUnavailable { .. }) => io::ErrorKind::Unsupported,
            Self::Udp(_) | Self::Descriptors { .. } => io::ErrorKind::Other,
            Self::Realtime(error) | Self::Thread(error) | Self::Pin { source: error, .. } => error.kind(),
        }
    }
}

/// Descriptors of each packet thread beside queues and sockets: those of its runtime.
const DESCRIPTORS_OF_A_RUNTIME: usize = 4;
/// Descriptors of everything else: control sockets and their clients, files, what this process was started
/// with.
const OTHER_DESCRIPTORS: usize = 128;

/// Makes sure that all descriptors of several packet threads can be opened, before any is.
fn make_room(setup: &Setup) -> Result<(), StartError> {
    let shards = setup.shards;
    if shards == 1 {
        return Ok(());
    }
    let sockets = weft_udp::receiving_sockets(shards) + 2;
    let needed = setup.tun.queues + sockets + shards * DESCRIPTORS_OF_A_RUNTIME + OTHER_DESCRIPTORS;
    match descriptors::make_room(needed).map_err(StartError::Thread)? {
        Ok(()) => Ok(()),
        Err(limit) => Err(StartError::Descriptors { shards, needed, limit }),
    }
}

/// What the packet threads begin with.
pub(super) struct Start {
    pub(super) mtu: u16,
    /// Changes of the tunnel of each packet thread, in order.
    pub(super) changes: Vec<Vec<Change>>,
}

/// The same for one packet thread.
type StartOfOne = (u16, Vec<Change>);

/// Everything that the packet threads are built from.
pub(super) struct Setup {
    /// Number of packet threads.
    pub(super) shards: usize,
    pub(super) tun: TunConfig,
    pub(super) udp: UdpConfig,
    /// Sockets to adopt, bound to the port in `udp`. If empty, sockets are opened.
    pub(super) sockets: Vec<udp::Descriptor>,
    /// Takes the place of a device, if there is one.
    pub(super) endpoint: Option<EndpointTun>,
    /// The private key of the interface, until a command replaces it.
    pub(super) private_key: PrivateKey,
    /// Limits of the tunnel of each packet thread. The threads are started with the MTU.
    pub(super) tunnel: TunnelConfig,
    /// The name of the first thread, at most 15 bytes.
    pub(super) thread_name: String,
    pub(super) priority: Priority,
    /// Whether each packet thread stays on one processor.
    pub(super) pin: bool,
    /// Receives events of peers, on the packet threads.
    pub(super) on_event: Option<OnEvent>,
}

/// Reported once the device and the sockets are open.
#[derive(Clone, Debug)]
pub struct OpenedInterface {
    pub interface: String,
    /// The UDP port in use.
    pub port: u16,
    /// The super-packets that the TUN reads and writes.
    pub offload: TunOffload,
    /// Number of packet threads.
    pub packet_threads: usize,
    /// Checks whether the threads of the TUN still respond; one for each packet thread.
    pub pulses: Vec<Pulse>,
}

/// A packet thread that runs, which returns why it ended.
pub(super) type PacketThread = JoinHandle<Result<(), DataplaneError>>;

/// Where packets of a tunnel come from and go to.
enum AnyTun {
    /// A device of the kernel.
    Device(Box<Device>),
    /// The TCP/IP stack of this process.
    Endpoint(EndpointTun),
}

/// The parts that one packet thread gets.
struct Part {
    shard: Shard,
    pin: bool,
    tun: AnyTun,
    commands: async_mpsc::Receiver<Command>,
    siblings: Option<Siblings>,
    on_event: Option<OnEvent>,
    private_key: PrivateKey,
    tunnel: TunnelConfig,
    cookies: CookieRoot,
    started: mpsc::Receiver<StartOfOne>,
}

/// Starts the packet threads and waits until the device and the sockets are open, in the network namespace of
/// the calling thread. Packets move once `started` gets something; the threads end if it never does. If one
/// of them ends, all do. `on_end` is called on the first when all others have ended, for any reason.
pub(super) fn spawn(
    setup: Setup,
    started: mpsc::Receiver<Start>,
    on_end: impl FnOnce() + Send + 'static,
) -> Result<(PacketThread, Handle, OpenedInterface), StartError> {
    let (report, reported) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name(setup.thread_name.clone())
        .spawn(move || {
            let _guard = EndProcessOnPanic;
            let result = run_all(setup, &started, &report);
            on_end();
            result
        })
        .map_err(StartError::Thread)?;
    match reported.recv() {
        Ok(Ok((handle, opened))) => Ok((thread, handle, opened)),
        Ok(Err(error)) => {
            weft_confine::join(thread);
            Err(error)
        }
        Err(mpsc::RecvError) => Err(StartError::Thread(io::Error::other("it ended while it started"))),
    }
}

type Report = mpsc::SyncSender<Result<(Handle, OpenedInterface), StartError>>;

/// Opens the device and the sockets, runs the first packet thread on this thread, and each other one on
/// a new thread.
fn run_all(setup: Setup, started: &mpsc::Receiver<Start>, report: &Report) -> Result<(), DataplaneError> {
    let name = setup.thread_name.clone();
    let opened = begin(setup).and_then(|(handle, opened, parts)| {
        let mut parts = parts.into_iter();
        let (first, udp, start_first) =
            parts.next().ok_or_else(|| thread_error("there is no packet thread"))?;
        let others = Others::spawn(&name, &handle, parts)?;
        let first = Runnable::new(first, udp)?;
        Ok((handle, opened, first, start_first, others))
    });
    let (handle, opened, first, start_first, others) = match opened {
        Ok(all) => all,
        Err(error) => {
            let _ = report.send(Err(error));
            return Err(DataplaneError::Ended);
        }
    };
    let _ = report.send(Ok((handle.clone(), opened)));
    let result = match started.recv() {
        Ok(Start { mtu, changes }) => {
            let mut changes = changes.into_iter();
            let _ = start_first.send((mtu, changes.next().unwrap_or_default()));
            others.start(mtu, changes);
            first.run()
        }
        Err(mpsc::RecvError) => Ok(()),
    };
    result.and(others.end(&handle))
}

fn thread_error(reason: &str) -> StartError {
    StartError::Thread(io::Error::other(reason.to_owned()))
}

/// The parts of a packet thread, its sockets, and the sender that starts it.
type Startable = (Part, ShardSockets, mpsc::SyncSender<StartOfOne>);

/// Opens the device and the sockets, and divides them among the packet threads.
fn begin(setup: Setup) -> Result<(Handle, OpenedInterface, Vec<Startable>), StartError> {
    // Before the TUN is opened: its threads and the other packet threads inherit the scheduling policy.
    scheduling::begin(setup.priority).map_err(StartError::Realtime)?;
    make_room(&setup)?;
    weft_confine::thread(Role::Opening);
    let (devices, interface, offload, pulses) = open(setup.tun, setup.endpoint, setup.shards)?;
    let sockets = weft_udp::open_shards(setup.sockets, &setup.udp, setup.shards)?;
    let port = sockets.first().map_or(0, ShardSockets::port);
    let opened = OpenedInterface { interface, port, offload, packet_threads: setup.shards, pulses };
    let (handle, commands) = Handle::of_several(setup.shards, UdpConfig { port, ..setup.udp });
    let siblings = Siblings::of(setup.shards).into_iter().map(|of| (setup.shards > 1).then_some(of));
    let cookies = CookieRoot::generate(Instant::now());
    let on_event = shared(setup.on_event, setup.shards);
    let shards = (0..setup.shards as u16).map(|number| Shard::new(number, setup.shards as u16));
    let parts = shards.zip(devices).zip(sockets).zip(commands).zip(siblings).zip(on_event);
    let part = |(((((shard, tun), udp), commands), siblings), on_event)| {
        let (start, started) = mpsc::sync_channel(1);
        let (private_key, tunnel, cookies) = (setup.private_key.clone(), setup.tunnel, cookies.clone());
        let pin = setup.pin;
        let part =
            Part { shard, pin, tun, commands, siblings, on_event, private_key, tunnel, cookies, started };
        (part, udp, start)
    };
    Ok((handle, opened, parts.map(part).collect()))
}

/// Opens the device with a part for each packet thread, or takes the endpoint in its place. Also returns the
/// name, the super-packets, and what asks the threads of the device.
fn open(
    config: TunConfig,
    endpoint: Option<EndpointTun>,
    shards: usize,
) -> Result<(Vec<AnyTun>, String, TunOffload, Vec<Pulse>), OpenError> {
    if let Some(endpoint) = endpoint {
        let offload = TunOffload { tcp: true, udp: false };
        return Ok((vec![AnyTun::Endpoint(endpoint)], config.name, offload, Vec::new()));
    }
    let devices = weft_tun::open_shards(config, shards)?;
    let (interface, offload) =
        devices.first().map(|first| (first.name().to_owned(), first.offload())).unwrap_or_default();
    let pulses = devices.iter().map(Device::pulse).collect();
    Ok((
        devices.into_iter().map(|device| AnyTun::Device(Box::new(device))).collect(),
        interface,
        offload,
        pulses,
    ))
}

/// Returns a receiver of events for each of `count` packet threads; all of them pass the events to
/// `on_event`.
fn shared(on_event: Option<OnEvent>, count: usize) -> Vec<Option<OnEvent>> {
    if count == 1 {
        return vec![on_event];
    }
    let on_event = on_event.map(|on_event| Arc::new(Mutex::new(on_event)));
    let each = (0..count).map(|_| {
        let on_event = Arc::clone(on_event.as_ref()?);
        let call: OnEvent =
            Box::new(move |event| on_event.lock().unwrap_or_else(PoisonError::into_inner)(event));
        Some(call)
    });
    each.collect()
}

/// The packet threads but the first.
struct Others(Vec<(PacketThread, mpsc::SyncSender<StartOfOne>)>);

impl Others {
    /// Starts the threads. If one of them ends, it ends all.
    fn spawn(
        name: &str,
        handle: &Handle,
        parts: impl Iterator<Item = Startable>,
    ) -> Result<Self, StartError> {
        let mut others = Self(Vec::new());
        for (number, (part, udp, start)) in (1..).zip(parts) {
            let (ready, is_ready) = mpsc::sync_channel(1);
            let end_all = handle.clone();
            let body = move || {
                let _guard = EndProcessOnPanic;
                let runnable = match Runnable::new(part, udp) {
                    Ok(runnable) => runnable,
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return Err(DataplaneError::Ended);
                    }
                };
                let _ = ready.send(Ok(()));
                let result = runnable.run();
                end_all.stop();
                result
            };
            let thread = std::thread::Builder::new().name(thread_name(name, number)).spawn(body);
            others.0.push((thread.map_err(StartError::Thread)?, start));
            is_ready.recv().map_err(|_| thread_error("a packet thread ended while it started"))??;
        }
        Ok(others)
    }

    fn start(&self, mtu: u16, mut changes: impl Iterator<Item = Vec<Change>>) {
        for (_, start) in &self.0 {
            let _ = start.send((mtu, changes.next().unwrap_or_default()));
        }
    }

    /// Ends the threads, and returns the first error.
    fn end(self, handle: &Handle) -> Result<(), DataplaneError> {
        let Some(_) = self.0.first() else { return Ok(()) };
        handle.stop();
        let (threads, starts): (Vec<_>, Vec<_>) = self.0.into_iter().unzip();
        // A thread that was not started yet waits for its sender.
        drop(starts);
        let results = weft_confine::join_all(threads).map(|end| end.unwrap_or(Err(DataplaneError::Ended)));
        results.fold(Ok(()), Result::and)
    }
}

/// Returns the name of a packet thread, at most 15 bytes.
fn thread_name(first: &str, number: usize) -> String {
    let number = number.to_string();
    let kept =
        first.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| end + number.len() < 15);
    format!("{}-{number}", &first[..kept.last().unwrap_or_default()])
}

/// A packet thread with its runtime, in which its sockets are registered.
struct Runnable {
    part: Part,
    udp: UdpSockets,
    runtime: tokio::runtime::Runtime,
}

impl Runnable {
    /// Called on the packet thread. The first one calls it last: the others would inherit its processor.
    fn new(part: Part, udp: ShardSockets) -> Result<Self, StartError> {
        if part.pin {
            let number = part.shard.number();
            scheduling::pin(number.into()).map_err(|source| StartError::Pin { number, source })?;
        }
        let runtime = weft_dataplane::runtime().map_err(StartError::Thread)?;
        let udp = runtime.block_on(async { udp.register() })?;
        Ok(Self { part, udp, runtime })
    }

    /// Moves packets, once it is started.
    fn run(self) -> Result<(), DataplaneError> {
        let Self { part, udp, runtime } = self;
        let Ok((mtu, changes)) = part.started.recv() else { return Ok(()) };
        weft_confine::thread(Role::Packets);
        let Part { tun, commands, siblings, on_event, .. } = part;
        let config = TunnelConfig { mtu, ..part.tunnel };
        let tunnel = Tunnel::of_shard(part.private_key, config, part.shard, &part.cookies);
        runtime.block_on(async {
            match tun {
                AnyTun::Device(tun) => {
                    let stats = Arc::clone(tun.stats());
                    let event_loop = weft_dataplane::event_loop(tunnel, *tun, stats, udp, commands);
                    move_packets(event_loop, on_event, siblings, changes).await
                }
                AnyTun::Endpoint(tun) => {
                    let stats = Arc::clone(tun.stats());
                    let event_loop = weft_dataplane::event_loop(tunnel, tun, stats, udp, commands);
                    move_packets(event_loop, on_event, siblings, changes).await
                }
            }
        })
    }
}

/// Moves packets until a command ends it, or the device is gone.
async fn move_packets<T: Tun, S: Fn() -> Vec<TunStatsSnapshot>>(
    mut event_loop: EventLoop<T, UdpSockets, S>,
    on_event: Option<OnEvent>,
    siblings: Option<Siblings>,
    changes: Vec<Change>,
) -> Result<(), DataplaneError> {
    event_loop.report_events(on_event);
    if let Some(siblings) = siblings {
        event_loop.join(siblings);
    }
    event_loop.configure(changes);
    event_loop.run().await
}
