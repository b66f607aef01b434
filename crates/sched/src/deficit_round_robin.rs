//! Deficit round robin (Shreedhar and Varghese, 1996) over queues that are read: every busy queue delivers
//! the same number of bytes, or the same number for each flow that shares it.
//!
//! A read may deliver more than a quantum. A queue that is ahead of the others is therefore skipped until
//! they have caught up.

/// Bytes that a queue may be ahead of the busy queue that delivered the fewest: about a GSO batch.
const AHEAD: u64 = 32 * 1024;

#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    /// Bytes delivered. A queue that was empty starts at least at the level of the busy queue that delivered
    /// the fewest.
    bytes: u64,
    /// Whether the last read delivered something.
    is_busy: bool,
    /// Whether it was read in this round.
    is_read: bool,
}

/// Chooses the next queue to read. Queues are numbered from 0.
///
/// ```
/// let mut scheduler = weft_sched::DeficitRoundRobin::new(2);
/// scheduler.begin_round();
/// while let Some(queue) = scheduler.next() {
///     match queue {
///         0 => scheduler.record(queue, 1500),
///         _ => scheduler.mark_empty(queue),
///     }
/// }
/// ```
#[derive(Debug)]
pub struct DeficitRoundRobin {
    queues: Vec<Queue>,
    /// The queue to consider next.
    next: usize,
    round: Round,
}

#[derive(Debug, Default)]
struct Round {
    pass: Pass,
    /// Queues that were considered in this pass.
    considered: usize,
    /// The fewest bytes that a busy queue has delivered, at the start of the round.
    least: u64,
    /// Whether a queue was skipped because it is ahead.
    has_skipped: bool,
    /// Whether a queue delivered something.
    has_delivered: bool,
}

/// Which queues a pass reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pass {
    /// Queues that were empty at their last read: they hold little now, which does not wait for the busy
    /// queues.
    #[default]
    Empty,
    /// Busy queues that are not ahead.
    Busy,
    /// Busy queues that are ahead. This pass runs only if no other queue delivered anything.
    Ahead,
}

impl DeficitRoundRobin {
    /// Returns a scheduler for `count` queues.
    pub fn new(count: usize) -> Self {
        Self { queues: vec![Queue::default(); count], next: 0, round: Round::default() }
    }

    /// Begins a round, which reads each queue at most once.
    pub fn begin_round(&mut self) {
        let busy = self.queues.iter().filter(|queue| queue.is_busy);
        let least = busy.map(|queue| queue.bytes).min().unwrap_or_default();
        self.queues.iter_mut().for_each(|queue| queue.is_read = false);
        self.round = Round { least, ..Round::default() };
    }

    /// Returns the queue to read now; `None` ends the round. Report the result with [`Self::record`] or
    /// [`Self::mark_empty`].
    #[expect(clippy::should_implement_trait, reason = "what is reported between two calls matters")]
    pub fn next(&mut self) -> Option<usize> {
        let Self { queues, next, round } = self;
        loop {
            if round.considered == queues.len() {
                round.pass = match round.pass {
                    Pass::Empty => Pass::Busy,
                    Pass::Busy if round.has_skipped && !round.has_delivered => Pass::Ahead,
                    Pass::Busy | Pass::Ahead => return None,
                };
                round.considered = 0;
            }
            let number = *next;
            *next = if number + 1 < queues.len() { number + 1 } else { 0 };
            round.considered += 1;
            let queue = &mut queues[number];
            if queue.is_read || (queue.is_busy && round.pass == Pass::Empty) {
                continue;
            }
            if !queue.is_busy {
                queue.bytes = queue.bytes.max(round.least);
            } else if queue.bytes > round.least + AHEAD && round.pass == Pass::Busy {
                round.has_skipped = true;
                continue;
            }
            queue.is_read = true;
            return Some(number);
        }
    }

