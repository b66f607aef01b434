//! The pace of the senders: as much as the gateway handles, and no more on its way than its buffers hold, so
//! that packets that it would drop cost nothing.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Packets on their way to one packet thread in one direction: about half of a socket's receive buffer, and
/// what a packet thread handles while a sender waits for a core.
const WINDOW: u64 = 3000;
/// Pause of a sender when all windows are full.
const PAUSE: Duration = Duration::from_micros(500);
/// Time without progress after which packets on their way count as lost.
const LOST: Duration = Duration::from_millis(20);

/// What was sent to each packet thread in one direction, and what it has handled.
#[derive(Debug)]
pub(super) struct Pace(Vec<Count>);

#[derive(Debug)]
struct Count {
    sent: AtomicU64,
    /// Handled or lost.
    done: AtomicU64,
}

impl Pace {
    pub(super) fn new(shards: usize) -> Self {
        let count = || Count { sent: AtomicU64::new(0), done: AtomicU64::new(0) };
        Self(std::iter::repeat_with(count).take(shards).collect())
    }

    fn has_room(&self, shard: usize) -> bool {
        let Count { sent, done } = &self.0[shard];
        sent.load(Relaxed).saturating_sub(done.load(Relaxed)) < WINDOW
    }
}

/// Counts what the packet threads have handled in one direction.
#[derive(Debug)]
pub(super) struct Progress {
    /// At the beginning.
    first: Vec<u64>,
    lost: Vec<u64>,
    since: Vec<(u64, Instant)>,
}

impl Progress {
    /// Begins with the counters of the packet threads, before anything is sent.
    pub(super) fn new(counters: &[u64]) -> Self {
        let now = Instant::now();
        Self {
            first: counters.to_vec(),
            lost: vec![0; counters.len()],
            since: counters.iter().map(|count| (*count, now)).collect(),
        }
    }

    /// Updates the pace with the counters of now. Returns the number of packets that are on their way.
    pub(super) fn update(&mut self, pace: &Pace, counters: &[u64]) -> u64 {
        let now = Instant::now();
        let mut under_way = 0;
        for (shard, (count, Count { sent, done })) in counters.iter().zip(&pace.0).enumerate() {
            if self.since[shard].0 != *count {
                self.since[shard] = (*count, now);
            }
            let (counted, sent) = (count - self.first[shard], sent.load(Relaxed));
            // What was given up as lost may only have been late.
            self.lost[shard] = self.lost[shard].min(sent.saturating_sub(counted));
            let mut handled = counted + self.lost[shard];
            let waits = sent.saturating_sub(handled);
            if waits > 0 && self.since[shard].1 + LOST <= now {
                self.lost[shard] += waits;
                handled += waits;
                self.since[shard].1 = now;
            } else {
                under_way += waits;
            }
            done.store(handled, Relaxed);
        }
        under_way
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.iter().sum()
    }
}

/// Sends super-packets of one peer.
pub(super) trait PacedSender: Send {
    /// Returns the packet thread that handles what is sent.
    fn shard(&self) -> usize;
    /// Sends the next super-packet, and returns the number of its packets; `None` if there is none left.
    fn send(&mut self) -> io::Result<Option<u64>>;
}

/// Sends on all senders in turn until `stop` is set, or one of them has nothing left.
pub(super) fn send_all<L: PacedSender>(senders: &mut [L], pace: &Pace, stop: &AtomicBool) -> io::Result<()> {
    loop {
        let mut full = 0;
        for sender in senders.iter_mut() {
            if stop.load(Relaxed) {
                return Ok(());
            }
            let shard = sender.shard();
            if !pace.has_room(shard) {
                full += 1;
                continue;
            }
            match sender.send()? {
                Some(packets) => drop(pace.0[shard].sent.fetch_add(packets, Relaxed)),
                None => return Ok(()),
            }
        }
        if full == senders.len() {
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_window_stops_its_packet_thread_only_and_losses_open_it() {
        let pace = Pace::new(2);
        let mut progress = Progress::new(&[100, 7]);
        pace.0[0].sent.store(WINDOW, Relaxed);
        assert!(!pace.has_room(0) && pace.has_room(1));
        assert_eq!(progress.update(&pace, &[101, 7]), WINDOW - 1);
        assert!(pace.has_room(0));
        pace.0[0].sent.store(WINDOW + 1, Relaxed);
        assert!(!pace.has_room(0));
        progress.since[0].1 -= LOST;
        assert_eq!(progress.update(&pace, &[101, 7]), 0);
        assert!(pace.has_room(0));
        assert_eq!(progress.lost(), WINDOW);
        progress.update(&pace, &[100 + WINDOW, 7]);
        assert_eq!(progress.lost(), 1, "only late");
    }

    struct Finite(u64);

    impl PacedSender for Finite {
        fn shard(&self) -> usize {
            0
        }

        fn send(&mut self) -> io::Result<Option<u64>> {
            self.0 = self.0.saturating_sub(1);
            Ok((self.0 > 0).then_some(1))
        }
    }

    #[test]
    fn sending_ends_with_the_first_sender_that_has_nothing_left() {
        let (pace, mut senders) = (Pace::new(1), [Finite(9), Finite(4), Finite(7)]);
        send_all(&mut senders, &pace, &AtomicBool::new(false)).unwrap();
        assert_eq!(senders.map(|sender| sender.0), [5, 0, 4]);
    }
}
