//! TCP headers and options on the wire (RFC 9293, section 3.1; RFC 7323; RFC 2018).

/// Flags of a segment.
pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const ECE: u8 = 0x40;
pub(crate) const CWR: u8 = 0x80;

/// Bytes of a header without options.
pub(crate) const HEADER: usize = 20;
/// Bytes of the timestamps, padded as Linux does.
pub(crate) const TIMESTAMPS: usize = 12;
/// SACK blocks in a header, at most.
pub(crate) const MAX_SACKS: usize = 4;

/// A received segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Segment<'a> {
    pub(crate) source: u16,
    pub(crate) destination: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) mss: Option<u16>,
    pub(crate) window_scale: Option<u8>,
    pub(crate) sack_permitted: bool,
    /// TSval and TSecr.
    pub(crate) timestamp: Option<(u32, u32)>,
    pub(crate) sacks: [(u32, u32); MAX_SACKS],
    pub(crate) sack_count: usize,
    /// A router on the path was congested: the packet is marked CE (RFC 3168).
    pub(crate) is_marked: bool,
    pub(crate) payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Reads a segment, whose checksum the caller has verified. Returns `None` if it is malformed.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let header = bytes.first_chunk::<HEADER>()?;
        let len = usize::from(header[12] >> 4) * 4;
        let (header_bytes, payload) = bytes.split_at_checked(len)?;
        let options = header_bytes.get(HEADER..)?;
        let u16_at = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let u32_at =
            |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let mut segment = Self {
            source: u16_at(0),
            destination: u16_at(2),
            seq: u32_at(4),
            ack: u32_at(8),
            flags: header[13],
            window: u16_at(14),
            payload,
            ..Self::default()
        };
        match options {
            // What nearly all segments have.
            [1, 1, 8, 10, times @ ..] if times.len() == 8 => segment.timestamp = two(times),
            _ => segment.parse_options(options),
        }
        Some(segment)
    }

    /// Reads options until one is malformed: the rest is ignored then, as Linux does.
    fn parse_options(&mut self, mut options: &[u8]) {
        while let [kind, rest @ ..] = options {
            match kind {
                0 => return,
                1 => {
                    options = rest;
                    continue;
                }
                _ => {}
            }
            let Some(len) = rest.first().map(|len| usize::from(*len)) else { return };
            let Some((option, rest)) = options.split_at_checked(len) else { return };
            let Some(value) = option.get(2..) else { return };
            options = rest;
            match (kind, value) {
                (2, [high, low]) => self.mss = Some(u16::from_be_bytes([*high, *low])),
                (3, [shift]) => self.window_scale = Some(*shift),
                (4, []) => self.sack_permitted = true,
                (5, blocks) if blocks.len() % 8 == 0 => {
                    for (place, block) in self.sacks.iter_mut().zip(blocks.chunks_exact(8)) {
                        *place = two(block).unwrap_or_default();
                    }
                    self.sack_count = (blocks.len() / 8).min(MAX_SACKS);
                }
                (8, times) if times.len() == 8 => self.timestamp = two(times),
                _ => {}
            }
        }
    }

    pub(crate) fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// Returns the SACK blocks.
    pub(crate) fn sacks(&self) -> &[(u32, u32)] {
        self.sacks.get(..self.sack_count).unwrap_or_default()
    }

    /// Returns the length in sequence numbers (RFC 9293: SEG.LEN).
    pub(crate) fn len(&self) -> u64 {
        self.payload.len() as u64 + u64::from(self.has(SYN)) + u64::from(self.has(FIN))
    }
}

fn two(bytes: &[u8]) -> Option<(u32, u32)> {
    let (first, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*first), u32::from_be_bytes(*rest.first_chunk::<4>()?)))
}

/// The header of a segment to send, without its ports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Header {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    /// Routers may mark the packet (ECT(0) of RFC 3168).
    pub(crate) is_markable: bool,
    pub(crate) options: Options,
}

impl Header {
    pub(crate) fn len(&self) -> usize {
        HEADER + self.options.len
    }

    /// Writes the header, with a checksum of 0, to the start of `out`, which has room.
    pub(crate) fn write(&self, source: u16, destination: u16, out: &mut [u8]) {
        let mut header = [0; HEADER];
        header[..2].copy_from_slice(&source.to_be_bytes());
        header[2..4].copy_from_slice(&destination.to_be_bytes());
        header[4..8].copy_from_slice(&self.seq.to_be_bytes());
        header[8..12].copy_from_slice(&self.ack.to_be_bytes());
        header[12] = ((self.len() / 4) as u8) << 4;
        header[13] = self.flags;
        header[14..16].copy_from_slice(&self.window.to_be_bytes());
        out[..HEADER].copy_from_slice(&header);
        out[HEADER..self.len()].copy_from_slice(self.options.bytes());
    }
}

