//! One connection: its state, how it begins and how it ends.

use std::ops::Range;

use super::ecn::Ecn;
use super::handshake::{Handshake, initial_sequence, own_scale, timestamp_offset};
use super::rack::Rack;
use super::receive_queue::ReceiveQueue;
use super::recovery::{Recovery, Undo};
use super::rtt::Rtt;
use super::scoreboard::Scoreboard;
use super::send_queue::SendQueue;
use super::sequence::{FIRST, SYN, Sequence};
use crate::common::{Common, Reply};
use crate::congestion::Congestion;
use crate::packet::header_len;
use crate::secret::Tuple;
use crate::segment::{self, Header};
use crate::time_wait::TimeWait;
use crate::{Event, StreamError, StreamId, StreamState, StreamStats};

/// A deadline that is not set.
pub(crate) const NEVER: u64 = u64::MAX;
/// The least payload of a full segment that is believed: smaller ones make a sender spend its time on
/// headers. As Linux.
const MIN_MSS: u16 = 48;
/// The payload of a peer that does not say (RFC 9293, section 3.7.1).
const DEFAULT_MSS: [u16; 2] = [536, 1220];
/// Challenge acknowledgements of a connection in five seconds (RFC 5961, section 7).
const CHALLENGES: u8 = 10;
const CHALLENGE_PERIOD: u64 = 5_000_000_000;
/// How long a connection may stand still where memory is short: with bytes that wait for the peer or the
/// application, and without.
const STUCK: u64 = 20_000_000_000;
const STILL: u64 = 60_000_000_000;
/// Segments at the start that are acknowledged at once, so that the peer's window grows.
pub(crate) const QUICK_ACKS: u8 = 16;

/// The deadlines of a connection, as indices of [`Connection::deadlines`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deadline {
    Retransmit,
    TailProbe,
    Reordering,
    Persist,
    DelayedAck,
    Idle,
    UserTimeout,
    Pacing,
}

pub(crate) const DEADLINES: [Deadline; 8] = [
    Deadline::Retransmit,
    Deadline::TailProbe,
    Deadline::Reordering,
    Deadline::Persist,
    Deadline::DelayedAck,
    Deadline::Idle,
    Deadline::UserTimeout,
    Deadline::Pacing,
];

