//! A running interface: its device, sockets, packet thread and controller. Addresses, routes and the like
//! belong to the host (`weft_host`).

use std::sync::{Arc, mpsc};

use weft_config::{PacketThreads, TunThreads};
use weft_control::{Controller, Handle};
use weft_dataplane::{DataplaneError, OnEvent};
use weft_embed::EndpointTun;
use weft_host::memory;
use weft_tun::{Descriptor, DeviceNamespace, TunConfig};
use weft_tunnel::{Change, PrivateKey, TunnelConfig};
use weft_udp::{self as udp, PathMtu, UdpConfig};

use crate::scheduling::Priority;

mod balancer;
#[cfg(unix)]
mod descriptors;
mod packet_thread;
mod queues;

#[cfg(not(unix))]
use crate::unsupported::descriptors;

use balancer::Balancer;
pub use packet_thread::{OpenedInterface, StartError};
use packet_thread::{PacketThread, Setup, Start};
use queues::{INLINE_QUEUES, packet_threads, tun_queues};
pub use queues::{TunQueues, limits_at_start, queue_limits};

/// How to run an interface.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of packet threads, which share the peers.
    pub packet_threads: PacketThreads,
    /// Number of peers at the start, if it is known: automatically there are no more packet threads.
    pub peers: Option<usize>,
    /// Whether each packet thread stays on one processor.
    pub pin: bool,
    /// Number of TUN queues with a reader and a writer thread each.
    pub tun_threads: TunThreads,
    /// Number of TUN queues if no threads serve them.
    pub inline_queues: u16,
    /// Whether the TUN uses super-packets and the sockets use GSO batches.
    pub offload: bool,
    /// Bytes of each ring of an adapter of Windows.
    pub ring_bytes: u32,
    /// Path MTU discovery: whether outgoing datagrams may be fragmented.
    pub path_mtu: PathMtu,
    /// Bytes of memory to count on at most.
    pub memory_limit: Option<u64>,
    /// The packet thread's name, at most 15 bytes.
    pub thread_name: String,
    pub priority: Priority,
}

impl Options {
    pub fn packet_threads(&self) -> usize {
        packet_threads(self.packet_threads, self.peers)
    }

    pub fn tun_queues(&self) -> TunQueues {
        tun_queues(self.tun_threads, self.inline_queues, self.packet_threads())
    }

    /// Returns the bytes to count on, where the system has this much, or does not tell.
    pub fn memory(&self, bytes: Option<u64>) -> Option<u64> {
        [bytes, self.memory_limit].into_iter().flatten().min()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            packet_threads: PacketThreads::default(),
            peers: None,
            pin: false,
            tun_threads: TunThreads::Auto,
            inline_queues: INLINE_QUEUES,
            offload: true,
            ring_bytes: weft_tun::RING_BYTES,
            path_mtu: PathMtu::default(),
            memory_limit: None,
            thread_name: "weft-packets".into(),
            priority: Priority::Ordinary,
        }
    }
}

/// Descriptors from another process, used instead of new ones.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Attached queues of the device: as many as [`Options::tun_queues`] asks for, or the one of a device
    /// that was made for one. If empty, the device is created.
    pub queues: Vec<Descriptor>,
    /// The network namespace of the device, if it is not that of this process.
    pub namespace: Option<Arc<DeviceNamespace>>,
    /// Sockets bound to the requested port. If empty, sockets are opened.
    pub sockets: Vec<udp::Descriptor>,
    /// A TCP/IP stack of this process in the place of a device.
    pub endpoint: Option<EndpointTun>,
}

/// A running interface. It has no key and no peers until its controller sets them. Dropping it ends the
/// interface.
pub struct Interface {
    handle: Handle,
    controller: Arc<Controller>,
    start: Option<mpsc::SyncSender<Start>>,
    /// Ends before the packet threads.
    balancer: Option<Balancer>,
    /// The first packet thread, which ends after all others.
    thread: Option<PacketThread>,
    opened: OpenedInterface,
}

