//! The last values of a repeated measurement.

use std::collections::VecDeque;

const GLYPHS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A bounded number of the newest values.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    values: VecDeque<u64>,
}

impl History {
    /// More than a terminal is wide.
    const CAPACITY: usize = 256;

    pub(super) fn push(&mut self, value: u64) {
        if self.values.len() >= Self::CAPACITY {
            self.values.pop_front();
        }
        self.values.push_back(value);
    }

    /// Returns the newest value; 0 if there is none.
    pub(super) fn last(&self) -> u64 {
        self.values.back().copied().unwrap_or_default()
    }

    /// Returns the maximum of the newest `count` values; 0 if there are none.
    pub(super) fn peak(&self, count: usize) -> u64 {
        self.newest(count).max().unwrap_or_default()
    }

    /// Returns the newest `count` values, oldest first, padded with zeros at the front.
    pub(super) fn padded(&self, count: usize) -> Vec<u64> {
        let missing = count.saturating_sub(self.values.len());
        std::iter::repeat_n(0, missing).chain(self.newest(count)).collect()
    }

    /// Draws the newest values as `width` characters, scaled to `peak`; 0 is a space.
    pub(super) fn line(&self, width: usize, peak: u64) -> String {
        let glyph = |value: u64| match value {
            0 => ' ',
            value => {
                let height = u128::from(value) * GLYPHS.len() as u128 / u128::from(peak.max(1));
                GLYPHS[(height as usize).clamp(1, GLYPHS.len()) - 1]
            }
        };
        self.padded(width).into_iter().map(glyph).collect()
    }

    fn newest(&self, count: usize) -> impl Iterator<Item = u64> {
        self.values.iter().skip(self.values.len().saturating_sub(count)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(values: impl IntoIterator<Item = u64>) -> History {
        let mut history = History::default();
        values.into_iter().for_each(|value| history.push(value));
        history
    }

    #[test]
    fn the_newest_stand_on_the_right() {
        let history = history([1, 0, 8]);
        assert_eq!(history.padded(5), [0, 0, 1, 0, 8]);
        assert_eq!(history.padded(2), [0, 8]);
        assert_eq!(history.line(5, 8), "  ▁ █");
        assert_eq!((history.last(), history.peak(5), history.peak(0)), (8, 8, 0));
    }

    #[test]
    fn it_does_not_grow_for_ever_and_takes_any_value() {
        let history = history((0..10_000).map(|value| value << 40));
        assert_eq!(history.values.len(), History::CAPACITY);
        assert_eq!(history.line(3, u64::MAX).chars().count(), 3);
        assert_eq!(history.line(3, 0), "███");
    }
}