/// A TCP connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: StreamId,
    pub(crate) tuple: Tuple,
    pub(crate) state: StreamState,
    pub(crate) error: Option<StreamError>,
    /// The application has released it.
    pub(crate) is_released: bool,
    /// It is not found by segments any more: only the application may have something to take.
    pub(crate) is_detached: bool,
    /// `take` and `reserve` have answered that there is nothing.
    pub(super) waits_to_read: bool,
    pub(super) waits_to_write: bool,

    pub(super) peer_mss: u16,
    pub(super) path_mtu: u16,
    pub(super) sack: bool,
    pub(super) timestamps: bool,
    /// `None`: not in use with this peer.
    pub(super) ecn: Option<Ecn>,
    pub(super) timestamp_offset: u32,
    pub(super) recent_timestamp: u32,
    pub(super) recent_timestamp_at: u64,
    pub(super) send_scale: u8,
    pub(super) receive_scale: u8,

    /// SND.UNA, SND.NXT, SND.WND, its maximum, SND.WL1 and SND.WL2 of RFC 9293.
    pub(super) outgoing: Sequence,
    pub(super) una: u64,
    pub(super) next: u64,
    pub(super) window: u64,
    pub(super) max_window: u64,
    pub(super) window_seq: u64,
    pub(super) window_ack: u64,
    pub(super) send: SendQueue,
    pub(super) board: Scoreboard,
    /// A FIN follows what is in `send`.
    pub(super) is_finishing: bool,
    pub(super) rtt: Rtt,
    pub(super) rack: Rack,
    pub(super) congestion: Congestion,
    pub(super) recovery: Option<Recovery>,
    pub(super) undo: Option<Undo>,
    /// When what was sent has left, if a window is spread over a round trip.
    pub(super) paced_until: u64,
    /// One segment may be sent beyond the congestion window.
    pub(super) may_exceed: bool,
    /// The next byte to send after a tail probe, and whether the probe was a retransmission.
    pub(super) tail_probe: Option<(u64, bool)>,
    pub(super) tail_probe_due: bool,
    pub(super) window_probe_due: bool,
    pub(super) persist_backoff: u32,
    /// A window smaller than a segment has been waited for long enough.
    pub(super) may_send_small: bool,
    /// Both ends scale their windows.
    pub(super) scaling: bool,
    /// Duplicate acknowledgements of a peer without SACK.
    pub(super) duplicate_acks: u32,
    /// Most bytes in flight during this round trip and the one before, and the offset that ends it.
    pub(super) flights: [u64; 2],
    pub(super) round_end: u64,

    pub(super) incoming: Sequence,
    pub(super) receive: ReceiveQueue,
    /// The right edge of the advertised window. It never moves back.
    pub(super) edge: u64,
    /// The same before it was rounded to what the window field can tell.
    pub(super) granted: u64,
    /// The window that it gets where there is memory.
    pub(super) wanted: u64,
    /// When and where a round trip began in which it is counted what the application takes.
    pub(super) taken_since: (u64, u64),
    /// The least age of a timestamp that came back in it.
    pub(super) echo_age: Option<u64>,
    /// Where the peer's stream ends, as soon as that is known.
    pub(super) fin_at: Option<u64>,
    pub(super) fin_received: bool,
    /// The offset that the last acknowledgement named.
    pub(super) last_ack: u64,
    pub(super) wants_ack: bool,
    pub(super) ack_at_once: bool,
    /// Acknowledgements to send in a row to a peer without SACK, which counts them.
    pub(super) repeat_acks: u32,
    pub(super) quick_acks: u8,
    /// Payload of the largest segment of the peer.
    pub(super) receive_mss: u64,
    pub(super) duplicate: Option<Range<u64>>,

    pub(super) deadlines: [u64; DEADLINES.len()],
    /// When the peer was last heard.
    pub(super) heard_at: u64,
    /// Since when nothing was acknowledged, while the retransmission timer expires.
    pub(super) silent_since: u64,
    pub(super) keepalive_probes: u32,
    /// RFC 5482; `NEVER`: there is none.
    pub(super) user_timeout: u64,
    pub(super) challenges: u8,
    pub(super) challenges_since: u64,
    /// The part of `Common::reserved` that is of this connection, and the owner for which it counts.
    pub(super) reserved: u64,
    pub(crate) owner: usize,
    /// Bytes that have left it since it moved, and when that was.
    moved: u64,
    moved_at: u64,

    pub(super) bytes_acked: u64,
    pub(super) bytes_received: u64,
    pub(super) bytes_retransmitted: u64,
    pub(super) timeouts: u64,
    pub(super) recoveries: u64,
    pub(super) undone: u64,

    /// Places in the endpoint's lists.
    pub(crate) is_touched: bool,
    pub(crate) is_orphan: bool,
    pub(crate) is_in_ack_queue: bool,
    pub(crate) is_in_run_queue: bool,
    /// Bytes that it may send in this round (deficit round robin).
    pub(crate) deficit: u64,
}

