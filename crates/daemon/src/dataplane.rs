//! The packet thread: a single-threaded runtime that only moves packets.
//!
//! The split of work between threads is defined here and nowhere else. Slow work runs on the control thread,
//! reaches the event loop as a [`Command`], and its results return as a snapshot.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc as async_mpsc;
use weft_config::TunThreads;
use weft_tun::thread_guard::EndProcessOnPanic;
use weft_tun::{Pulse, TunConfig, TunOffload, TunStatsSnapshot};
use weft_tunnel::{
    Change, DropCounters, DropReason, Event, HandshakeLoad, PeerSnapshot, PrivateKey, Tunnel, TunnelConfig,
    TunnelStats,
};
use weft_udp::{self as udp, BindError, SendError, Udp as _, UdpConfig, UdpFeatures, UdpSockets, UdpStats};

use crate::scheduling::{self, Priority};

mod answers;
pub mod capture;
mod commands;
mod event_loop;
#[cfg(test)]
mod fake_kernel;
mod inbound;
mod initiation_filter;
mod junk_filter;
mod outbound;
mod timing;

pub use commands::Command;
pub use event_loop::EventLoop;
pub use timing::{Histogram, SAMPLED_TURNS, Stage, Times};

/// Capacity of the channel of commands to the event loop.
const COMMANDS: usize = 64;

/// The queues of a TUN, and the threads that serve them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunQueues {
    pub count: usize,
    /// Whether each queue has a reader and a writer thread; otherwise the packet thread serves all queues
    /// (inline).
    pub threads: bool,
}

impl TunQueues {
    /// Returns the number of queues with reader and writer threads.
    pub fn with_threads(self) -> usize {
        if self.threads { self.count } else { 0 }
    }
}

/// Returns the TUN queues to use on this machine; `inline` is the number of queues if no threads serve them.
///
/// On fewer than four cores a hand-over between threads costs more than it saves, so the packet thread does
/// all the work. From four cores on, one reader and one writer relieve the packet thread; more pairs help
/// only where one pair is not enough. Where a TUN has one queue, there is one.
pub fn tun_queues(threads: TunThreads, inline: u16) -> TunQueues {
    let with_threads = match threads {
        TunThreads::Fixed(queues) => queues,
        TunThreads::Auto => match std::thread::available_parallelism().map_or(1, usize::from) {
            0..=3 => 0,
            4..=7 => 1,
            _ => 2,
        },
    };
    let (count, threads) = if with_threads == 0 { (inline, false) } else { (with_threads, true) };
    TunQueues { count: usize::from(count).min(weft_tun::MAX_QUEUES), threads }
}

/// Returns the number of queues that the packet thread serves itself. More than one costs a hash and a table
/// look-up per packet, which is too little to measure, and keeps packets from waiting behind a flood in
/// another queue: with eight queues, one flow in eight shares the flooded queue.
pub fn inline_queues() -> u16 {
    /// The default.
    const INLINE_QUEUES: u16 = 8;
    /// Overrides the default, for measurements.
    const VARIABLE: &str = "WEFT_INLINE_QUEUES";
    let Some(value) = std::env::var_os(VARIABLE) else { return INLINE_QUEUES };
    let number = value.to_str().and_then(|text| text.parse().ok()).filter(|number| (1..=64).contains(number));
    number.unwrap_or_else(|| {
        tracing::warn!(
            "{VARIABLE}={} is ignored: it takes a number from 1 to 64: using {INLINE_QUEUES}",
            value.display()
        );
        INLINE_QUEUES
    })
}

/// Every counter and peer. With many peers the event loop needs several turns to visit all of them; the
/// counters are read in the last of these turns.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub udp: UdpStats,
    /// Offloads and buffer sizes of the sockets.
    pub udp_features: UdpFeatures,
    pub tunnel: TunnelStats,
    /// Packets dropped on the packet thread, and reads and writes that failed on the threads of the TUN, by
    /// reason.
    pub drops: DropCounters,
    pub peers: Vec<PeerSnapshot>,
    /// The TUN's counters, summed over all queues.
    pub tun: TunStatsSnapshot,
    /// The TUN's counters by queue.
    pub tun_queues: Vec<TunStatsSnapshot>,
    pub queues: QueueDepths,
    /// Durations of turns of the event loop and of their stages.
    pub times: Times,
    pub send_failure: Option<SendFailure>,
    /// The load of handshakes on the tunnel.
    pub handshakes: HandshakeLoad,
}

