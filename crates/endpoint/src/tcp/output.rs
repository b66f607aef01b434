//! What is sent: retransmissions first, then new bytes, then an acknowledgement by itself.
//!
//! Segments are built when the tunnel has room for them, as super-packets, so that nothing waits or is lost
//! between here and the tunnel.

use std::ops::Range;

use weft_tunnel::{Offload, TAILROOM};

use super::connection::{Connection, Deadline, NEVER};
use super::sequence::{self, FIRST};
use crate::chunk::SMALL;
use crate::common::{Common, write_segment};
use crate::packet::header_len;
use crate::segment::{self, Header, Options};
use crate::{PacketSink, StreamState};

/// Segments in a super-packet, at most: as many as one batch of the kernel's UDP has.
const MAX_SEGMENTS: u64 = 64;
/// A super-packet is not cut to less than this because the sink is nearly full.
const MIN_CUT: usize = 16 << 10;
/// What a peer with one segment in flight may delay its acknowledgement (RFC 8985, section 7.2).
const MAX_ACK_DELAY: u64 = 200_000_000;
/// How far a sender may be behind its pace and catch up, since timers have a millisecond.
const PACING_CREDIT: u64 = 2_000_000;
/// The time that a super-packet takes at the pace.
const PACING_PIECE: u64 = 1_000_000;
/// Added to the time of a tail probe, for timers of a millisecond.
const PROBE_SLACK: u64 = 2_000_000;

/// What [`Connection::transmit`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transmitted {
    /// Nothing may be sent.
    Nothing,
    /// A packet with this many bytes of payload.
    Packet(u64),
    /// The sink has no room.
    Full,
}

/// What may be sent next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// Bytes that were not sent before.
    New(u64, u64),
    /// Bytes that are lost.
    Again(u64, u64),
    /// A tail probe: new bytes, or the last ones again.
    TailProbe(u64, u64),
    /// A segment before the window, which the peer has to answer.
    WindowProbe,
}

impl Connection {
    /// Reports whether an acknowledgement is due.
    pub(crate) fn wants_ack(&self) -> bool {
        self.wants_ack
    }

    /// Reports whether there is something to send besides an acknowledgement.
    /// What waits for its time gets a deadline.
    pub(crate) fn has_plan(&mut self, now: u64) -> bool {
        let has_plan = self.plan(now).is_some();
        let waits = !has_plan && self.paced_until > now && self.plan(self.paced_until).is_some();
        self.set(Deadline::Pacing, if waits { self.paced_until } else { NEVER });
        has_plan
    }

    /// Writes at most one packet, or the acknowledgements that are due.
    pub(crate) fn transmit(&mut self, common: &mut Common, out: &mut impl PacketSink) -> Transmitted {
        self.note_idle(common.now);
        let Some(plan) = self.plan(common.now) else {
            return if self.wants_ack { self.transmit_acks(common, out) } else { Transmitted::Nothing };
        };
        let now = common.now;
        let (start, end) = match plan {
            Plan::New(start, end) | Plan::Again(start, end) | Plan::TailProbe(start, end) => (start, end),
            Plan::WindowProbe => {
                let seq = self.una.saturating_sub(1);
                if self.emit(common, out, seq, seq).is_none() {
                    return Transmitted::Full;
                }
                self.window_probe_due = false;
                return Transmitted::Packet(0);
            }
        };
        let Some(end) = self.emit(common, out, start, end) else { return Transmitted::Full };
        self.paced(end - start, now);
        if let Some(recovery) = &mut self.recovery {
            recovery.on_sent(end - start);
        }
        match plan {
            Plan::Again(..) => {
                self.count_again(start, end, common);
                self.board.retransmitted(start, end, now);
                self.may_exceed = false;
                if start == self.una || !self.is_set(Deadline::Retransmit) {
                    self.set(Deadline::Retransmit, now + self.rtt.timeout());
                }
            }
            Plan::TailProbe(..) if start < self.next => {
                self.count_again(start, end, common);
                self.board.split_tail(self.next - start);
                self.board.retransmitted(start, end, now);
                self.probe_sent(true, now);
            }
            _ => {
                self.board.push(start, end, now);
                self.next = end;
                self.may_send_small = false;
                if !self.is_set(Deadline::Retransmit) {
                    self.silent_since = now;
                    self.set(Deadline::Retransmit, now + self.rtt.timeout());
                }
                if matches!(plan, Plan::TailProbe(..)) {
                    self.probe_sent(false, now);
                } else {
                    self.schedule_tail_probe(now);
                }
            }
        }
        self.flights[0] = self.flights[0].max(self.board.in_flight());
        Transmitted::Packet(end - start)
    }