impl Connection {
    /// Opens a connection: the SYN is sent by the next transmission.
    pub(crate) fn connect(id: StreamId, tuple: Tuple, common: &Common) -> Self {
        let initial = initial_sequence(&tuple, common);
        let path_mtu = common.path_mtu(tuple.peer);
        let peer_mss = DEFAULT_MSS[usize::from(tuple.peer.is_ipv6())];
        let wanted = u64::from(common.first_window());
        Self {
            id,
            tuple,
            state: StreamState::SynSent,
            error: None,
            is_released: false,
            is_detached: false,
            waits_to_read: true,
            waits_to_write: true,
            peer_mss,
            path_mtu,
            sack: true,
            timestamps: true,
            ecn: Some(Ecn::default()),
            timestamp_offset: timestamp_offset(&tuple, common),
            recent_timestamp: 0,
            recent_timestamp_at: 0,
            send_scale: 0,
            receive_scale: own_scale(common),
            outgoing: Sequence::new(initial),
            una: SYN,
            next: SYN,
            window: 0,
            max_window: 0,
            window_seq: 0,
            window_ack: 0,
            send: SendQueue::new(),
            board: Scoreboard::default(),
            is_finishing: false,
            rtt: Rtt::new(),
            rack: Rack::new(),
            congestion: Congestion::new(common.limits.congestion_control, u64::from(peer_mss)),
            recovery: None,
            undo: None,
            paced_until: 0,
            may_exceed: false,
            tail_probe: None,
            tail_probe_due: false,
            window_probe_due: false,
            persist_backoff: 0,
            may_send_small: false,
            scaling: true,
            duplicate_acks: 0,
            flights: [0; 2],
            round_end: FIRST,
            incoming: Sequence::new(0),
            receive: ReceiveQueue::new(),
            edge: FIRST + wanted,
            granted: FIRST + wanted,
            wanted,
            taken_since: (common.now, FIRST),
            echo_age: None,
            fin_at: None,
            fin_received: false,
            last_ack: FIRST,
            wants_ack: false,
            ack_at_once: false,
            repeat_acks: 0,
            quick_acks: QUICK_ACKS,
            receive_mss: 536,
            duplicate: None,
            deadlines: [NEVER; DEADLINES.len()],
            heard_at: common.now,
            silent_since: common.now,
            keepalive_probes: 0,
            user_timeout: NEVER,
            challenges: 0,
            challenges_since: 0,
            reserved: 0,
            owner: common.owner(tuple.peer),
            moved: 0,
            moved_at: common.now,
            bytes_acked: 0,
            bytes_received: 0,
            bytes_retransmitted: 0,
            timeouts: 0,
            recoveries: 0,
            undone: 0,
            is_touched: false,
            is_orphan: false,
            is_in_ack_queue: false,
            is_in_run_queue: false,
            deficit: 0,
        }
    }

    /// Makes the connection of a completed handshake that the peer began. `rtt` is the time that its answer
    /// took, if the SYN-ACK was sent once.
    pub(crate) fn accepted(
        id: StreamId,
        tuple: Tuple,
        handshake: &Handshake,
        rtt: Option<u64>,
        common: &Common,
    ) -> Self {
        let mut connection = Self::connect(id, tuple, common);
        connection.outgoing = Sequence::new(handshake.initial);
        (connection.una, connection.next) = (FIRST, FIRST);
        connection.wanted = u64::from(handshake.own_window);
        connection.granted = FIRST + connection.wanted;
        connection.edge = connection.granted;
        connection.agree(handshake, common);
        match rtt {
            Some(rtt) => connection.rtt.sample(rtt, common.now),
            None => connection.rtt.syn_was_lost(),
        }
        connection.state = StreamState::Established;
        connection
    }

    /// Takes over what the peer's SYN says.
    pub(super) fn agree(&mut self, handshake: &Handshake, common: &Common) {
        self.incoming = Sequence::new(handshake.peer_initial);
        if let Some(mss) = handshake.peer_mss {
            self.peer_mss = mss.max(MIN_MSS);
        }
        match handshake.peer_scale {
            Some(scale) => self.send_scale = scale,
            None => (self.send_scale, self.receive_scale, self.scaling) = (0, 0, false),
        }
        self.sack &= handshake.sack;
        self.ecn = self.ecn.filter(|_| handshake.ecn);
        self.timestamps &= handshake.timestamp.is_some();
        if let Some(timestamp) = handshake.timestamp {
            (self.recent_timestamp, self.recent_timestamp_at) = (timestamp, common.now);
        }
        // The window of a SYN is not scaled (RFC 7323, section 2.2).
        self.window = u64::from(handshake.window);
        self.max_window = self.window;
        (self.window_seq, self.window_ack) = (SYN, self.una);
        self.heard_at = common.now;
        self.congestion = Congestion::new(common.limits.congestion_control, self.mss());
        if let Some(idle) = common.limits.keepalive {
            self.set(Deadline::Idle, common.now + nanoseconds(idle));
        }
    }

    /// Returns the payload bytes of a full segment: what the peer and the path take, less the options.
    pub(super) fn mss(&self) -> u64 {
        let options = if self.timestamps { segment::TIMESTAMPS } else { 0 };
        self.segment_payload(options) as u64
    }

