//! Rate limits of packets to and from one peer: a token bucket for each direction, in bits of inner IP
//! packets. Packets above the rate are dropped at once, because that is what the limit is set for; they are
//! not queued.
//!
//! A packet passes while a token is left, and takes one token per bit, even more than are left: a
//! super-packet passes or is dropped as a whole, and the excess has to grow back before the next packet
//! passes.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Instant;

use crate::bucket::Bucket;

/// Minimum burst in bits: one super-packet, so that the limit of a slow peer does not keep super-packets from
/// growing.
const MIN_BURST: u64 = 64 * 1024 * 8;
/// The rate divided by this is the burst: half a second's bits may pass at once. TCP that loses a whole burst
/// is silent for 0.2 s and more; if less is saved up meanwhile it stays below the rate: with 50 ms a single
/// connection reached a third to a half of the rate.
const BURSTS_PER_SECOND: u64 = 2;

/// A rate in bits a second, of inner IP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(NonZeroU64);

impl Rate {
    /// Creates a rate from bits per second; `None` for 0.
    pub const fn from_bits_per_second(bits: u64) -> Option<Self> {
        match NonZeroU64::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    /// Returns the rate in bits per second.
    pub const fn bits_per_second(self) -> u64 {
        self.0.get()
    }

    /// Returns the bits that may pass at once after a pause: those of half a second or 64 KiB, whichever is
    /// more.
    fn burst(self) -> u64 {
        (self.bits_per_second() / BURSTS_PER_SECOND).max(MIN_BURST)
    }
}

/// Prints the rate in the largest unit that leaves no fraction, as `50Mbit`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bits_per_second();
        let units = [(1_000_000_000, "Gbit"), (1_000_000, "Mbit"), (1000, "kbit")];
        let (size, unit) =
            units.into_iter().find(|(size, _)| bits.is_multiple_of(*size)).unwrap_or((1, "bit"));
        write!(f, "{}{unit}", bits / size)
    }
}

/// Rate limits of a peer. A direction without a rate is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerLimits {
    /// Limit of packets to the peer.
    pub to_peer: Option<Rate>,
    /// Limit of packets from the peer.
    pub from_peer: Option<Rate>,
}

/// The limits of a peer that has any.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) to_peer: Option<Limit>,
    pub(crate) from_peer: Option<Limit>,
}

impl Limits {
    /// Replaces the limits. A direction that stays limited keeps the state of its bucket.
    pub(crate) fn change(own: &mut Option<Box<Self>>, limits: PeerLimits, now: Instant) {
        if limits == PeerLimits::default() {
            *own = None;
            return;
        }
        let own = own.get_or_insert_with(|| Box::new(Self { to_peer: None, from_peer: None }));
        Limit::change(&mut own.to_peer, limits.to_peer, now);
        Limit::change(&mut own.from_peer, limits.from_peer, now);
    }
}

/// The limit of one direction.
#[derive(Debug)]
pub(crate) struct Limit {
    rate: Rate,
    bucket: Bucket,
    /// Packets dropped by this limit; a super-packet counts once per segment.
    pub(crate) dropped: u64,
}

impl Limit {
    fn change(own: &mut Option<Self>, rate: Option<Rate>, now: Instant) {
        match (&mut *own, rate) {
            (Some(limit), Some(rate)) => {
                limit.bucket.refill(limit.rate.bits_per_second(), now);
                // At a slow rate, what a fast rate owed would take very long to grow back.
                limit.bucket.forgive(rate.burst());
                limit.rate = rate;
            }
            _ => *own = rate.map(|rate| Self { rate, bucket: Bucket::default(), dropped: 0 }),
        }
    }

