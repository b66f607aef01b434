//! A segment arrives (RFC 9293, section 3.10.7, with RFC 5961).

use std::ops::Range;

use super::connection::{Connection, Deadline, NEVER, QUICK_ACKS};
use super::handshake::Handshake;
use super::sequence::{self, FIRST, is_before};
use crate::common::{Common, milliseconds, reset_for};
use crate::congestion::Acknowledged;
use crate::packet::header_len;
use crate::segment::{ACK, FIN, RST, SYN, Segment};
use crate::{Event, StreamError, StreamState};

/// How long a timestamp of the peer counts (RFC 7323, section 5.5).
const TIMESTAMP_LIFETIME: u64 = 24 * 86_400 * 1_000_000_000;
/// How long an acknowledgement is delayed (RFC 5681 allows 500 ms; Linux waits 40 ms or more).
const DELAYED_ACK: u64 = 40_000_000;
/// Duplicate acknowledgements that mean a loss, from a peer without SACK (RFC 5681).
const DUPLICATES: u32 = 3;
/// Acknowledgements in a row, at most.
const MAX_REPEATS: u32 = 64;

/// What an acknowledgement delivered.
#[derive(Default)]
struct Delivered {
    bytes: u64,
    /// When the latest of what was sent once was sent.
    sent_at: Option<u64>,
}

impl Connection {
    /// Takes a segment of this connection.
    pub(crate) fn segment(&mut self, segment: &Segment<'_>, common: &mut Common) {
        match self.state {
            StreamState::Closed | StreamState::TimeWait => {}
            StreamState::SynSent => self.answer_to_syn(segment, common),
            _ => self.synchronized(segment, common),
        }
    }

    /// In SYN-SENT (section 3.10.7.3).
    fn answer_to_syn(&mut self, segment: &Segment<'_>, common: &mut Common) {
        let acknowledges = segment.has(ACK) && self.next > sequence::SYN;
        if segment.has(ACK) && (!acknowledges || segment.ack != self.outgoing.number(FIRST)) {
            if let Some(reset) = reset_for(self.tuple, segment) {
                common.reply(reset);
            }
            return;
        }
        if segment.has(RST) {
            if acknowledges {
                self.fail(StreamError::Refused, common);
            }
            return;
        }
        if !segment.has(SYN) {
            return;
        }
        let handshake = Handshake::of(segment, 0, 0);
        self.agree(&handshake, common);
        if acknowledges {
            let mut sent = None;
            self.board.acknowledge(FIRST, |record| {
                sent = (!record.is_retransmitted()).then_some(record.sent_at);
            });
            match sent {
                Some(sent) => self.rtt.sample(common.now.saturating_sub(sent), common.now),
                None => self.rtt.syn_was_lost(),
            }
            self.ack_at_once = true;
            self.established(common);
        } else {
            // Both ends opened at once: the SYN is sent again with an acknowledgement.
            self.state = StreamState::SynReceived;
            self.board.mark_lost(|_| true);
            self.may_exceed = true;
        }
    }

    /// The handshake is complete.
    fn established(&mut self, common: &mut Common) {
        self.una = FIRST;
        self.window_ack = FIRST;
        self.clear(Deadline::Retransmit);
        self.rtt.reset_backoff();
        self.recovery = None;
        self.state = StreamState::Established;
        common.stats.opened += 1;
        if !self.is_released {
            common.events.push_back(Event::Connected(self.id));
        }
        self.writable(common);
        self.advance(common);
    }

