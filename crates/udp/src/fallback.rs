//! Remembers destinations that accept no GSO batches, because of a route with an MTU smaller than a segment,
//! a device without checksum offload, or IPsec.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a refusal is remembered. The kernel forgets a learned path MTU after the same time
/// (net.ipv4.route.mtu_expires).
const RETRY_AFTER: Duration = Duration::from_secs(600);
/// Maximum number of remembered destinations. Beyond it the oldest is forgotten, which costs one refused call
/// at the next batch to it.
const CAPACITY: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct Refusal {
    /// Segments of this many bytes and more are refused.
    from_bytes: usize,
    until: Instant,
}

/// The refusal of each destination, and the time until which it is remembered.
#[derive(Debug, Default)]
pub(crate) struct Fallbacks {
    refusals: HashMap<IpAddr, Refusal>,
}

impl Fallbacks {
    /// Reports whether batches of segments of `segment_bytes` bytes are known to be refused. Calls `now` only
    /// if the time matters.
    pub(crate) fn refuses(
        &mut self,
        destination: IpAddr,
        segment_bytes: usize,
        now: impl FnOnce() -> Instant,
    ) -> bool {
        if self.refusals.is_empty() {
            return false;
        }
        let Some(refusal) = self.refusals.get(&destination) else { return false };
        if refusal.until <= now() {
            self.refusals.remove(&destination);
            return false;
        }
        refusal.from_bytes <= segment_bytes
    }

    /// Remembers a refusal of segments of `from_bytes` bytes and more. Returns true if the destination was
    /// not known.
    pub(crate) fn remember(&mut self, destination: IpAddr, from_bytes: usize, now: Instant) -> bool {
        let is_new = !self.refusals.contains_key(&destination);
        if is_new && self.refusals.len() >= CAPACITY {
            let oldest = self.refusals.iter().min_by_key(|(_, refusal)| refusal.until);
            if let Some(oldest) = oldest.map(|(&address, _)| address) {
                self.refusals.remove(&oldest);
            }
        }
        let until = now + RETRY_AFTER;
        let refusal = self.refusals.entry(destination).or_insert(Refusal { from_bytes, until });
        refusal.from_bytes = refusal.from_bytes.min(from_bytes);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn a_refusal_holds_for_one_destination_and_segments_as_long() {
        let now = Instant::now();
        let mut fallbacks = Fallbacks::default();
        assert!(fallbacks.remember(A, 1400, now));
        assert!(fallbacks.refuses(A, 1400, || now));
        assert!(!fallbacks.refuses(A, 1399, || now));
        assert!(!fallbacks.refuses(B, 1400, || now));
        assert!(!fallbacks.remember(A, 1300, now));
        assert!(fallbacks.refuses(A, 1399, || now));
    }

    #[test]
    fn a_refusal_is_tried_again_after_a_while() {
        let now = Instant::now();
        let mut fallbacks = Fallbacks::default();
        fallbacks.remember(A, 0, now);
        assert!(!fallbacks.refuses(A, 1400, || now + RETRY_AFTER));
        assert!(fallbacks.remember(A, 0, now + RETRY_AFTER));
    }

    #[test]
    fn the_table_is_bounded_and_forgets_the_oldest() {
        let start = Instant::now();
        let mut fallbacks = Fallbacks::default();
        let count = u32::try_from(CAPACITY).unwrap() + 1;
        for index in 0..count {
            fallbacks.remember(
                IpAddr::from(index.to_be_bytes()),
                0,
                start + Duration::from_millis(index.into()),
            );
        }
        assert_eq!(fallbacks.refusals.len(), CAPACITY);
        assert!(!fallbacks.refuses(IpAddr::from([0; 4]), 1, || start));
        assert!(fallbacks.refuses(IpAddr::from([0, 0, 0, 1]), 1, || start));
    }
}