/// Options of a segment to send, in the order and with the padding of Linux.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    bytes: [u8; 40],
    len: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { bytes: [0; 40], len: 0 }
    }
}

impl Options {
    /// The options of a SYN. `timestamp` and `window_scale` are absent where they are not offered.
    pub(crate) fn of_syn(mss: u16, sack: bool, timestamp: Option<(u32, u32)>, scale: Option<u8>) -> Self {
        let mut options = Self::default();
        let [high, low] = mss.to_be_bytes();
        options.push(&[2, 4, high, low]);
        match (sack, timestamp) {
            (true, Some(_)) => options.push(&[4, 2]),
            (true, None) => options.push(&[1, 1, 4, 2]),
            (false, Some(_)) => options.push(&[1, 1]),
            (false, None) => {}
        }
        if let Some((value, echo)) = timestamp {
            options.push(&[8, 10]);
            options.push(&value.to_be_bytes());
            options.push(&echo.to_be_bytes());
        }
        if let Some(shift) = scale {
            options.push(&[1, 3, 3, shift]);
        }
        options
    }

    /// The options of every other segment.
    pub(crate) fn of_segment(timestamp: Option<(u32, u32)>) -> Self {
        let mut options = Self::default();
        if let Some((value, echo)) = timestamp {
            options.push(&[1, 1, 8, 10]);
            options.push(&value.to_be_bytes());
            options.push(&echo.to_be_bytes());
        }
        options
    }

    /// Returns for how many SACK blocks there is room.
    pub(crate) fn sack_room(&self) -> usize {
        ((self.bytes.len() - self.len).saturating_sub(4) / 8).min(MAX_SACKS)
    }

    /// Adds SACK blocks, as many as there is room for.
    pub(crate) fn push_sacks(&mut self, blocks: &[(u32, u32)]) {
        let count = blocks.len().min(self.sack_room());
        if count == 0 {
            return;
        }
        self.push(&[1, 1, 5, 2 + 8 * count as u8]);
        for (start, end) in blocks.iter().take(count) {
            self.push(&start.to_be_bytes());
            self.push(&end.to_be_bytes());
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(header: &Header, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; header.len()];
        header.write(1, 2, &mut bytes);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn options_of_a_syn_stand_as_in_linux() {
        let all = Options::of_syn(1460, true, Some((1, 2)), Some(7));
        assert_eq!(all.bytes(), [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7]);
        let none = Options::of_syn(1460, false, None, None);
        assert_eq!(none.bytes(), [2, 4, 5, 180]);
        let sack = Options::of_syn(1460, true, None, Some(7));
        assert_eq!(sack.bytes(), [2, 4, 5, 180, 1, 1, 4, 2, 1, 3, 3, 7]);
        let times = Options::of_syn(1460, false, Some((1, 2)), None);
        assert_eq!(times.bytes(), [2, 4, 5, 180, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    }

    #[test]
    fn what_is_written_is_read() {
        let mut options = Options::of_segment(Some((7, 8)));
        assert_eq!(options.sack_room(), 3);
        options.push_sacks(&[(1, 2), (3, 4), (5, 6), (7, 8)]);
        let header = Header { seq: 10, ack: 11, flags: ACK | PSH, window: 12, is_markable: true, options };
        let bytes = written(&header, b"abc");
        let segment = Segment::parse(&bytes).unwrap();
        assert_eq!((segment.source, segment.destination, segment.seq, segment.ack), (1, 2, 10, 11));
        assert_eq!((segment.flags, segment.window, segment.payload), (ACK | PSH, 12, &b"abc"[..]));
        assert_eq!((segment.timestamp, segment.sacks()), (Some((7, 8)), &[(1, 2), (3, 4), (5, 6)][..]));
        assert_eq!(Options::default().sack_room(), 4);
    }

    #[test]
    fn malformed_headers_are_refused_and_malformed_options_ignored() {
        let good = written(&Header { options: Options::of_segment(Some((1, 2))), ..Header::default() }, b"");
        assert!(Segment::parse(&good).is_some());
        for len in 0..good.len() {
            assert!(Segment::parse(&good[..len]).is_none(), "{len} bytes");
        }
        let mut short = good;
        short[12] = 4 << 4;
        assert!(Segment::parse(&short).is_none());
        for options in [[2, 0, 0, 0], [2, 1, 0, 0], [2, 5, 1, 1], [1, 1, 1, 2], [3, 4, 1, 1], [0, 2, 4, 1]] {
            let mut bytes = written(&Header::default(), &options);
            bytes[12] = 6 << 4;
            let segment = Segment::parse(&bytes).unwrap();
            assert_eq!((segment.mss, segment.window_scale), (None, None), "{options:?}");
        }
    }
}