    /// Returns the payload bytes of a segment with this many bytes of options.
    pub(super) fn segment_payload(&self, options: usize) -> usize {
        let headers = header_len(self.tuple.local) + segment::HEADER;
        let path = usize::from(self.path_mtu).saturating_sub(headers);
        usize::from(self.peer_mss).min(path).saturating_sub(options).max(8)
    }

    /// Returns the most bytes in flight during this round trip and the one before.
    pub(super) fn used(&self) -> u64 {
        self.flights[0].max(self.flights[1])
    }

    /// Returns RCV.NXT.
    pub(super) fn receive_next(&self) -> u64 {
        self.receive.next() + u64::from(self.fin_received)
    }

    /// Returns the offset behind the last byte or FIN that is to be sent.
    pub(super) fn send_end(&self) -> u64 {
        self.send.end() + u64::from(self.is_finishing)
    }

    /// Reports whether the peer has acknowledged the FIN.
    fn fin_is_acknowledged(&self) -> bool {
        self.is_finishing && self.una > self.send.end()
    }

    /// Goes to the state that follows from the two FINs (RFC 9293, figure 5).
    pub(super) fn advance(&mut self, common: &mut Common) {
        use StreamState::{CloseWait, Closed, Closing, Established, FinWait1, FinWait2, LastAck, TimeWait};
        let before = self.state;
        let ended = (self.is_finishing, self.fin_is_acknowledged(), self.fin_received);
        self.state = match (self.state, ended) {
            (Closed | TimeWait | StreamState::SynSent | StreamState::SynReceived, _) => return,
            (_, (false, _, false)) => Established,
            (_, (false, _, true)) => CloseWait,
            (_, (true, false, false)) => FinWait1,
            (_, (true, true, false)) => FinWait2,
            (CloseWait | LastAck, (true, false, true)) => LastAck,
            (CloseWait | LastAck, (true, true, true)) => Closed,
            (_, (true, false, true)) => Closing,
            (_, (true, true, true)) => TimeWait,
        };
        if self.state == before {
            return;
        }
        match self.state {
            FinWait2 if self.is_released => self.limit_wait(common),
            Closed | TimeWait => {
                self.clear_deadlines();
                self.send.clear(&mut common.pool);
            }
            _ => {}
        }
    }

    /// Ends the connection with an error.
    pub(crate) fn fail(&mut self, error: StreamError, common: &mut Common) {
        if self.state == StreamState::Closed {
            return;
        }
        if matches!(self.state, StreamState::SynSent | StreamState::SynReceived) {
            common.stats.failed += 1;
        } else {
            common.stats.reset += 1;
        }
        self.state = StreamState::Closed;
        self.error = Some(error);
        self.wants_ack = false;
        self.clear_deadlines();
        self.send.clear(&mut common.pool);
        self.receive.end(&mut common.pool);
        self.board = Scoreboard::default();
        if !self.is_released {
            common.events.push_back(Event::Failed(self.id, error));
        }
    }

    /// Notes bytes that the peer has acknowledged or the application has taken. A connection moves when these
    /// are as many as it holds: a byte now and then does not keep its memory.
    pub(super) fn moved(&mut self, bytes: u64, now: u64) {
        self.moved += bytes;
        if self.moved >= self.reserved {
            (self.moved, self.moved_at) = (0, now);
        }
    }

    /// Returns when it moved, and for how long it may stand still where memory is short.
    pub(crate) fn moved_at(&self) -> (u64, u64) {
        let is_stuck = self.send.len() > 0 || self.receive.ready() > 0;
        (self.moved_at, if is_stuck { STUCK } else { STILL })
    }

    /// Ends the connection: another one needs its memory.
    pub(crate) fn give_way(&mut self, common: &mut Common) {
        if self.una >= FIRST {
            self.send_reset(common);
        }
        self.fail(StreamError::GaveWay, common);
        self.receive.clear(&mut common.pool);
        // What was not taken is lost: the end must not look like one.
        self.fin_received = false;
    }

    /// Tells the peer that the connection is no more.
    pub(super) fn send_reset(&self, common: &mut Common) {
        let header = Header {
            seq: self.outgoing.number(self.next),
            ack: self.incoming.number(self.receive_next()),
            flags: segment::RST | segment::ACK,
            ..Header::default()
        };
        common.reply(Reply::Tcp(self.tuple, header));
    }