/// A datagram that could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendFailure {
    pub destination: SocketAddr,
    /// The reason that it was counted under.
    pub reason: DropReason,
    /// The operating system's error number. `None` for a datagram that is too long, or an error without a
    /// number.
    pub os_error: Option<i32>,
    pub at: Instant,
}

impl SendFailure {
    fn new(destination: SocketAddr, error: &SendError, at: Instant) -> Self {
        let os_error = match error {
            SendError::TooLong => None,
            SendError::Failed(error) => error.raw_os_error(),
        };
        Self { destination, reason: error.drop_reason(), os_error, at }
    }
}

/// Items waiting on the packet thread at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueDepths {
    /// Handshake messages and keepalives waiting for the socket.
    pub control: usize,
    /// Encrypted batches waiting for the socket.
    pub transmit: usize,
    /// Bytes that were read from the TUN and are not encrypted yet.
    pub read_ahead_bytes: usize,
}

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

/// Why the event loop ended.
#[derive(Debug, thiserror::Error)]
pub enum DataplaneError {
    /// The TUN device is gone: it was deleted.
    #[error("the TUN device is gone: was the interface deleted?")]
    DeviceGone,
    /// The TUN device cannot be read or written any more.
    #[error("the TUN device failed: {0}")]
    Tun(#[source] io::Error),
    /// The UDP sockets cannot be read any more.
    #[error("the UDP socket failed: {0}")]
    Udp(#[source] io::Error),
    /// The packet thread did not answer.
    #[error("the packet thread has ended")]
    Ended,
}

/// Receives events of peers. Called on the packet thread: it must not block.
pub type OnEvent = Box<dyn FnMut(Event) + Send>;

/// Everything that the packet thread is built from.
pub struct Setup {
    pub tun: TunConfig,
    pub udp: UdpConfig,
    /// Sockets to adopt, bound to the port in `udp`. If empty, sockets are opened.
    pub sockets: Vec<udp::Descriptor>,
    /// The private key of the interface, until a command replaces it.
    pub private_key: PrivateKey,
    /// Limits of the tunnel. [`Dataplane::run`] replaces the MTU.
    pub tunnel: TunnelConfig,
    /// The thread's name, at most 15 bytes.
    pub thread_name: String,
    pub priority: Priority,
    /// Receives events of peers, on the packet thread.
    pub on_event: Option<OnEvent>,
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

/// A running packet thread. Dropping it stops the thread.
pub struct Dataplane {
    commands: async_mpsc::Sender<Command>,
    start: Option<mpsc::SyncSender<u16>>,
    thread: Option<JoinHandle<Result<(), DataplaneError>>>,
    opened: Opened,
}

impl Dataplane {
    /// Opens the device and the sockets on a new packet thread, in the network namespace of the calling
    /// thread. No packet moves before [`Self::run`]. `on_end` is called on the packet thread when that thread
    /// ends, for any reason.
    pub fn open(setup: Setup, on_end: impl FnOnce() + Send + 'static) -> Result<Self, StartError> {
        let (commands, command_queue) = async_mpsc::channel(COMMANDS);
        let (start, started) = mpsc::sync_channel(1);
        let (report, reported) = mpsc::sync_channel(1);
        let name = setup.thread_name.clone();
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || {
                let _guard = EndProcessOnPanic;
                let result = packet_thread(setup, command_queue, &started, &report);
                on_end();
                result
            })
            .map_err(StartError::Thread)?;
        match reported.recv() {
            Ok(Ok(opened)) => Ok(Self { commands, start: Some(start), thread: Some(thread), opened }),
            Ok(Err(error)) => {
                let _ = thread.join();
                Err(error)
            }
            Err(mpsc::RecvError) => Err(StartError::Thread(io::Error::other("it ended before it had begun"))),
        }
    }

    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Starts moving packets, with inner packets of at most `mtu` bytes. The tunnel starts without peers.
    pub fn run(&mut self, mtu: u16) -> Result<(), DataplaneError> {
        let start = self.start.take().ok_or(DataplaneError::Ended)?;
        start.send(mtu).map_err(|_| DataplaneError::Ended)
    }

    /// Returns every counter and peer. Waits for the event loop.
    pub fn snapshot(&self) -> Result<Snapshot, DataplaneError> {
        self.handle().snapshot(0)
    }

    /// Returns a handle for sending commands to the packet thread. It does not keep the thread alive.
    pub fn handle(&self) -> Handle {
        Handle { commands: self.commands.clone() }
    }

    /// Ends the packet thread, and with it the TUN's threads and all descriptors. Returns the error if the
    /// thread ended before this call.
    pub fn stop(mut self) -> Result<(), DataplaneError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), DataplaneError> {
        drop(self.start.take());
        // This fails if the channel is closed: then the loop has ended already.
        let _ = self.commands.blocking_send(Command::Stop);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            // The guard ends the process on a panic, so this is never seen.
            Some(Err(_)) | None => Err(DataplaneError::Ended),
        }
    }
}

