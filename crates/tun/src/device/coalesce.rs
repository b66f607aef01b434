//! Joins the packets of one inbound batch into super-packets, as the kernel's GRO would: between the flush of
//! the packet thread and the `writev` of the writer. No payload is copied: a group is a new header and the
//! payload ranges of its packets.
//!
//! The batch is the coalescing window. Packets of other flows may lie between the packets of a group, but
//! packets of one flow are never reordered: a group takes the position of its first packet, and a packet of
//! the flow that cannot join the group closes it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io::IoSlice;

use weft_tunnel::ip::{self, IPV4_HEADER, IPV6_HEADER, IpHeader};
use weft_tunnel::{MAX_PACKET, PlainSlab};

use super::plain_batch::Staged;
use super::vnet_hdr::{self, VNET_HDR};
use crate::config::TunOffload;

/// Maximum number of segments in a UDP super-packet: the kernel's UDP_MAX_SEGMENTS before 6.9. The kernel
/// refuses more.
const MAX_UDP_SEGMENTS: u32 = 64;
/// Maximum number of segments in a TCP super-packet. `writev` accepts 1,024 pieces (UIO_MAXIOV): one for the
/// headers, and one for each segment. 65,535 bytes in segments of the smallest usual MSS (536) are 122
/// segments.
pub(crate) const MAX_TCP_SEGMENTS: u32 = 256;
/// The longest headers of a super-packet: IPv6 without extension headers, TCP with every option.
const MAX_HEADER: usize = IPV6_HEADER + 60;

const TCP_ACK: u8 = 0x10;
const TCP_PSH: u8 = 0x08;
const IPV4_DONT_FRAGMENT: u8 = 0x40;
const NONE: u32 = u32::MAX;

/// One write: a packet as it is, or several packets joined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// Index of the first packet in the batch, and of the last.
    first: u32,
    last: u32,
    /// Number of packets joined.
    pub(super) segments: u32,
    /// Bytes of the IP packet that will be written.
    pub(super) len: u32,
    /// The end of the headers and the start of the transport header, in the first packet.
    header_len: u16,
    transport: u16,
    protocol: u8,
    /// TCP flags of all packets combined, for PSH of the last packet.
    flags: u8,
    /// Whether the checksum of the first packet was verified.
    verified: bool,
    /// TCP sequence number of the packet that continues the group.
    next_sequence: u32,
    /// IPv4 ID of the last packet.
    last_id: u16,
    /// Payload bytes of each packet but the last, which may have fewer.
    segment_size: u16,
    /// Offset of the joined header in [`Coalescer::headers`].
    header: u32,
}

impl Group {
    /// Returns the transport protocol; 0 if the packet cannot join others.
    pub(super) fn protocol(&self) -> u8 {
        self.protocol
    }
}

/// The fields that decide whether a packet can join others.
struct Candidate {
    header_len: usize,
    transport: usize,
    protocol: u8,
    flags: u8,
    sequence: u32,
    id: u16,
    payload: usize,
}

/// Plans the writes of a batch. The next batch reuses its memory.
#[derive(Default)]
pub(super) struct Coalescer {
    groups: Vec<Group>,
    /// For each packet of the batch, the next one of its group.
    chain: Vec<u32>,
    /// The newest group of each flow, while it may still grow.
    open: HashMap<u64, u32, BuildHasherDefault<Prehashed>>,
    /// Virtio header and joined headers of every group.
    headers: Vec<u8>,
}

impl Coalescer {
    /// Plans the writes of `packets`. Joins packets as far as `offload` allows.
    pub(super) fn plan(&mut self, slab: &PlainSlab, packets: &[Staged], offload: TunOffload) {
        self.groups.clear();
        self.chain.clear();
        self.open.clear();
        self.headers.clear();
        self.chain.resize(packets.len(), NONE);
        for (index, packet) in packets.iter().enumerate() {
            let bytes = slab.get(packet.packet);
            if packets.len() == 1 || !(offload.tcp || offload.udp) {
                self.push(index, bytes.len(), None);
                continue;
            }
            self.place(slab, packets, index, bytes, offload);
        }
        for index in 0..self.groups.len() {
            if self.groups[index].segments > 1 {
                self.write_header(index, slab, packets);
            }
        }
    }

