//! The two SYN segments of a connection (RFC 9293, section 3.5).

use crate::common::Common;
use crate::packet::header_len;
use crate::secret::{Purpose, Tuple};
use crate::segment::{self, CWR, ECE, Header, Options, Segment};

/// The greatest window scale (RFC 7323, section 2.3).
const MAX_SCALE: u8 = 14;

/// The options and numbers of a SYN, or those that both ends agreed on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Handshake {
    pub(crate) initial: u32,
    pub(crate) peer_initial: u32,
    pub(crate) peer_mss: Option<u16>,
    /// The peer's window scale; `None`: no scaling in either direction.
    pub(crate) peer_scale: Option<u8>,
    pub(crate) sack: bool,
    /// The peer's timestamp.
    pub(crate) timestamp: Option<u32>,
    pub(crate) window: u16,
    /// The window of this end's SYN.
    pub(crate) own_window: u16,
    /// The peer wants or has agreed to ECN (RFC 3168, section 6.1.1).
    pub(crate) ecn: bool,
}

impl Handshake {
    /// Reads the peer's SYN. `initial` and `own_window` are those of this end's.
    pub(crate) fn of(syn: &Segment<'_>, initial: u32, own_window: u16) -> Self {
        Self {
            initial,
            peer_initial: syn.seq,
            peer_mss: syn.mss,
            peer_scale: syn.window_scale.map(|scale| scale.min(MAX_SCALE)),
            sack: syn.sack_permitted,
            timestamp: syn.timestamp.map(|(value, _)| value),
            window: syn.window,
            own_window,
            ecn: syn.flags & (ECE | CWR) == if syn.has(segment::ACK) { ECE } else { ECE | CWR },
        }
    }

    /// Returns the SYN-ACK to it.
    pub(crate) fn answer(&self, tuple: &Tuple, common: &Common) -> Header {
        let offset = timestamp_offset(tuple, common);
        let times = self.timestamp.map(|echo| (common.milliseconds().wrapping_add(offset), echo));
        let scale = self.peer_scale.map(|_| own_scale(common));
        Header {
            seq: self.initial,
            ack: self.peer_initial.wrapping_add(1),
            flags: segment::SYN | segment::ACK | if self.ecn { ECE } else { 0 },
            window: self.own_window,
            options: Options::of_syn(own_mss(tuple, common), self.sack, times, scale),
            ..Header::default()
        }
    }
}

/// Returns the shift with which the largest receive window can be told.
pub(super) fn own_scale(common: &Common) -> u8 {
    let bits = (common.largest(common.limits.receive_window) / 65_535)
        .checked_ilog2()
        .map_or(0, |log| log as u8 + 1);
    bits.min(MAX_SCALE)
}

/// Returns the MSS that this end tells: what fits into the MTU without options (RFC 6691).
pub(super) fn own_mss(tuple: &Tuple, common: &Common) -> u16 {
    common.mtu.saturating_sub((header_len(tuple.local) + segment::HEADER) as u16)
}

pub(crate) fn timestamp_offset(tuple: &Tuple, common: &Common) -> u32 {
    common.secret.number(Purpose::Timestamp, tuple) as u32
}

/// Returns the number of the next SYN of a flow (RFC 6528): a clock of 4 us, and a hash of the flow.
pub(crate) fn initial_sequence(tuple: &Tuple, common: &Common) -> u32 {
    let hash = common.secret.number(Purpose::InitialSequence, tuple) as u32;
    hash.wrapping_add((common.now / 4000) as u32)
}
