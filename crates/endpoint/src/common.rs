//! What all connections share, and packets that belong to none.

use std::collections::VecDeque;

use ipnet::IpNet;
use weft_tunnel::Offload;

use crate::chunk::{Pool, SMALL};
use crate::packet::{header_len, set_markable, write_checksum, write_header};
use crate::secret::{Secret, Tuple};
use crate::segment::{self, Header};
use crate::{Event, Limits, PacketSink, Stats};

/// Bytes behind a packet that the tunnel writes to.
const TAIL: usize = weft_tunnel::TAILROOM;
/// Packets without a connection that wait to be sent, at most: beyond it they are dropped.
const MAX_REPLIES: usize = 1024;
/// The path MTU of destinations that told it, at most.
const MAX_PATHS: usize = 1024;
/// How long a path MTU counts (RFC 8201, section 4).
const PATH_LIFETIME: u64 = 600_000_000_000;

/// A packet without a connection.
#[derive(Debug)]
pub(crate) enum Reply {
    /// A segment without payload.
    Tcp(Tuple, Header),
    /// A whole packet.
    Packet(Box<[u8]>),
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Common {
    /// Nanoseconds since the endpoint was made.
    pub(crate) now: u64,
    pub(crate) pool: Pool,
    pub(crate) events: VecDeque<Event>,
    pub(crate) stats: Stats,
    pub(crate) limits: Limits,
    pub(crate) secret: Secret,
    pub(crate) mtu: u16,
    /// Bytes that connections may hold, without those of the pool.
    pub(crate) memory: u64,
    /// Bytes that connections have advertised or hold, whichever is more, and have queued to send.
    pub(crate) reserved: u64,
    /// The part of each owner. The first is of addresses that no owner has.
    pub(crate) owned: Vec<u64>,
    owners: Vec<(IpNet, usize)>,
    /// Packets that may wait in `replies`.
    pub(crate) most_replies: usize,
    replies: VecDeque<Reply>,
    paths: VecDeque<(std::net::IpAddr, u16, u64)>,
}

impl Common {
    pub(crate) fn new(limits: Limits, secret: Secret, mtu: u16, memory: u64) -> Self {
        let keep = (memory / 16).min(32 << 20);
        Self {
            now: 0,
            pool: Pool::new(keep as usize),
            events: VecDeque::new(),
            stats: Stats::default(),
            limits,
            secret,
            mtu,
            memory: memory - 2 * keep,
            reserved: 0,
            owned: vec![0],
            owners: Vec::new(),
            most_replies: MAX_REPLIES,
            replies: VecDeque::new(),
            paths: VecDeque::new(),
        }
    }

    /// Replaces what a connection has reserved.
    pub(crate) fn reserve(&mut self, owner: usize, before: u64, now: u64) {
        self.reserved = self.reserved + now - before;
        if let Some(owned) = self.owned.get_mut(owner) {
            *owned = *owned + now - before;
        }
        self.pool.is_scarce = self.reserved > self.memory / 2;
    }

    /// Replaces the owners by those with these networks, of which none has reserved anything yet.
    pub(crate) fn set_owners(&mut self, networks: &[Vec<IpNet>]) {
        let owners = (1..).zip(networks);
        self.owners =
            owners.flat_map(|(owner, of)| of.iter().map(move |network| (*network, owner))).collect();
        self.owned = vec![0; networks.len() + 1];
    }

    /// Returns the owner of an address: the one with the longest prefix.
    pub(crate) fn owner(&self, address: std::net::IpAddr) -> usize {
        let of = self.owners.iter().filter(|(network, _)| network.contains(&address));
        of.max_by_key(|(network, _)| network.prefix_len()).map_or(0, |(_, owner)| *owner)
    }

    /// Returns the most that one connection may have of a limit.
    pub(crate) fn largest(&self, limit: u32) -> u64 {
        u64::from(limit).min(self.memory / 4)
    }