    /// Returns the planned writes, in order.
    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Appends the pieces of group `index` to `out`, the virtio header first.
    pub(super) fn gather<'a>(
        &'a self,
        index: usize,
        slab: &'a PlainSlab,
        packets: &[Staged],
        out: &mut Vec<IoSlice<'a>>,
    ) {
        let group = &self.groups[index];
        if group.segments == 1 {
            out.push(IoSlice::new(&vnet_hdr::NOTHING_TO_DO));
            out.push(IoSlice::new(slab.get(packets[group.first as usize].packet)));
            return;
        }
        let header_len = usize::from(group.header_len);
        let header = &self.headers[group.header as usize..][..VNET_HDR + header_len];
        out.push(IoSlice::new(header));
        out.extend(
            self.members(index).map(|member| IoSlice::new(&slab.get(packets[member].packet)[header_len..])),
        );
    }

    /// Returns the packets of group `index`, as indices into the batch.
    pub(super) fn members(&self, index: usize) -> impl Iterator<Item = usize> + '_ {
        let first = self.groups[index].first as usize;
        std::iter::successors(Some(first), |member| match self.chain[*member] {
            NONE => None,
            next => Some(next as usize),
        })
    }

    fn place(
        &mut self,
        slab: &PlainSlab,
        packets: &[Staged],
        index: usize,
        bytes: &[u8],
        offload: TunOffload,
    ) {
        let Some(header) = IpHeader::parse(bytes) else {
            self.open.clear();
            self.push(index, bytes.len(), None);
            return;
        };
        let flow = packets[index].flow;
        let Some(candidate) = candidate(bytes, &header, offload) else {
            // A packet without ports may belong to any flow.
            if flow.has_ports {
                self.open.remove(&flow.value);
            } else {
                self.open.clear();
            }
            self.push(index, bytes.len(), None);
            return;
        };
        if let Some(open) = self.open.get(&flow.value).copied()
            && self.joins(open as usize, slab, packets, bytes, &candidate)
        {
            if !is_intact(bytes, candidate.transport, candidate.protocol) {
                self.open.remove(&flow.value);
                self.push(index, bytes.len(), None);
                return;
            }
            if self.append(open as usize, index, &candidate) {
                self.open.remove(&flow.value);
            }
            return;
        }
        let sealed = candidate.flags & TCP_PSH != 0;
        let group = self.push(index, bytes.len(), Some(&candidate));
        if sealed {
            self.open.remove(&flow.value);
        } else {
            self.open.insert(flow.value, group);
        }
    }

    fn push(&mut self, index: usize, len: usize, candidate: Option<&Candidate>) -> u32 {
        let number = self.groups.len() as u32;
        let mut group = Group {
            first: index as u32,
            last: index as u32,
            segments: 1,
            len: len as u32,
            header_len: 0,
            transport: 0,
            protocol: 0,
            flags: 0,
            verified: false,
            next_sequence: 0,
            last_id: 0,
            segment_size: 0,
            header: 0,
        };
        if let Some(candidate) = candidate {
            group.header_len = candidate.header_len as u16;
            group.transport = candidate.transport as u16;
            group.protocol = candidate.protocol;
            group.flags = candidate.flags;
            group.next_sequence = candidate.sequence.wrapping_add(candidate.payload as u32);
            group.last_id = candidate.id;
            group.segment_size = candidate.payload as u16;
        }
        self.groups.push(group);
        number
    }

    /// Reports whether the packet continues the group, apart from its checksum. Verifies the first packet of
    /// the group once there is a packet to join.
    fn joins(
        &mut self,
        group: usize,
        slab: &PlainSlab,
        packets: &[Staged],
        bytes: &[u8],
        candidate: &Candidate,
    ) -> bool {
        let group = &mut self.groups[group];
        let first = slab.get(packets[group.first as usize].packet);
        let limit = if candidate.protocol == ip::UDP { MAX_UDP_SEGMENTS } else { MAX_TCP_SEGMENTS };
        let fits = candidate.payload <= usize::from(group.segment_size)
            && group.len as usize + candidate.payload <= MAX_PACKET
            && group.segments < limit
            && candidate.protocol == group.protocol
            && candidate.header_len == usize::from(group.header_len)
            && candidate.transport == usize::from(group.transport)
            && (candidate.protocol == ip::UDP || candidate.sequence == group.next_sequence);
        if !fits || !same_ip_header(first, bytes, group.last_id, candidate.id) {
            return false;
        }
        let (a, b) = (&first[candidate.transport..candidate.header_len], &bytes[candidate.transport..]);
        // Not compared: the sequence number (4..8), the flags (13) and the checksum.
        let same_transport = match candidate.protocol {
            ip::UDP => a[..4] == b[..4],
            _ => {
                a[..4] == b[..4]
                    && a[8..13] == b[8..13]
                    && a[14..16] == b[14..16]
                    && a[18..] == b[18..candidate.header_len - candidate.transport]
            }
        };
        if !same_transport {
            return false;
        }
        if !group.verified {
            group.verified = is_intact(first, candidate.transport, candidate.protocol);
        }
        group.verified
    }

    /// Appends a packet to the group. Returns true if no packet may follow it.
    fn append(&mut self, group: usize, index: usize, candidate: &Candidate) -> bool {
        let group = &mut self.groups[group];
        self.chain[group.last as usize] = index as u32;
        group.last = index as u32;
        group.segments += 1;
        group.len += candidate.payload as u32;
        group.flags |= candidate.flags;
        group.next_sequence = group.next_sequence.wrapping_add(candidate.payload as u32);
        group.last_id = candidate.id;
        candidate.payload < usize::from(group.segment_size) || candidate.flags & TCP_PSH != 0
    }

    /// Writes the virtio header and the headers of a group: those of the first packet, with the lengths of
    /// the group, and the PSH flag of the last packet. The checksum field has the sum of the
    /// pseudo-header.
    fn write_header(&mut self, index: usize, slab: &PlainSlab, packets: &[Staged]) {
        let group = &mut self.groups[index];
        let header_len = usize::from(group.header_len);
        let transport = usize::from(group.transport);
        let mut header = [0; MAX_HEADER];
        let header = &mut header[..header_len];
        header.copy_from_slice(&slab.get(packets[group.first as usize].packet)[..header_len]);

        let transport_len = group.len as usize - transport;
        let is_v4 = header[0] >> 4 == 4;
        if is_v4 {
            header[2..4].copy_from_slice(&(group.len as u16).to_be_bytes());
            ip::write_ipv4_checksum(header, IPV4_HEADER);
        } else {
            header[4..6].copy_from_slice(&(transport_len as u16).to_be_bytes());
        }
        let sum = ip::pseudo_header_sum(&header[ip::address_range(header[0])], group.protocol, transport_len);
        let fields = &mut header[transport..];
        if group.protocol == ip::UDP {
            fields[4..6].copy_from_slice(&(transport_len as u16).to_be_bytes());
            fields[6..8].copy_from_slice(&ip::fold(sum).to_be_bytes());
        } else {
            fields[13] = group.flags;
            fields[16..18].copy_from_slice(&ip::fold(sum).to_be_bytes());
        }

        group.header = self.headers.len() as u32;
        let Group { protocol, header_len, transport, segment_size, .. } = *group;
        let virtio = vnet_hdr::encode_super_packet(is_v4, protocol, header_len, transport, segment_size);
        self.headers.extend_from_slice(&virtio);
        self.headers.extend_from_slice(header);
    }
}