/// A handle for sending commands to the packet thread. Its calls wait for the event loop, usually a fraction
/// of a millisecond; they must not be made from within a tokio runtime.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: async_mpsc::Sender<Command>,
}

impl Handle {
    /// Returns every counter and peer. Memory for `peers` peers is allocated here, not on the packet thread.
    pub fn snapshot(&self, peers: usize) -> Result<Snapshot, DataplaneError> {
        self.ask(|answer| Command::Snapshot { peers: Vec::with_capacity(peers), answer })
    }

    /// Applies changes to the tunnel, and returns when all are applied.
    pub fn change(&self, changes: Vec<Change>) -> Result<(), DataplaneError> {
        if changes.is_empty() {
            return Ok(());
        }
        self.ask(|answer| Command::Change { changes, answer })
    }

    /// Changes the UDP port and the mark, both or neither. Returns the port in use.
    pub fn rebind(
        &self,
        port: Option<u16>,
        fwmark: Option<u32>,
    ) -> Result<Result<u16, BindError>, DataplaneError> {
        self.ask(|answer| Command::Rebind { port, fwmark, answer })
    }

    /// Returns duplicates of the descriptors of the UDP sockets.
    pub fn sockets(&self) -> Result<io::Result<Vec<udp::Descriptor>>, DataplaneError> {
        self.ask(|answer| Command::Sockets { answer })
    }

    /// Begins a capture. Returns `None` if too many captures are running.
    pub fn capture(
        &self,
        filter: capture::CaptureFilter,
    ) -> Result<Option<capture::Capture>, DataplaneError> {
        let (capture, tap) = capture::Capture::new(filter);
        let taken = self.ask(|answer| Command::Capture { tap: Box::new(tap), answer })?;
        Ok(taken.then_some(capture))
    }

    /// Returns a handle that is not connected to an event loop, and the queue of its commands.
    #[cfg(test)]
    pub(crate) fn to_nobody() -> (Self, async_mpsc::Receiver<Command>) {
        let (commands, queue) = async_mpsc::channel(COMMANDS);
        (Self { commands }, queue)
    }

    /// Reports whether the event loop takes a turn within `patience`. Never waits longer, even if the event
    /// loop hangs.
    pub fn takes_a_turn(&self, patience: Duration) -> bool {
        let (answer, answered) = mpsc::sync_channel(1);
        // A full queue means that the event loop takes no commands: other callers wait for answers too.
        self.commands.try_send(Command::Ping { answer }).is_ok() && answered.recv_timeout(patience).is_ok()
    }

    fn ask<T>(&self, command: impl FnOnce(mpsc::SyncSender<T>) -> Command) -> Result<T, DataplaneError> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.commands.blocking_send(command(answer)).map_err(|_| DataplaneError::Ended)?;
        answered.recv().map_err(|_| DataplaneError::Ended)
    }
}

impl Drop for Dataplane {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.end();
        }
    }
}

fn packet_thread(
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
    // Every turn of the event loop is one task poll. Ask the kernel for readiness after each turn
    // (`event_interval`); otherwise an idle direction waits for up to 61 turns of the busy one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().event_interval(1).build();
    let runtime = match runtime {
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
        let mut tunnel = Tunnel::new(setup.private_key, TunnelConfig { mtu, ..setup.tunnel });
        tunnel.calibrate(timing::x25519_time());
        let tun_stats = std::sync::Arc::clone(tun.stats());
        let mut event_loop = EventLoop::new(tunnel, tun, udp, commands, move || tun_stats.queues());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_without_threads_count_only_where_there_are_no_threads() {
        let without = tun_queues(TunThreads::Fixed(0), 4);
        assert_eq!(without, TunQueues { count: 4.min(weft_tun::MAX_QUEUES), threads: false });
        assert_eq!(without.with_threads(), 0);
        let with = tun_queues(TunThreads::Fixed(2), 4);
        assert_eq!(with, TunQueues { count: 2.min(weft_tun::MAX_QUEUES), threads: true });
        assert_eq!(with.with_threads(), with.count);
        let auto = tun_queues(TunThreads::Auto, 3);
        assert!(auto.threads || auto.count == 3.min(weft_tun::MAX_QUEUES));
    }
}
