//! How many handshakes one source may ask for while weft is under load: a token bucket for each, in a table
//! of fixed size, so that no number of sources costs memory.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::time::Instant;

use crate::bucket::Bucket;

/// Buckets. Sources that share one share its tokens.
const BUCKETS: usize = 1024;
/// Handshakes a second that one source may ask for, as WireGuard for Linux allows.
const PER_SECOND: u64 = 20;
/// Handshakes that it may ask for at once.
const BURST: u64 = 5;

/// The buckets, placed by a hash with a key of its own, so that nobody can choose to share one.
pub(crate) struct SourceLimit {
    buckets: Box<[Bucket]>,
    hasher: std::hash::RandomState,
}

impl SourceLimit {
    pub(crate) fn new() -> Self {
        Self {
            buckets: vec![Bucket::default(); BUCKETS].into_boxed_slice(),
            hasher: std::hash::RandomState::new(),
        }
    }

    /// Takes a token of `source`; false if there is none. IPv6 sources count by /64, the smallest network
    /// that one host is given.
    pub(crate) fn take(&mut self, source: IpAddr, now: Instant) -> bool {
        let key = match source {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        };
        let place = self.hasher.hash_one(key) as usize % BUCKETS;
        self.buckets[place].try_take(PER_SECOND, BURST, now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_source_gets_its_burst_and_then_its_rate() {
        let mut limit = SourceLimit::new();
        let source = "192.0.2.7".parse().unwrap();
        let start = Instant::now();
        let granted = (0..20).filter(|_| limit.take(source, start)).count();
        assert_eq!(granted, BURST as usize);
        assert!(limit.take(source, start + Duration::from_millis(50)));
        assert!(!limit.take(source, start + Duration::from_millis(51)));
        let later = start + Duration::from_secs(3600);
        assert_eq!((0..20).filter(|_| limit.take(source, later)).count(), BURST as usize);
    }
}