/// Parses a packet that may join others; `None` if it has to be written as it is.
fn candidate(bytes: &[u8], ip: &IpHeader, offload: TunOffload) -> Option<Candidate> {
    let is_v4 = bytes[0] >> 4 == 4;
    if ip.total_len != bytes.len() || ip.is_fragment || (is_v4 && ip.header_len != IPV4_HEADER) {
        return None;
    }
    let transport = ip.header_len;
    let fields = &bytes[transport..];
    let (length, flags, sequence) = match ip.protocol {
        ip::TCP if offload.tcp => {
            let header = fields.first_chunk::<20>()?;
            let flags = header[13];
            if flags & !TCP_PSH != TCP_ACK {
                return None;
            }
            let length = usize::from(header[12] >> 4) * 4;
            (length, flags, u32::from_be_bytes([header[4], header[5], header[6], header[7]]))
        }
        ip::UDP if offload.udp => {
            let header = fields.first_chunk::<8>()?;
            let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
            let has_checksum = header[6..8] != [0, 0];
            if length != fields.len() || !has_checksum {
                return None;
            }
            (8, 0, 0)
        }
        _ => return None,
    };
    let payload = fields.len().checked_sub(length).filter(|payload| *payload > 0)?;
    if ip.protocol == ip::TCP && length < 20 {
        return None;
    }
    let id = if is_v4 { u16::from_be_bytes([bytes[4], bytes[5]]) } else { 0 };
    Some(Candidate {
        header_len: transport + length,
        transport,
        protocol: ip.protocol,
        flags,
        sequence,
        id,
        payload,
    })
}

/// Reports whether two IP headers differ only in fields that splitting restores: lengths, IPv4 ID and
/// checksum.
fn same_ip_header(a: &[u8], b: &[u8], last_id: u16, id: u16) -> bool {
    if a[0] >> 4 == 6 {
        return a[..4] == b[..4] && a[6..IPV6_HEADER] == b[6..IPV6_HEADER];
    }
    // With DF the ID has no meaning (RFC 6864, section 4.1). Without DF, splitting increments it.
    let id_continues = a[6] & IPV4_DONT_FRAGMENT != 0 || id == last_id.wrapping_add(1);
    a[..2] == b[..2] && a[6..10] == b[6..10] && a[12..IPV4_HEADER] == b[12..IPV4_HEADER] && id_continues
}

/// Reports whether the checksums of IPv4 and of the transport are correct.
fn is_intact(bytes: &[u8], transport: usize, protocol: u8) -> bool {
    let transport = &bytes[transport..];
    if bytes[0] >> 4 == 4 && ip::fold(ip::checksum_add(0, &bytes[..IPV4_HEADER])) != 0xffff {
        return false;
    }
    let pseudo = &bytes[ip::address_range(bytes[0])];
    let sum = ip::pseudo_header_sum(pseudo, protocol, transport.len());
    ip::fold(ip::checksum_add(sum, transport)) == 0xffff
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
struct Prehashed(u64);

impl Hasher for Prehashed {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests;