impl Interface {
    /// Opens the device and the sockets in the network namespace of this thread. No packet moves before
    /// [`Self::run`].
    ///
    /// The descriptors in `inherited` are used instead of new ones. `on_event` receives events of peers.
    /// `on_end` is called when packets have stopped, for any reason.
    pub fn open(
        name: &str,
        inherited: Inherited,
        udp: UdpConfig,
        options: &Options,
        on_event: Option<OnEvent>,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Self, StartError> {
        let TunQueues { count, threads } = options.tun_queues();
        if let TunThreads::Fixed(wanted) = options.tun_threads
            && usize::from(wanted) > weft_tun::MAX_QUEUES
        {
            tracing::warn!("a TUN has one queue on this platform: {wanted} are not possible");
        }
        // A device that was made for one queue keeps one.
        let queues = match inherited.queues.len() {
            _ if inherited.endpoint.is_some() => 1,
            0 => count,
            queues => queues,
        };
        let shards = self::shards(options, queues);
        let setup = Setup {
            shards,
            tun: TunConfig {
                queues,
                threads,
                offload: options.offload,
                ring_bytes: options.ring_bytes,
                descriptors: inherited.queues,
                namespace: inherited.namespace,
                ..TunConfig::new(name)
            },
            udp: UdpConfig {
                gso: udp.gso && options.offload,
                path_mtu: options.path_mtu,
                receive_buffer_bytes: weft_udp::receive_buffer_bytes(
                    options.memory(memory::total_bytes()),
                    shards,
                ),
                ..udp
            },
            sockets: inherited.sockets,
            endpoint: inherited.endpoint,
            // No peer knows this random key, so nothing that arrives can be authentic.
            private_key: PrivateKey::generate()
                .map_err(|error| StartError::Thread(std::io::Error::other(error.to_string())))?,
            tunnel: TunnelConfig {
                mtu: 0,
                staging_bytes: weft_dataplane::staging_bytes(options.memory(memory::available_bytes()))
                    / shards,
            },
            thread_name: options.thread_name.clone(),
            priority: options.priority,
            pin: options.pin,
            on_event,
        };
        let (start, started) = mpsc::sync_channel(1);
        let (thread, handle, opened) =
            packet_thread::spawn(setup, started, on_end).map_err(StartError::with_holder)?;
        let controller = Arc::new(Controller::new(handle.clone(), opened.port, udp.fwmark));
        Ok(Self { handle, controller, start: Some(start), balancer: None, thread: Some(thread), opened })
    }

    /// Starts moving packets, with inner packets of at most `mtu` bytes. `changes` are those of the tunnel of
    /// each packet thread before its first packet, if there are any ([`Controller::resume`]).
    pub fn run(&mut self, mtu: u16, changes: Vec<Vec<Change>>) -> Result<(), DataplaneError> {
        let start = self.start.take().ok_or(DataplaneError::Ended)?;
        start.send(Start { mtu, changes }).map_err(|_| DataplaneError::Ended)?;
        self.balancer = Balancer::start(&self.handle);
        Ok(())
    }

    /// Returns what was opened; the port is the initial one.
    pub fn opened(&self) -> &OpenedInterface {
        &self.opened
    }

    /// Returns the controller, which changes the interface and reports its state.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Returns a handle for sending commands to the packet thread. It does not keep the thread alive.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Ends the threads, and closes the device and the sockets. Returns the error if packets had stopped
    /// before this call.
    pub fn stop(mut self) -> Result<(), DataplaneError> {
        self.end()
    }

    /// The same, and leaves the packets of the device to the process that has it next.
    pub fn leave(mut self) -> Result<(), DataplaneError> {
        self.handle.leave();
        self.end()
    }

    fn end(&mut self) -> Result<(), DataplaneError> {
        drop(self.start.take());
        drop(self.balancer.take());
        self.handle.stop();
        self.thread.take().and_then(weft_confine::join).unwrap_or(Err(DataplaneError::Ended))
    }
}

/// Returns the number of packet threads of a device with `queues` queues.
fn shards(options: &Options, queues: usize) -> usize {
    if let PacketThreads::Fixed(wanted) = options.packet_threads
        && usize::from(wanted.get()) > weft_udp::MAX_SHARDS
    {
        tracing::warn!("an interface has one packet thread on this platform: {wanted} are not possible");
    }
    let wanted = options.packet_threads();
    if wanted > queues {
        tracing::warn!("the device has {queues} queues: of {wanted} packet threads as many run");
    }
    let shards = wanted.min(queues).max(1);
    if shards > 1 && matches!(options.tun_threads, TunThreads::Fixed(1..)) {
        tracing::warn!(
            "several packet threads read and write the device themselves: there are no TUN threads"
        );
    }
    shards
}

impl Drop for Interface {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.end();
        }
    }
}
