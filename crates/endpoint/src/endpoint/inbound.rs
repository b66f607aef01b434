//! Packets from the tunnel, to the sockets that they are for.

use std::net::SocketAddr;

use weft_tunnel::ip;

use super::{Endpoint, Target};
use crate::common::{Reply, reset_for};
use crate::half_open::HalfOpen;
use crate::packet::{ICMP, ICMPV6, Packet};
use crate::secret::Tuple;
use crate::segment::{ACK, FIN, Header, Options, RST, SYN, Segment};
use crate::tcp::handshake::{initial_sequence, timestamp_offset};
use crate::tcp::sequence::is_before;
use crate::tcp::{Connection, Handshake};
use crate::{Event, StreamId, icmp, udp};

impl Endpoint {
    pub(super) fn packet(&mut self, bytes: &[u8]) {
        let is_own = |address: &std::net::IpAddr| self.addresses.contains(address);
        let is_for_us = |packet: &Packet<'_>| is_own(&packet.destination) && !is_own(&packet.source);
        let Some(packet) = Packet::parse(bytes).filter(is_for_us) else {
            self.common.stats.invalid_packets += 1;
            return;
        };
        if packet.fragment.is_none() {
            return self.transport(&packet);
        }
        let limit = self.common.limits.reassembly;
        if let Some((payload, protocol)) = self.reassembly.add(&packet, self.common.now, limit) {
            let whole = Packet { protocol, payload: &payload, fragment: None, bytes: &[], ..packet };
            // What follows the fragment header may begin with further headers.
            let whole = if whole.source.is_ipv6() { whole.skip_extensions() } else { Some(whole) };
            if let Some(whole) = whole.filter(|whole| whole.fragment.is_none()) {
                self.transport(&whole);
            }
        }
    }

    fn transport(&mut self, packet: &Packet<'_>) {
        let is_known = match packet.protocol {
            ip::TCP => self.tcp(packet),
            ip::UDP => self.udp(packet),
            ICMP if packet.source.is_ipv4() => self.icmp(packet),
            ICMPV6 if packet.source.is_ipv6() => self.icmp(packet),
            _ => None,
        };
        if is_known.is_none() {
            self.common.stats.invalid_packets += 1;
        }
    }

    /// Returns `None` if the packet is malformed.
    fn tcp(&mut self, packet: &Packet<'_>) -> Option<()> {
        if !packet.has_valid_checksum() {
            return None;
        }
        let segment = Segment { is_marked: packet.is_marked(), ..Segment::parse(packet.payload)? };
        if segment.source == 0 || segment.destination == 0 {
            return None;
        }
        let tuple = Tuple {
            local: packet.destination,
            peer: packet.source,
            local_port: segment.destination,
            peer_port: segment.source,
        };
        let last = self.last.filter(|(flow, _)| *flow == tuple).map(|(_, index)| Target::Stream(index));
        match last.or_else(|| self.flows.get(&tuple).copied()) {
            Some(Target::Stream(index)) => self.stream_segment(index, tuple, &segment),
            Some(Target::HalfOpen(index)) => self.half_open_segment(index, &segment),
            Some(Target::TimeWait(index)) => self.time_wait_segment(index, tuple, &segment),
            None => self.new_segment(tuple, &segment, None),
        }
        Some(())
    }

    fn stream_segment(&mut self, index: u32, tuple: Tuple, segment: &Segment<'_>) {
        let stream =
            self.streams.get_mut(index).filter(|stream| stream.tuple == tuple && !stream.is_detached);
        let Some(stream) = stream else {
            // The stream of the last segment is gone.
            self.last = None;
            return match self.flows.get(&tuple).copied() {
                Some(Target::Stream(other)) if other != index => self.stream_segment(other, tuple, segment),
                Some(Target::HalfOpen(index)) => self.half_open_segment(index, segment),
                Some(Target::TimeWait(index)) => self.time_wait_segment(index, tuple, segment),
                _ => self.new_segment(tuple, segment, None),
            };
        };
        self.last = Some((tuple, index));
        stream.segment(segment, &mut self.common);
        if !std::mem::replace(&mut stream.is_touched, true) {
            self.touched.push(index);
        }
        if stream.is_over() {
            // The flow is another one's from the next segment on.
            self.settle(index);
        }
    }