    /// Returns the window of a new connection. New ones leave most of the memory to those that are read.
    pub(crate) fn first_window(&self) -> u16 {
        let share = (self.memory / 4).saturating_sub(self.reserved) / 64;
        share.max(SMALL as u64).min(self.limits.receive_window.into()).min(65_535) as u16
    }

    /// Returns milliseconds, for timestamps.
    pub(crate) fn milliseconds(&self) -> u32 {
        milliseconds(self.now)
    }

    pub(crate) fn reply(&mut self, reply: Reply) {
        if self.replies.len() < self.most_replies {
            self.replies.push_back(reply);
        } else {
            self.stats.dropped_packets += 1;
        }
    }

    pub(crate) fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Writes the replies. Returns false when there is no room.
    pub(crate) fn transmit_replies(&mut self, out: &mut impl PacketSink) -> bool {
        while let Some(reply) = self.replies.front() {
            let spare = out.spare_mut();
            let len = match reply {
                Reply::Tcp(tuple, header) => {
                    let len = header_len(tuple.local) + header.len();
                    if spare.len() < len + TAIL {
                        return false;
                    }
                    write_segment(spare, tuple, header, 0);
                    len
                }
                Reply::Packet(bytes) => match spare.get_mut(..bytes.len()) {
                    Some(room) => {
                        room.copy_from_slice(bytes);
                        bytes.len()
                    }
                    None => return false,
                },
            };
            if !out.commit(len, Offload::None) {
                return false;
            }
            self.stats.packets_out += 1;
            self.replies.pop_front();
        }
        true
    }

    /// Returns the bytes of the longest packet to a destination.
    pub(crate) fn path_mtu(&self, destination: std::net::IpAddr) -> u16 {
        let path = self.paths.iter().find(|(to, _, until)| *to == destination && *until > self.now);
        path.map_or(self.mtu, |(_, mtu, _)| self.mtu.min(*mtu))
    }

    /// A router says that longer packets do not reach the destination.
    pub(crate) fn learn_path_mtu(&mut self, destination: std::net::IpAddr, mtu: u16) {
        self.paths.retain(|(to, ..)| *to != destination);
        if self.paths.len() >= MAX_PATHS {
            self.paths.pop_front();
        }
        self.paths.push_back((destination, mtu, self.now + PATH_LIFETIME));
    }
}

/// Returns milliseconds of nanoseconds, as timestamps count.
pub(crate) fn milliseconds(nanoseconds: u64) -> u32 {
    (nanoseconds / 1_000_000) as u32
}

/// Writes IP and TCP headers. With no payload the checksum is complete; otherwise it is left to segmentation.
pub(crate) fn write_segment(out: &mut [u8], tuple: &Tuple, header: &Header, payload_len: usize) -> usize {
    let ends = (tuple.local, tuple.peer);
    let at = write_header(out, ends, weft_tunnel::ip::TCP, header.len() + payload_len, None);
    if header.is_markable {
        set_markable(&mut out[..at]);
    }
    let end = at + header.len();
    header.write(tuple.local_port, tuple.peer_port, &mut out[at..end]);
    if payload_len == 0 {
        write_checksum(&mut out[at..end], ends, weft_tunnel::ip::TCP, 16);
    }
    end
}

/// Returns the reset that answers a segment which belongs to nothing (RFC 9293, section 3.10.7.1); none
/// answers a reset.
pub(crate) fn reset_for(tuple: Tuple, received: &segment::Segment<'_>) -> Option<Reply> {
    if received.has(segment::RST) {
        return None;
    }
    let header = if received.has(segment::ACK) {
        Header { seq: received.ack, flags: segment::RST, ..Header::default() }
    } else {
        let ack = received.seq.wrapping_add(received.len() as u32);
        Header { ack, flags: segment::RST | segment::ACK, ..Header::default() }
    };
    Some(Reply::Tcp(tuple, header))
}
