//! Counters of a device, queue by queue. The threads of a queue add to them once per batch, with relaxed
//! atomics.

use std::iter::Sum;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($side:ident: $Side:ident { $($(#[$doc:meta])* $name:ident,)+ })+) => {
        $(
            /// Counters that one thread writes. They are aligned to two cache lines, because processors fetch
            /// lines in pairs. This keeps the threads of a device from slowing each other down.
            #[derive(Debug, Default)]
            #[repr(align(128))]
            pub(crate) struct $Side { $(pub(crate) $name: Counter,)+ }
        )+

        /// Shared counters of a queue. They only grow.
        #[derive(Debug, Default)]
        pub(crate) struct QueueStats { $(pub(crate) $side: $Side,)+ }

        /// The counters of a queue or of a device. Each counter was read separately, so they may be from
        /// different moments.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct TunStatsSnapshot { $($($(#[$doc])* pub $name: u64,)+)+ }

        impl QueueStats {
            pub(crate) fn snapshot(&self) -> TunStatsSnapshot {
                TunStatsSnapshot { $($($name: self.$side.$name.get(),)+)+ }
            }
        }

        impl Sum for TunStatsSnapshot {
            fn sum<I: Iterator<Item = Self>>(queues: I) -> Self {
                queues.fold(Self::default(), |all, queue| Self {
                    $($($name: all.$name.wrapping_add(queue.$name),)+)+
                })
            }
        }
    };
}

stats! {
    outbound: OutboundStats {
        /// Outbound: IP packets read; a super-packet counts once.
        packets_read,
        /// Outbound: packets as the wire would see them; a super-packet counts its segments.
        segments_read,
        /// Outbound: bytes of the IP packets read, headers of a super-packet counted once.
        bytes_read,
        /// Outbound: `read(2)` calls, including those that found nothing.
        read_calls,
        /// Outbound: batches handed to the packet thread.
        batches_read,
        /// Outbound: packets dropped because their virtio header or IP header does not fit them
        /// (`DropReason::MalformedPacket`).
        malformed_reads,
        /// Outbound: packets that the kernel dropped because a queue was full, and that its counters of the
        /// device do not have; a super-packet counts once.
        uncounted_drops,
    }
    inbound: InboundStats {
        /// Inbound: IP packets written, one `writev(2)` each; a super-packet counts once.
        packets_written,
        /// Inbound: packets as they came from the peers; a super-packet counts its segments.
        segments_written,
        /// Inbound: bytes of the IP packets written, headers of a super-packet counted once.
        bytes_written,
        /// Inbound: segments that the kernel refused (`DropReason::TunWriteFailed`).
        write_failures,
    }
}

/// The counters of every queue of a device.
#[derive(Debug)]
pub struct TunStats {
    queues: Box<[Arc<QueueStats>]>,
}

impl TunStats {
    /// Creates the counters of a device with this many queues.
    pub fn new(queues: usize) -> Self {
        Self { queues: (0..queues).map(|_| Arc::default()).collect() }
    }

    /// Counts a batch that was read from the first queue. `segments` is how many packets it is on the wire.
    pub fn add_outbound(&self, packets: u64, segments: u64, bytes: u64) {
        let Some(queue) = self.queues.first() else { return };
        queue.outbound.packets_read.add(packets);
        queue.outbound.segments_read.add(segments);
        queue.outbound.bytes_read.add(bytes);
        queue.outbound.batches_read.add(1);
    }

    /// Counts packets that were written to the first queue, which were `segments` packets on the wire.
    pub fn add_inbound(&self, packets: u64, segments: u64, bytes: u64) {
        let Some(queue) = self.queues.first() else { return };
        queue.inbound.packets_written.add(packets);
        queue.inbound.segments_written.add(segments);
        queue.inbound.bytes_written.add(bytes);
    }

    /// Returns the counters of each queue.
    pub(crate) fn each(&self) -> impl Iterator<Item = &Arc<QueueStats>> {
        self.queues.iter()
    }

    /// Reads every counter, all queues together.
    pub fn snapshot(&self) -> TunStatsSnapshot {
        self.each().map(|queue| queue.snapshot()).sum()
    }

    /// Reads every counter, queue by queue.
    pub fn queues(&self) -> Vec<TunStatsSnapshot> {
        self.each().map(|queue| queue.snapshot()).collect()
    }
}

/// A counter with relaxed ordering.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        if count != 0 {
            self.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_counts_what_its_queues_count() {
        let stats = TunStats::new(2);
        for (number, queue) in (1..).zip(stats.each()) {
            queue.outbound.packets_read.add(number);
            queue.inbound.bytes_written.add(10 * number);
        }
        let queues = stats.queues();
        assert_eq!(queues.iter().map(|queue| queue.packets_read).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(queues[1].bytes_written, 20);
        let all = stats.snapshot();
        assert_eq!((all.packets_read, all.bytes_written, all.write_failures), (3, 30, 0));
    }

    #[test]
    fn no_two_threads_write_the_same_cache_lines() {
        let queue = QueueStats::default();
        let [outbound, inbound] = [(&raw const queue.outbound).addr(), (&raw const queue.inbound).addr()];
        assert!(outbound.is_multiple_of(128) && inbound.is_multiple_of(128));
        assert!(outbound.abs_diff(inbound) >= 128);
    }
}
