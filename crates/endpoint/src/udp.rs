//! UDP (RFC 768): sockets with a bounded queue each way. A datagram that is longer than the path takes is
//! sent in fragments.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use weft_tunnel::{Offload, TAILROOM, ip};

use crate::common::Common;
use crate::packet::{FRAGMENT_HEADER, Fragment, header_len, write_checksum, write_header};
use crate::tcp::Transmitted;
use crate::{Event, PacketSink, UdpId};

pub(crate) const HEADER: usize = 8;
/// What a datagram counts besides its payload, so that empty ones are bounded too.
const OVERHEAD: usize = 64;

/// Datagrams one behind the other.
#[derive(Debug, Default)]
struct Queue {
    bytes: VecDeque<u8>,
    datagrams: VecDeque<(SocketAddr, usize)>,
}

impl Queue {
    /// Adds a datagram if there is room.
    fn push(&mut self, address: SocketAddr, payload: &[u8], limit: u32) -> bool {
        let used = self.bytes.len() + self.datagrams.len() * OVERHEAD;
        // An empty queue takes any datagram.
        if used + payload.len() > limit as usize && !self.datagrams.is_empty() {
            return false;
        }
        self.bytes.extend(payload);
        self.datagrams.push_back((address, payload.len()));
        true
    }

    /// Copies the start of the first datagram.
    fn copy(&self, out: &mut [u8]) {
        let (first, second) = self.bytes.as_slices();
        let count = first.len().min(out.len());
        let (head, tail) = out.split_at_mut(count);
        head.copy_from_slice(&first[..count]);
        let count = second.len().min(tail.len());
        tail[..count].copy_from_slice(&second[..count]);
    }

    fn pop(&mut self) {
        if let Some((_, len)) = self.datagrams.pop_front() {
            self.bytes.drain(..len.min(self.bytes.len()));
        }
    }
}

/// A socket.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) id: UdpId,
    pub(crate) at: SocketAddr,
    inbound: Queue,
    outbound: Queue,
    waits_to_read: bool,
    waits_to_write: bool,
    /// The datagram that is being sent in fragments, and how much of it was sent.
    whole: Vec<u8>,
    sent: usize,
    identification: u32,
    pub(crate) is_in_queue: bool,
}

impl Socket {
    pub(crate) fn new(id: UdpId, at: SocketAddr, identification: u32) -> Self {
        Self {
            id,
            at,
            inbound: Queue::default(),
            outbound: Queue::default(),
            waits_to_read: true,
            waits_to_write: false,
            whole: Vec::new(),
            sent: 0,
            identification,
            is_in_queue: false,
        }
    }

    /// A datagram has arrived. Returns false if there is no room.
    pub(crate) fn deliver(&mut self, from: SocketAddr, payload: &[u8], common: &mut Common) -> bool {
        let is_taken = self.inbound.push(from, payload, common.limits.udp_buffer);
        if is_taken && std::mem::take(&mut self.waits_to_read) {
            common.events.push_back(Event::Datagram(self.id));
        }
        is_taken
    }

    pub(crate) fn take(&mut self, into: &mut [u8]) -> Option<(usize, SocketAddr)> {
        let Some((from, len)) = self.inbound.datagrams.front().copied() else {
            self.waits_to_read = true;
            return None;
        };
        let len_there = len.min(into.len());
        self.inbound.copy(&mut into[..len_there]);
        self.inbound.pop();
        Some((len_there, from))
    }

    /// Returns false if there is no room.
    pub(crate) fn send(&mut self, to: SocketAddr, payload: &[u8], limit: u32) -> bool {
        let is_taken = self.outbound.push(to, payload, limit);
        self.waits_to_write |= !is_taken;
        is_taken
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.outbound.datagrams.is_empty()
    }

    /// Writes the next packet. `source` is the address for sockets that are bound to none.
    pub(crate) fn transmit(
        &mut self,
        source: impl Fn(SocketAddr) -> Option<IpAddr>,
        common: &mut Common,
        out: &mut impl PacketSink,
    ) -> Transmitted {
        let Some((to, len)) = self.outbound.datagrams.front().copied() else { return Transmitted::Nothing };
        let own = Some(self.at.ip()).filter(|own| !own.is_unspecified()).or_else(|| source(to));
        let Some(own) = own else {
            self.outbound.pop();
            return Transmitted::Packet(0);
        };
        let (ends, at) = ((own, to.ip()), header_len(own));
        let mtu = usize::from(common.path_mtu(to.ip()));
        if at + HEADER + len > mtu {
            return self.transmit_fragment(ends, to, len, mtu - at, common, out);
        }
        let spare = out.spare_mut();
        if spare.len() < at + HEADER + len + TAILROOM {
            return Transmitted::Full;
        }
        write_header(spare, ends, ip::UDP, HEADER + len, None);
        let datagram = &mut spare[at..at + HEADER + len];
        self.outbound.copy(&mut datagram[HEADER..]);
        write_udp(datagram, self.at.port(), to.port(), ends);
        if !out.commit(at + HEADER + len, Offload::None) {
            return Transmitted::Full;
        }
        self.sent(len, common)
    }

    fn transmit_fragment(
        &mut self,
        ends: (IpAddr, IpAddr),
        to: SocketAddr,
        len: usize,
        mtu: usize,
        common: &mut Common,
        out: &mut impl PacketSink,
    ) -> Transmitted {
        if self.sent == 0 {
            self.whole.clear();
            self.whole.resize(HEADER + len, 0);
            self.outbound.copy(&mut self.whole[HEADER..]);
            write_udp(&mut self.whole, self.at.port(), to.port(), ends);
            self.identification = self.identification.wrapping_add(1);
        }
        let room = if to.is_ipv4() { mtu & !7 } else { (mtu - FRAGMENT_HEADER) & !7 };
        let rest = self.whole.get(self.sent..).unwrap_or_default();
        let part = rest.get(..room).unwrap_or(rest);
        let fragment = Fragment {
            identification: self.identification,
            offset: self.sent,
            has_more: part.len() < rest.len(),
        };
        let spare = out.spare_mut();
        let headers = header_len(ends.0) + FRAGMENT_HEADER;
        if spare.len() < headers + part.len() + TAILROOM {
            return Transmitted::Full;
        }
        let at = write_header(spare, ends, ip::UDP, part.len(), Some(fragment));
        let end = at + part.len();
        spare[at..end].copy_from_slice(part);
        if !out.commit(end, Offload::None) {
            return Transmitted::Full;
        }
        self.sent += part.len();
        if fragment.has_more {
            common.stats.packets_out += 1;
            return Transmitted::Packet(room as u64);
        }
        self.sent = 0;
        self.sent(len, common)
    }

    fn sent(&mut self, len: usize, common: &mut Common) -> Transmitted {
        self.outbound.pop();
        common.stats.packets_out += 1;
        if std::mem::take(&mut self.waits_to_write) {
            common.events.push_back(Event::UdpWritable(self.id));
        }
        Transmitted::Packet(len as u64)
    }
}

/// Writes the header before the payload in `datagram`.
fn write_udp(datagram: &mut [u8], source: u16, destination: u16, ends: (IpAddr, IpAddr)) {
    let len = datagram.len() as u16;
    datagram[..2].copy_from_slice(&source.to_be_bytes());
    datagram[2..4].copy_from_slice(&destination.to_be_bytes());
    datagram[4..6].copy_from_slice(&len.to_be_bytes());
    datagram[6..8].fill(0);
    write_checksum(datagram, ends, ip::UDP, 6);
}