    /// New bytes after a time without any: the window was not used.
    fn note_idle(&mut self, now: u64) {
        let timeouts = now.saturating_sub(self.silent_since) / self.rtt.timeout();
        if timeouts > 0 && self.board.is_empty() && matches!(self.plan(now), Some(Plan::New(..))) {
            self.congestion.on_idle(timeouts, self.mss());
            self.undo = None;
            self.silent_since = now;
        }
    }

    /// Counts what was sent against the pace. The initial window is not paced.
    fn paced(&mut self, bytes: u64, now: u64) {
        if let Some(rtt) = self.rtt.smoothed()
            && self.next > FIRST + 10 * self.mss()
        {
            let from = self.paced_until.max(now.saturating_sub(PACING_CREDIT));
            self.paced_until = from.saturating_add(self.congestion.pace(bytes, rtt));
        }
    }

    fn count_again(&mut self, start: u64, end: u64, common: &mut Common) {
        self.sent_again(end - start);
        self.bytes_retransmitted += end - start;
        common.stats.retransmitted_bytes += end - start;
    }

    fn probe_sent(&mut self, is_again: bool, now: u64) {
        self.tail_probe_due = false;
        self.tail_probe = Some((self.next, is_again));
        self.set(Deadline::Retransmit, now + self.rtt.timeout());
    }

    /// Sets the deadline of the tail probe (RFC 8985, section 7.2).
    pub(super) fn schedule_tail_probe(&mut self, now: u64) {
        let may =
            self.sack && self.recovery.is_none() && self.tail_probe.is_none() && self.board.sacked() == 0;
        if !may || self.board.is_empty() || self.una < FIRST {
            return self.clear(Deadline::TailProbe);
        }
        let mut timeout = match self.rtt.smoothed() {
            Some(smoothed) => 2 * smoothed + PROBE_SLACK,
            None => super::rtt::INITIAL_RTO,
        };
        if self.board.in_flight() <= self.mss() {
            timeout += MAX_ACK_DELAY;
        }
        let at = (now + timeout).min(self.deadlines[Deadline::Retransmit as usize]);
        self.set(Deadline::TailProbe, at);
    }

    /// Returns what the windows let be sent next.
    fn plan(&self, now: u64) -> Option<Plan> {
        if matches!(self.state, StreamState::Closed | StreamState::TimeWait) {
            return None;
        }
        if self.next == sequence::SYN {
            return Some(Plan::New(sequence::SYN, FIRST));
        }
        let mss = self.mss();
        let most = self.most(mss);
        if self.tail_probe_due
            && let Some(probe) = self.plan_tail_probe(mss)
        {
            return Some(probe);
        }
        if self.window_probe_due {
            return Some(Plan::WindowProbe);
        }
        if self.paced_until > now {
            return None;
        }
        let flight = self.board.in_flight();
        let room = self.recovery.and_then(|recovery| recovery.room());
        let room = room.unwrap_or_else(|| self.congestion.window().saturating_sub(flight));
        let may_exceed = self.may_exceed || flight == 0;
        // Whole segments that fit, or all that is wanted.
        let within_room = |wanted: u64| match room {
            room if wanted <= room => wanted,
            room if room >= mss => room - room % mss,
            _ if may_exceed => wanted.min(mss),
            _ => 0,
        };
        if let Some((start, end)) = self.board.next_lost(most) {
            let len = within_room(end - start);
            // What is beyond a window that shrank waits, but for the first segment, which is the probe.
            let is_inside = start == self.una || start < self.una + self.window;
            return (len > 0 && is_inside).then_some(Plan::Again(start, start + len));
        }
        if matches!(self.state, StreamState::SynSent | StreamState::SynReceived) {
            return None;
        }
        let len = within_room(self.within_window(mss, most));
        (len > 0).then_some(Plan::New(self.next, self.next + len))
    }