    /// Reports whether a packet may pass, and takes its tokens if so. `bytes` is the sum over all of its
    /// segments.
    pub(crate) fn admits(&mut self, bytes: usize, now: Instant) -> bool {
        self.bucket.refill(self.rate.bits_per_second(), now);
        let admitted = self.bucket.has_token(self.rate.burst());
        if admitted {
            self.bucket.take(bytes as u64 * 8);
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MBIT: u64 = 1_000_000;

    fn limit(bits: u64) -> Limit {
        let mut limit = None;
        Limit::change(&mut limit, Rate::from_bits_per_second(bits), Instant::now());
        limit.unwrap()
    }

    /// Offers a packet of `bytes` bytes every `step` for `time`, and returns the bytes that passed.
    fn offer(limit: &mut Limit, bytes: usize, from: Instant, step: Duration, time: Duration) -> u64 {
        let (mut now, mut passed) = (from, 0);
        while now < from + time {
            passed += if limit.admits(bytes, now) { bytes as u64 } else { 0 };
            now += step;
        }
        passed
    }

    #[test]
    fn exactly_the_burst_and_the_rate_pass() {
        for (bits, bytes) in [(MBIT, 100), (8 * MBIT, 1000), (50 * MBIT, 1250), (1000 * MBIT, 1250)] {
            let (mut limit, start) = (limit(bits), Instant::now());
            let second = Duration::from_secs(1);
            let burst = (bits / 2 / 8).max(65_536);
            let at_once = (0..100_000).filter(|_| limit.admits(bytes, start)).count() as u64;
            assert_eq!(at_once, burst.div_ceil(bytes as u64), "burst of {bits}");
            // Eight times the rate is offered, and the packets are not aligned to the seconds.
            let step = second.mul_f64(bytes as f64 / bits as f64);
            let owed = at_once * bytes as u64 - burst;
            for elapsed in 1..=3 {
                let passed = offer(&mut limit, bytes, start + second * (elapsed - 1) + step, step, second);
                let expected = bits / 8 - if elapsed == 1 { owed } else { 0 };
                assert!(passed.abs_diff(expected) <= bytes as u64, "{passed} of {expected}, rate {bits}");
            }
        }
    }

    #[test]
    fn a_super_packet_passes_whole_and_is_paid_back() {
        // One byte per microsecond; a burst of 500,000 bytes.
        let (mut limit, start) = (limit(8 * MBIT), Instant::now());
        let at = |micros| start + Duration::from_micros(micros);
        assert!(limit.admits(499_999, start));
        assert!(limit.admits(60_000, start), "one byte was left");
        assert!(!limit.admits(1, at(59_999)));
        assert!(limit.admits(1, at(60_000)));
        assert!(!limit.admits(1, at(60_000)));
        assert!(limit.admits(65_535, at(60_001)));
        assert!(limit.admits(1, at(3_600_000_000)));
    }

    #[test]
    fn a_quiet_hour_saves_one_burst() {
        let (mut limit, start) = (limit(80 * MBIT), Instant::now());
        assert!(limit.admits(1, start));
        let later = start + Duration::from_secs(3600);
        assert_eq!((0..2000).filter(|_| limit.admits(5000, later)).count(), 5_000_000 / 5000);
    }

    #[test]
    fn a_changed_rate_begins_with_what_was_used() {
        let now = Instant::now();
        let mut limits = None;
        let rate = |bits| PeerLimits { to_peer: Rate::from_bits_per_second(bits), from_peer: None };
        Limits::change(&mut limits, rate(8000 * MBIT), now);
        let admits = |limits: &mut Option<Box<Limits>>, now| {
            limits.as_mut().unwrap().to_peer.as_mut().unwrap().admits(60_000, now)
        };
        while admits(&mut limits, now) {}
        Limits::change(&mut limits, rate(8 * MBIT), now);
        assert!(!admits(&mut limits, now));
        assert!(admits(&mut limits, now + Duration::from_micros(1)), "500 MB are not paid back at 1 MB/s");
        Limits::change(&mut limits, PeerLimits::default(), now);
        assert!(limits.is_none());
    }

    #[test]
    fn a_rate_prints_as_it_is_written() {
        for (bits, text) in [
            (1000, "1kbit"),
            (50 * MBIT, "50Mbit"),
            (2500 * MBIT, "2500Mbit"),
            (3000 * MBIT, "3Gbit"),
            (1001, "1001bit"),
        ] {
            assert_eq!(Rate::from_bits_per_second(bits).unwrap().to_string(), text);
        }
        assert_eq!(Rate::from_bits_per_second(0), None);
    }
}
