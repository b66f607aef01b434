//! Finds the source that fills a queue.

/// Finds the source that sent most of the bytes since the queue was last empty (majority vote of Boyer and
/// Moore, 1981, weighted by bytes).
///
/// ```
/// let mut vote = weft_sched::MajorityVote::default();
/// while vote.bytes() < 1_000_000 {
///     vote.observe("one", 60_000);
///     vote.observe("two", 1500);
/// }
/// assert_eq!(vote.take(), Some("one"));
/// ```
#[derive(Clone, Debug)]
pub struct MajorityVote<T> {
    candidate: Option<T>,
    /// Bytes of the candidate that bytes of other sources have not cancelled out.
    ahead: u64,
    bytes: u64,
}

impl<T> Default for MajorityVote<T> {
    fn default() -> Self {
        Self { candidate: None, ahead: 0, bytes: 0 }
    }
}

impl<T: PartialEq> MajorityVote<T> {
    /// Counts `bytes` that `source` sent.
    #[inline]
    pub fn observe(&mut self, source: T, bytes: usize) {
        let bytes = bytes as u64;
        self.bytes += bytes;
        if self.candidate.as_ref() == Some(&source) {
            self.ahead += bytes;
        } else if self.ahead > bytes {
            self.ahead -= bytes;
        } else {
            (self.candidate, self.ahead) = (Some(source), bytes - self.ahead);
        }
    }

    /// Starts over, because the queue is empty.
    pub fn mark_empty(&mut self) {
        *self = Self::default();
    }

    /// Returns the bytes observed since the queue was last empty, or since [`Self::take`].
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns a source that sent at least half of the bytes, and starts over. A source with three quarters
    /// of the bytes is always found; `None` if no source is found.
    pub fn take(&mut self) -> Option<T> {
        let Self { candidate, ahead, bytes } = std::mem::take(self);
        candidate.filter(|_| ahead >= bytes / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the state after `rounds` rounds of these sources and bytes.
    fn after(rounds: u64, each: &[(u16, usize)]) -> MajorityVote<u16> {
        let mut vote = MajorityVote::default();
        for _ in 0..rounds {
            for &(source, bytes) in each {
                vote.observe(source, bytes);
            }
        }
        vote
    }

    #[test]
    fn bytes_count_and_not_packets() {
        let each = [(1, 100), (2, 60_000), (3, 100), (3, 1400)];
        let mut vote = after(40, &each);
        assert_eq!(vote.bytes(), 40 * 61_600);
        assert_eq!(vote.take(), Some(2));
        assert_eq!(vote.bytes(), 0, "it starts over");
    }

    #[test]
    fn equal_sources_have_no_majority() {
        for count in [2, 20] {
            let each: Vec<_> = (0..count).map(|source| (source, 1400)).collect();
            assert_eq!(after(10_000, &each).take(), None);
        }
    }

    #[test]
    fn a_source_with_less_than_half_is_not_found_whatever_comes_first() {
        let take = |each: &[(u16, usize)]| after(1, each).take();
        let overtaken = [[(1, 1000)].as_slice(), &[(2, 400); 10]].concat();
        assert_eq!(take(&overtaken), Some(2));
        assert_eq!(take(&[(1, 900), (2, 1000), (3, 300)]), None);
    }

    #[test]
    fn bytes_from_before_the_queue_was_empty_do_not_count() {
        let mut vote = after(34, &[(1, 60_000)]);
        vote.mark_empty();
        vote.observe(2, 100);
        assert_eq!((vote.bytes(), vote.take()), (100, Some(2)));
    }
}
