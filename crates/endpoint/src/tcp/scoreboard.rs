//! What was sent and is not acknowledged: a record for each super-packet, cut where a selective
//! acknowledgement or a loss cuts it (RFC 2018).

use std::collections::VecDeque;

use super::send_queue::LITTLE;

/// Records, at most. A selective acknowledgement that would make more is ignored.
const MAX_RECORDS: usize = 8192;

const SACKED: u8 = 1;
const LOST: u8 = 2;
const RETRANSMITTED: u8 = 4;

/// Something that was sent at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// When it was sent last.
    pub(crate) sent_at: u64,
    flags: u8,
}

impl Record {
    fn len(&self) -> u64 {
        self.end - self.start
    }

    fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn is_sacked(&self) -> bool {
        self.is(SACKED)
    }

    pub(crate) fn is_retransmitted(&self) -> bool {
        self.is(RETRANSMITTED)
    }

    /// Reports whether it is neither delivered nor lost.
    pub(crate) fn is_in_flight(&self) -> bool {
        !self.is(SACKED | LOST)
    }
}

/// The records from the oldest unacknowledged byte to the next one to send, without gaps.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    records: VecDeque<Record>,
    sacked: u64,
    lost: u64,
    total: u64,
    /// Whether something in `records` may have been sent again.
    has_retransmissions: bool,
}

impl Scoreboard {
    /// Returns the bytes that are in the network, as far as is known.
    pub(crate) fn in_flight(&self) -> u64 {
        self.total - self.sacked - self.lost
    }