    /// Returns the payload of the longest super-packet, in whole segments.
    fn most(&self, mss: u64) -> u64 {
        let headers = header_len(self.tuple.local) + segment::HEADER + 40;
        let bytes = (weft_tunnel::MAX_PACKET - headers) as u64;
        let time = self.rtt.smoothed().map_or(0, |rtt| self.congestion.pace(mss, rtt));
        let paced = (PACING_PIECE / time.max(1)).max(2);
        (mss * MAX_SEGMENTS.min(paced)).min(bytes - bytes % mss)
    }

    /// Returns the new bytes that the peer's window takes, without silly small segments (RFC 9293, section
    /// 3.8.6.2.1). What the application put is sent at once, also if it is less than a segment.
    fn within_window(&self, mss: u64, most: u64) -> u64 {
        let unsent = (self.send_end() - self.next).min(most);
        let window = (self.una + self.window).saturating_sub(self.next);
        if unsent <= window {
            return unsent;
        }
        match window - window % mss {
            0 if window > 0 && (window >= self.max_window / 2 || self.may_send_small) => window.min(mss),
            whole => whole,
        }
    }

    /// Reports whether bytes wait only because the peer's window is closed.
    pub(super) fn is_blocked_by_window(&self) -> bool {
        let mss = self.mss();
        self.una >= FIRST
            && self.board.is_empty()
            && self.send_end() > self.next
            && self.within_window(mss, self.most(mss)) == 0
    }

    fn plan_tail_probe(&self, mss: u64) -> Option<Plan> {
        let new = self.within_window(mss, mss);
        if new > 0 {
            return Some(Plan::TailProbe(self.next, self.next + new));
        }
        let last = self.board.last()?;
        let start = last.start.max(last.end.saturating_sub(mss));
        Some(Plan::TailProbe(start, last.end))
    }

    /// Writes `start..end` as one packet, less if the sink is nearly full. Returns where it ends; `None`: the
    /// sink is full.
    fn emit(
        &mut self,
        common: &mut Common,
        out: &mut impl PacketSink,
        start: u64,
        mut end: u64,
    ) -> Option<u64> {
        let is_syn = start == sequence::SYN && end == FIRST;
        let acknowledges = self.state != StreamState::SynSent;
        let header = self.header(start, is_syn, acknowledges, common);
        let headers = header_len(self.tuple.local) + header.len();
        let segment = self.segment_payload(header.options.len()) as u64;
        let first = start.max(FIRST);
        let spare = out.spare_mut();
        let room = spare.len().checked_sub(headers + TAILROOM)?;
        let mut payload = end.min(self.send.end()).saturating_sub(first);
        // Blocks of SACK may leave less room than `most` has counted on.
        payload = payload.min((weft_tunnel::MAX_PACKET - headers) as u64);
        if payload > room as u64 {
            if room < MIN_CUT {
                return None;
            }
            payload = room as u64 - room as u64 % segment;
        }
        if end > first && first + payload < end.min(self.send.end()) {
            end = first + payload;
        }
        let mut flags = header.flags;
        if end > self.send.end() && end > first {
            flags |= segment::FIN;
        }
        if payload > 0 && end >= self.send.end() {
            flags |= segment::PSH;
        }
        // Only new bytes may be marked (RFC 3168, section 6.1.5).
        let is_markable = self.ecn.is_some() && payload > 0 && start >= self.next;
        if let Some(ecn) = self.ecn.filter(|_| !is_syn) {
            flags |= ecn.flags(is_markable);
        }
        let header = Header { flags, is_markable, ..header };
        write_segment(spare, &self.tuple, &header, payload as usize);
        let len = headers + payload as usize;
        if payload > 0 {
            self.send.copy(first, spare.get_mut(headers..len)?);
        }
        let offload = if payload > 0 {
            Offload::TcpSegmentation { segment_size: segment as u16 }
        } else {
            Offload::None
        };
        if !out.commit(len, offload) {
            return None;
        }
        common.stats.packets_out += 1;
        if acknowledges {
            if let Some(ecn) = &mut self.ecn {
                ecn.sent(flags);
            }
            self.ack_sent();
            self.account(common);
        }
        Some(end)
    }

