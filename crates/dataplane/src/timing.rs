//! Measures the duration of every turn of the event loop, and of a sample of its stages.
//!
//! Beside the clock reading at its beginning, a turn costs one more. One turn in [`SAMPLED_TURNS`] is
//! measured stage by stage, and at least one per second: that costs about one reading per batch and stage,
//! never one per packet.

use std::time::{Duration, Instant};

/// One turn in this many is measured stage by stage. A power of two.
pub const SAMPLED_TURNS: u32 = 64;
/// A turn is also measured stage by stage this long after the last sample.
const SAMPLED_AFTER: Duration = Duration::from_secs(1);

/// Number of upper bounds of a histogram: 1 µs, 1.5 µs, 2 µs, 3 µs, 4 µs, … 1.05 s.
const BOUNDS: usize = 41;

/// A histogram of durations. The upper bound of a bucket is at most 1.5 times its lower bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// The bucket after the last bound counts everything longer.
    counts: [u64; BOUNDS + 1],
    sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BOUNDS + 1], sum_ns: 0 }
    }
}

impl Histogram {
    /// Number of bounds.
    pub const BOUNDS: usize = BOUNDS;

    /// Returns the upper bound of a bucket in nanoseconds, inclusive; `None` for the last bucket, which is
    /// unbounded.
    pub fn bound_ns(bucket: usize) -> Option<u64> {
        // Powers of two of half a microsecond, and the midpoints between them.
        let halves = if bucket.is_multiple_of(2) { 2_u64 << (bucket / 2) } else { 3_u64 << (bucket / 2) };
        (bucket < BOUNDS).then_some(halves * 500)
    }

    /// Counts a duration.
    #[inline]
    pub(super) fn add(&mut self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket_of(nanoseconds)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(nanoseconds);
    }

    /// Adds the durations of another histogram.
    fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(all, more)| *all += more);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// Returns the count of each bucket.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Returns the sum of all durations, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }
}

#[inline]
fn bucket_of(nanoseconds: u64) -> usize {
    // Half-microseconds, rounded up, minus one: a duration equal to a bound belongs to the bucket that ends
    // there.
    let below = nanoseconds.div_ceil(500).saturating_sub(1);
    if below < 2 {
        return 0;
    }
    let octave = below.ilog2();
    let is_upper_half = (below >> (octave - 1)) & 1;
    let bucket = 2 * (u64::from(octave) - 1) + is_upper_half + 1;
    usize::try_from(bucket).unwrap_or(BOUNDS).min(BOUNDS)
}

