//! What has arrived and was not taken: bytes lie where they belong in the stream, also behind gaps.

use std::collections::VecDeque;
use std::ops::Range;

use super::send_queue::LITTLE;
use super::sequence::FIRST;
use crate::chunk::{Chunk, LARGE, Pool};

/// Ranges behind gaps that are kept. A segment that would make one more is dropped.
const MAX_RANGES: usize = 1024;
/// Ranges that are remembered for SACK options, the latest first.
const RECENT: usize = 32;

#[derive(Debug)]
struct Buffer {
    /// Offset of the first byte.
    first: u64,
    /// Bytes of the stream that belong into it.
    limit: usize,
    bytes: Box<[u8]>,
}

impl Buffer {
    fn end(&self) -> u64 {
        self.first + self.limit as u64
    }
}

/// What became of a segment's payload.
#[derive(Debug, Default)]
pub(crate) struct Inserted {
    /// Bytes that are new in order, also those behind a gap that was closed.
    pub(crate) in_order: u64,
    /// Bytes that are new behind a gap.
    pub(crate) behind_gap: u64,
    /// What had arrived before: for D-SACK (RFC 2883).
    pub(crate) duplicate: Option<Range<u64>>,
    /// Whether it should be acknowledged at once (RFC 5681, section 4.2): there is or was a gap.
    pub(crate) at_once: bool,
}

/// The receive side of a stream.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    buffers: VecDeque<Buffer>,
    /// Everything before it was taken.
    read: u64,
    /// Everything before it has arrived.
    next: u64,
    /// What has arrived behind gaps: sorted, disjoint, not adjacent, all behind `next`.
    ranges: Vec<Range<u64>>,
    /// An offset in each of the ranges that changed last, the latest first.
    recent: VecDeque<u64>,
    /// How many of `recent` no acknowledgement has reported.
    unreported: usize,
    /// Whether the next buffer is a large one.
    is_bulk: bool,
    /// Bytes of `buffers`.
    held: u64,
    /// Bytes of the buffer that was taken last, which the application has.
    lent: u64,
}

impl ReceiveQueue {
    pub(crate) fn new() -> Self {
        Self {
            buffers: VecDeque::new(),
            read: FIRST,
            next: FIRST,
            ranges: Vec::new(),
            recent: VecDeque::new(),
            unreported: 0,
            is_bulk: false,
            held: 0,
            lent: 0,
        }
    }

    /// Returns the offset before which everything was taken.
    pub(crate) fn read(&self) -> u64 {
        self.read
    }

    /// Returns the offset before which everything has arrived.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the bytes that can be taken.
    pub(crate) fn ready(&self) -> u64 {
        self.next - self.read
    }