    /// A segment that belongs to no connection (RFC 9293, sections 3.10.7.1 and 3.10.7.2). `after` is the
    /// number that a new connection has to begin behind.
    fn new_segment(&mut self, tuple: Tuple, segment: &Segment<'_>, after: Option<u32>) {
        let is_syn = segment.flags & (SYN | ACK | RST | FIN) == SYN;
        let Some(listener) = is_syn.then(|| self.listener_for(tuple)).flatten() else {
            if let Some(reset) = reset_for(tuple, segment) {
                self.common.reply(reset);
            }
            return;
        };
        let mut initial = initial_sequence(&tuple, &self.common);
        if let Some(after) = after.filter(|after| is_before(initial, after.wrapping_add(65_537))) {
            initial = after.wrapping_add(65_537);
        }
        let record = HalfOpen {
            tuple,
            listener,
            handshake: Handshake::of(segment, initial, self.common.first_window()),
            sent_at: self.common.now,
            retries: 0,
        };
        let (index, evicted) = self.half_open.insert(record, &self.common.limits);
        self.flows.insert(tuple, Target::HalfOpen(index));
        if let Some(evicted) = evicted {
            self.common.stats.half_open_evicted += 1;
            self.forget_half_open(evicted);
        }
        self.answer_syn(index);
    }

    fn listener_for(&self, tuple: Tuple) -> Option<u32> {
        let matches = |at: &SocketAddr, is_exact: bool| {
            at.port() == tuple.local_port
                && if is_exact {
                    at.ip() == tuple.local
                } else {
                    at.ip().is_unspecified() && at.is_ipv4() == tuple.local.is_ipv4()
                }
        };
        let find = |is_exact| self.listeners.iter().find(|(_, listener)| matches(&listener.at, is_exact));
        find(true).or_else(|| find(false)).map(|(index, _)| index)
    }

    fn half_open_segment(&mut self, index: u32, segment: &Segment<'_>) {
        let Some(record) = self.half_open.get(index) else { return };
        let (tuple, handshake) = (record.tuple, record.handshake);
        let next = handshake.peer_initial.wrapping_add(1);
        if segment.has(RST) {
            if segment.seq == next {
                self.forget_half_open(index);
            }
            return;
        }
        if segment.has(SYN) {
            // The SYN again, or one of a peer that has forgotten it: the answer tells it, and it resets.
            return self.answer_syn(index);
        }
        if !segment.has(ACK) {
            return;
        }
        if segment.ack != handshake.initial.wrapping_add(1) {
            if let Some(reset) = reset_for(tuple, segment) {
                self.common.reply(reset);
            }
            return;
        }
        let is_old = match (handshake.timestamp, segment.timestamp) {
            (Some(recent), Some((value, _))) => is_before(value, recent),
            (expected, _) => expected.is_some(),
        };
        let is_outside = segment.seq.wrapping_sub(next) > handshake.own_window.into();
        if is_old || is_outside {
            return;
        }
        let listener = record.listener;
        let rtt = (record.retries == 0).then(|| self.common.now.saturating_sub(record.sent_at));
        let has_room = self.has_room(handshake.own_window, tuple.peer);
        let listener = self.listeners.get_mut(listener);
        let Some(listener) = listener.filter(|listener| has_room && listener.ready.len() < listener.backlog)
        else {
            // The peer sends it again, and there may be room then.
            self.common.stats.dropped_packets += 1;
            return;
        };
        let placeholder = StreamId { index: 0, generation: 0 };
        let connection = Connection::accepted(placeholder, tuple, &handshake, rtt, &self.common);
        let (stream, generation) = self.streams.insert(Box::new(connection));
        let id = StreamId { index: stream, generation };
        if let Some(connection) = self.streams.get_mut(stream) {
            connection.id = id;
            connection.account(&mut self.common);
        }
        listener.ready.push_back(id);
        if std::mem::take(&mut listener.waits) {
            self.common.events.push_back(Event::Acceptable(listener.id));
        }
        self.common.stats.opened += 1;
        self.half_open.remove(index);
        self.flows.insert(tuple, Target::Stream(stream));
        self.stream_segment(stream, tuple, segment);
    }

