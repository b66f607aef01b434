//! An interface that runs: its device, its sockets, its packet thread and what controls them. Addresses, routes and
//! the like are not its business: they are the host's.

use std::sync::Arc;

use weft_config::TunThreads;
use weft_host::memory;
use weft_host::routes::QueueLimits;
use weft_tun::{Descriptor, TunConfig};
use weft_tunnel::{PrivateKey, TunnelConfig};
use weft_udp::{self as udp, PathMtu, UdpConfig};

use crate::control::Controller;
use crate::dataplane::{
    Dataplane, DataplaneError, Handle, OnEvent, Opened, Setup, StartError, TunQueues, inline_queues,
    tun_queues,
};
use crate::scheduling::Priority;

/// How to run an interface.
#[derive(Clone, Debug)]
pub struct Options {
    /// Queues of the TUN, each with its threads.
    pub tun_threads: TunThreads,
    /// Queues of the TUN where they have no threads.
    pub inline_queues: u16,
    /// Whether the TUN and the sockets take super-packets and batches.
    pub offload: bool,
    /// Whether datagrams may be fragmented on their way.
    pub path_mtu: PathMtu,
    /// Name of the packet thread, at most 15 bytes.
    pub thread_name: String,
    /// How the packet thread competes for a core.
    pub priority: Priority,
}

impl Options {
    /// The queues of the TUN.
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

/// Descriptors that somebody held before, to be used instead of new ones.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Attached queues of the device, as many as [`Options::tun_queues`] asks for; none: it is created.
    pub queues: Vec<Descriptor>,
    /// Sockets of the port that is asked for; none: they are opened.
    pub sockets: Vec<udp::Descriptor>,
}

/// A running interface, without a key and without peers until its controller is told of some. Dropping it ends it.
pub struct Interface {
    dataplane: Dataplane,
    controller: Arc<Controller>,
}

impl Interface {
    /// Opens device and sockets in the network namespace of this thread. No packet moves before [`Self::run`].
    ///
    /// What is `inherited` is taken over. `on_event` is told what happens to peers. `on_end` is called when packets
    /// have stopped, whatever the reason.
    pub fn open(
        name: &str,
        inherited: Inherited,
        udp: UdpConfig,
        options: &Options,
        on_event: Option<OnEvent>,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Self, StartError> {
        let TunQueues { count, threads } = options.tun_queues();
        let setup = Setup {
            tun: TunConfig {
                queues: count,
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
            // Nobody knows this key, so nothing that arrives is for it.
            private_key: PrivateKey::generate()
                .map_err(|error| StartError::Thread(std::io::Error::other(error.to_string())))?,
            tunnel: TunnelConfig { mtu: 0, staging_bytes: staging_bytes(memory::available_bytes()) },
            thread_name: options.thread_name.clone(),
            priority: options.priority,
            on_event,
        };
        let dataplane = Dataplane::open(setup, on_end)?;
        let controller = Arc::new(Controller::new(dataplane.handle(), dataplane.opened().port, udp.fwmark));
        Ok(Self { dataplane, controller })
    }

    /// Lets packets move, with inner packets of at most `mtu` bytes.
    pub fn run(&mut self, mtu: u16) -> Result<(), DataplaneError> {
        self.dataplane.run(mtu)
    }

    /// What was opened; the port is the one of the beginning.
    pub fn opened(&self) -> &Opened {
        self.dataplane.opened()
    }

    /// What changes the interface and tells what it is.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// What asks the packet thread.
    pub fn dataplane_handle(&self) -> Handle {
        self.dataplane.handle()
    }

    /// Ends threads, device and sockets. Gives the reason if packets had stopped by themselves.
    pub fn stop(self) -> Result<(), DataplaneError> {
        self.dataplane.stop()
    }
}

/// The limits of a TUN with these queues and this MTU.
pub fn limits_at_start(queues: TunQueues, mtu: u16) -> QueueLimits {
    QueueLimits { tx_queue_len: Some(ring_packets(queues)), ..queue_limits(mtu) }
}

/// The packets that may wait for weft in each queue.
fn ring_packets(queues: TunQueues) -> u32 {
    /// Four times the kernel's usual number. The driver throws away what is more, and no sender learns that the queue is
    /// full: with hundreds of connections that have a few packets each there, the same ones lose theirs again and again.
    const PACKETS: u32 = 4000;
    /// The kernel's usual number.
    const AT_LEAST: u32 = 1000;
    match queues {
        // Between them they have what one has, or the usual number each: what fills them all waits for the same thread,
        // the longer the more there is.
        TunQueues { count, threads: false } => (PACKETS / count.max(1) as u32).max(AT_LEAST),
        TunQueues { threads: true, .. } => PACKETS,
    }
}

/// The limits of a TUN's queues with this MTU: super-packets that usually fit one GSO send once they are sealed, headers
/// as long as TCP over IPv6 with timestamps makes them.
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

/// The share of the available memory that packets without a session may take.
const STAGING_SHARE: u64 = 64;
const MIN_STAGING_BYTES: u64 = 2 << 20;
const MAX_STAGING_BYTES: u64 = 128 << 20;

/// Returns the bytes that may wait for sessions, those of all peers together: a sixty-fourth of the available memory,
/// between 2 and 128 MiB.
fn staging_bytes(available: Option<u64>) -> usize {
    let bytes = available.map_or(MIN_STAGING_BYTES, |bytes| bytes / STAGING_SHARE);
    usize::try_from(bytes.clamp(MIN_STAGING_BYTES, MAX_STAGING_BYTES)).unwrap_or(usize::MAX)
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

    #[test]
    fn staged_packets_take_a_share_of_the_memory_within_bounds() {
        assert_eq!(staging_bytes(None), 2 << 20);
        assert_eq!(staging_bytes(Some(1 << 20)), 2 << 20);
        assert_eq!(staging_bytes(Some(1 << 30)), 16 << 20);
        assert_eq!(staging_bytes(Some(1 << 40)), 128 << 20);
    }
}