    pub(crate) fn has_gap(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Returns the bytes of memory that it takes.
    pub(crate) fn held(&self) -> u64 {
        self.held + self.lent + (self.ranges.capacity() * size_of::<Range<u64>>()) as u64
    }

    /// Forgets what has arrived behind a gap: nothing comes into it any more.
    pub(crate) fn end(&mut self, pool: &mut Pool) {
        while let Some(buffer) = self.buffers.pop_back_if(|buffer| buffer.first >= self.next) {
            self.held -= buffer.bytes.len() as u64;
            pool.put(buffer.bytes);
        }
        self.forget_ranges();
    }

    fn forget_ranges(&mut self) {
        self.ranges = Vec::new();
        self.recent = VecDeque::new();
        self.unreported = 0;
    }

    /// Takes the part of `payload`, which begins at `start`, that is before `edge` and has not arrived. Of
    /// bytes that come twice the first count.
    pub(crate) fn insert(&mut self, start: u64, payload: &[u8], edge: u64, pool: &mut Pool) -> Inserted {
        let mut result = Inserted::default();
        let end = start + payload.len() as u64;
        if start < self.next && end > start {
            result.duplicate = Some(start..end.min(self.next));
            result.at_once = true;
        }
        let (from, to) = (start.max(self.next), end.min(edge));
        if from >= to {
            return result;
        }
        let bytes = |range: Range<u64>| {
            let range = (range.start - start) as usize..(range.end - start) as usize;
            payload.get(range).unwrap_or_default()
        };
        if self.ranges.is_empty() && from == self.next {
            self.write(from, bytes(from..to), edge, pool);
            self.next = to;
            result.in_order = to - from;
            return result;
        }
        result.at_once = true;
        // Those from `first` to before `last` touch or overlap the segment.
        let first = self.ranges.partition_point(|range| range.end < from);
        let last = self.ranges.partition_point(|range| range.start <= to);
        if first == last && from != self.next && self.ranges.len() >= MAX_RANGES {
            return result;
        }
        let (mut at, mut merged, mut new) = (from, from..to, 0);
        for index in first..last {
            let range = self.ranges[index].clone();
            if at < range.start {
                self.write(at, bytes(at..range.start), edge, pool);
                new += range.start - at;
            }
            let common = range.start.max(from)..range.end.min(to);
            if !common.is_empty() && result.duplicate.is_none() {
                result.duplicate = Some(common);
            }
            at = at.max(range.end);
            merged = merged.start.min(range.start)..merged.end.max(range.end);
        }
        if at < to {
            self.write(at, bytes(at..to), edge, pool);
            new += to - at;
        }
        if merged.start == self.next {
            result.in_order = merged.end - self.next;
            self.next = merged.end;
            self.ranges.drain(first..last);
            if self.ranges.is_empty() {
                self.forget_ranges();
            }
        } else {
            result.behind_gap = new;
            let position = merged.start;
            if first < last {
                self.ranges[first] = merged;
                self.ranges.drain(first + 1..last);
            } else {
                self.ranges.insert(first, merged);
            }
            self.note(position);
        }
        result
    }

    /// Remembers that the range at `position` changed.
    fn note(&mut self, position: u64) {
        let Some(range) = self.range_at(position) else { return };
        if let Some(at) = self.recent.iter().position(|known| range.contains(known)) {
            self.recent.remove(at);
            self.unreported -= usize::from(at < self.unreported);
        }
        self.recent.truncate(RECENT - 1);
        self.recent.push_front(position);
        self.unreported = (self.unreported + 1).min(self.recent.len());
    }

    fn range_at(&self, position: u64) -> Option<Range<u64>> {
        let range = self.ranges.get(self.ranges.partition_point(|range| range.end <= position))?;
        range.contains(&position).then(|| range.clone())
    }

    /// Returns the ranges for the SACK option of the next acknowledgement, at most `room`: those that changed
    /// last first (RFC 2018, section 4). The second result says that there are more to report at once.
    pub(crate) fn sacks(&mut self, room: usize, mut report: impl FnMut(Range<u64>)) -> bool {
        let mut index = 0;
        while index < room && index < self.recent.len() {
            let range = self.recent.get(index).and_then(|position| self.range_at(*position));
            match range {
                Some(range) if !self.recent.range(..index).any(|known| range.contains(known)) => {
                    report(range);
                    index += 1;
                }
                _ => {
                    self.recent.remove(index);
                    self.unreported -= usize::from(index < self.unreported);
                }
            }
        }
        // What was reported goes behind what was not.
        let reported = index.min(self.unreported);
        self.unreported -= reported;
        if self.unreported > 0 {
            self.recent.rotate_left(reported);
        }
        self.unreported > 0
    }

    /// Copies bytes to their place.
    fn write(&mut self, mut at: u64, mut bytes: &[u8], edge: u64, pool: &mut Pool) {
        while !bytes.is_empty() {
            let index = self.buffer_for(at, bytes.len(), edge, pool);
            let Some(buffer) = self.buffers.get_mut(index) else { return };
            let place = (at - buffer.first) as usize;
            let count = bytes.len().min(buffer.limit - place);
            let (now, rest) = bytes.split_at(count);
            buffer.bytes[place..place + count].copy_from_slice(now);
            bytes = rest;
            at += count as u64;
        }
    }

    /// Returns the buffer that `at` belongs into, a new one if there is none. `at` is not before `read`.
    fn buffer_for(&mut self, at: u64, bytes: usize, edge: u64, pool: &mut Pool) -> usize {
        let index = match self.buffers.back() {
            Some(back) if back.first <= at => self.buffers.len(),
            _ => self.buffers.partition_point(|buffer| buffer.first <= at),
        };
        let mut start = self.read;
        if let Some(before) = index.checked_sub(1).and_then(|before| self.buffers.get(before)) {
            if at < before.end() {
                return index - 1;
            }
            start = before.end();
            // The one before was full before it was taken.
            self.is_bulk = true;
        }
        // Behind a gap there is room for whole buffers, so that what comes into the gap finds those.
        let is_wide = edge - self.read > LARGE as u64 / 2;
        let is_large = is_wide && (self.is_bulk || at != start || bytes > LARGE / 16);
        let buffer = pool.buffer(if is_large { LARGE } else { 1 });
        let size = buffer.len() as u64;
        let first = at - (at - start) % size;
        let limit = self.buffers.get(index).map_or(size, |next| size.min(next.first - first)) as usize;
        self.held += size;
        self.buffers.insert(index, Buffer { first, limit, bytes: buffer });
        index
    }

    /// Takes bytes that have arrived in order, if there are any.
    pub(crate) fn take(&mut self, pool: &mut Pool) -> Option<Chunk> {
        self.lent = 0;
        if self.read >= self.next {
            return None;
        }
        let front = self.buffers.front()?;
        let mut end = front.end().min(self.next);
        let range = (self.read - front.first) as usize..(end - front.first) as usize;
        let has_more = self.ranges.first().is_some_and(|range| range.start < front.end());
        let chunk = if has_more && end < front.end() {
            let mut chunk = Chunk::new(pool.buffer(range.len()), 0, 0);
            end = self.read + chunk.fill(&front.bytes[range]) as u64;
            chunk
        } else {
            self.is_bulk = range.len() > front.bytes.len() / 2 && (self.is_bulk || self.buffers.len() > 1);
            let bytes = self.buffers.pop_front()?.bytes;
            self.held -= bytes.len() as u64;
            Chunk::new(bytes, range.start, range.end)
        };
        self.lent = chunk.capacity() as u64;
        self.read = end;
        if self.buffers.is_empty() {
            self.buffers.shrink_to(LITTLE);
        }
        Some(chunk)
    }

    /// Gives every buffer back.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        self.buffers.drain(..).for_each(|buffer| pool.put(buffer.bytes));
        self.forget_ranges();
        (self.held, self.lent) = (0, 0);
        self.read = self.next;
    }