    /// In every state with numbers of both ends (section 3.10.7.4).
    fn synchronized(&mut self, segment: &Segment<'_>, common: &mut Common) {
        let next = self.receive_next();
        let mut seq = self.incoming.offset(segment.seq, next);
        let mut flags = segment.flags;
        if self.state == StreamState::SynReceived && flags & SYN != 0 && seq == sequence::SYN {
            // The other SYN of a simultaneous open comes again, with the acknowledgement of ours.
            (flags, seq) = (flags & !SYN, FIRST);
        }
        if self.timestamps && flags & RST == 0 {
            // PAWS (RFC 7323, sections 3.2 and 5.3).
            let Some((value, _)) = segment.timestamp else { return };
            let age = common.now.saturating_sub(self.recent_timestamp_at);
            if is_before(value, self.recent_timestamp) && age < TIMESTAMP_LIFETIME {
                return self.challenge(common);
            }
        }
        let len = segment.payload.len() as u64 + u64::from(flags & FIN != 0);
        if !self.is_acceptable(seq, len) {
            if flags & RST == 0 {
                self.unacceptable(seq, segment.payload.len() as u64, common);
            }
            return;
        }
        if flags & RST != 0 {
            match (seq == next, self.state) {
                (true, StreamState::SynReceived) => self.fail(StreamError::Refused, common),
                (true, _) => self.fail(StreamError::Reset, common),
                (false, _) => self.challenge(common),
            }
            return;
        }
        if flags & SYN != 0 {
            return self.challenge(common);
        }
        if flags & ACK == 0 {
            return;
        }
        let ack = self.outgoing.offset(segment.ack, self.una);
        if self.state == StreamState::SynReceived {
            if ack < FIRST || ack > self.next {
                if let Some(reset) = reset_for(self.tuple, segment) {
                    common.reply(reset);
                }
                return;
            }
            self.board.acknowledge(FIRST, |_| {});
            self.established(common);
        }
        if ack > self.next || ack + self.max_window < self.una {
            return self.challenge(common);
        }
        if self.timestamps
            && let Some((value, _)) = segment.timestamp
            && seq <= self.last_ack
            && !is_before(value, self.recent_timestamp)
        {
            (self.recent_timestamp, self.recent_timestamp_at) = (value, common.now);
        }
        if common.now.saturating_sub(self.heard_at) > self.rtt.timeout() {
            self.quick_acks = QUICK_ACKS;
        }
        self.heard_at = common.now;
        self.keepalive_probes = 0;
        let outstanding = self.next - self.una;
        self.acknowledged(segment, seq, ack, common);
        self.read_marks(segment, outstanding);
        if len > 0 {
            self.payload(segment, seq, flags & FIN != 0, common);
        }
        self.advance(common);
    }

    /// Section 3.4, table 6. A segment without payload may also be right behind the window: a peer that
    /// probed a closed window with a byte has counted that.
    fn is_acceptable(&self, seq: u64, len: u64) -> bool {
        let (next, edge) = (self.receive_next(), self.edge.max(self.receive_next()));
        if len == 0 {
            return (next..=edge + 1).contains(&seq);
        }
        // The acknowledgement of a probe of a closed window counts.
        seq + len > next && (seq < edge || seq == next)
    }

    /// Answers a segment outside of the window.
    fn unacceptable(&mut self, seq: u64, payload: u64, common: &mut Common) {
        if payload == 0 {
            return self.challenge(common);
        }
        let end = (seq + payload).min(self.receive.next());
        if seq < end {
            self.note_duplicate(seq..end);
        }
        self.ack_at_once = true;
        self.quick_acks = QUICK_ACKS;
    }

    fn note_duplicate(&mut self, range: Range<u64>) {
        if self.sack {
            self.duplicate = Some(range);
        }
    }