    /// Records that a read delivered `bytes` bytes for each of the flows that share the queue.
    pub fn record(&mut self, number: usize, bytes: usize) {
        self.queues[number].is_busy = true;
        self.queues[number].bytes += bytes as u64;
        self.round.has_delivered = true;
    }

    /// Reports whether any queue delivered something in this round.
    pub fn has_delivered(&self) -> bool {
        self.round.has_delivered
    }

    /// Records that a read found the queue empty.
    pub fn mark_empty(&mut self, number: usize) {
        self.queues[number].is_busy = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs rounds of at most `reads` reads over queues that never run dry and deliver `brings` bytes a read.
    fn run(scheduler: &mut DeficitRoundRobin, brings: &[usize], rounds: usize, reads: usize) -> Vec<usize> {
        let mut bytes = vec![0; brings.len()];
        for _ in 0..rounds {
            scheduler.begin_round();
            for _ in 0..reads {
                let Some(number) = scheduler.next() else { break };
                if brings[number] == 0 {
                    scheduler.mark_empty(number);
                } else {
                    bytes[number] += brings[number];
                    scheduler.record(number, brings[number]);
                }
            }
        }
        bytes
    }

    #[test]
    fn busy_queues_deliver_the_same_number_of_bytes_whatever_a_read_brings() {
        for reads in [1, 2, 3] {
            let bytes = run(&mut DeficitRoundRobin::new(3), &[192 * 1024, 1500, 45_000], 50_000, reads);
            let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
            // One read too many, and one read before the other queues were known to be busy.
            assert!(most - least <= 2 * 192 * 1024 + AHEAD as usize, "{reads}: {bytes:?}");
        }
    }

    #[test]
    fn empty_queues_are_read_before_busy_ones() {
        let mut scheduler = DeficitRoundRobin::new(4);
        run(&mut scheduler, &[0, 60_000, 0, 0], 3, usize::MAX);
        scheduler.begin_round();
        let mut read = Vec::new();
        while let Some(number) = scheduler.next() {
            read.push(number);
            scheduler.mark_empty(number);
        }
        assert_eq!(read.last(), Some(&1));
        read.sort_unstable();
        assert_eq!(read, [0, 1, 2, 3]);
    }

    #[test]
    fn a_single_busy_queue_is_read_in_every_round() {
        let mut scheduler = DeficitRoundRobin::new(4);
        assert_eq!(run(&mut scheduler, &[0, 60_000, 0, 0], 100, usize::MAX), [0, 6_000_000, 0, 0]);
    }

    #[test]
    fn an_empty_queue_saves_up_nothing() {
        let mut scheduler = DeficitRoundRobin::new(2);
        run(&mut scheduler, &[60_000, 0], 100, usize::MAX);
        let bytes = run(&mut scheduler, &[60_000, 60_000], 100, usize::MAX);
        assert!(bytes[0].abs_diff(bytes[1]) <= 120_000, "{bytes:?}");
    }

    #[test]
    fn a_queue_that_is_ahead_is_read_when_no_other_is_busy() {
        let mut scheduler = DeficitRoundRobin::new(2);
        run(&mut scheduler, &[200_000, 100], 1, usize::MAX);
        assert_eq!(run(&mut scheduler, &[200_000, 0], 1, usize::MAX), [200_000, 0]);
    }

    #[test]
    fn a_queue_that_ran_dry_saves_up_nothing_either() {
        let mut scheduler = DeficitRoundRobin::new(2);
        run(&mut scheduler, &[60_000, 100], 1, usize::MAX);
        run(&mut scheduler, &[60_000, 0], 100, usize::MAX);
        assert!(scheduler.has_delivered());
        scheduler.begin_round();
        assert!(!scheduler.has_delivered());
        let bytes = run(&mut scheduler, &[60_000, 60_000], 100, usize::MAX);
        assert!(bytes[0].abs_diff(bytes[1]) <= 120_000, "{bytes:?}");
    }
}