    pub(crate) fn sacked(&self) -> u64 {
        self.sacked
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Reports whether records need not be in the order of their times, or some are delivered before others.
    pub(crate) fn is_out_of_order(&self) -> bool {
        self.sacked > 0 || self.has_retransmissions
    }

    pub(crate) fn last(&self) -> Option<&Record> {
        self.records.back()
    }

    pub(crate) fn first(&self) -> Option<&Record> {
        self.records.front()
    }

    /// Adds what was sent for the first time.
    pub(crate) fn push(&mut self, start: u64, end: u64, now: u64) {
        self.total += end - start;
        self.records.push_back(Record { start, end, sent_at: now, flags: 0 });
    }

    /// Removes everything before `to`. Each piece that was not known to be delivered is passed to
    /// `delivered`.
    pub(crate) fn acknowledge(&mut self, to: u64, mut delivered: impl FnMut(&Record)) {
        while let Some(front) = self.records.front_mut()
            && front.start < to
        {
            let piece = Record { end: front.end.min(to), ..*front };
            self.total -= piece.len();
            if piece.is(SACKED) {
                self.sacked -= piece.len();
            } else {
                if piece.is(LOST) {
                    self.lost -= piece.len();
                }
                delivered(&piece);
            }
            front.start = piece.end;
            if front.start == front.end {
                self.records.pop_front();
            }
        }
        if self.records.is_empty() {
            self.has_retransmissions = false;
            self.records.shrink_to(LITTLE);
        }
    }

    /// Marks what the peer has in `start..end`. Each piece that was not marked yet is passed to `delivered`.
    pub(crate) fn sack(&mut self, start: u64, end: u64, mut delivered: impl FnMut(&Record)) {
        let mut index = self.records.partition_point(|record| record.end <= start);
        while let Some(record) = self.records.get(index).copied()
            && record.start < end
        {
            if !record.is(SACKED) {
                if record.start < start {
                    if !self.split(index, start) {
                        return;
                    }
                    index += 1;
                    continue;
                }
                if record.end > end && !self.split(index, end) {
                    return;
                }
                let Some(record) = self.records.get_mut(index) else { return };
                delivered(record);
                let len = record.len();
                if record.is(LOST) {
                    self.lost -= len;
                }
                record.flags = record.flags & !LOST | SACKED;
                self.sacked += len;
                index = self.join(index);
            }
            index += 1;
        }
    }

    /// Joins a delivered record with its neighbours that are delivered too. Returns its new place.
    fn join(&mut self, index: usize) -> usize {
        let mut at = index;
        if let Some(next) = self.records.get(at + 1).copied()
            && next.is(SACKED)
        {
            self.records.remove(at + 1);
            self.records[at].end = next.end;
        }
        if let Some(before) = at.checked_sub(1)
            && self.records[before].is(SACKED)
        {
            self.records[before].end = self.records[at].end;
            self.records.remove(at);
            at = before;
        }
        at
    }

    /// Cuts a record in two. Returns false if there are too many.
    fn split(&mut self, index: usize, at: u64) -> bool {
        if self.records.len() >= MAX_RECORDS {
            return false;
        }
        let Some(record) = self.records.get_mut(index) else { return false };
        let rest = Record { start: at, ..*record };
        record.end = at;
        self.records.insert(index + 1, rest);
        true
    }

    /// Marks what `is_lost` says among what is in flight, and returns how many bytes.
    pub(crate) fn mark_lost(&mut self, mut is_lost: impl FnMut(&Record) -> bool) -> u64 {
        let mut bytes = 0;
        for record in self.records.iter_mut().filter(|record| record.is_in_flight()) {
            if is_lost(record) {
                record.flags |= LOST;
                bytes += record.len();
            }
        }
        self.lost += bytes;
        bytes
    }

    /// What was marked as lost and was not sent again is in flight after all.
    pub(crate) fn forget_losses(&mut self) {
        for record in self.records.iter_mut() {
            record.flags &= !LOST;
        }
        self.lost = 0;
    }

    /// Marks the first `len` bytes as lost.
    pub(crate) fn mark_first_lost(&mut self, len: u64) {
        let Some(first) = self.records.front().copied() else { return };
        if first.is_in_flight() {
            if first.len() > len {
                self.split(0, first.start + len);
            }
            let start = first.start;
            self.mark_lost(|record| record.start == start);
        }
    }

    /// Forgets what was said to be delivered: the peer may discard it (RFC 2018, section 8).
    pub(crate) fn forget_sacks(&mut self) {
        for record in self.records.iter_mut().filter(|record| record.is(SACKED)) {
            record.flags &= !SACKED;
        }
        self.sacked = 0;
    }

    /// Returns the first lost range, at most `limit` bytes, if something is lost.
    pub(crate) fn next_lost(&self, limit: u64) -> Option<(u64, u64)> {
        if self.lost == 0 {
            return None;
        }
        let first = self.records.iter().position(|record| record.is(LOST))?;
        let (mut start, mut end) = (None, 0);
        for record in self.records.range(first..).take_while(|record| record.is(LOST)) {
            let start = *start.get_or_insert(record.start);
            end = record.end.min(start + limit);
            if record.end - start >= limit {
                break;
            }
        }
        start.map(|start| (start, end))
    }

    /// Records that `start..end`, which begins a record, was sent again.
    pub(crate) fn retransmitted(&mut self, start: u64, end: u64, now: u64) {
        let index = self.records.partition_point(|record| record.end <= start);
        let mut joined = None;
        while let Some(record) = self.records.get(index).copied()
            && record.start < end
            && !record.is(SACKED)
        {
            if record.end > end && !self.split(index, end) {
                break;
            }
            let Some(record) = self.records.remove(index) else { break };
            if record.is(LOST) {
                self.lost -= record.len();
            }
            let whole = joined.get_or_insert(Record { sent_at: now, flags: RETRANSMITTED, ..record });
            whole.end = record.end;
        }
        if let Some(record) = joined {
            self.records.insert(index, record);
            self.has_retransmissions = true;
        }
    }

    /// Cuts the last `len` bytes off the last record, to send them again.
    pub(crate) fn split_tail(&mut self, len: u64) -> Option<(u64, u64)> {
        let last = *self.records.back()?;
        if last.len() > len {
            self.split(self.records.len() - 1, last.end - len);
        }
        self.records.back().map(|record| (record.start, record.end))
    }

    /// Panics if something is wrong.
    pub(crate) fn check(&self, una: u64, next: u64) {
        let mut at = una;
        let (mut sacked, mut lost) = (0, 0);
        for record in &self.records {
            assert!(record.start == at && record.start < record.end, "a gap at {at}: {record:?}");
            assert!(!(record.is(SACKED) && record.is(LOST)));
            sacked += if record.is(SACKED) { record.len() } else { 0 };
            lost += if record.is(LOST) { record.len() } else { 0 };
            at = record.end;
        }
        assert_eq!(at, next, "records do not end where the next byte is");
        assert_eq!((self.sacked, self.lost, self.total), (sacked, lost, next - una));
        assert!(self.records.len() <= MAX_RECORDS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(ends: &[u64]) -> Scoreboard {
        let mut board = Scoreboard::default();
        let mut start = 0;
        for (now, end) in (1..).zip(ends) {
            board.push(start, *end, now);
            start = *end;
        }
        board
    }

    fn delivered(board: &mut Scoreboard, start: u64, end: u64) -> u64 {
        let mut bytes = 0;
        board.sack(start, end, |record| bytes += record.len());
        bytes
    }

    #[test]
    fn a_selective_acknowledgement_cuts_records_and_joins_what_is_delivered() {
        let mut board = sent(&[100, 200, 300]);
        assert_eq!(delivered(&mut board, 50, 120), 70);
        assert_eq!(delivered(&mut board, 50, 120), 0);
        assert_eq!(delivered(&mut board, 110, 250), 130);
        assert_eq!((board.records.len(), board.sacked(), board.in_flight()), (3, 200, 100));
        board.check(0, 300);
        let mut bytes = 0;
        board.acknowledge(260, |record| bytes += record.len());
        assert_eq!((bytes, board.in_flight(), board.sacked()), (60, 40, 0));
        board.check(260, 300);
    }

    #[test]
    fn what_is_lost_is_sent_again_in_one_piece() {
        let mut board = sent(&[100, 200, 300, 400]);
        delivered(&mut board, 350, 400);
        assert_eq!(board.mark_lost(|record| record.end <= 350), 350);
        assert_eq!((board.in_flight(), board.next_lost(1000)), (0, Some((0, 350))));
        board.retransmitted(0, 150, 9);
        assert_eq!((board.in_flight(), board.next_lost(120)), (150, Some((150, 270))));
        board.check(0, 400);
        assert_eq!(board.records.iter().map(|record| (record.end, record.sent_at)).next(), Some((150, 9)));
        board.retransmitted(150, 350, 10);
        board.check(0, 400);
        assert_eq!((board.lost(), board.next_lost(120), board.is_out_of_order()), (0, None, true));
        board.forget_sacks();
        board.check(0, 400);
        assert_eq!(board.in_flight(), 400);
    }

    #[test]
    fn the_number_of_records_is_bounded() {
        let mut board = sent(&[100_000]);
        for at in 0..20_000 {
            board.sack(4 * at, 4 * at + 1, |_| {});
        }
        board.check(0, 100_000);
        assert!(board.records.len() <= MAX_RECORDS);
        board.mark_lost(|_| true);
        board.retransmitted(1, 4, 5);
        assert_eq!(board.split_tail(10).map(|(_, end)| end), Some(100_000));
        board.check(0, 100_000);
    }
}