    /// The ACK field (section 3.10.7.4, fifth; RFC 2018; RFC 8985).
    fn acknowledged(&mut self, segment: &Segment<'_>, seq: u64, ack: u64, common: &mut Common) {
        let now = common.now;
        let (una, mss) = (self.una, self.mss());
        let outstanding = self.next - una;
        let echo = segment.timestamp.filter(|_| self.timestamps).map(|(_, echo)| echo);
        let offset = self.timestamp_offset;
        let echo_is_old = |sent_at: u64| {
            echo.is_some_and(|echo| is_before(echo, milliseconds(sent_at).wrapping_add(offset)))
        };

        let mut delivered = Delivered::default();
        let (mut dsack, mut is_late) = (None, false);
        if self.sack && segment.sack_count > 0 {
            dsack = self.selective(segment, ack, &mut delivered, now, echo_is_old);
        }
        if ack > una {
            let mut last_sent = None;
            let (rack, rtt) = (&mut self.rack, &self.rtt);
            let (mut has_retransmission, mut first_again) = (false, None);
            self.board.acknowledge(ack, |piece| {
                delivered.bytes += piece.end - piece.start;
                has_retransmission |= piece.is_retransmitted();
                // The timestamp is that of the segment with the first byte.
                if piece.is_retransmitted() && piece.start == una {
                    first_again = Some(echo_is_old(piece.sent_at));
                }
                last_sent = last_sent.max(Some(piece.sent_at));
                rack.delivered(piece, now, rtt, echo_is_old(piece.sent_at));
            });
            // An acknowledgement of what was sent twice says nothing about the time (RFC 6298, section 3).
            if !has_retransmission {
                delivered.sent_at = delivered.sent_at.max(last_sent);
            }
            is_late = first_again.is_some_and(|is_old| self.is_original(una, is_old));
            let payload = ack.min(self.send.end()) - una.min(self.send.end());
            self.bytes_acked += payload;
            self.moved(payload, now);
            self.send.release(ack, &mut common.pool);
            self.una = ack;
            self.rtt.reset_backoff();
            self.silent_since = now;
            self.may_exceed = false;
            self.writable_if_room(common);
        }
        if let Some(sent_at) = delivered.sent_at {
            self.rtt.sample(now.saturating_sub(sent_at), now);
        }
        let window = u64::from(segment.window) << self.send_scale;
        let is_same_window = window == self.window;
        if seq > self.window_seq || (seq == self.window_seq && ack >= self.window_ack) {
            (self.window, self.window_seq, self.window_ack) = (window, seq, ack);
            self.max_window = self.max_window.max(window);
        }
        if self.una >= self.round_end {
            self.flights = [self.board.in_flight(), self.flights[0]];
            self.round_end = self.next;
        }
        is_late |= dsack.as_ref().is_some_and(|range| self.had_everything(range));
        if is_late {
            self.undo();
        }
        self.rack.on_ack(self.una, self.next, is_late || dsack.is_some());

        if self.recovery.is_some_and(|recovery| self.una >= recovery.end) {
            self.recovery = None;
            self.rack.recovered();
            self.duplicate_acks = 0;
        }
        let is_duplicate = ack == una && segment.payload.is_empty() && is_same_window && self.next > una;
        let lost =
            if self.sack { self.detect_losses(now) } else { self.count_duplicates(is_duplicate, ack > una) };
        if lost > 0 {
            self.enter_recovery(outstanding, delivered.bytes);
        }
        self.during_recovery(delivered.bytes, ack > una && lost == 0);
        self.tail_probe_result(ack, is_duplicate && segment.sack_count == 0, dsack, outstanding);
        if delivered.bytes > 0 {
            if self.recovery.is_none_or(|recovery| recovery.by_timeout) {
                let (bytes, flight) = (delivered.bytes, self.used());
                let rtt = self.rtt.smoothed().unwrap_or(0);
                let sample = delivered.sent_at.map(|sent_at| now.saturating_sub(sent_at));
                let least = self.rtt.min().unwrap_or(0);
                self.congestion.on_ack(Acknowledged { bytes, mss, flight, now, rtt, least, sample });
            }
            if self.board.is_empty() {
                self.clear(Deadline::Retransmit);
                self.clear(Deadline::TailProbe);
                self.tail_probe_due = false;
            } else {
                self.set(Deadline::Retransmit, now + self.rtt.timeout());
                self.schedule_tail_probe(now);
            }
        }
    }

