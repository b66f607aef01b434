//! Estimates how many handshake messages each source has sent lately, with a count-min sketch (Cormode and
//! Muthukrishnan 2005), whose memory does not grow with the number of sources. It is used, and allocated,
//! under load only.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Counters in one cache line. All counters of a key are in one line, so that a count costs one cache miss.
const LINE: usize = 64;
/// Number of lines. With 65,536 sources, one in forty shares all of its counters with others.
const LINES: usize = 8192;
/// Interval after which all counts are halved. A peer retries after 5 s (Rekey-Timeout).
const HALF_LIFE: Duration = Duration::from_secs(8);
/// Maximum count of a source whose messages are worked on: 8 to 16 messages a second, somewhat less than the
/// 20 of WireGuard for Linux.
pub(crate) const PER_SOURCE: u8 = 128;
/// An IPv6 /48 may send as many messages as this number of /64 networks: one message in this many counts for
/// the /48.
const PER_SITE: u64 = 8;

#[repr(align(64))]
#[derive(Clone)]
struct Line([u8; LINE]);

/// The counters, and the secret key of their hash function.
struct Sketch {
    lines: Vec<Line>,
    hasher: RandomState,
    halved_at: Instant,
}

impl Sketch {
    fn new(now: Instant) -> Self {
        Self { lines: vec![Line([0; LINE]); LINES], hasher: RandomState::new(), halved_at: now }
    }

    fn age(&mut self, now: Instant) {
        let half_lives = now.duration_since(self.halved_at).as_secs() / HALF_LIFE.as_secs();
        if half_lives == 0 {
            return;
        }
        let shift = half_lives.min(u64::from(u8::BITS)) as u32;
        for counter in self.lines.iter_mut().flat_map(|Line(line)| line) {
            *counter = counter.checked_shr(shift).unwrap_or_default();
        }
        self.halved_at = now;
    }

    /// Returns the count of a source. With `counts`, first increments the smallest of its counters
    /// (conservative update); the others overestimate already.
    fn count(&mut self, key: (u8, u64), counts: bool) -> u8 {
        let hash = self.hasher.hash_one(key);
        let Line(line) = &mut self.lines[hash as usize % LINES];
        let places = [32, 38, 44, 50].map(|shift| (hash >> shift) as usize % LINE);
        let least = places.iter().map(|place| line[*place]).min().unwrap_or_default();
        if !counts {
            return least;
        }
        let count = least.saturating_add(1);
        for place in places {
            line[place] = line[place].max(count);
        }
        count
    }
}

/// Estimated number of recent messages of each source.
#[derive(Default)]
pub(crate) struct Sources {
    sketch: Option<Sketch>,
    /// Messages counted so far.
    messages: u64,
}

impl Sources {
    /// Returns the estimated number of messages from a source, and counts none.
    pub(crate) fn estimate(&mut self, source: IpAddr, now: Instant) -> u8 {
        self.look_up(source, now, false)
    }

    /// Counts a message, and returns the estimated number of messages from its source, this one included.
    /// IPv6 sources count by /64, the smallest network that a host is assigned, and by /48, which may send as
    /// much as eight /64 networks.
    pub(crate) fn count(&mut self, source: IpAddr, now: Instant) -> u8 {
        self.messages += 1;
        self.look_up(source, now, true)
    }

    fn look_up(&mut self, source: IpAddr, now: Instant, counts: bool) -> u8 {
        let sketch = self.sketch.get_or_insert_with(|| Sketch::new(now));
        sketch.age(now);
        let counts_for_site = counts && self.messages.is_multiple_of(PER_SITE);
        match source {
            IpAddr::V4(address) => sketch.count((4, address.to_bits().into()), counts),
            IpAddr::V6(address) => {
                let network = (address.to_bits() >> 64) as u64;
                sketch.count((64, network), counts).max(sketch.count((48, network >> 16), counts_for_site))
            }
        }
    }

    /// Frees the counters.
    pub(crate) fn clear(&mut self) {
        self.sketch = None;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn a_source_is_counted_for_a_while() {
        let (mut sources, start) = (Sources::default(), Instant::now());
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        for count in 1..=5 {
            assert_eq!(sources.count(one, start), count);
            assert_eq!(sources.estimate(one, start), count);
        }
        assert_eq!(sources.count(other, start), 1);
        assert_eq!(sources.count(one, start + HALF_LIFE), 2 + 1);
        assert_eq!(sources.count(one, start + 2 * HALF_LIFE), 1 + 1);
        assert_eq!(sources.count(one, start + 5 * HALF_LIFE), 1);
    }

    #[test]
    fn a_table_that_is_cleared_has_counted_nothing() {
        let (mut sources, start) = (Sources::default(), Instant::now());
        let source = IpAddr::from([192, 0, 2, 1]);
        assert_eq!([sources.count(source, start), sources.count(source, start)], [1, 2]);
        sources.clear();
        assert_eq!(sources.count(source, start), 1);
    }

    #[test]
    fn a_64_counts_as_one_source_and_a_48_as_eight() {
        let (mut sources, now) = (Sources::default(), Instant::now());
        let host = |site: u16, subnet: u16, host: u16| {
            IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, site, subnet, 0, 0, 0, host))
        };
        for number in 1..=100 {
            assert_eq!(u16::from(sources.count(host(1, 1, number), now)), number);
        }
        let last = (1..=2000).map(|subnet| sources.count(host(2, subnet, 1), now)).last().unwrap();
        assert_eq!(last, 250, "one message from each of 2,000 networks of a site");
        assert_eq!(sources.count(host(3, 1, 1), now), 1);
    }

    /// A source that sends one message beside a flood from 65,536 addresses.
    #[test]
    fn a_source_that_asks_once_is_told_from_those_that_ask_often() {
        let (mut sources, now) = (Sources::default(), Instant::now());
        for _ in 0..8 {
            for flooder in 0..65_536_u32 {
                sources.count(Ipv4Addr::from_bits(0x0a00_0000 + flooder).into(), now);
            }
        }
        let strangers = (0..1000).map(|number| Ipv4Addr::from_bits(0xc633_0000 + number));
        let mistaken = strangers.filter(|stranger| sources.count((*stranger).into(), now) > 4).count();
        assert!(mistaken < 100, "{mistaken} of 1,000");
    }
}