macro_rules! stages {
    ($($(#[$doc:meta])* $name:ident => ($direction:literal, $label:literal),)+) => {
        /// A stage of the packet path on the packet thread.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Stage { $($(#[$doc])* $name,)+ }

        impl Stage {
            pub const ALL: [Self; [$($label),+].len()] = [$(Self::$name),+];

            /// Returns the direction, and the name of the stage within it: `("outbound", "encrypt")`.
            pub const fn label(self) -> (&'static str, &'static str) {
                match self { $(Self::$name => ($direction, $label),)+ }
            }
        }
    };
}

stages! {
    /// Takes packets from the TUN or its readers.
    Read => ("outbound", "read"),
    /// Encrypts packets, about one GSO batch.
    Encrypt => ("outbound", "encrypt"),
    /// Passes encrypted batches to the sockets.
    Send => ("outbound", "send"),
    /// Receives datagrams from the sockets.
    Receive => ("inbound", "receive"),
    /// Decrypts datagrams, handshakes included.
    Decrypt => ("inbound", "decrypt"),
    /// Hands packets to the TUN's writers, or writes them.
    Write => ("inbound", "write"),
    /// Creates handshakes and keepalives that are due, and handles messages from the handshake sockets.
    Handshakes => ("both", "handshakes"),
    /// Executes a slice of a change or a snapshot.
    Commands => ("both", "commands"),
}

/// Durations since the event loop started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    turns: Histogram,
    stages: [Histogram; Stage::ALL.len()],
}

impl Times {
    /// Adds the durations of another event loop.
    pub(super) fn add(&mut self, other: &Self) {
        self.turns.merge(&other.turns);
        self.stages.iter_mut().zip(&other.stages).for_each(|(all, more)| all.merge(more));
    }

    /// Returns the durations of all turns.
    pub fn turns(&self) -> &Histogram {
        &self.turns
    }

    /// Returns the durations of a stage with one batch, in sampled turns.
    pub fn stage(&self, stage: Stage) -> &Histogram {
        &self.stages[stage as usize]
    }
}

/// The clock of the event loop.
#[derive(Debug)]
pub(super) struct TurnClock {
    times: Times,
    began: Instant,
    /// When the last turn ended, if it left work.
    unfinished_since: Option<Instant>,
    /// All the time between a turn that left work and the next one, in nanoseconds.
    waited_ns: u64,
    /// When the current stage began.
    lap: Instant,
    turn: u32,
    is_sampled: bool,
    last_sample: Instant,
}

impl TurnClock {
    pub(super) fn new() -> Self {
        let now = now();
        Self {
            times: Times::default(),
            began: now,
            unfinished_since: None,
            waited_ns: 0,
            lap: now,
            turn: 0,
            is_sampled: false,
            last_sample: now,
        }
    }

    /// Begins a turn, and returns its time, which stays the same throughout the turn.
    pub(super) fn begin(&mut self) -> Instant {
        self.began = now();
        self.lap = self.began;
        if let Some(since) = self.unfinished_since.take() {
            let waited = self.began.saturating_duration_since(since).as_nanos();
            self.waited_ns = self.waited_ns.saturating_add(u64::try_from(waited).unwrap_or(u64::MAX));
        }
        self.is_sampled = self.turn.is_multiple_of(SAMPLED_TURNS)
            || self.began.saturating_duration_since(self.last_sample) >= SAMPLED_AFTER;
        if self.is_sampled {
            self.last_sample = self.began;
        }
        self.turn = self.turn.wrapping_add(1);
        self.began
    }

    /// Begins a stage. Time since the previous stage is attributed to no stage.
    #[inline]
    pub(super) fn begin_stage(&mut self) {
        if self.is_sampled {
            self.lap = now();
        }
    }

    /// Ends a stage that handled one batch, and begins the next.
    #[inline]
    pub(super) fn end_stage(&mut self, stage: Stage) {
        if self.is_sampled {
            let now = now();
            self.times.stages[stage as usize].add(now.saturating_duration_since(self.lap));
            self.lap = now;
        }
    }

    /// Ends a turn that leaves work for the next one, or none.
    pub(super) fn end(&mut self, is_busy: bool) {
        let now = now();
        self.times.turns.add(now.saturating_duration_since(self.began));
        self.unfinished_since = is_busy.then_some(now);
    }

    /// Returns how long there was work, in nanoseconds: all turns, and the time between a turn that left work
    /// and the next one, in which other threads had the processor.
    pub(super) fn busy_ns(&self) -> u64 {
        self.times.turns.sum_ns.saturating_add(self.waited_ns)
    }

    pub(super) fn times(&self) -> &Times {
        &self.times
    }
}

/// Reads the runtime's clock, which tests can pause.
#[inline]
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Measures the duration of an X25519 operation on this machine: the shortest of several, because other
/// programs may run meanwhile.
pub(super) fn x25519_time() -> Duration {
    const TRIALS: usize = 8;
    let time = |_| {
        let before = Instant::now();
        weft_tunnel::exercise_x25519();
        before.elapsed()
    };
    (0..TRIALS).map(time).min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_with_its_bound() {
        let bounds: Vec<u64> = (0..BOUNDS).filter_map(Histogram::bound_ns).collect();
        assert_eq!(bounds[..6], [1_000, 1_500, 2_000, 3_000, 4_000, 6_000]);
        assert_eq!((bounds.len(), bounds[BOUNDS - 1]), (BOUNDS, 1_048_576_000));
        assert_eq!(Histogram::bound_ns(BOUNDS), None);
        for (bucket, &bound) in bounds.iter().enumerate() {
            assert_eq!((bucket_of(bound), bucket_of(bound + 1)), (bucket, bucket + 1), "{bound}");
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BOUNDS));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_after_a_turn_that_left_work_is_busy() {
        let mut clock = TurnClock::new();
        for (is_busy, busy_ns) in [(false, 3_000), (true, 13_000), (false, 16_000), (true, 26_000)] {
            clock.begin();
            tokio::time::advance(Duration::from_micros(3)).await;
            clock.end(is_busy);
            tokio::time::advance(Duration::from_micros(7)).await;
            clock.begin();
            clock.end(false);
            assert_eq!(clock.busy_ns(), busy_ns);
        }
        assert_eq!(clock.times().turns().sum_ns(), 12_000);
    }

    #[tokio::test(start_paused = true)]
    async fn every_turn_is_timed_and_one_in_so_many_stage_by_stage() {
        let mut clock = TurnClock::new();
        for _ in 0..2 * SAMPLED_TURNS {
            clock.begin();
            clock.begin_stage();
            tokio::time::advance(Duration::from_micros(3)).await;
            clock.end_stage(Stage::Read);
            tokio::time::advance(Duration::from_micros(5)).await;
            clock.end_stage(Stage::Encrypt);
            clock.end(false);
        }
        let counted = |histogram: &Histogram| (histogram.counts().iter().sum::<u64>(), histogram.sum_ns());
        let turns = u64::from(2 * SAMPLED_TURNS);
        assert_eq!(counted(clock.times().turns()), (turns, turns * 8_000));
        assert_eq!(counted(clock.times().stage(Stage::Read)), (2, 6_000));
        assert_eq!(counted(clock.times().stage(Stage::Encrypt)), (2, 10_000));
        assert_eq!(counted(clock.times().stage(Stage::Send)), (0, 0));
        clock.begin();
        tokio::time::advance(Duration::from_secs(2)).await;
        clock.begin();
        clock.end_stage(Stage::Send);
        assert_eq!(counted(clock.times().stage(Stage::Send)), (1, 0));
    }
}