    /// Reads the SACK option. Returns the duplicate that it reports (RFC 2883).
    fn selective(
        &mut self,
        segment: &Segment<'_>,
        ack: u64,
        delivered: &mut Delivered,
        now: u64,
        echo_is_old: impl Fn(u64) -> bool,
    ) -> Option<Range<u64>> {
        let mut dsack = None;
        let range = |block: &(u32, u32)| {
            let start = self.outgoing.offset(block.0, ack);
            start..self.outgoing.offset(block.1, start)
        };
        let blocks = segment.sacks();
        let second = blocks.get(1).map(&range);
        for (index, block) in blocks.iter().enumerate() {
            let block = range(block);
            let is_within = |outer: &Range<u64>| outer.start <= block.start && block.end <= outer.end;
            if block.is_empty() || block.end > self.next {
                continue;
            }
            if index == 0 && (block.end <= ack || second.as_ref().is_some_and(is_within)) {
                dsack = Some(block)
                    .filter(|block| block.start >= FIRST && block.start + self.max_window >= self.una);
                continue;
            }
            // What the acknowledgement itself covers is not news, and no data lies before it.
            if block.start < ack.max(self.una) {
                continue;
            }
            let (rack, rtt) = (&mut self.rack, &self.rtt);
            self.board.sack(block.start, block.end, |piece| {
                delivered.bytes += piece.end - piece.start;
                if !piece.is_retransmitted() {
                    delivered.sent_at = delivered.sent_at.max(Some(piece.sent_at));
                }
                rack.delivered(piece, now, rtt, echo_is_old(piece.sent_at));
            });
        }
        dsack
    }

    /// Marks what is lost by now. Returns how many bytes.
    pub(super) fn detect_losses(&mut self, now: u64) -> u64 {
        let mss = self.mss();
        let in_recovery = self.recovery.is_some();
        let (lost, again) = self.rack.detect(&mut self.board, &self.rtt, in_recovery, mss, now);
        self.set(Deadline::Reordering, again.unwrap_or(NEVER));
        lost
    }

    /// The peer has no SACK: losses are found by duplicates (RFC 6582). Returns the bytes that are lost.
    fn count_duplicates(&mut self, is_duplicate: bool, is_advance: bool) -> u64 {
        let lost_before = self.board.lost();
        if is_advance {
            self.duplicate_acks = 0;
            if self.recovery.is_some_and(|recovery| !recovery.by_timeout) {
                // A partial acknowledgement: what follows is lost too.
                self.board.mark_first_lost(self.mss());
                self.may_exceed = true;
            }
        } else if is_duplicate {
            self.duplicate_acks += 1;
            if self.duplicate_acks == DUPLICATES && self.recovery.is_none() {
                self.board.mark_first_lost(self.mss());
            }
        }
        self.board.lost() - lost_before.min(self.board.lost())
    }

    /// RFC 8985, section 7.4.2.
    fn tail_probe_result(
        &mut self,
        ack: u64,
        is_duplicate: bool,
        dsack: Option<Range<u64>>,
        outstanding: u64,
    ) {
        let Some((end, is_again)) = self.tail_probe else { return };
        if ack < end {
            return;
        }
        if !is_again || dsack.is_some_and(|range| range.end == end) || is_duplicate {
            self.tail_probe = None;
        } else if ack > end {
            // The probe has repaired a loss, which still is a sign of congestion.
            self.tail_probe = None;
            if self.recovery.is_none() {
                self.undo = None;
                self.congestion.on_loss(outstanding, self.mss());
            }
        }
    }

