//! Checks the sequence numbers of one flow.

const WORDS: usize = 16;
const WINDOW: u64 = 64 * WORDS as u64;

/// Checks the sequence numbers of one flow, which start at 0, for loss, order and duplicates.
#[derive(Clone, Debug, Default)]
pub struct FlowCheck {
    /// The highest sequence number received, plus one.
    next: u64,
    received: u64,
    out_of_order: u64,
    duplicates: u64,
    /// Which of the last [`WINDOW`] numbers below `next` have arrived; number n is bit n % WINDOW.
    seen: [u64; WORDS],
}

impl FlowCheck {
    /// Records a datagram. If its number is more than the window below the highest one, it counts as new and
    /// out of order.
    pub fn see(&mut self, sequence: u64) {
        if sequence >= self.next {
            for skipped in self.next..sequence.min(self.next + WINDOW) {
                self.mark(skipped, false);
            }
            // A jump beyond the window leaves no old bit valid.
            if sequence - self.next >= WINDOW {
                self.seen = [0; WORDS];
            }
            self.next = sequence + 1;
        } else if self.next - sequence > WINDOW {
            self.out_of_order += 1;
            self.received += 1;
            return;
        } else if self.has(sequence) {
            self.duplicates += 1;
            return;
        } else {
            self.out_of_order += 1;
        }
        self.mark(sequence, true);
        self.received += 1;
    }

    /// Returns the number of distinct datagrams received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns the number of datagrams that arrived behind a later one.
    pub fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    /// Returns the number of duplicates.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Returns how many numbers below the highest one have not arrived.
    pub fn gaps(&self) -> u64 {
        self.next.saturating_sub(self.received)
    }

    fn place(sequence: u64) -> (usize, u64) {
        let bit = sequence % WINDOW;
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    fn has(&self, sequence: u64) -> bool {
        let (word, bit) = Self::place(sequence);
        self.seen[word] & bit != 0
    }

    fn mark(&mut self, sequence: u64, arrived: bool) {
        let (word, bit) = Self::place(sequence);
        if arrived {
            self.seen[word] |= bit;
        } else {
            self.seen[word] &= !bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn check(sequences: &[u64]) -> FlowCheck {
        let mut check = FlowCheck::default();
        sequences.iter().for_each(|sequence| check.see(*sequence));
        check
    }

    #[test]
    fn numbers_in_order_are_clean() {
        let clean = check(&(0..5000).collect::<Vec<_>>());
        assert_eq!(
            (clean.received(), clean.out_of_order(), clean.duplicates(), clean.gaps()),
            (5000, 0, 0, 0)
        );
    }

    #[test]
    fn a_swap_is_out_of_order_and_no_loss() {
        let swapped = check(&[0, 2, 1, 3]);
        assert_eq!((swapped.received(), swapped.out_of_order(), swapped.gaps()), (4, 1, 0));
    }

    #[test]
    fn losses_and_repetitions_are_told_apart() {
        let flow = check(&[0, 1, 1, 4, 0, 3, 4, 5000, 5000]);
        assert_eq!((flow.received(), flow.duplicates(), flow.out_of_order()), (5, 4, 1));
        assert_eq!(flow.gaps(), 5001 - 5);
    }

    proptest! {
        #[test]
        fn within_the_window_it_agrees_with_a_set(sequences in prop::collection::vec(0u64..WINDOW, 0..300)) {
            let flow = check(&sequences);
            let distinct: HashSet<_> = sequences.iter().collect();
            prop_assert_eq!(flow.received(), distinct.len() as u64);
            prop_assert_eq!(flow.duplicates(), (sequences.len() - distinct.len()) as u64);
        }
    }
}
