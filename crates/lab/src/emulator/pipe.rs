//! One direction of a link, without I/O: which frames are sent, when they arrive, and which are lost.
//!
//! A frame waits in a drop-tail queue for its transmission, is transmitted bit by bit, and arrives after the
//! propagation delay. All times are computed when the frame is enqueued: a virtual clock holds the time when
//! the transmitter is idle again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::spec::{Limit, LinkSpec};
use crate::content::mix;

/// Upper bound of the bytes in flight in one direction, so that no link uses up the memory.
const MAX_IN_FLIGHT: u64 = 256 << 20;

/// One direction of a link. `T` is the caller's representation of a frame.
#[derive(Debug)]
pub struct Pipe<T> {
    rate: Option<u64>,
    delay: Duration,
    limit: Option<Limit>,
    loss: u64,
    reorder: u64,
    reorder_by: Duration,
    random: Random,
    /// When the transmitter finishes the last bit of all frames enqueued so far.
    free_at: Option<Instant>,
    /// Remainder of the last transmission time below one nanosecond, in units of 1/`rate` ns.
    remainder: u64,
    /// End of transmission and length of each frame that waits or is being transmitted.
    queue: VecDeque<(Instant, u64)>,
    queued: u64,
    /// Arrival, length and frame, ordered by arrival: `on_time` in sending order, `late` for the delayed
    /// ones.
    on_time: VecDeque<(Instant, u64, T)>,
    late: VecDeque<(Instant, u64, T)>,
    in_flight: u64,
    counters: PipeCounters,
}

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PipeCounters {
    /// Frames that were offered to the link.
    pub frames: u64,
    /// Bytes of the offered frames.
    pub bytes: u64,
    /// Frames dropped because the queue was full.
    pub dropped: u64,
    /// Frames that the link lost by its configured loss.
    pub lost: u64,
    /// Frames that were delayed to reorder them.
    pub reordered: u64,
    /// The most bytes that were queued at once, the frame in transmission included.
    pub greatest_queue_bytes: u64,
    /// The longest time from enqueueing a frame to the last bit of its transmission.
    pub greatest_queue_time: Duration,
    /// The longest time from a frame's arrival deadline to the call of [`Pipe::due`] that returned it.
    pub greatest_lateness: Duration,
}

impl PipeCounters {
    /// Returns the difference to `earlier`. The maxima are not differences: they stay those of the whole run.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            frames: self.frames.saturating_sub(earlier.frames),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            dropped: self.dropped.saturating_sub(earlier.dropped),
            lost: self.lost.saturating_sub(earlier.lost),
            reordered: self.reordered.saturating_sub(earlier.reordered),
            ..*self
        }
    }
}

/// Why a frame does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The queue is full.
    Dropped,
    /// The link loses the frame by its configured loss.
    Lost,
}

impl<T> Pipe<T> {
    /// Creates an idle link. `direction` makes the two directions lose different frames.
    pub fn new(spec: &LinkSpec, direction: u64) -> Self {
        Self {
            rate: spec.rate,
            delay: spec.delay,
            limit: spec.limit(),
            loss: threshold(spec.loss),
            reorder: threshold(spec.reorder),
            reorder_by: spec.reorder_by,
            random: Random(mix(spec.seed) ^ mix(direction)),
            free_at: None,
            remainder: 0,
            queue: VecDeque::new(),
            queued: 0,
            on_time: VecDeque::new(),
            late: VecDeque::new(),
            in_flight: 0,
            counters: PipeCounters::default(),
        }
    }

    /// Enqueues a frame of `len` bytes that is sent at `now`. `now` must not go backwards.
    ///
    /// # Errors
    /// Returns the frame and its [`Fate`] if the link does not deliver it.
    pub fn enqueue(&mut self, now: Instant, len: usize, frame: T) -> Result<(), (Fate, T)> {
        let len = len as u64;
        self.counters.frames += 1;
        self.counters.bytes += len;
        while let Some((_, sent)) = self.queue.pop_front_if(|(end, _)| *end <= now) {
            self.queued -= sent;
        }
        if !self.has_room(len) {
            self.counters.dropped += 1;
            return Err((Fate::Dropped, frame));
        }
        let end = self.transmit(now, len);
        if self.loss > self.random.next() {
            self.counters.lost += 1;
            return Err((Fate::Lost, frame));
        }
        self.in_flight += len;
        if self.reorder > self.random.next() {
            self.counters.reordered += 1;
            self.late.push_back((end + self.delay + self.reorder_by, len, frame));
        } else {
            self.on_time.push_back((end + self.delay, len, frame));
        }
        Ok(())
    }

