//! One endpoint against segments that a test writes.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use weft_endpoint::{Config, Endpoint, Event, StreamId};
use weft_tunnel::ip;

use crate::world::{Sink, address, config, ecn, set_ecn};

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;
pub(crate) const ECE: u8 = 0x40;
pub(crate) const CWR: u8 = 0x80;

/// A segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seg {
    pub(crate) ports: (u16, u16),
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    /// The ECN field of the IP header.
    pub(crate) ecn: u8,
}

impl Seg {
    pub(crate) fn new(flags: u8, seq: u32, ack: u32) -> Self {
        Self { flags, seq, ack, window: 60_000, ..Self::default() }
    }

    pub(crate) fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    pub(crate) fn options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self
    }

    pub(crate) fn window(mut self, window: u16) -> Self {
        self.window = window;
        self
    }

    /// Returns the SACK blocks.
    pub(crate) fn sacks(&self) -> Vec<(u32, u32)> {
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        let mut options = self.options.as_slice();
        while let [kind, rest @ ..] = options {
            if *kind == 1 {
                options = rest;
                continue;
            }
            let (option, rest) = options.split_at(usize::from(rest[0]));
            if *kind == 5 {
                return option[2..]
                    .chunks(8)
                    .map(|block| (number(&block[..4]), number(&block[4..])))
                    .collect();
            }
            options = rest;
        }
        Vec::new()
    }

    pub(crate) fn bytes(&self, source: IpAddr, destination: IpAddr) -> Vec<u8> {
        let header = 20 + self.options.len();
        assert_eq!(header % 4, 0);
        let mut segment = vec![0; header];
        segment[..2].copy_from_slice(&self.ports.0.to_be_bytes());
        segment[2..4].copy_from_slice(&self.ports.1.to_be_bytes());
        segment[4..8].copy_from_slice(&self.seq.to_be_bytes());
        segment[8..12].copy_from_slice(&self.ack.to_be_bytes());
        segment[12] = (header as u8 / 4) << 4;
        segment[13] = self.flags;
        segment[14..16].copy_from_slice(&self.window.to_be_bytes());
        segment[20..].copy_from_slice(&self.options);
        segment.extend(&self.payload);
        let mut packet = packet(source, destination, ip::TCP, segment, Some(16));
        set_ecn(&mut packet, self.ecn);
        packet
    }

    fn parse(packet: &[u8]) -> Option<Self> {
        let header = ip::IpHeader::parse(packet).unwrap();
        let (protocol, at) = ip::transport(packet, &header)?;
        if protocol != ip::TCP {
            return None;
        }
        let sum = ip::pseudo_header_sum(&packet[ip::address_range(packet[0])], ip::TCP, packet.len() - at);
        assert_eq!(ip::fold(ip::checksum_add(sum, &packet[at..])), 0xffff, "a wrong checksum");
        let segment = &packet[at..];
        let header = usize::from(segment[12] >> 4) * 4;
        let number = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().unwrap());
        let short = |at: usize| u16::from_be_bytes(segment[at..at + 2].try_into().unwrap());
        Some(Self {
            ports: (short(0), short(2)),
            seq: number(4),
            ack: number(8),
            flags: segment[13],
            window: short(14),
            options: segment[20..header].to_vec(),
            payload: segment[header..].to_vec(),
            ecn: ecn(packet),
        })
    }
}

/// Makes an IP packet. The checksum goes to `checksum_at` of the payload.
pub(crate) fn packet(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    mut payload: Vec<u8>,
    checksum_at: Option<usize>,
) -> Vec<u8> {
    let mut bytes = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
            header.extend(source.octets());
            header.extend(destination.octets());
            let len = (20 + payload.len()) as u16;
            header[2..4].copy_from_slice(&len.to_be_bytes());
            ip::write_ipv4_checksum(&mut header, 20);
            header
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut header = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
            header[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
            header.extend(source.octets());
            header.extend(destination.octets());
            header
        }
        _ => panic!("two families"),
    };
    if let Some(at) = checksum_at {
        let pseudo = if protocol == 1 {
            0
        } else {
            ip::pseudo_header_sum(&bytes[ip::address_range(bytes[0])], protocol, payload.len())
        };
        let sum = !ip::fold(ip::checksum_add(pseudo, &payload));
        payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    bytes.extend(payload);
    bytes
}

/// The endpoint (end 0) and what the test knows of it. The test is its peer (end 1).
pub(crate) struct Wire {
    pub(crate) end: Endpoint,
    pub(crate) now: Instant,
    pub(crate) ports: (u16, u16),
    pub(crate) is_ipv4: bool,
    pub(crate) id: Option<StreamId>,
    /// The next number of the peer, and that of the endpoint.
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) events: Vec<Event>,
    /// Whether every invariant is checked after each step.
    pub(crate) checks: bool,
    /// Packets of the last answer that were no TCP.
    pub(crate) others: Vec<Vec<u8>>,
}

impl Wire {
    pub(crate) fn new() -> Self {
        Self::with(config(0))
    }

    pub(crate) fn with(config: Config) -> Self {
        let now = Instant::now();
        let end = Endpoint::new(config, now);
        let ports = (40_000, 80);
        let (seq, ack) = (0xffff_fff0, 0);
        let (events, others) = (Vec::new(), Vec::new());
        Self { end, now, ports, is_ipv4: true, id: None, seq, ack, events, checks: true, others }
    }

