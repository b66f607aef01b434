//! Inner packets with virtio headers: read, split, sealed, opened, joined and written, as on the way from one
//! kernel to another.
//!
//! What arrives is exactly what the first kernel would have put on a wire, each flow in order. What does not
//! fit its virtio header is refused before anything of it is sent, and counted. What is written is what a
//! kernel accepts, and a kernel makes the same packets of it again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Instant;

use weft_tun::Tun as _;
use weft_tunnel::{
    ControlQueue, DropReason, Inbound, Offload, Outbound, PacketMut, PeerConfig, PeerSettings, PrivateKey,
    RecvMeta, TransmitQueue, Tunnel, TunnelConfig,
};

use crate::by_the_book::{self, Layout, TCP, UDP, Work};
use crate::input::Input;
use crate::stand_in::{StandIn, VNET_HDR};

const MTU: usize = 1420;
/// Packets of one input.
const PACKETS: usize = 24;
/// Segments of one packet, more than a queue of batches takes. With segments of one byte an input would take
/// half a minute.
const SEGMENTS: usize = 600;
/// Bytes of headers that weft splits (`MAX_HEADERS` of `tunnel/src/split.rs`).
const MAX_HEADERS: usize = 256;
/// UDP payload bytes over IPv4. The socket refuses a longer datagram, and it is counted there
/// (`DatagramTooLong`).
const MAX_DATAGRAM: usize = 65_507;

struct World {
    outbound: StandIn,
    inbound: StandIn,
    ends: [Tunnel; 2],
    transmits: TransmitQueue,
    control: ControlQueue,
    now: Instant,
}