    /// Removes and returns the next frame that has arrived by `now`.
    pub fn due(&mut self, now: Instant) -> Option<T> {
        let from = if self.late_is_next() { &mut self.late } else { &mut self.on_time };
        let (arrival, len, frame) = from.pop_front_if(|(arrival, ..)| *arrival <= now)?;
        self.in_flight -= len;
        self.counters.greatest_lateness = self.counters.greatest_lateness.max(now - arrival);
        Some(frame)
    }

    /// Returns when the next frame arrives.
    pub fn next_deadline(&self) -> Option<Instant> {
        let next = if self.late_is_next() { &self.late } else { &self.on_time };
        next.front().map(|(arrival, ..)| *arrival)
    }

    /// Returns how long a frame that is enqueued at `now` waits until its transmission begins.
    pub fn wait(&self, now: Instant) -> Duration {
        self.free_at.map_or(Duration::ZERO, |free_at| free_at.saturating_duration_since(now))
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> PipeCounters {
        self.counters
    }

    /// Reports whether a frame of `len` bytes fits. An idle transmitter accepts a frame of any length: the
    /// queue limit is for the frames that wait behind it.
    fn has_room(&self, len: u64) -> bool {
        let fits = match self.limit {
            _ if self.queue.is_empty() => true,
            Some(Limit::Bytes(bytes)) => self.queued + len <= bytes,
            Some(Limit::Packets(packets)) => self.queue.len() < packets as usize,
            None => true,
        };
        fits && self.in_flight + len <= MAX_IN_FLIGHT
    }

    /// Enqueues the transmission of a frame that is sent at `now` and returns the time of its last bit.
    fn transmit(&mut self, now: Instant, len: u64) -> Instant {
        let Some(rate) = self.rate else { return now };
        let start = match self.free_at {
            Some(free_at) if free_at > now => free_at,
            _ => {
                self.remainder = 0;
                now
            }
        };
        // The product fits into 64 bits for a gigabyte.
        let work = len * 8 * 1_000_000_000 + self.remainder;
        self.remainder = work % rate;
        let end = start + Duration::from_nanos(work / rate);
        self.free_at = Some(end);
        self.queue.push_back((end, len));
        self.queued += len;
        let counters = &mut self.counters;
        counters.greatest_queue_bytes = counters.greatest_queue_bytes.max(self.queued);
        counters.greatest_queue_time = counters.greatest_queue_time.max(end - now);
        end
    }

    fn late_is_next(&self) -> bool {
        match (self.on_time.front(), self.late.front()) {
            (Some((on_time, ..)), Some((late, ..))) => late < on_time,
            (None, late) => late.is_some(),
            (Some(_), None) => false,
        }
    }
}

/// A pseudo-random generator that depends on the seed alone.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }
}