    /// Panics if something is wrong.
    pub(crate) fn check(&self, edge: u64) {
        assert!(self.read <= self.next && self.next <= edge);
        let mut before = self.next;
        for range in &self.ranges {
            assert!(before < range.start && range.start < range.end && range.end <= edge, "{self:?}");
            before = range.end;
        }
        let mut before = 0;
        for buffer in &self.buffers {
            assert!(before <= buffer.first && buffer.limit <= buffer.bytes.len() && buffer.limit > 0);
            before = buffer.end();
        }
        assert!(self.unreported <= self.recent.len() && self.recent.len() <= RECENT);
        let held: usize = self.buffers.iter().map(|buffer| buffer.bytes.len()).sum();
        assert_eq!(self.held, held as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(at: u64) -> u8 {
        (at * 31 + at / 251) as u8
    }

    fn bytes(range: Range<u64>) -> Vec<u8> {
        range.map(stream).collect()
    }

    fn insert(queue: &mut ReceiveQueue, range: Range<u64>, pool: &mut Pool) -> Inserted {
        let start = range.start;
        let inserted = queue.insert(start, &bytes(range), FIRST + (2 << 20), pool);
        queue.check(FIRST + (2 << 20));
        inserted
    }

    fn take_all(queue: &mut ReceiveQueue, pool: &mut Pool) -> u64 {
        let mut count = 0;
        loop {
            let at = queue.read();
            let Some(chunk) = queue.take(pool) else { return count };
            assert_eq!(chunk.bytes(), bytes(at..at + chunk.len() as u64));
            count += chunk.len() as u64;
            pool.put(chunk.into_buffer());
        }
    }

    #[test]
    fn pieces_in_any_order_are_one_stream() {
        let mut random = 7_u64;
        let mut next = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        for _ in 0..12 {
            let (mut queue, mut pool) = (ReceiveQueue::new(), Pool::new(1 << 20));
            let total = 1 + next(300_000);
            let mut taken = 0;
            while queue.next() < FIRST + total {
                let start = if next(3) == 0 { queue.next() - FIRST } else { next(total) };
                let end = (start + 1 + next(9000)).min(total);
                insert(&mut queue, FIRST + start..FIRST + end, &mut pool);
                pool.is_scarce = next(3) == 0;
                if next(4) == 0 {
                    taken += take_all(&mut queue, &mut pool);
                }
            }
            taken += take_all(&mut queue, &mut pool);
            assert_eq!((taken, queue.has_gap(), queue.ready()), (total, false, 0));
            assert!(queue.buffers.capacity() <= LITTLE);
        }
    }

    #[test]
    fn the_first_content_of_a_byte_counts() {
        let (mut queue, mut pool) = (ReceiveQueue::new(), Pool::new(0));
        let edge = FIRST + 1000;
        queue.insert(FIRST + 2, b"cd", edge, &mut pool);
        let inserted = queue.insert(FIRST, b"abXXef", edge, &mut pool);
        assert_eq!((inserted.in_order, inserted.duplicate), (6, Some(FIRST + 2..FIRST + 4)));
        queue.insert(FIRST + 3, b"YYYg", edge, &mut pool);
        assert_eq!(queue.take(&mut pool).unwrap().bytes(), b"abcdefg");
    }

    #[test]
    fn nothing_is_kept_beyond_the_window_and_beyond_the_number_of_gaps() {
        let (mut queue, mut pool) = (ReceiveQueue::new(), Pool::new(0));
        assert_eq!(queue.insert(FIRST, b"abcdef", FIRST + 4, &mut pool).in_order, 4);
        assert_eq!(queue.insert(FIRST + 4, b"ef", FIRST + 4, &mut pool).in_order, 0);
        for gap in 0..1500 {
            insert(&mut queue, FIRST + 10 + 2 * gap..FIRST + 11 + 2 * gap, &mut pool);
        }
        assert_eq!(queue.ranges.len(), MAX_RANGES);
        insert(&mut queue, FIRST + 4..FIRST + 5000, &mut pool);
        assert_eq!((queue.ranges.len(), queue.ready()), (0, 5000));
    }

    #[test]
    fn sacks_name_the_latest_first_and_every_range_once() {
        let (mut queue, mut pool) = (ReceiveQueue::new(), Pool::new(0));
        let range = |n: u64| FIRST + 100 * n..FIRST + 100 * n + 50;
        for n in [1, 3, 5, 7, 2] {
            insert(&mut queue, range(n), &mut pool);
        }
        let sacks = |queue: &mut ReceiveQueue| {
            let mut out = Vec::new();
            let more = queue.sacks(3, |range| out.push(range));
            (out, more)
        };
        assert_eq!(sacks(&mut queue), (vec![range(2), range(7), range(5)], true));
        assert_eq!(sacks(&mut queue), (vec![range(3), range(1), range(2)], false));
        insert(&mut queue, FIRST + 340..FIRST + 360, &mut pool);
        let (blocks, more) = sacks(&mut queue);
        assert_eq!((blocks.first(), blocks.len(), more), (Some(&(FIRST + 300..FIRST + 360)), 3, false));
    }
}