    /// Answers a segment that might be forged (RFC 5961), at most a few times in a while.
    pub(super) fn challenge(&mut self, common: &mut Common) {
        if common.now.saturating_sub(self.challenges_since) >= CHALLENGE_PERIOD {
            (self.challenges, self.challenges_since) = (0, common.now);
        }
        if self.challenges < CHALLENGES {
            self.challenges += 1;
            common.stats.challenges += 1;
            self.ack_at_once = true;
        }
    }

    pub(super) fn set(&mut self, deadline: Deadline, at: u64) {
        self.deadlines[deadline as usize] = at;
    }

    pub(super) fn is_set(&self, deadline: Deadline) -> bool {
        self.deadlines[deadline as usize] != NEVER
    }

    pub(super) fn clear(&mut self, deadline: Deadline) {
        self.deadlines[deadline as usize] = NEVER;
    }

    pub(super) fn clear_deadlines(&mut self) {
        self.deadlines = [NEVER; DEADLINES.len()];
    }

    /// Returns the earliest deadline.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.deadlines.iter().copied().min().filter(|at| *at != NEVER)
    }

    /// Brings `common.reserved` up to date.
    pub(crate) fn account(&mut self, common: &mut Common) {
        let now = self.reservation();
        common.reserve(self.owner, std::mem::replace(&mut self.reserved, now), now);
    }

    /// Returns what the peer may send and the buffers of what is to be sent.
    fn reservation(&self) -> u64 {
        let takes_none = self.state == StreamState::Closed || self.is_released || self.fin_received;
        let window = if takes_none { 0 } else { self.edge - self.receive.read() };
        window.max(self.receive.held()) + self.send.held()
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Reports whether no segment can change it any more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, StreamState::Closed | StreamState::TimeWait)
    }

    /// Gives everything back before the connection is dropped.
    pub(crate) fn dispose(&mut self, common: &mut Common) {
        self.send.clear(&mut common.pool);
        self.receive.clear(&mut common.pool);
        common.reserve(self.owner, std::mem::take(&mut self.reserved), 0);
    }

    /// Returns the record of TIME-WAIT.
    pub(crate) fn time_wait(&self) -> TimeWait {
        TimeWait {
            tuple: self.tuple,
            next: self.outgoing.number(self.next),
            receive_next: self.incoming.number(self.receive_next()),
            timestamp: self.timestamps.then_some(self.recent_timestamp),
            until: 0,
        }
    }

    pub(crate) fn stats(&self) -> StreamStats {
        let [rtt, rtt_var, min_rtt] = self.rtt.figures();
        StreamStats {
            state: self.state,
            local: (self.tuple.local, self.tuple.local_port).into(),
            peer: (self.tuple.peer, self.tuple.peer_port).into(),
            rtt,
            rtt_var,
            min_rtt,
            rto: std::time::Duration::from_nanos(self.rtt.timeout()),
            mss: self.mss() as u16,
            cwnd: self.congestion.window(),
            ssthresh: self.congestion.threshold(),
            in_flight: self.board.in_flight(),
            send_queue: self.send.len(),
            receive_queue: self.receive.ready(),
            receive_window: self.edge - self.receive.next(),
            send_window: self.window,
            bytes_acked: self.bytes_acked,
            bytes_received: self.bytes_received,
            bytes_retransmitted: self.bytes_retransmitted,
            timeouts: self.timeouts,
            recoveries: self.recoveries,
            undone: self.undone,
        }
    }

    /// Panics if something is wrong: for tests.
    pub(crate) fn check(&self) {
        self.receive.check(self.edge);
        assert!(self.una <= self.next && self.next <= self.send_end());
        if self.state != StreamState::Closed {
            self.board.check(self.una, self.next);
            let is_armed = self.is_set(Deadline::Retransmit) || self.is_set(Deadline::TailProbe);
            assert!(self.board.is_empty() || is_armed, "bytes in flight and no timer: {self:?}");
        }
        assert!(self.edge >= self.receive.next() && self.edge <= self.granted + (1 << self.receive_scale));
        assert!(self.reserved == self.reservation() && self.send.len() <= self.send.held(), "{self:?}");
    }
}

/// Returns the nanoseconds of a duration.
pub(crate) fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER)
}