/// Converts a share (0 to 1) into the threshold below which that share of all 64-bit numbers lies.
fn threshold(share: f64) -> u64 {
    // The conversion of floats saturates: a share of 1 covers every number but the greatest.
    (share * 2f64.powi(64)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pipe(spec: &str) -> Pipe<u32> {
        Pipe::new(&spec.parse().unwrap(), 0)
    }

    /// Drains the pipe: each frame with its arrival since `start`. Asserts that no frame is due before its
    /// deadline.
    fn arrivals(pipe: &mut Pipe<u32>, start: Instant) -> Vec<(Duration, u32)> {
        let mut arrivals = Vec::new();
        while let Some(deadline) = pipe.next_deadline() {
            assert_eq!(pipe.due(deadline - Duration::from_nanos(1)), None);
            arrivals.push((deadline - start, pipe.due(deadline).unwrap()));
        }
        arrivals
    }

    #[test]
    fn a_frame_takes_its_transmission_and_the_delay() {
        let now = Instant::now();
        let mut pipe = pipe("rate=12mbit,delay=10ms");
        // 1,500 bytes are 12,000 bits: one millisecond.
        pipe.enqueue(now, 1500, 0).unwrap();
        assert_eq!(pipe.due(now + 10 * MS), None);
        assert_eq!(pipe.next_deadline(), Some(now + 11 * MS));
        assert_eq!(pipe.due(now + 11 * MS), Some(0));
        // The transmitter is idle by then.
        pipe.enqueue(now + 20 * MS, 750, 1).unwrap();
        assert_eq!(pipe.next_deadline(), Some(now + 30 * MS + MS / 2));
    }

    #[test]
    fn the_rate_is_exact_over_many_frames() {
        let start = Instant::now();
        // 1,514 bytes at 7 Mbit/s take 1,730,285.714… ns.
        let mut pipe = pipe("rate=7mbit,queue=1000mb");
        for number in 0..10_000 {
            pipe.enqueue(start, 1514, number).unwrap();
        }
        let arrivals = arrivals(&mut pipe, start);
        let expected = Duration::from_nanos(10_000 * 1514 * 8 * 1_000_000_000 / 7_000_000);
        assert_eq!(arrivals.last(), Some(&(expected, 9_999)));
        assert!(arrivals.windows(2).all(|pair| pair[0].1 < pair[1].1));
    }

    #[test]
    fn the_last_byte_that_fits_is_taken_and_the_next_is_not() {
        let now = Instant::now();
        let mut pipe = pipe("rate=12mbit,queue=3000b");
        pipe.enqueue(now, 1500, 0).unwrap();
        pipe.enqueue(now, 1500, 1).unwrap();
        assert_eq!(pipe.enqueue(now, 1, 2), Err((Fate::Dropped, 2)));
        // A frame frees its room when its last bit is sent.
        assert_eq!(pipe.enqueue(now + MS - Duration::from_nanos(1), 1500, 3), Err((Fate::Dropped, 3)));
        pipe.enqueue(now + MS, 1500, 4).unwrap();
        let counters = pipe.counters();
        assert_eq!((counters.frames, counters.dropped, counters.bytes), (5, 2, 6001));
        assert_eq!((counters.greatest_queue_bytes, counters.greatest_queue_time), (3000, 2 * MS));
    }

    #[test]
    fn a_queue_of_packets_counts_packets_and_an_idle_link_takes_any() {
        let now = Instant::now();
        let mut packets = pipe("rate=12mbit,queue=2p");
        for (number, taken) in [(0, true), (1, true), (2, false)] {
            assert_eq!(packets.enqueue(now, 60, number).is_ok(), taken);
        }
        let mut small = pipe("rate=12mbit,queue=100b");
        small.enqueue(now, 1500, 0).unwrap();
        assert!(small.enqueue(now, 1500, 1).is_err());
        small.enqueue(now + MS, 1500, 2).unwrap();
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let now = Instant::now();
        let mut pipe = pipe("delay=5ms");
        for number in 0..1000 {
            pipe.enqueue(now, 1500, number).unwrap();
        }
        assert!(arrivals(&mut pipe, now).iter().all(|(arrival, _)| *arrival == 5 * MS));
        assert_eq!(pipe.counters().greatest_queue_bytes, 0);
    }

    #[test]
    fn memory_is_bounded_without_a_rate_too() {
        let now = Instant::now();
        let mut pipe = pipe("delay=60s");
        let taken = (0..300).filter(|number| pipe.enqueue(now, 1 << 20, *number).is_ok()).count();
        assert_eq!((taken, pipe.counters().dropped), (256, 44));
    }

    #[test]
    fn losses_are_a_share_that_the_seed_decides() {
        let now = Instant::now();
        let lost = |seed: u64, direction| {
            let spec = format!("loss=1%,seed={seed}").parse().unwrap();
            let mut pipe = Pipe::new(&spec, direction);
            let lost = (0..100_000u32).filter(|n| pipe.enqueue(now, 100, *n) == Err((Fate::Lost, *n)));
            let lost: Vec<_> = lost.collect();
            assert_eq!(pipe.counters().lost, lost.len() as u64);
            while pipe.due(now).is_some() {}
            lost
        };
        let one = lost(1, 0);
        assert!((900..1100).contains(&one.len()), "{}", one.len());
        assert_eq!(one, lost(1, 0));
        assert_ne!(one, lost(2, 0));
        assert_ne!(one, lost(1, 1));
        let all = (0..100).filter(|n| pipe("loss=100%").enqueue(now, 100, *n).is_err()).count();
        assert_eq!(all, 100);
    }

    #[test]
    fn a_lost_frame_has_taken_its_time_on_the_link() {
        let now = Instant::now();
        let mut pipe = pipe("rate=12mbit,loss=100%,queue=3000b");
        assert_eq!(pipe.enqueue(now, 1500, 0), Err((Fate::Lost, 0)));
        assert_eq!(pipe.enqueue(now, 1500, 1), Err((Fate::Lost, 1)));
        assert_eq!(pipe.enqueue(now, 1500, 2), Err((Fate::Dropped, 2)));
    }

    #[test]
    fn some_come_late_and_all_others_stay_in_order() {
        let start = Instant::now();
        let mut pipe = pipe("rate=12mbit,delay=10ms,queue=100mb,reorder=2%,reorder-by=3500us");
        for number in 0..10_000 {
            pipe.enqueue(start, 1500, number).unwrap();
        }
        let arrivals = arrivals(&mut pipe, start);
        let reordered = pipe.counters().reordered;
        assert!((150..250).contains(&reordered), "{reordered}");
        let mut next = 0;
        let mut late = 0;
        for (arrival, number) in &arrivals {
            let expected = 10 * MS + (number + 1) * MS;
            if *arrival == expected {
                assert!(*number >= next);
                next = *number;
            } else {
                assert_eq!(*arrival, expected + Duration::from_micros(3500));
                late += 1;
            }
        }
        assert_eq!((late, arrivals.len()), (reordered, 10_000));
    }
}
