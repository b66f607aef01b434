//! The last values of something that is measured again and again.

use std::collections::VecDeque;

const GLYPHS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The newest values, bounded in number.
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

    /// The newest one.
    pub(super) fn last(&self) -> u64 {
        self.values.back().copied().unwrap_or_default()
    }

    /// The largest of the newest `count`.
    pub(super) fn peak(&self, count: usize) -> u64 {
        self.newest(count).max().unwrap_or_default()
    }

    /// The newest `count`, oldest first, with zeros before them where there are fewer.
    pub(super) fn padded(&self, count: usize) -> Vec<u64> {
        let missing = count.saturating_sub(self.values.len());
        std::iter::repeat_n(0, missing).chain(self.newest(count)).collect()
    }

    /// A line of `width` characters, as high as the values are in `peak`; nothing is a space.
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