thread_local! {
    /// Devices and sessions cost more than a search should pay for each input. Nothing of them depends on
    /// earlier inputs.
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

pub(crate) fn check(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut previous = Template::default();
    let mut messages = Vec::new();
    while !input.is_empty() && messages.len() < PACKETS {
        messages.push(previous.next(&mut input));
    }
    WORLD.with_borrow_mut(|world| world.carry(&messages));
}

impl World {
    fn new() -> Self {
        let keys = [1, 2].map(|byte| PrivateKey::from_bytes([byte; 32]));
        let public = keys.each_ref().map(PrivateKey::public_key);
        let now = Instant::now();
        let tunnel = |key, other: usize| {
            let config = PeerConfig {
                public_key: public[other],
                endpoint: Some(address(other)),
                allowed_ips: ["0.0.0.0/0", "::/0"].map(|net| net.parse().unwrap()).to_vec(),
                settings: PeerSettings::default(),
            };
            let mut tunnel = Tunnel::new(key, TunnelConfig { mtu: MTU as u16, staging_bytes: 1 << 20 });
            tunnel.insert_peer(config, now).unwrap();
            tunnel
        };
        let [a, b] = keys;
        let ends = [tunnel(a, 1), tunnel(b, 0)];
        let (transmits, control) = (TransmitQueue::new(8), ControlQueue::new(16));
        let (outbound, inbound) = (StandIn::new(1), StandIn::new(1));
        let mut world = Self { outbound, inbound, ends, transmits, control, now };
        world.agree();
        world
    }

    /// Makes the session.
    fn agree(&mut self) {
        let mut first = Template::default().packet();
        let len = first.len();
        first.resize(len + weft_tunnel::TAILROOM, 0);
        let mut first = PacketMut::new(&mut first, len, Offload::None).unwrap();
        self.ends[0].handle_tun_packet(&mut first, self.now, &mut self.transmits).unwrap();
        let _ = self.ends[0].handle_timeout(self.now, &mut self.control);
        for to in [1, 0, 1] {
            for _ in 0..self.control.len() {
                let Some(message) = self.control.pop() else { break };
                let mut bytes = message.transmit().contents.to_vec();
                let _ = self.receive(to, &mut bytes, weft_tunnel::Ecn::NotEct);
            }
        }
        let _ = self.ends[0].flush_staged(self.now, &mut self.transmits);
        while let Some(batch) = self.transmits.pop() {
            self.transmits.recycle(batch);
        }
    }

    fn receive(&mut self, to: usize, bytes: &mut [u8], ecn: weft_tunnel::Ecn) -> Result<Inbound, DropReason> {
        let Self { ends, inbound, control, now, .. } = self;
        let meta =
            RecvMeta { source: address(1 - to), local: None, ecn, len: bytes.len(), stride: bytes.len() };
        ends[to].handle_datagram(&meta, bytes, *now, inbound.device.plain_slab(), control)
    }

    /// Carries messages from the first TUN to the second.
    fn carry(&mut self, messages: &[Vec<u8>]) {
        let mut expected = Vec::new();
        for message in messages {
            let Some((packet, offload)) = self.read(message) else { continue };
            let segments =
                by_the_book::segments(&packet, work_of(offload)).filter(|_| is_split(&packet, offload));
            match self.seal(&packet, offload) {
                Ok(datagrams) => {
                    let segments = segments.unwrap_or_else(|| panic!("{offload:?} was split: {packet:02x?}"));
                    assert_eq!(datagrams.len(), segments.len(), "{offload:?}");
                    for (datagram, segment) in datagrams.into_iter().zip(&segments) {
                        if datagram.0.len() > MAX_DATAGRAM {
                            continue;
                        }
                        let opened = self.open(datagram);
                        assert_same(&opened, segment);
                        expected.push(opened);
                        // A slab holds a receive batch, not a whole input.
                        if self.inbound.device.plain_slab().room() < 2 * weft_tunnel::MAX_PACKET {
                            self.check_written(&std::mem::take(&mut expected));
                        }
                    }
                }
                Err(reason) => assert!(segments.is_none(), "{reason:?} {offload:?}: {packet:02x?}"),
            }
        }
        self.check_written(&expected);
    }

    /// Gives a message to the first TUN. Returns the packet that weft reads, if the message is one.
    fn read(&mut self, message: &[u8]) -> Option<(Vec<u8>, Offload)> {
        if message.is_empty() {
            // A TUN has a header in front of each packet; a socket reports its end like this.
            return None;
        }
        let before = self.outbound.device.stats().snapshot();
        self.outbound.queues[0].send(message).ok()?;
        let mut read = None;
        let after = loop {
            for mut batch in self.outbound.read(usize::MAX) {
                read = batch.next_packet().map(|packet| (packet.bytes().to_vec(), packet.offload()));
                assert!(batch.next_packet().is_none(), "one message is one packet");
            }
            let after = self.outbound.device.stats().snapshot();
            if after.packets_read + after.malformed_reads > before.packets_read + before.malformed_reads {
                break after;
            }
        };
        assert_eq!(after.packets_read - before.packets_read, u64::from(read.is_some()));
        assert_eq!(after.malformed_reads - before.malformed_reads, u64::from(read.is_none()));
        if let Some((packet, _)) = &read {
            assert_eq!(*packet, message[VNET_HDR..], "a packet is read as it is");
        }
        read
    }

    /// Seals a packet. Returns the datagrams.
    fn seal(
        &mut self,
        packet: &[u8],
        offload: Offload,
    ) -> Result<Vec<(Vec<u8>, weft_tunnel::Ecn)>, DropReason> {
        let Self { ends, transmits, now, .. } = self;
        let mut buffer = packet.to_vec();
        buffer.resize(packet.len() + weft_tunnel::TAILROOM, 0xee);
        let mut whole = PacketMut::new(&mut buffer, packet.len(), offload).unwrap();
        let (sealed, dropped) = (ends[0].stats().sealed, ends[0].drops().total());
        let result = ends[0].handle_tun_packet(&mut whole, *now, transmits);
        let sealed = ends[0].stats().sealed - sealed;
        let mut datagrams = Vec::new();
        while let Some(batch) = transmits.pop() {
            let transmit = batch.unsent();
            let (count, bytes) = (transmit.segments(), transmit.contents.len());
            let fits = count <= 64 && bytes <= MAX_DATAGRAM;
            assert!(fits || count == 1, "more than one send takes: {count} datagrams, {bytes} bytes");
            datagrams.extend(
                transmit.contents.chunks(transmit.segment_size).map(|bytes| (bytes.to_vec(), transmit.ecn)),
            );
            transmits.recycle(batch);
        }
        assert_eq!(sealed, datagrams.len() as u64, "each is counted once");
        match result {
            Ok(outcome) => assert_eq!(outcome, Outbound::Sealed),
            Err(_) => {
                assert!(datagrams.is_empty(), "an error comes before the first packet");
                assert!(ends[0].drops().total() > dropped, "it is counted");
            }
        }
        result.map(|_| datagrams)
    }

    /// Opens a datagram into the slab of the second TUN, and stages the packet there.
    fn open(&mut self, (mut datagram, ecn): (Vec<u8>, weft_tunnel::Ecn)) -> Vec<u8> {
        let Ok(Inbound::Packet(packet)) = self.receive(1, &mut datagram, ecn) else {
            panic!("what was sealed does not open: {:?}", self.ends[1].drops())
        };
        let bytes = self.inbound.device.plain_slab().get(packet).to_vec();
        let padded = bytes.len().next_multiple_of(16).min(MTU).max(bytes.len());
        assert_eq!(datagram.len(), padded + 32, "padding");
        self.inbound.device.send(packet).unwrap();
        bytes
    }

    /// Writes what is staged, and compares it with the packets that arrived.
    fn check_written(&mut self, arrived: &[Vec<u8>]) {
        let mut written = Vec::new();
        for message in self.inbound.flush_all().remove(0) {
            let (header, packet) = message.split_at(VNET_HDR);
            let work = if header == [0; VNET_HDR] {
                // Also what is no packet for a kernel: it is the peer's, and passed on as it is.
                Work::Nothing
            } else {
                let work = by_the_book::work(header, packet);
                let work = work.unwrap_or_else(|| panic!("a kernel refuses {header:02x?} {packet:02x?}"));
                check_super_packet(header, packet, work);
                work
            };
            written.extend(by_the_book::segments(packet, work).unwrap());
        }
        assert_eq!(written.len(), arrived.len(), "every packet is written once");
        let (written, arrived) = (by_flow(&written), by_flow(arrived));
        for (flow, packets) in &arrived {
            let again = written.get(flow).map(Vec::as_slice).unwrap_or_default();
            assert_eq!(again.len(), packets.len());
            for (again, packet) in again.iter().zip(packets) {
                assert_same(again, packet);
            }
        }
    }
}

fn address(end: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1 + end as u8], 51820))
}

