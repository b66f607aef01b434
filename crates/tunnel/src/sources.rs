//! How many handshake messages each source has sent lately, about: a count-min sketch (Cormode and Muthukrishnan 2005),
//! so that no number of sources costs memory. It is used, and has memory, under load only.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Counters of a row: with 65,536 sources one in twenty shares both of its counters with others.
const COLUMNS: usize = 1 << 18;
const ROWS: usize = 2;
/// For how long messages are counted, at least; at most twice as long. A peer retries after 5 s (Rekey-Timeout).
const GENERATION: Duration = Duration::from_secs(8);
/// Messages that a source may have worked on in that time: somewhat less than the 20 a second of WireGuard for Linux.
pub(crate) const PER_SOURCE: u8 = 128;
/// Sources of 64 bits in an IPv6 /48 that may ask as much as each of them may: one message in so many counts for it.
const PER_SITE: u64 = 8;

/// The counters of one time, with a key that nothing outside knows and that the next one does not have: sources that share
/// counters by chance do so once.
struct Generation {
    counters: Vec<u8>,
    hasher: RandomState,
}

impl Generation {
    fn new() -> Self {
        Self { counters: vec![0; ROWS * COLUMNS], hasher: RandomState::new() }
    }

    fn reset(&mut self) {
        self.counters.fill(0);
        self.hasher = RandomState::new();
    }

    fn places(&self, key: (u8, u64)) -> [usize; ROWS] {
        let hash = self.hasher.hash_one(key);
        [hash as usize % COLUMNS, COLUMNS + (hash >> 32) as usize % COLUMNS]
    }

    fn count(&self, places: [usize; ROWS]) -> u8 {
        places.map(|place| self.counters[place]).into_iter().min().unwrap_or_default()
    }

    /// Counts one more, in the counters that have least: the others know too much already.
    fn add(&mut self, places: [usize; ROWS]) -> u8 {
        let count = self.count(places).saturating_add(1);
        for place in places {
            let counter = &mut self.counters[place];
            *counter = (*counter).max(count);
        }
        count
    }
}

/// Messages of each source in this time and the one before.
#[derive(Default)]
pub(crate) struct Sources {
    /// The newer one first; when the newer one began.
    generations: Option<(Instant, [Generation; 2])>,
    /// Messages so far.
    messages: u64,
}

impl Sources {
    /// Counts a message, and gives how many its source has sent, this one included. IPv6 sources count by /64, the smallest
    /// network that one host is given, and a /48 as a few of those.
    pub(crate) fn count(&mut self, source: IpAddr, now: Instant) -> u8 {
        let (since, generations) =
            self.generations.get_or_insert_with(|| (now, [Generation::new(), Generation::new()]));
        if now.duration_since(*since) >= GENERATION {
            generations.swap(0, 1);
            generations[0].reset();
            if now.duration_since(*since) >= 2 * GENERATION {
                generations[1].reset();
            }
            *since = now;
        }
        self.messages += 1;
        let counts_for_site = self.messages.is_multiple_of(PER_SITE);
        let [newer, older] = generations;
        let mut ask = |key, counts: bool| {
            let places = newer.places(key);
            let lately = if counts { newer.add(places) } else { newer.count(places) };
            lately.saturating_add(older.count(older.places(key)))
        };
        match source {
            IpAddr::V4(address) => ask((4, address.to_bits().into()), true),
            IpAddr::V6(address) => {
                let network = (address.to_bits() >> 64) as u64;
                ask((64, network), true).max(ask((48, network >> 16), counts_for_site))
            }
        }
    }

    /// Gives the memory back.
    pub(crate) fn clear(&mut self) {
        self.generations = None;
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
        }
        assert_eq!(sources.count(other, start), 1);
        assert_eq!(sources.count(one, start + GENERATION), 6);
        assert_eq!(sources.count(one, start + 2 * GENERATION), 2);
        assert_eq!(sources.count(one, start + 5 * GENERATION), 1);
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

    /// A stranger beside a flood from 65,536 addresses.
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
