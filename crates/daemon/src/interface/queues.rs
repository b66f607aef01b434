//! The queues of a TUN: how many, served by which threads, and how much the kernel keeps in them.

use weft_config::{MAX_THREADS, PacketThreads, TunThreads};
use weft_host::routes::QueueLimits;

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

/// Returns the number of packet threads to use on this machine.
///
/// Below four cores, the kernel's part of the packet path uses the cores that one packet thread leaves idle.
/// With more cores there is one packet thread for each two: the kernel needs about as much time as the packet
/// thread. A packet thread without a peer would have nothing to do.
pub(super) fn packet_threads(wanted: PacketThreads, peers: Option<usize>) -> usize {
    /// Replaces the default, for tests and measurements.
    const VARIABLE: &str = "WEFT_PACKET_THREADS";
    let replaced = || std::env::var(VARIABLE).ok()?.parse().ok();
    let is_default = wanted == PacketThreads::default();
    let wanted = match if is_default { replaced().unwrap_or(wanted) } else { wanted } {
        PacketThreads::Fixed(threads) => usize::from(threads.get()),
        PacketThreads::Auto => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            auto_packet_threads(cores, peers.unwrap_or(usize::MAX))
        }
    };
    wanted.min(weft_udp::MAX_SHARDS)
}

fn auto_packet_threads(cores: usize, peers: usize) -> usize {
    let of_cores = if cores < 4 { 1 } else { cores / 2 };
    of_cores.min(peers).clamp(1, MAX_THREADS.into())
}

/// Returns the TUN queues to use on this machine with this many packet threads; `inline` is the number of
/// queues if no threads serve them.
///
/// Several packet threads serve the queues themselves: each has as many as the others, and at least two.
///
/// On fewer than four cores a hand-over between threads costs more than it saves, so the packet thread does
/// all the work. From four cores on, one reader and one writer relieve the packet thread; more pairs help
/// only where one pair is not enough. Where a TUN has one queue, there is one.
pub(super) fn tun_queues(threads: TunThreads, inline: u16, packet_threads: usize) -> TunQueues {
    let with_threads = match threads {
        _ if packet_threads > 1 => 0,
        TunThreads::Fixed(queues) => queues,
        TunThreads::Auto => match std::thread::available_parallelism().map_or(1, usize::from) {
            0..=3 => 0,
            4..=7 => 1,
            _ => 2,
        },
    };
    let (count, threads) = if with_threads == 0 { (inline, false) } else { (with_threads, true) };
    let count = match packet_threads {
        0 | 1 => count.into(),
        shards => usize::from(count).max(2 * shards).next_multiple_of(shards),
    };
    TunQueues { count: count.min(weft_tun::MAX_QUEUES), threads }
}

/// The number of queues that the packet thread serves itself. More than one costs a hash and a table look-up
/// per packet, which is too little to measure, and keeps packets from waiting behind a flood in another
/// queue: with eight queues, one flow in eight shares the flooded queue.
pub(super) const INLINE_QUEUES: u16 = 8;

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
    fn queues_without_threads_count_only_where_there_are_no_threads() {
        let without = tun_queues(TunThreads::Fixed(0), 4, 1);
        assert_eq!(without, TunQueues { count: 4.min(weft_tun::MAX_QUEUES), threads: false });
        assert_eq!(without.with_threads(), 0);
        let with = tun_queues(TunThreads::Fixed(2), 4, 1);
        assert_eq!(with, TunQueues { count: 2.min(weft_tun::MAX_QUEUES), threads: true });
        assert_eq!(with.with_threads(), with.count);
        let auto = tun_queues(TunThreads::Auto, 3, 1);
        assert!(auto.threads || auto.count == 3.min(weft_tun::MAX_QUEUES));
    }

    #[test]
    fn automatically_there_is_a_packet_thread_for_two_cores_and_none_without_a_peer() {
        let threads = [1, 2, 3, 4, 7, 8, 500].map(|cores| auto_packet_threads(cores, usize::MAX));
        assert_eq!(threads, [1, 1, 1, 2, 3, 4, 64]);
        assert_eq!([0, 1, 2, 3, 9].map(|peers| auto_packet_threads(8, peers)), [1, 1, 2, 3, 4]);
    }

    #[test]
    fn each_packet_thread_has_as_many_queues() {
        if weft_tun::MAX_QUEUES == 1 {
            return;
        }
        for threads in [TunThreads::Auto, TunThreads::Fixed(3)] {
            let queues = [2, 3, 4, 8, 64].map(|shards| tun_queues(threads, 8, shards));
            assert_eq!(queues.map(|queues| queues.count), [8, 9, 8, 16, 128]);
            assert!(queues.iter().all(|queues| !queues.threads));
        }
    }

    #[test]
    fn queues_that_one_thread_serves_share_what_one_queue_has() {
        let limit = |count, threads| ring_packets(TunQueues { count, threads });
        assert_eq!([1, 2, 4, 8].map(|count| limit(count, false)), [4000, 2000, 1000, 1000]);
        assert_eq!([1, 4].map(|count| limit(count, true)), [4000, 4000]);
    }
}