fn work_of(offload: Offload) -> Work {
    match offload {
        Offload::None => Work::Nothing,
        Offload::Checksum { start, offset } => Work::Checksum { start: start.into(), offset: offset.into() },
        Offload::TcpSegmentation { segment_size } => {
            Work::Segments { protocol: TCP, size: segment_size.into() }
        }
        Offload::UdpSegmentation { segment_size } => {
            Work::Segments { protocol: UDP, size: segment_size.into() }
        }
    }
}

/// Whether weft takes a packet: the headers of a super-packet have a bounded length.
fn is_split(packet: &[u8], offload: Offload) -> bool {
    match (by_the_book::layout(packet), offload) {
        (_, Offload::None | Offload::Checksum { .. }) => true,
        (Some(layout), _) => by_the_book::transport_header(packet, layout)
            .is_some_and(|len| layout.transport + len <= MAX_HEADERS && !layout.is_fragment),
        (None, _) => false,
    }
}

/// The fields of a super-packet are what a kernel asks for.
fn check_super_packet(header: &[u8], packet: &[u8], work: Work) {
    let layout = by_the_book::layout(packet).unwrap();
    let Work::Segments { protocol, size } = work else { panic!("{work:?} is never written") };
    let headers = layout.transport + by_the_book::transport_header(packet, layout).unwrap();
    let payload = packet.len() - headers;
    assert!(header[0] == 1 && payload > size, "{size} of {payload}");
    assert_eq!(usize::from(u16::from_ne_bytes([header[2], header[3]])), headers, "hdr_len");
    assert!(protocol == TCP || payload.div_ceil(size) <= 64, "UDP_MAX_SEGMENTS");
    let field = layout.transport + if protocol == TCP { 16 } else { 6 };
    assert_eq!(
        by_the_book::u16_at(packet, field),
        by_the_book::pseudo_sum(packet, layout),
        "partial checksum"
    );
    if layout.is_v4 {
        assert_eq!(by_the_book::sum(&packet[..layout.transport]), 0xffff, "IPv4 checksum");
    }
}

