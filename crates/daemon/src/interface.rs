//! A running interface: its device, sockets, packet thread and controller. Addresses, routes and the like
//! belong to the host (`weft_host`).

use std::sync::Arc;

use weft_config::TunThreads;
use weft_dataplane::{Controller, DataplaneError, Handle, OnEvent};
use weft_host::memory;
use weft_host::routes::QueueLimits;
use weft_tun::{Descriptor, TunConfig};
use weft_tunnel::{PrivateKey, TunnelConfig};
use weft_udp::{self as udp, PathMtu, UdpConfig};

use crate::dataplane::{Dataplane, Opened, Setup, StartError, TunQueues, inline_queues, tun_queues};
use crate::scheduling::Priority;

/// How to run an interface.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of TUN queues with a reader and a writer thread each.
    pub tun_threads: TunThreads,
    /// Number of TUN queues if no threads serve them.
    pub inline_queues: u16,
    /// Whether the TUN uses super-packets and the sockets use GSO batches.
    pub offload: bool,
    /// Path MTU discovery: whether outgoing datagrams may be fragmented.
    pub path_mtu: PathMtu,
    /// The packet thread's name, at most 15 bytes.
    pub thread_name: String,
    pub priority: Priority,
}

impl Options {
    pub fn tun_queues(&self) -> TunQueues {
        tun_queues(self.tun_threads, self.inline_queues)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tun_threads: TunThreads::Auto,
            inline_queues: inline_queues(),
            offload: true,
            path_mtu: PathMtu::default(),
            thread_name: "weft-packets".into(),
            priority: Priority::Ordinary,
        }
    }
}

/// Descriptors from another process, used instead of new ones.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Attached queues of the device: as many as [`Options::tun_queues`] asks for, or the one of a device that
    /// was made for one. If empty, the device is created.
    pub queues: Vec<Descriptor>,
    /// Sockets bound to the requested port. If empty, sockets are opened.
    pub sockets: Vec<udp::Descriptor>,
}

/// A running interface. It has no key and no peers until its controller sets them. Dropping it ends the
/// interface.
pub struct Interface {
    dataplane: Dataplane,
    controller: Arc<Controller>,
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
        let setup = Setup {
            tun: TunConfig {
                // A device that was made for one queue keeps one.
                queues: if inherited.queues.is_empty() { count } else { inherited.queues.len() },
                threads,
                offload: options.offload,
                descriptors: inherited.queues,
                ..TunConfig::new(name)
            },
            udp: UdpConfig {
                gso: udp.gso && options.offload,
                path_mtu: options.path_mtu,
                receive_buffer_bytes: weft_udp::receive_buffer_bytes(memory::total_bytes()),
                ..udp
            },
            sockets: inherited.sockets,
            // No peer knows this random key, so nothing that arrives can be authentic.
            private_key: PrivateKey::generate()
                .map_err(|error| StartError::Thread(std::io::Error::other(error.to_string())))?,
            tunnel: TunnelConfig {
                mtu: 0,
                staging_bytes: weft_dataplane::staging_bytes(memory::available_bytes()),
            },
            thread_name: options.thread_name.clone(),
            priority: options.priority,
            on_event,
        };
        let dataplane = Dataplane::open(setup, on_end)?;
        let controller = Arc::new(Controller::new(dataplane.handle(), dataplane.opened().port, udp.fwmark));
        Ok(Self { dataplane, controller })
    }

    /// Starts moving packets, with inner packets of at most `mtu` bytes.
    pub fn run(&mut self, mtu: u16) -> Result<(), DataplaneError> {
        self.dataplane.run(mtu)
    }

    /// Returns what was opened; the port is the initial one.
    pub fn opened(&self) -> &Opened {
        self.dataplane.opened()
    }

    /// Returns the controller, which changes the interface and reports its state.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Returns a handle for sending commands to the packet thread.
    pub fn dataplane_handle(&self) -> Handle {
        self.dataplane.handle()
    }

    /// Ends the threads, and closes the device and the sockets. Returns the error if packets had stopped
    /// before this call.
    pub fn stop(self) -> Result<(), DataplaneError> {
        self.dataplane.stop()
    }
}

/// Returns the limits to set on a new TUN with these queues and this MTU.
pub fn limits_at_start(queues: TunQueues, mtu: u16) -> QueueLimits {
    QueueLimits { tx_queue_len: Some(ring_packets(queues)), ..queue_limits(mtu) }
}

/// Returns the number of packets that may wait for weft in each queue.
fn ring_packets(queues: TunQueues) -> u32 {
    /// Four times the kernel's default. The driver drops packets beyond it, and no sender learns that the
    /// queue is full: with hundreds of connections that have a few packets each in the queue, the same
    /// connections lose packets again and again.
    const PACKETS: u32 = 4000;
    /// The kernel's default.
    const AT_LEAST: u32 = 1000;
    match queues {
        // All inline queues together get the capacity of one queue, but at least the kernel's default each:
        // one thread serves all of them, so more waiting packets only wait longer.
        TunQueues { count, threads: false } => (PACKETS / count.max(1) as u32).max(AT_LEAST),
        TunQueues { threads: true, .. } => PACKETS,
    }
}

/// Returns the limits of a TUN's queues with this MTU. A super-packet within them usually fits one GSO send
/// when it is sealed; headers are counted as for TCP over IPv6 with timestamps.
pub fn queue_limits(mtu: u16) -> QueueLimits {
    const HEADERS: usize = 40 + 32;
    const SEALED: usize = 32;
    let mtu = usize::from(mtu);
    let segments = (weft_tunnel::MAX_BATCH_BYTES / (mtu + SEALED)).clamp(1, weft_tunnel::MAX_BATCH_SEGMENTS);
    let bytes = segments * mtu.saturating_sub(HEADERS) + HEADERS;
    QueueLimits {
        tx_queue_len: None,
        gso_max_bytes: u32::try_from(bytes.max(mtu)).ok(),
        gso_max_segments: u32::try_from(segments).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_that_one_thread_serves_share_what_one_queue_has() {
        let limit = |count, threads| ring_packets(TunQueues { count, threads });
        assert_eq!([1, 2, 4, 8].map(|count| limit(count, false)), [4000, 2000, 1000, 1000]);
        assert_eq!([1, 4].map(|count| limit(count, true)), [4000, 4000]);
    }
}
