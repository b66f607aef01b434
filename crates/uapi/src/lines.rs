//! Splits a stream into lines, in one buffer of fixed size. The buffer is wiped, because lines may contain
//! keys.

use std::ops::Range;

use zeroize::Zeroizing;

/// The maximum bytes of a line, as in wireguard-go. The longest valid line has about a hundred bytes.
pub(super) const MAX_LINE: usize = 64 * 1024;

/// The next item in a [`LineBuffer`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// A line, without its line break.
    Whole(&'a [u8]),
    /// A line of more than [`MAX_LINE`] bytes, which is discarded.
    TooLong,
    /// No complete line was received yet.
    Unfinished,
}

/// Collects received bytes, and returns them line by line.
pub(super) struct LineBuffer {
    bytes: Zeroizing<Box<[u8]>>,
    /// The bytes that were received and not returned yet.
    filled: Range<usize>,
    /// The number of bytes at the start of `filled` that are known to contain no line break.
    searched: usize,
    /// Whether the rest of a line that is too long is being discarded.
    skips: bool,
}

impl LineBuffer {
    pub(super) fn new() -> Self {
        let bytes = Zeroizing::new(vec![0; MAX_LINE + 1].into_boxed_slice());
        Self { bytes, filled: 0..0, searched: 0, skips: false }
    }

    /// Reports whether everything that was received was returned.
    pub(super) fn is_empty(&self) -> bool {
        self.filled.is_empty() && !self.skips
    }

    /// Returns the room to read into. It is never empty after [`Self::next_line`] returned
    /// [`Line::Unfinished`].
    pub(super) fn spare_mut(&mut self) -> &mut [u8] {
        if self.filled.start > 0 {
            self.bytes.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        &mut self.bytes[self.filled.end..]
    }

    /// Records that `read` bytes were read into [`Self::spare_mut`].
    pub(super) fn commit(&mut self, read: usize) {
        self.filled.end = self.filled.end.saturating_add(read).min(self.bytes.len());
    }

    pub(super) fn next_line(&mut self) -> Line<'_> {
        loop {
            let (start, end) = (self.filled.start, self.filled.end);
            let unseen = &self.bytes[start + self.searched..end];
            let Some(at) = unseen.iter().position(|&byte| byte == b'\n') else {
                self.searched = end - start;
                if self.searched <= MAX_LINE {
                    return Line::Unfinished;
                }
                self.drop_to(end);
                if !std::mem::replace(&mut self.skips, true) {
                    return Line::TooLong;
                }
                continue;
            };
            let line = start..start + self.searched + at;
            self.drop_to(line.end + 1);
            if !std::mem::take(&mut self.skips) {
                return Line::Whole(&self.bytes[line]);
            }
        }
    }

    fn drop_to(&mut self, start: usize) {
        self.filled.start = start;
        self.searched = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(buffer: &mut LineBuffer, mut bytes: &[u8]) -> Vec<Option<Vec<u8>>> {
        let mut lines = Vec::new();
        loop {
            match buffer.next_line() {
                Line::Whole(line) => lines.push(Some(line.to_vec())),
                Line::TooLong => lines.push(None),
                Line::Unfinished if bytes.is_empty() => return lines,
                Line::Unfinished => {
                    let spare = buffer.spare_mut();
                    let room = spare.len().min(bytes.len());
                    assert!(room > 0, "no room, and no line");
                    spare[..room].copy_from_slice(&bytes[..room]);
                    buffer.commit(room);
                    bytes = &bytes[room..];
                }
            }
        }
    }

    #[test]
    fn lines_come_whole_however_they_were_cut() {
        let mut buffer = LineBuffer::new();
        assert!(read(&mut buffer, b"a").is_empty());
        assert!(!buffer.is_empty());
        assert_eq!(read(&mut buffer, b"b\n\nc"), [Some(b"ab".to_vec()), Some(Vec::new())]);
        assert_eq!(read(&mut buffer, b"\n"), [Some(b"c".to_vec())]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_line_that_is_too_long_is_said_once_and_left_out() {
        let mut buffer = LineBuffer::new();
        let longest = vec![b'x'; MAX_LINE];
        let mut text = longest.clone();
        text.push(b'\n');
        assert_eq!(read(&mut buffer, &text), [Some(longest)]);
        for length in [MAX_LINE + 1, MAX_LINE + 2, 3 * MAX_LINE + 7] {
            let mut text = vec![b'x'; length];
            text.extend(b"\nnext\n");
            assert_eq!(read(&mut buffer, &text), [None, Some(b"next".to_vec())], "{length}");
        }
    }
}