/// The packets of each flow, in order. Packets without ports have one flow for their addresses and protocol.
fn by_flow(packets: &[Vec<u8>]) -> HashMap<Vec<u8>, Vec<&Vec<u8>>> {
    let mut flows: HashMap<Vec<u8>, Vec<&Vec<u8>>> = HashMap::new();
    for packet in packets {
        let mut flow = packet[..1].to_vec();
        if let Some(Layout { is_v4, protocol, transport, is_fragment }) = by_the_book::layout(packet) {
            let addresses = if is_v4 { 12..20 } else { 8..40 };
            flow.extend(&packet[addresses]);
            flow.push(protocol);
            if matches!(protocol, TCP | UDP) && !is_fragment {
                flow.extend(packet.get(transport..transport + 4).unwrap_or_default());
            }
        }
        flows.entry(flow).or_default().push(packet);
    }
    flows
}

/// Two packets are the same for their receiver: with "don't fragment" the ID of IPv4 has no meaning (RFC
/// 6864), and zero and 0xffff are the same checksum of TCP.
fn assert_same(a: &[u8], b: &[u8]) {
    if a == b {
        return;
    }
    let normal = |packet: &[u8]| {
        let mut packet = packet.to_vec();
        let Some(layout) = by_the_book::layout(&packet) else { return packet };
        if layout.is_v4 && packet[6] & 0x40 != 0 {
            packet[4..6].fill(0);
            packet[10..12].fill(0);
        }
        let field = layout.transport + 16;
        if layout.protocol == TCP && packet.get(field..field + 2) == Some(&[0xff, 0xff]) {
            packet[field..field + 2].fill(0);
        }
        packet
    };
    assert_eq!(normal(a), normal(b));
}

/// The packet that an input varies, and what its next packet continues.
#[derive(Clone)]
struct Template {
    is_v4: bool,
    is_tcp: bool,
    options: usize,
    extensions: usize,
    ip_flags: u8,
    tos: u8,
    id: u16,
    port: u8,
    sequence: u32,
    flags: u8,
    payload: usize,
    salt: u8,
}

impl Default for Template {
    fn default() -> Self {
        Self {
            is_v4: true,
            is_tcp: true,
            options: 0,
            extensions: 0,
            ip_flags: 0x40,
            tos: 0,
            id: 1,
            port: 0,
            sequence: 1000,
            flags: 0x10,
            payload: 100,
            salt: 7,
        }
    }
}

