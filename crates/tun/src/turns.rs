//! Whose turn it is among several queues, so that each that has something hands over as many bytes as the others, or as many
//! for each of those who share it.
//!
//! As in deficit round robin (Shreedhar and Varghese, 1996), but a queue gives what a read of it brings: who brought more
//! than others is passed over until they have caught up.

/// Bytes that a queue may be ahead by while others have something too: about a GSO batch.
const AHEAD: u64 = 32 * 1024;

#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    /// Bytes that it handed over; of one that was empty, as many as of one that was not.
    bytes: u64,
    /// Whether it had something when it was asked last.
    is_busy: bool,
    /// Whether it was asked in this round.
    was_asked: bool,
}

/// The turns of some queues, numbered from 0.
///
/// ```
/// let mut turns = weft_tun::Turns::new(2);
/// turns.begin();
/// while let Some(queue) = turns.next() {
///     match queue {
///         0 => turns.had(queue, 1500),
///         _ => turns.was_empty(queue),
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Turns {
    queues: Vec<Queue>,
    /// The queue that is asked next.
    next: usize,
    /// Of the round that is under way.
    round: Round,
}

#[derive(Debug, Default)]
struct Round {
    pass: Pass,
    /// Queues that were looked at in this pass.
    seen: usize,
    /// Bytes of a queue that is not behind the others.
    least: u64,
    /// Whether a queue was passed over because it is ahead, and whether another one had something.
    passed_over: bool,
    had_any: bool,
}

/// Which queues are asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pass {
    /// Those that had nothing the last time: what they have now is little, and need not wait for the others.
    #[default]
    Empty,
    /// Those that had something, but for those that are ahead.
    Busy,
    /// Nobody else had anything: those that are ahead.
    Ahead,
}

impl Turns {
    /// Those of `count` queues.
    pub fn new(count: usize) -> Self {
        Self { queues: vec![Queue::default(); count], next: 0, round: Round::default() }
    }

    /// Adds queues that have had nothing yet, until there are at least `count`.
    pub fn extend_to(&mut self, count: usize) {
        self.queues.resize(count.max(self.queues.len()), Queue::default());
    }

    /// How many queues had something when they were asked last, at least 1.
    pub fn busy(&self) -> usize {
        self.queues.iter().filter(|queue| queue.is_busy).count().max(1)
    }

    /// Whether a queue had something when it was asked last.
    pub fn is_busy(&self, number: usize) -> bool {
        self.queues.get(number).is_some_and(|queue| queue.is_busy)
    }

    /// Begins a round, in which each queue is asked once at most.
    pub fn begin(&mut self) {
        let busy = self.queues.iter().filter(|queue| queue.is_busy);
        let least = busy.map(|queue| queue.bytes).min().unwrap_or_default();
        self.queues.iter_mut().for_each(|queue| queue.was_asked = false);
        self.round = Round { least, ..Round::default() };
    }

    /// The queue to ask now: say of each what it had.
    #[expect(clippy::should_implement_trait, reason = "what is said between two turns matters")]
    pub fn next(&mut self) -> Option<usize> {
        let Self { queues, next, round } = self;
        loop {
            if round.seen == queues.len() {
                round.pass = match round.pass {
                    Pass::Empty => Pass::Busy,
                    Pass::Busy if round.passed_over && !round.had_any => Pass::Ahead,
                    Pass::Busy | Pass::Ahead => return None,
                };
                round.seen = 0;
            }
            let number = *next;
            *next = if number + 1 < queues.len() { number + 1 } else { 0 };
            round.seen += 1;
            let queue = &mut queues[number];
            if queue.was_asked || (queue.is_busy && round.pass == Pass::Empty) {
                continue;
            }
            if !queue.is_busy {
                queue.bytes = queue.bytes.max(round.least);
            } else if queue.bytes > round.least + AHEAD && round.pass == Pass::Busy {
                round.passed_over = true;
                continue;
            }
            queue.was_asked = true;
            return Some(number);
        }
    }

    /// A queue handed over so many bytes, for each of those who share it.
    pub fn had(&mut self, number: usize, bytes: usize) {
        self.queues[number].is_busy = true;
        self.queues[number].bytes += bytes as u64;
        self.round.had_any = true;
    }

    /// Whether a queue had something in this round.
    pub fn had_any(&self) -> bool {
        self.round.had_any
    }

    /// A queue had nothing.
    pub fn was_empty(&mut self, number: usize) {
        self.queues[number].is_busy = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets queues that never run dry bring so many bytes a read, for so many rounds, of at most `reads` each.
    fn run(turns: &mut Turns, brings: &[usize], rounds: usize, reads: usize) -> Vec<usize> {
        let mut bytes = vec![0; brings.len()];
        for _ in 0..rounds {
            turns.begin();
            for _ in 0..reads {
                let Some(number) = turns.next() else { break };
                if brings[number] == 0 {
                    turns.was_empty(number);
                } else {
                    bytes[number] += brings[number];
                    turns.had(number, brings[number]);
                }
            }
        }
        bytes
    }

    #[test]
    fn each_gets_as_many_bytes_whatever_a_read_brings() {
        for reads in [1, 2, 3] {
            let bytes = run(&mut Turns::new(3), &[192 * 1024, 1500, 45_000], 50_000, reads);
            let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
            // A read too many, and the one before the others were known to have anything.
            assert!(most - least <= 2 * 192 * 1024 + AHEAD as usize, "{reads}: {bytes:?}");
        }
    }

    #[test]
    fn who_had_nothing_is_asked_before_who_had_something() {
        let mut turns = Turns::new(4);
        run(&mut turns, &[0, 60_000, 0, 0], 3, usize::MAX);
        turns.begin();
        let mut asked = Vec::new();
        while let Some(number) = turns.next() {
            asked.push(number);
            turns.was_empty(number);
        }
        assert_eq!(asked.last(), Some(&1));
        asked.sort_unstable();
        assert_eq!(asked, [0, 1, 2, 3]);
    }

    #[test]
    fn one_alone_is_asked_in_every_round() {
        let mut turns = Turns::new(4);
        assert_eq!(run(&mut turns, &[0, 60_000, 0, 0], 100, usize::MAX), [0, 6_000_000, 0, 0]);
    }

    #[test]
    fn one_that_was_empty_has_not_saved_its_turns() {
        let mut turns = Turns::new(2);
        run(&mut turns, &[60_000, 0], 100, usize::MAX);
        let bytes = run(&mut turns, &[60_000, 60_000], 100, usize::MAX);
        assert!(bytes[0].abs_diff(bytes[1]) <= 120_000, "{bytes:?}");
    }

    #[test]
    fn who_is_ahead_has_a_turn_when_nobody_else_has_anything() {
        let mut turns = Turns::new(2);
        run(&mut turns, &[200_000, 100], 1, usize::MAX);
        assert_eq!(run(&mut turns, &[200_000, 0], 1, usize::MAX), [200_000, 0]);
    }
}