    fn time_wait_segment(&mut self, index: u32, tuple: Tuple, segment: &Segment<'_>) {
        let Some(record) = self.time_wait.get(index).copied() else { return };
        if segment.has(RST) {
            // RFC 1337: nothing ends it early.
            return;
        }
        if segment.has(SYN) && !segment.has(ACK) {
            let is_newer = match (record.timestamp, segment.timestamp) {
                (Some(recent), Some((value, _))) => is_before(recent, value),
                _ => is_before(record.receive_next, segment.seq),
            };
            if is_newer {
                // RFC 6191: a new connection of the same flow.
                self.time_wait.remove(index);
                self.flows.remove(&tuple);
                return self.new_segment(tuple, segment, Some(record.next));
            }
        }
        if segment.len() > 0 {
            if segment.has(FIN) {
                self.time_wait.prolong(index, self.common.now);
            }
            self.answer_in_time_wait(index);
        }
    }

    /// Sends the acknowledgement of a connection in TIME-WAIT.
    pub(super) fn answer_in_time_wait(&mut self, index: u32) {
        let Some(record) = self.time_wait.get(index) else { return };
        let offset = timestamp_offset(&record.tuple, &self.common);
        let times = record.timestamp.map(|recent| (self.common.milliseconds().wrapping_add(offset), recent));
        let header = Header {
            seq: record.next,
            ack: record.receive_next,
            flags: ACK,
            window: 65_535,
            options: Options::of_segment(times),
            ..Header::default()
        };
        let reply = Reply::Tcp(record.tuple, header);
        self.common.reply(reply);
    }

    fn udp(&mut self, packet: &Packet<'_>) -> Option<()> {
        let header = packet.payload.first_chunk::<{ udp::HEADER }>()?;
        let [source, destination, len, checksum] =
            [0, 2, 4, 6].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
        let datagram = packet.payload.get(..usize::from(len)).filter(|bytes| bytes.len() >= udp::HEADER)?;
        let whole = Packet { payload: datagram, ..*packet };
        // Only IPv4 may go without (RFC 768, RFC 8200 section 8.1).
        let has_none = checksum == 0 && packet.source.is_ipv4();
        if destination == 0 || !(has_none || whole.has_valid_checksum()) {
            return None;
        }
        let payload = datagram.get(udp::HEADER..)?;
        let Some(index) = self.udp_socket_for(packet.destination, destination) else {
            if !packet.bytes.is_empty() && self.error_limit.allows(self.common.now) {
                let error = icmp::port_unreachable(packet)?;
                self.common.reply(Reply::Packet(error));
            }
            return Some(());
        };
        let from = SocketAddr::new(packet.source, source);
        let socket = self.udp.get_mut(index)?;
        if !socket.deliver(from, payload, &mut self.common) {
            self.common.stats.dropped_packets += 1;
        }
        Some(())
    }

    /// Returns the socket for datagrams to an address: one that is bound to it, or to all.
    fn udp_socket_for(&self, to: std::net::IpAddr, port: u16) -> Option<u32> {
        let sockets = self.udp_ports.get(&port)?;
        let at = |index: &u32| self.udp.get(*index).map(|socket| socket.at.ip());
        let is_any = |at: std::net::IpAddr| at.is_unspecified() && at.is_ipv4() == to.is_ipv4();
        let exact = sockets.iter().find(|index| at(index) == Some(to));
        exact.or_else(|| sockets.iter().find(|index| at(index).is_some_and(is_any))).copied()
    }

    fn icmp(&mut self, packet: &Packet<'_>) -> Option<()> {
        if !icmp::has_valid_checksum(packet) {
            return None;
        }
        match icmp::read(packet) {
            Some(icmp::Message::Answer(answer)) => self.common.reply(Reply::Packet(answer)),
            Some(icmp::Message::Error { error, tuple, protocol: ip::TCP, seq }) => {
                if let Some(Target::Stream(index)) = self.flows.get(&tuple).copied()
                    && let Some(stream) = self.streams.get_mut(index)
                {
                    stream.icmp(seq, error, &mut self.common);
                    self.settle(index);
                }
            }
            Some(icmp::Message::Error {
                error: icmp::PathError::TooBig(mtu),
                tuple,
                protocol: ip::UDP,
                ..
            }) => {
                let is_ours = self.udp_socket_for(tuple.local, tuple.local_port).is_some();
                // A datagram has no number that only its way knows: another peer may quote one.
                let is_on_way = self.common.owner(packet.source) == self.common.owner(tuple.peer);
                if is_ours && is_on_way && mtu < self.common.path_mtu(tuple.peer) {
                    self.common.learn_path_mtu(tuple.peer, mtu);
                }
            }
            _ => {}
        }
        Some(())
    }
}
