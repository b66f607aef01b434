//! The packet thread: a single-threaded runtime with the event loop of `weft_dataplane`, which only moves packets.
//!
//! The split of work between threads is defined here and nowhere else. Slow work runs on the control thread,
//! reaches the event loop as a [`Command`], and its results return as a snapshot.

use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

use tokio::sync::mpsc as async_mpsc;
use weft_config::TunThreads;
use weft_dataplane::{Command, DataplaneError, Handle, OnEvent, Snapshot};
use weft_tun::thread_guard::EndProcessOnPanic;
use weft_tun::{Pulse, TunConfig, TunOffload};
use weft_tunnel::{PrivateKey, TunnelConfig};
use weft_udp::{self as udp, BindError, Udp as _, UdpConfig, UdpSockets};

use crate::scheduling::{self, Priority};

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
    handle: Handle,
    start: Option<mpsc::SyncSender<u16>>,
    thread: Option<JoinHandle<Result<(), DataplaneError>>>,
    opened: Opened,
}

impl Dataplane {
    /// Opens the device and the sockets on a new packet thread, in the network namespace of the calling
    /// thread. No packet moves before [`Self::run`]. `on_end` is called on the packet thread when that thread
    /// ends, for any reason.
    pub fn open(setup: Setup, on_end: impl FnOnce() + Send + 'static) -> Result<Self, StartError> {
        let (handle, commands) = Handle::new();
        let (start, started) = mpsc::sync_channel(1);
        let (report, reported) = mpsc::sync_channel(1);
        let name = setup.thread_name.clone();
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || {
                let _guard = EndProcessOnPanic;
                let result = packet_thread(setup, commands, &started, &report);
                on_end();
                result
            })
            .map_err(StartError::Thread)?;
        match reported.recv() {
            Ok(Ok(opened)) => Ok(Self { handle, start: Some(start), thread: Some(thread), opened }),
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
        self.handle.snapshot(0)
    }

    /// Returns a handle for sending commands to the packet thread. It does not keep the thread alive.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Ends the packet thread, and with it the TUN's threads and all descriptors. Returns the error if the
    /// thread ended before this call.
    pub fn stop(mut self) -> Result<(), DataplaneError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), DataplaneError> {
        drop(self.start.take());
        self.handle.stop();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            // The guard ends the process on a panic, so this is never seen.
            Some(Err(_)) | None => Err(DataplaneError::Ended),
        }
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
