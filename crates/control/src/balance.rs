//! Decides which peer moves to which packet thread. No I/O.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use weft_tunnel::PublicKey;

/// How much busier than the idlest packet thread the busiest one is where peers move.
const RATIO: f64 = 2.0;
/// How long it has to be, and how long after a move.
const LASTING: Duration = Duration::from_secs(10);
/// The share of a core from which on a packet thread counts as busy.
const BUSY: f64 = 0.1;
/// The load of a peer that moves, in parts of the difference of both threads. A larger peer would take most
/// of the difference with it, and might come back; a smaller one changes nothing.
const PARTS: std::ops::RangeInclusive<f64> = 0.01..=2.0 / 3.0;

/// The time that each packet thread had worked at one moment.
#[derive(Debug)]
struct Sample {
    at: Instant,
    busy_ns: Vec<u64>,
}

/// The bytes of each peer at one moment.
#[derive(Debug)]
struct Traffic {
    at: Instant,
    bytes: HashMap<PublicKey, u64>,
}

/// A packet thread that has much more to do than another one, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uneven {
    pub(crate) busiest: u16,
    pub(crate) idlest: u16,
}

/// The load of the packet threads of an interface, and what follows from it.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    last: Option<Sample>,
    /// The share of a core that each packet thread took between the last two samples.
    shares: Vec<f64>,
    /// Since when the same packet thread is much busier than another.
    since: Option<(Instant, u16)>,
    /// When a peer last moved.
    moved_at: Option<Instant>,
    traffic: Option<Traffic>,
    /// Peers whose move was called off, until one moves.
    called_off: Vec<PublicKey>,
}

impl Balance {
    /// Returns the share of a core of each packet thread; empty if that is not known yet.
    pub(crate) fn shares(&self) -> &[f64] {
        &self.shares
    }

    /// Takes the time that each packet thread has worked so far. Returns where a peer has to move, if any.
    pub(crate) fn observe(&mut self, now: Instant, busy_ns: Vec<u64>) -> Option<Uneven> {
        let before = self.last.replace(Sample { at: now, busy_ns })?;
        let last = self.last.as_ref()?;
        let elapsed = now.saturating_duration_since(before.at).as_nanos().max(1) as f64;
        let share = |(now, before): (&u64, &u64)| now.saturating_sub(*before) as f64 / elapsed;
        self.shares = last.busy_ns.iter().zip(&before.busy_ns).map(share).collect();
        let uneven = self.uneven();
        // The interval before the first sample of a lasting imbalance counts.
        self.since = uneven.map(|Uneven { busiest, .. }| match self.since {
            Some(since) if since.1 == busiest => since,
            _ => (before.at, busiest),
        });
        let lasts = |since: Instant| now.saturating_duration_since(since) >= LASTING;
        let is_due = self.since.is_some_and(|(since, _)| lasts(since)) && self.moved_at.is_none_or(lasts);
        if !is_due {
            self.traffic = None;
        }
        uneven.filter(|_| is_due)
    }

    fn uneven(&self) -> Option<Uneven> {
        let by_share = |a: &u16, b: &u16| self.share(*a).total_cmp(&self.share(*b));
        let threads = 0..self.shares.len() as u16;
        let (busiest, idlest) = (threads.clone().max_by(by_share)?, threads.min_by(by_share)?);
        let is_uneven = self.share(busiest) >= BUSY && self.share(busiest) > RATIO * self.share(idlest);
        is_uneven.then_some(Uneven { busiest, idlest })
    }

    fn share(&self, thread: u16) -> f64 {
        self.shares[usize::from(thread)]
    }

    /// Takes the bytes of every peer so far, of its packet thread. Returns the peer to move, which is known
    /// from the second call on.
    pub(crate) fn choose(
        &mut self,
        now: Instant,
        uneven: Uneven,
        peers: &[(PublicKey, u16, u64)],
    ) -> Option<PublicKey> {
        let bytes = peers.iter().map(|(key, _, bytes)| (*key, *bytes)).collect();
        let before = self.traffic.replace(Traffic { at: now, bytes })?;
        if before.at == now {
            return None;
        }
        let rates = peers.iter().filter(|(_, thread, _)| *thread == uneven.busiest).map(|(key, _, bytes)| {
            let earlier = before.bytes.get(key).copied().unwrap_or(*bytes);
            (*key, bytes.saturating_sub(earlier))
        });
        let total: u64 = rates.clone().map(|(_, bytes)| bytes).sum();
        let (busiest, idlest) = (self.share(uneven.busiest), self.share(uneven.idlest));
        let load = |bytes: u64| busiest * bytes as f64 / total.max(1) as f64;
        // How busy the busier of both threads is after the move.
        let later = |bytes: u64| (busiest - load(bytes)).max(idlest + load(bytes));
        let candidates = rates.filter(|(key, bytes)| {
            PARTS.contains(&(load(*bytes) / (busiest - idlest))) && !self.called_off.contains(key)
        });
        let best = candidates.min_by(|(_, a), (_, b)| later(*a).total_cmp(&later(*b)).then(b.cmp(a)));
        if best.is_none() {
            self.called_off.clear();
        }
        best.map(|(key, _)| key)
    }

    /// Records that a peer moved.
    pub(crate) fn moved(&mut self, now: Instant) {
        self.moved_at = Some(now);
        self.since = None;
        self.traffic = None;
        self.called_off.clear();
    }