    /// Returns the header of a segment at `at`, with everything but FIN and PSH.
    fn header(&mut self, at: u64, is_syn: bool, acknowledges: bool, common: &Common) -> Header {
        let value = common.milliseconds().wrapping_add(self.timestamp_offset);
        let times = self.timestamps.then_some((value, self.recent_timestamp));
        let mut header = Header { seq: self.outgoing.number(at), ..Header::default() };
        if acknowledges {
            header.flags |= segment::ACK;
            header.ack = self.incoming.number(self.receive_next());
        }
        if is_syn {
            header.flags |= segment::SYN;
            if self.ecn.is_some() {
                header.flags |= if acknowledges { segment::ECE } else { segment::ECE | segment::CWR };
            }
            header.window = (self.edge - FIRST) as u16;
            let mss = common.mtu.saturating_sub((header_len(self.tuple.local) + segment::HEADER) as u16);
            let scale = self.scaling.then_some(self.receive_scale);
            header.options = Options::of_syn(mss, self.sack, times, scale);
            return header;
        }
        header.window = self.advertise(common);
        header.options = Options::of_segment(times);
        if self.sack && (self.duplicate.is_some() || self.receive.has_gap()) {
            let mut room = header.options.sack_room();
            let (mut blocks, mut used) = ([(0, 0); segment::MAX_SACKS], 0);
            let numbers = self.incoming;
            let mut report = |range: Range<u64>| {
                if let Some(block) = blocks.get_mut(used) {
                    *block = (numbers.number(range.start), numbers.number(range.end));
                    used += 1;
                }
            };
            // A duplicate stands first, and its range once more (RFC 2883).
            if let Some(duplicate) = self.duplicate.take() {
                report(duplicate);
                room -= 1;
            }
            let has_more = self.receive.sacks(room, report);
            self.repeat_acks = u32::from(has_more);
            header.options.push_sacks(&blocks[..used]);
        }
        header
    }

    /// Returns the window that there is memory for: what it has, and more while three quarters of all memory
    /// are not reserved. One segment, or 4 KiB, it always gets.
    fn capacity(&self, common: &Common) -> u64 {
        let free = (common.memory / 4 * 3).saturating_sub(common.reserved);
        let has = self.granted.saturating_sub(self.receive.read());
        let least = (SMALL as u64).max(self.receive_mss + (1 << self.receive_scale));
        self.wanted.min(has + free).max(least)
    }

    /// Moves the right edge of the window, and returns the window field. The edge moves by a segment at
    /// least (RFC 9293, section 3.8.6.2.2) and never back (section 3.8.6).
    fn advertise(&mut self, common: &Common) -> u16 {
        let next = self.receive.next();
        let capacity = self.capacity(common);
        let target = self.receive.read() + capacity;
        if target >= self.granted.max(next) + self.receive_mss.min(capacity / 2) {
            self.granted = target;
        }
        let mut field = self.granted.saturating_sub(next) >> self.receive_scale;
        // Rounded up, so that the edge does not seem to move back; but what the peer sends in small pieces
        // must not move it on for ever.
        let edge = next + (field << self.receive_scale);
        field += u64::from(edge < self.edge && edge <= self.granted);
        let field = field.min(65_535);
        self.edge = self.edge.max(next + (field << self.receive_scale));
        field as u16
    }

    /// Reports whether the window should be told, because the application has taken much of it.
    pub(super) fn wants_window_update(&self, common: &Common) -> bool {
        let capacity = self.capacity(common);
        let left = self.edge.saturating_sub(self.receive.next());
        let gain = (self.receive.read() + capacity).saturating_sub(self.granted);
        left < capacity / 2 && gain >= (capacity / 4).min(2 * self.receive_mss.max(left))
    }

    /// Every acknowledgement that was due is in a segment now.
    fn ack_sent(&mut self) {
        self.last_ack = self.receive_next();
        self.clear(Deadline::DelayedAck);
        self.quick_acks = self.quick_acks.saturating_sub(1);
        self.wants_ack = self.repeat_acks > 0;
    }

    fn transmit_acks(&mut self, common: &mut Common, out: &mut impl PacketSink) -> Transmitted {
        while self.wants_ack {
            // An acknowledgement that reports more ranges asks for the next one itself.
            self.repeat_acks = if self.sack { 0 } else { self.repeat_acks.saturating_sub(1) };
            let at = self.next;
            if self.emit(common, out, at, at).is_none() {
                return Transmitted::Full;
            }
        }
        Transmitted::Packet(0)
    }
}