impl Template {
    /// Returns the next message: a virtio header and a packet.
    fn next(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let choice = input.byte();
        if choice == 0xff {
            let len = usize::from(input.u16() % 2000);
            return input.bytes(VNET_HDR + len).to_vec();
        }
        // Otherwise the packet continues the one before it.
        if choice & 1 != 0 {
            *self = Self {
                is_v4: input.byte() & 1 == 0,
                is_tcp: input.byte() & 1 == 0,
                options: input.below(11),
                extensions: input.below(4),
                ip_flags: if input.byte() & 3 == 0 { input.byte() } else { 0x40 },
                tos: input.byte(),
                id: input.u16(),
                port: input.byte(),
                sequence: input.u32(),
                flags: input.byte(),
                payload: self.payload,
                salt: input.byte(),
            };
        }
        if choice & 2 != 0 {
            self.payload = usize::from(input.u16()) % [64, 1500, 9000, 66_000][input.below(4)];
        }
        if choice & 4 != 0 {
            self.flags ^= input.byte() & 0xc9;
        }
        if choice & 8 != 0 {
            self.port = input.byte();
        }
        let mut packet = self.packet();
        let layout = by_the_book::layout(&packet).unwrap();
        let mut header = [0; VNET_HDR];
        if choice & 48 != 0 {
            let field: usize = if self.is_tcp { 16 } else { 6 };
            header[0] = 1;
            header[6..8].copy_from_slice(&(layout.transport as u16).to_ne_bytes());
            header[8..10].copy_from_slice(&(field as u16).to_ne_bytes());
            let partial = by_the_book::pseudo_sum(&packet, layout).to_be_bytes();
            packet[layout.transport + field..layout.transport + field + 2].copy_from_slice(&partial);
            if choice & 32 != 0 {
                header[1] = [[5, 5], [4, 1]][usize::from(self.is_tcp)][usize::from(self.is_v4)];
                let size = u16::from(input.byte()) << (choice >> 4 & 3) | 1;
                let size = size.max((packet.len() / SEGMENTS) as u16);
                header[4..6].copy_from_slice(&size.to_ne_bytes());
            }
        }
        self.sequence = self.sequence.wrapping_add(self.payload as u32);
        self.id = self.id.wrapping_add(1);
        let mut message = [&header[..], &packet].concat();
        if choice & 192 == 192 {
            for _ in 0..=input.below(3) {
                let at = input.below(VNET_HDR + 120) % message.len();
                message[at] = input.byte();
            }
            message.truncate(message.len().saturating_sub(input.below(4)));
        }
        message
    }

    fn packet(&self) -> Vec<u8> {
        let mut transport = vec![0x1f, 0x90, 0, self.port];
        let protocol = if self.is_tcp { TCP } else { UDP };
        if self.is_tcp {
            transport.extend(self.sequence.to_be_bytes());
            transport.extend([1, 2, 3, 4, (20 + self.options as u8 * 4) << 2, self.flags, 8, 0, 0, 0, 0, 0]);
            transport.extend(vec![1; self.options * 4]);
        } else {
            transport.extend([0; 4]);
        }
        let mut head = if self.is_v4 {
            let mut head = vec![0x45, self.tos, 0, 0, 0, 0, self.ip_flags, 0, 64, protocol, 0, 0];
            head[4..6].copy_from_slice(&self.id.to_be_bytes());
            head.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            if !self.is_tcp {
                head[0] += self.options as u8;
                head.extend(vec![1; self.options * 4]);
            }
            head
        } else {
            let mut head = vec![0x60 | self.tos >> 4, self.tos << 4, 0, 0, 0, 0, protocol, 64];
            head.extend([0xfd; 16]);
            head.extend([0xfe; 16]);
            if self.extensions > 0 {
                head[6] = 60;
                for left in (0..self.extensions).rev() {
                    head.extend([if left == 0 { protocol } else { 60 }, left as u8]);
                    head.extend(vec![0; 6 + 8 * left]);
                }
            }
            head
        };
        let payload = self.payload.min(65_535 - head.len() - transport.len());
        let transport_at = head.len();
        transport.extend((0..payload).map(|i| (i * 31 + i / 256) as u8 ^ self.salt));
        if !self.is_tcp {
            let len = transport.len() as u16;
            transport[4..6].copy_from_slice(&len.to_be_bytes());
        }
        let total = head.len() + transport.len();
        if self.is_v4 {
            head[2..4].copy_from_slice(&(total as u16).to_be_bytes());
            let sum = !by_the_book::sum(&head);
            head[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            head[4..6].copy_from_slice(&(total as u16 - 40).to_be_bytes());
        }
        head.extend(transport);
        let layout = Layout { is_v4: self.is_v4, protocol, transport: transport_at, is_fragment: false };
        let sum = !by_the_book::transport_sum(&head, layout);
        let field = transport_at + if self.is_tcp { 16 } else { 6 };
        let sum = if sum == 0 { 0xffff } else { sum };
        head[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        head
    }
}