    /// Records that the move of a peer was called off. It is tried again after all others.
    pub(crate) fn called_off(&mut self, peer: PublicKey) {
        self.called_off.push(peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A gateway whose packet threads take a part of a core for each peer: its number of hundredths.
    struct Gateway {
        start: Instant,
        second: u64,
        busy_ns: Vec<u64>,
        peers: Vec<(u16, u64, u64)>,
        balance: Balance,
    }

    fn key(number: usize) -> PublicKey {
        PublicKey::from_bytes([number as u8; 32])
    }

    impl Gateway {
        /// `peers`: the packet thread and the load of each.
        fn new(threads: usize, peers: &[(u16, u64)]) -> Self {
            let peers = peers.iter().map(|(thread, load)| (*thread, *load, 0)).collect();
            let balance = Balance::default();
            Self { start: Instant::now(), second: 0, busy_ns: vec![0; threads], peers, balance }
        }

        /// Runs for some seconds, with a sample every two. Returns when which peer moved where.
        fn run(&mut self, seconds: u64) -> Vec<(u64, usize, u16)> {
            let mut moves = Vec::new();
            for _ in 0..seconds / 2 {
                self.second += 2;
                for (thread, load, bytes) in &mut self.peers {
                    self.busy_ns[usize::from(*thread)] += 2 * *load * SECOND / 100;
                    *bytes += *load * 1000;
                }
                let now = self.start + Duration::from_secs(self.second);
                let Some(uneven) = self.balance.observe(now, self.busy_ns.clone()) else { continue };
                let peer = |(number, (thread, _, bytes))| (key(number), thread, bytes);
                let peers: Vec<_> = self.peers.iter().copied().enumerate().map(peer).collect();
                if let Some(peer) = self.balance.choose(now, uneven, &peers) {
                    let number = usize::from(peer.as_bytes()[0]);
                    self.peers[number].0 = uneven.idlest;
                    self.balance.moved(now);
                    moves.push((self.second, number, uneven.idlest));
                }
            }
            moves
        }

        fn loads(&self) -> Vec<u64> {
            let of = |thread| {
                self.peers.iter().filter(|peer| usize::from(peer.0) == thread).map(|peer| peer.1).sum()
            };
            (0..self.busy_ns.len()).map(of).collect()
        }
    }

    #[test]
    fn the_peer_that_evens_the_threads_most_moves_after_ten_seconds_and_no_other() {
        let mut gateway = Gateway::new(2, &[(0, 40), (0, 25), (0, 10), (1, 5)]);
        assert_eq!(gateway.run(12), []);
        assert_eq!(gateway.run(6), [(14, 0, 1)]);
        assert_eq!(gateway.loads(), [35, 45]);
        assert_eq!(gateway.run(600), []);
    }

    #[test]
    fn several_peers_move_one_after_the_other_with_ten_seconds_between() {
        let peers: Vec<_> = (0..30).map(|_| (0, 3)).collect();
        let mut gateway = Gateway::new(3, &peers);
        let moves = gateway.run(600);
        assert!(moves.windows(2).all(|pair| pair[1].0 >= pair[0].0 + 10), "{moves:?}");
        let loads = gateway.loads();
        assert!(loads.iter().max() <= loads.iter().min().map(|least| 2 * least).as_ref(), "{loads:?}");
        assert_eq!(gateway.run(600), [], "that is even enough");
    }

    #[test]
    fn one_peer_alone_does_not_move_to_and_fro() {
        for peers in [&[(0, 90), (1, 1)][..], &[(0, 90), (0, 0), (1, 0)]] {
            assert_eq!(Gateway::new(2, peers).run(600), []);
        }
        // A small one makes room for it.
        let mut gateway = Gateway::new(2, &[(0, 60), (0, 12), (1, 2)]);
        assert_eq!(gateway.run(600), [(14, 1, 1)]);
    }

    #[test]
    fn nothing_moves_on_an_idle_gateway_or_for_a_moment() {
        let mut gateway = Gateway::new(2, &[(0, 5), (0, 4)]);
        assert_eq!(gateway.run(600), []);
        let mut gateway = Gateway::new(2, &[(0, 40), (0, 30)]);
        for _ in 0..20 {
            assert_eq!(gateway.run(8), []);
            gateway.peers.iter_mut().for_each(|peer| peer.1 = 0);
            assert_eq!(gateway.run(2), []);
            (gateway.peers[0].1, gateway.peers[1].1) = (40, 30);
        }
        // The threads take turns.
        let mut gateway = Gateway::new(2, &[(0, 40), (0, 30), (1, 0), (1, 0)]);
        for _ in 0..20 {
            assert_eq!(gateway.run(8), []);
            let loads = [2, 3, 0, 1].map(|number: usize| gateway.peers[number].1);
            gateway.peers.iter_mut().zip(loads).for_each(|(peer, load)| peer.1 = load);
        }
    }

    #[test]
    fn a_peer_whose_move_is_called_off_comes_after_the_others() {
        let mut balance = Balance::default();
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut uneven = None;
        for second in 0..=10 {
            uneven = balance.observe(at(second), vec![second * SECOND / 2, 0]);
        }
        let uneven = uneven.unwrap();
        assert_eq!(uneven, Uneven { busiest: 0, idlest: 1 });
        let mut bytes = 0;
        let mut choose = |balance: &mut Balance| {
            bytes += 1000;
            balance.choose(at(20 + bytes), uneven, &[(key(1), 0, bytes), (key(2), 0, bytes), (key(3), 1, 9)])
        };
        assert_eq!(choose(&mut balance), None, "the rates are not known");
        let first = choose(&mut balance).unwrap();
        balance.called_off(first);
        let second = choose(&mut balance).unwrap();
        assert_ne!(first, second);
        balance.called_off(second);
        assert_eq!(choose(&mut balance), None);
        assert_eq!(choose(&mut balance), Some(first));
    }
}
