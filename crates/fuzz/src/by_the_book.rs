//! What a kernel does with a super-packet or a partial checksum, written from the standards, slowly, and
//! without any code of weft: RFC 791, 768, 1071, 8200, 9293, and Virtual I/O Device 1.2, section 5.1.6.

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

/// Work that a virtio header leaves to the receiver of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Nothing,
    Checksum { start: usize, offset: usize },
    Segments { protocol: u8, size: usize },
}

/// Where the parts of an IP packet are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) is_v4: bool,
    pub(crate) protocol: u8,
    /// Offset of the transport header.
    pub(crate) transport: usize,
    pub(crate) is_fragment: bool,
}

/// Returns where the parts of a packet are; `None` if its headers or its length contradict its bytes.
pub(crate) fn layout(packet: &[u8]) -> Option<Layout> {
    match packet.first()? >> 4 {
        4 if packet.len() >= 20 => {
            let transport = usize::from(packet[0] & 15) * 4;
            let total = usize::from(u16_at(packet, 2));
            let is_fragment = u16_at(packet, 6) & 0x3fff != 0;
            let fits = transport >= 20 && transport <= total && total == packet.len();
            fits.then_some(Layout { is_v4: true, protocol: packet[9], transport, is_fragment })
        }
        6 if packet.len() >= 40 => {
            if 40 + usize::from(u16_at(packet, 4)) != packet.len() {
                return None;
            }
            let (mut protocol, mut transport) = (packet[6], 40);
            // Hop-by-hop options, routing and destination options.
            while matches!(protocol, 0 | 43 | 60) && transport + 2 <= packet.len() {
                (protocol, transport) =
                    (packet[transport], transport + 8 + 8 * usize::from(packet[transport + 1]));
            }
            Some(Layout { is_v4: false, protocol, transport, is_fragment: false })
        }
        _ => None,
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The sum of RFC 1071, not complemented, word by word.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The pseudo-header of a transport of `len` bytes.
fn pseudo(packet: &[u8], is_v4: bool, protocol: u8, len: usize) -> Vec<u8> {
    let mut pseudo = if is_v4 { packet[12..20].to_vec() } else { packet[8..40].to_vec() };
    pseudo.extend((len as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, protocol]);
    pseudo
}

/// The sum over a packet's pseudo-header and transport; 0xffff if its checksum is right.
pub(crate) fn transport_sum(packet: &[u8], layout: Layout) -> u16 {
    let transport = &packet[layout.transport..];
    let mut bytes = pseudo(packet, layout.is_v4, layout.protocol, transport.len());
    bytes.extend(transport);
    sum(&bytes)
}

/// The sum over the pseudo-header of a packet.
pub(crate) fn pseudo_sum(packet: &[u8], layout: Layout) -> u16 {
    sum(&pseudo(packet, layout.is_v4, layout.protocol, packet.len() - layout.transport))
}

/// Reads a virtio header as a kernel reads what is written to a TUN; `None` if it does not fit the packet.
pub(crate) fn work(header: &[u8], packet: &[u8]) -> Option<Work> {
    let layout = layout(packet)?;
    let native = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
    let (needs_checksum, kind) = (header[0] & 1 != 0, header[1] & !0x80);
    let (size, start, offset) = (native(4), native(6), native(8));
    if kind == 0 {
        let ip = if layout.is_v4 { layout.transport } else { 40 };
        let fits = start >= ip && start + offset + 2 <= packet.len();
        return match needs_checksum {
            false => Some(Work::Nothing),
            true => fits.then_some(Work::Checksum { start, offset }),
        };
    }
    let (protocol, field) = match kind {
        1 if layout.is_v4 => (TCP, 16),
        4 if !layout.is_v4 => (TCP, 16),
        5 => (UDP, 6),
        _ => return None,
    };
    let fits = size > 0
        && layout.protocol == protocol
        && !layout.is_fragment
        && (!needs_checksum || (start == layout.transport && offset == field));
    let headers = layout.transport + transport_header(packet, layout)?;
    (fits && packet.len() > headers).then_some(Work::Segments { protocol, size })
}

/// The bytes of a TCP or UDP header.
pub(crate) fn transport_header(packet: &[u8], layout: Layout) -> Option<usize> {
    let transport = packet.get(layout.transport..)?;
    match layout.protocol {
        TCP => {
            let len = usize::from(*transport.get(12)? >> 4) * 4;
            (len >= 20 && len <= transport.len()).then_some(len)
        }
        UDP => (transport.len() >= 8).then_some(8),
        _ => None,
    }
}

/// Does the work: the packets that a kernel makes of a packet.
pub(crate) fn segments(packet: &[u8], work: Work) -> Option<Vec<Vec<u8>>> {
    match work {
        Work::Nothing => Some(vec![packet.to_vec()]),
        Work::Checksum { start, offset } => {
            let mut packet = packet.to_vec();
            let field = packet.get(start..)?.len().checked_sub(offset + 2).map(|_| start + offset)?;
            let sum = !sum(&packet[start..]);
            let sum = if sum == 0 { 0xffff } else { sum };
            packet[field..field + 2].copy_from_slice(&sum.to_be_bytes());
            Some(vec![packet])
        }
        Work::Segments { protocol, size } => {
            let layout = layout(packet)?;
            let headers = layout.transport + transport_header(packet, layout)?;
            let (head, payload) = packet.split_at(headers);
            if layout.protocol != protocol {
                return None;
            }
            let last = payload.len().div_ceil(size).max(1) - 1;
            let segment = |(index, payload): (usize, &[u8])| {
                let mut segment = [head, payload].concat();
                finish(&mut segment, layout, index, size, index == last);
                segment
            };
            Some(payload.chunks(size).enumerate().map(segment).collect())
        }
    }
}

/// Makes the headers of a segment right.
fn finish(segment: &mut [u8], layout: Layout, index: usize, size: usize, is_last: bool) {
    let (len, transport) = (segment.len() as u16, layout.transport);
    if layout.is_v4 {
        let id = u16_at(segment, 4).wrapping_add(index as u16);
        segment[2..4].copy_from_slice(&len.to_be_bytes());
        segment[4..6].copy_from_slice(&id.to_be_bytes());
        segment[10..12].fill(0);
        let sum = !sum(&segment[..transport]);
        segment[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        segment[4..6].copy_from_slice(&(len - 40).to_be_bytes());
    }
    let field = if layout.protocol == TCP {
        let sequence = u32::from_be_bytes(*segment[transport + 4..].first_chunk().unwrap());
        let sequence = sequence.wrapping_add((index * size) as u32);
        segment[transport + 4..transport + 8].copy_from_slice(&sequence.to_be_bytes());
        // FIN and PSH belong to the last segment, CWR to the first.
        segment[transport + 13] &= if is_last { 0xff } else { !0x09 };
        segment[transport + 13] &= if index == 0 { 0xff } else { !0x80 };
        transport + 16
    } else {
        let len = (segment.len() - transport) as u16;
        segment[transport + 4..transport + 6].copy_from_slice(&len.to_be_bytes());
        transport + 6
    };
    segment[field..field + 2].fill(0);
    let sum = !transport_sum(segment, layout);
    let sum = if sum == 0 && layout.protocol == UDP { 0xffff } else { sum };
    segment[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}
