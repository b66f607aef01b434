//! Who fills a queue.

/// Whose is most of what a queue held since it was empty last (Boyer and Moore's majority vote, by bytes).
///
/// ```
/// let mut heaviest = weft_tun::Heaviest::default();
/// while heaviest.bytes() < 1_000_000 {
///     heaviest.saw("one", 60_000);
///     heaviest.saw("two", 1500);
/// }
/// assert_eq!(heaviest.take(), Some("one"));
/// ```
#[derive(Clone, Debug)]
pub struct Heaviest<T> {
    candidate: Option<T>,
    /// Bytes of the candidate beyond those of all others.
    ahead: u64,
    bytes: u64,
}

impl<T> Default for Heaviest<T> {
    fn default() -> Self {
        Self { candidate: None, ahead: 0, bytes: 0 }
    }
}

impl<T: PartialEq> Heaviest<T> {
    /// So many bytes of `whose` came out.
    #[inline]
    pub fn saw(&mut self, whose: T, bytes: usize) {
        let bytes = bytes as u64;
        self.bytes += bytes;
        if self.candidate.as_ref() == Some(&whose) {
            self.ahead += bytes;
        } else if self.ahead > bytes {
            self.ahead -= bytes;
        } else {
            (self.candidate, self.ahead) = (Some(whose), bytes - self.ahead);
        }
    }

    /// The queue was empty.
    pub fn was_empty(&mut self) {
        *self = Self::default();
    }

    /// Bytes that came out since the queue was empty, or since the last answer.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whose at least half of it were, if there is one, and counts anew: whoever had three quarters is it for sure.
    pub fn take(&mut self) -> Option<T> {
        let Self { candidate, ahead, bytes } = std::mem::take(self);
        candidate.filter(|_| ahead >= bytes / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After so many rounds of these, each with so many bytes.
    fn after(rounds: u64, each: &[(u16, usize)]) -> Heaviest<u16> {
        let mut heaviest = Heaviest::default();
        for _ in 0..rounds {
            for &(whose, bytes) in each {
                heaviest.saw(whose, bytes);
            }
        }
        heaviest
    }

    #[test]
    fn it_is_whose_bytes_are_the_most_not_whose_packets() {
        let each = [(1, 100), (2, 60_000), (3, 100), (3, 1400)];
        let mut heaviest = after(40, &each);
        assert_eq!(heaviest.bytes(), 40 * 61_600);
        assert_eq!(heaviest.take(), Some(2));
        assert_eq!(heaviest.bytes(), 0, "it counts anew");
    }

    #[test]
    fn among_equals_there_is_none() {
        for count in [2, 20] {
            let each: Vec<_> = (0..count).map(|whose| (whose, 1400)).collect();
            assert_eq!(after(10_000, &each).take(), None);
        }
    }

    #[test]
    fn what_came_before_the_queue_was_empty_does_not_count() {
        let mut heaviest = after(34, &[(1, 60_000)]);
        heaviest.was_empty();
        heaviest.saw(2, 100);
        assert_eq!((heaviest.bytes(), heaviest.take()), (100, Some(2)));
    }
}