    /// Opens a connection from the endpoint, whose peer offers these options in its SYN-ACK.
    pub(crate) fn connected(options: &[u8]) -> Self {
        Self::connected_with(config(0), options, 60_000)
    }

    /// The same with these flags of the SYN-ACK.
    pub(crate) fn connected_as(flags: u8, options: &[u8]) -> Self {
        Self::connected_by(config(0), flags, options, 60_000)
    }

    pub(crate) fn connected_with(config: Config, options: &[u8], window: u16) -> Self {
        Self::connected_by(config, SYN | ACK, options, window)
    }

    fn connected_by(config: Config, flags: u8, options: &[u8], window: u16) -> Self {
        let mut wire = Self::with(config);
        let syn = wire.connect();
        wire.ack = syn.seq.wrapping_add(1);
        wire.now += Duration::from_millis(20);
        let answer = Seg::new(flags, wire.seq, wire.ack).options(options).window(window);
        wire.seq = wire.seq.wrapping_add(1);
        let answers = wire.send(&[answer]);
        assert_eq!(answers.len(), 1, "{answers:?}");
        assert_eq!((answers[0].flags, answers[0].ack), (ACK, wire.seq));
        wire
    }

    /// Returns the SYN of a new connection.
    pub(crate) fn connect(&mut self) -> Seg {
        let to = SocketAddr::new(address(1, self.is_ipv4), 443);
        self.id = Some(self.end.connect(to, self.now).unwrap());
        let sent = self.sent();
        assert_eq!((sent.len(), sent[0].flags), (1, SYN | ECE | CWR));
        self.ports = (443, sent[0].ports.0);
        sent[0].clone()
    }

    pub(crate) fn id(&self) -> StreamId {
        self.id.unwrap()
    }

    fn check(&self) {
        if self.checks {
            self.end.check();
        }
    }

    /// Returns what the endpoint sends now.
    pub(crate) fn sent(&mut self) -> Vec<Seg> {
        self.others.clear();
        let mut result = Vec::new();
        loop {
            let mut sink = Sink::new(70_000);
            let is_full = self.end.transmit(self.now, &mut sink);
            self.check();
            for bytes in sink.segments {
                match Seg::parse(&bytes) {
                    Some(segment) => result.push(segment),
                    None => self.others.push(bytes),
                }
            }
            if !is_full {
                break;
            }
        }
        while let Some(event) = self.end.poll_event() {
            self.events.push(event);
        }
        result
    }

    /// Sends segments in one batch, and returns what the endpoint sends then.
    pub(crate) fn send(&mut self, segments: &[Seg]) -> Vec<Seg> {
        let (source, destination) = (address(1, self.is_ipv4), address(0, self.is_ipv4));
        let with_ports = |segment: &Seg| {
            let ports = if segment.ports == (0, 0) { self.ports } else { segment.ports };
            Seg { ports, ..segment.clone() }.bytes(source, destination)
        };
        let packets: Vec<Vec<u8>> = segments.iter().map(with_ports).collect();
        self.raw(&packets)
    }

    pub(crate) fn raw(&mut self, packets: &[Vec<u8>]) -> Vec<Seg> {
        self.end.handle_batch(packets.iter().map(Vec::as_slice), self.now);
        self.check();
        self.sent()
    }

    /// Lets time go by, and returns what the endpoint sends until then, with the time since the start of the
    /// wait.
    pub(crate) fn wait(&mut self, time: Duration) -> Vec<(Duration, Seg)> {
        let (start, until) = (self.now, self.now + time);
        let mut result = Vec::new();
        while let Some(at) = self.end.poll_timeout()
            && at <= until
        {
            self.now = self.now.max(at);
            self.end.handle_timeout(self.now);
            self.check();
            let since = self.now - start;
            result.extend(self.sent().into_iter().map(|segment| (since, segment)));
        }
        self.now = until;
        result
    }

    /// Puts bytes, and returns what the endpoint sends.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Vec<Seg> {
        let id = self.id();
        for part in bytes.chunks(60_000) {
            let mut chunk = self.end.reserve(id).unwrap().unwrap();
            chunk.fill(part);
            self.end.put(id, chunk, self.now).unwrap();
        }
        self.sent()
    }

    /// Takes all that has arrived.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let mut result = Vec::new();
        while let Ok(Some(chunk)) = self.end.take(self.id(), self.now)
            && !chunk.is_empty()
        {
            result.extend(chunk.bytes());
            self.end.give_back(chunk);
        }
        result
    }

    /// A segment of the peer with its next numbers.
    pub(crate) fn ack(&self) -> Seg {
        Seg::new(ACK, self.seq, self.ack)
    }

    pub(crate) fn state(&self) -> weft_endpoint::StreamState {
        self.end.stream(self.id()).unwrap().state
    }
}

/// Timestamps of a segment.
pub(crate) fn times(value: u32, echo: u32) -> Vec<u8> {
    let mut options = vec![1, 1, 8, 10];
    options.extend(value.to_be_bytes());
    options.extend(echo.to_be_bytes());
    options
}

/// SACK blocks of a segment.
pub(crate) fn sacks(blocks: &[(u32, u32)]) -> Vec<u8> {
    let mut options = vec![1, 1, 5, 2 + 8 * blocks.len() as u8];
    for (start, end) in blocks {
        options.extend(start.to_be_bytes());
        options.extend(end.to_be_bytes());
    }
    options
}