    /// The payload and the FIN (section 3.10.7.4, seventh and eighth).
    fn payload(&mut self, segment: &Segment<'_>, seq: u64, has_fin: bool, common: &mut Common) {
        if self.fin_received {
            // Something behind the end, or a FIN that comes again.
            self.ack_at_once = true;
            return;
        }
        let payload = segment.payload;
        let end = seq + payload.len() as u64;
        if self.is_released && end > self.receive.next() && !payload.is_empty() {
            // Nobody will take it, and the peer has to know (RFC 9293, section 3.6.1).
            self.send_reset(common);
            return self.fail(StreamError::Closed, common);
        }
        if has_fin && self.fin_at.is_none() && end >= self.receive.next() && end <= self.edge {
            self.fin_at = Some(end);
        }
        let edge = self.fin_at.unwrap_or(self.edge).min(self.edge);
        if !payload.is_empty() {
            self.receive_mss = self.receive_mss.max(payload.len() as u64);
            if let Some((_, echo)) = segment.timestamp.filter(|_| self.timestamps) {
                let sent = echo.wrapping_sub(self.timestamp_offset);
                let age = u64::from(common.milliseconds().wrapping_sub(sent)) * 1_000_000;
                self.echo_age = Some(self.echo_age.map_or(age, |least| least.min(age)));
            }
            let inserted = self.receive.insert(seq, payload, edge, &mut common.pool);
            self.bytes_received += inserted.in_order;
            if let Some(duplicate) = inserted.duplicate {
                self.note_duplicate(duplicate);
            }
            self.ack_at_once |= inserted.at_once || end > edge;
            if !self.sack && inserted.in_order == 0 && inserted.at_once {
                self.repeat_acks = (self.repeat_acks + 1).min(MAX_REPEATS);
            }
            if inserted.in_order > 0 {
                self.readable(common);
            }
            self.account(common);
        }
        if self.fin_at == Some(self.receive.next()) {
            self.fin_received = true;
            self.ack_at_once = true;
            self.receive.end(&mut common.pool);
            self.readable(common);
            if !self.is_released {
                common.events.push_back(Event::Ended(self.id));
            }
        } else if has_fin {
            self.ack_at_once = true;
        }
    }

    /// The one decision about an acknowledgement, after a batch.
    pub(crate) fn end_batch(&mut self, common: &mut Common) {
        if self.state == StreamState::Closed {
            return;
        }
        let unacknowledged = self.receive_next().saturating_sub(self.last_ack);
        if std::mem::take(&mut self.ack_at_once)
            || unacknowledged > self.receive_mss
            || (unacknowledged > 0 && self.quick_acks > 0)
        {
            self.wants_ack = true;
        } else if unacknowledged > 0 && !self.is_set(Deadline::DelayedAck) {
            self.set(Deadline::DelayedAck, common.now + DELAYED_ACK);
        }
    }

    /// A router says something about a segment of this connection. `seq` is the number of that segment.
    ///
    /// Only what names bytes in flight counts, and in a synchronized state nothing ends a connection
    /// (RFC 5927, sections 4.1, 5.2 and 7.2).
    pub(crate) fn icmp(&mut self, seq: u32, error: crate::icmp::PathError, common: &mut Common) {
        let at = self.outgoing.offset(seq, self.una);
        if at < self.una || at >= self.next {
            return;
        }
        match error {
            crate::icmp::PathError::TooBig(mtu) => {
                let headers = header_len(self.tuple.local) as u64 + 20;
                if mtu < self.path_mtu && self.mss() + headers > u64::from(mtu.saturating_sub(52)) {
                    common.learn_path_mtu(self.tuple.peer, mtu);
                    self.lower_mtu(mtu);
                }
            }
            crate::icmp::PathError::Unreachable(is_refusal) => {
                if matches!(self.state, StreamState::SynSent | StreamState::SynReceived) {
                    let error = if is_refusal { StreamError::Refused } else { StreamError::Unreachable };
                    self.fail(error, common);
                }
            }
        }
    }

    /// What is in flight did not fit: it is sent again in smaller segments, which is no sign of congestion.
    pub(super) fn lower_mtu(&mut self, mtu: u16) {
        self.path_mtu = mtu;
        self.board.mark_lost(|_| true);
        self.may_exceed = true;
    }

    /// The longest packet of the tunnel is another one.
    pub(crate) fn set_mtu(&mut self, mtu: u16) {
        self.path_mtu = mtu;
    }
}
