//! The packet thread: a single-threaded runtime with the event loop of `weft_dataplane`, which only moves packets.
//!
//! The split of work between threads is defined here and nowhere else. Slow work runs on the control thread,
//! reaches the event loop as a [`Command`], and its results return as a snapshot.

use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

use tokio::sync::mpsc as async_mpsc;
use weft_dataplane::{Command, DataplaneError, OnEvent};
use weft_tun::thread_guard::EndProcessOnPanic;
use weft_tun::{Pulse, TunConfig, TunOffload};
use weft_tunnel::{PrivateKey, TunnelConfig};
use weft_udp::{self as udp, BindError, Udp as _, UdpConfig, UdpSockets};

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
    /// The operating system refused a thread or a runtime.
    #[error("cannot start the packet thread: {0}")]
    Thread(#[source] io::Error),
}

impl StartError {
    /// Returns the kind of the underlying I/O error; [`io::ErrorKind::Other`] if there is none.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Tun(error) => error.kind(),
            Self::Udp(BindError::Fwmark { source, .. } | BindError::Io { source, .. }) => source.kind(),
            Self::Udp(BindError::FwmarkUnavailable { .. }) => io::ErrorKind::Unsupported,
            Self::Udp(_) => io::ErrorKind::Other,
            Self::Realtime(error) | Self::Thread(error) => error.kind(),
        }
    }
}

/// Everything that the packet thread is built from.
pub(super) struct Setup {
    pub(super) tun: TunConfig,
    pub(super) udp: UdpConfig,
    /// Sockets to adopt, bound to the port in `udp`. If empty, sockets are opened.
    pub(super) sockets: Vec<udp::Descriptor>,
    /// The private key of the interface, until a command replaces it.
    pub(super) private_key: PrivateKey,
    /// Limits of the tunnel. The thread is started with the MTU.
    pub(super) tunnel: TunnelConfig,
    /// The thread's name, at most 15 bytes.
    pub(super) thread_name: String,
    pub(super) priority: Priority,
    /// Receives events of peers, on the packet thread.
    pub(super) on_event: Option<OnEvent>,
}

/// Reported by the packet thread once the device and the sockets are open.
#[derive(Clone, Debug)]
pub struct Opened {
    pub interface: String,
    /// The UDP port in use.
    pub port: u16,
    /// The super-packets that the TUN reads and writes.
    pub offload: TunOffload,
    /// Checks whether the threads of the TUN still respond.
    pub pulse: Pulse,
}

/// Starts the packet thread and waits until it has opened the device and the sockets, in the network namespace of
/// the calling thread. Packets move once `started` gets the MTU; the thread ends if it never does. `on_end` is
/// called on the packet thread when that thread ends, for any reason.
pub(super) fn spawn(
    setup: Setup,
    commands: async_mpsc::Receiver<Command>,
    started: mpsc::Receiver<u16>,
    on_end: impl FnOnce() + Send + 'static,
) -> Result<(JoinHandle<Result<(), DataplaneError>>, Opened), StartError> {
    let (report, reported) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name(setup.thread_name.clone())
        .spawn(move || {
            let _guard = EndProcessOnPanic;
            let result = run(setup, commands, &started, &report);
            on_end();
            result
        })
        .map_err(StartError::Thread)?;
    match reported.recv() {
        Ok(Ok(opened)) => Ok((thread, opened)),
        Ok(Err(error)) => {
            let _ = thread.join();
            Err(error)
        }
        Err(mpsc::RecvError) => Err(StartError::Thread(io::Error::other("it ended before it had begun"))),
    }
}

fn run(
    setup: Setup,
    commands: async_mpsc::Receiver<Command>,
    started: &mpsc::Receiver<u16>,
    report: &mpsc::SyncSender<Result<Opened, StartError>>,
) -> Result<(), DataplaneError> {
    // Before the TUN is opened: its threads inherit the scheduling policy.
    if let Err(error) = scheduling::begin(setup.priority) {
        let _ = report.send(Err(StartError::Realtime(error)));
        return Err(DataplaneError::Ended);
    }
    let runtime = match weft_dataplane::runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = report.send(Err(StartError::Thread(error)));
            return Err(DataplaneError::Ended);
        }
    };
    runtime.block_on(async {
        let opened = open_io(setup.tun, setup.sockets, &setup.udp);
        let (tun, udp) = match opened {
            Ok(io) => io,
            Err(error) => {
                let _ = report.send(Err(error));
                return Err(DataplaneError::Ended);
            }
        };
        let (interface, pulse) = (tun.name().to_owned(), tun.pulse());
        let opened = Opened { interface, port: udp.port(), offload: tun.offload(), pulse };
        let _ = report.send(Ok(opened));
        let Ok(mtu) = started.recv() else { return Ok(()) };
        let config = TunnelConfig { mtu, ..setup.tunnel };
        let mut event_loop = weft_dataplane::event_loop(setup.private_key, config, tun, udp, commands);
        event_loop.report_events(setup.on_event);
        event_loop.run().await
    })
}

fn open_io(
    tun: TunConfig,
    sockets: Vec<udp::Descriptor>,
    udp: &UdpConfig,
) -> Result<(weft_tun::Device, UdpSockets), StartError> {
    Ok((weft_tun::open(tun)?, UdpSockets::adopt(sockets, udp)?))
}
