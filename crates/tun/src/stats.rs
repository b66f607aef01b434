//! What a device has done so far. Written once a batch, with relaxed atomics, from every thread of the device.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Shared counters of a device. They only grow.
        #[derive(Debug, Default)]
        pub struct TunStats { $(pub(crate) $name: Counter,)+ }

        /// The counters of a [`TunStats`] at one moment; each was read by itself.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct TunStatsSnapshot { $($(#[$doc])* pub $name: u64,)+ }

        impl TunStats {
            /// Reads every counter.
            pub fn snapshot(&self) -> TunStatsSnapshot {
                TunStatsSnapshot { $($name: self.$name.get(),)+ }
            }
        }
    };
}

stats! {
    /// Outbound: IP packets read; a super-packet counts once.
    packets_read,
    /// Outbound: packets as the wire would see them; a super-packet counts its segments.
    segments_read,
    /// Outbound: bytes of the IP packets read, headers of a super-packet counted once.
    bytes_read,
    /// Outbound: `read(2)` calls, those that found nothing included.
    read_calls,
    /// Outbound: batches handed to the packet thread.
    batches_read,
    /// Outbound: packets dropped because their virtio header or IP header does not fit them
    /// (`DropReason::MalformedPacket`).
    malformed_reads,
    /// Inbound: IP packets written, one `writev(2)` each; a super-packet counts once.
    packets_written,
    /// Inbound: packets as they came from the peers: a super-packet counts its segments.
    segments_written,
    /// Inbound: bytes of the IP packets written, headers of a super-packet counted once.
    bytes_written,
    /// Inbound: segments that the kernel refused (`DropReason::TunWriteFailed`).
    write_failures,
}

/// One counter.
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
