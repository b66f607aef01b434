//! The calls of the application.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::{Endpoint, Listener, Target, source_for};
use crate::packet::is_host;
use crate::secret::{Purpose, Tuple};
use crate::tcp::Connection;
use crate::{
    BindError, Chunk, ConnectError, ListenerId, StreamError, StreamId, StreamState, StreamStats, UdpError,
    UdpId, udp,
};

/// Ports of connections and sockets that ask for any: those of Linux.
const PORTS: std::ops::RangeInclusive<u16> = 32_768..=60_999;
const PORT_COUNT: u16 = *PORTS.end() - *PORTS.start() + 1;
/// UDP payload, at most.
const MAX_DATAGRAM: [usize; 2] = [65_507, 65_527];

impl Endpoint {
    /// Opens a connection. [`crate::Event::Connected`] or [`crate::Event::Failed`] follows.
    ///
    /// # Errors
    /// When no SYN can be sent.
    pub fn connect(&mut self, to: SocketAddr, now: Instant) -> Result<StreamId, ConnectError> {
        self.tick(now);
        let local = source_for(&self.addresses, to.ip()).ok_or(ConnectError::NoAddress)?;
        if to.port() == 0 || !is_host(to.ip()) {
            return Err(ConnectError::InvalidDestination);
        }
        if !self.has_room(self.common.first_window(), to.ip()) {
            return Err(ConnectError::TooMany);
        }
        let tuple = Tuple { local, peer: to.ip(), local_port: 0, peer_port: to.port() };
        let local_port = self.free_port(tuple).ok_or(ConnectError::NoPort)?;
        let tuple = Tuple { local_port, ..tuple };
        let placeholder = StreamId { index: 0, generation: 0 };
        let connection = Box::new(Connection::connect(placeholder, tuple, &self.common));
        let (index, generation) = self.streams.insert(connection);
        let id = StreamId { index, generation };
        if let Some(stream) = self.streams.get_mut(index) {
            stream.id = id;
        }
        self.flows.insert(tuple, Target::Stream(index));
        self.settle(index);
        Ok(id)
    }

    /// Chooses a port that no connection to this destination has (RFC 6056, section 3.3.4).
    fn free_port(&mut self, tuple: Tuple) -> Option<u16> {
        let offset = self.common.secret.number(Purpose::Port, &tuple) as u16;
        let slot = self.common.secret.number(Purpose::PortTable, &tuple) as usize % self.port_counters.len();
        for _ in 0..PORT_COUNT {
            let counter = self.port_counters.get_mut(slot)?;
            *counter = counter.wrapping_add(1);
            let port = PORTS.start() + offset.wrapping_add(*counter) % PORT_COUNT;
            if !self.flows.contains_key(&Tuple { local_port: port, ..tuple }) {
                return Some(port);
            }
        }
        None
    }

    /// Listens. Port 0 selects a free port. An unspecified address means all addresses of its family.
    ///
    /// # Errors
    /// The address is not one of the endpoint, or in use.
    pub fn listen(&mut self, at: SocketAddr, backlog: u16) -> Result<ListenerId, BindError> {
        let used: Vec<SocketAddr> = self.listeners.iter().map(|(_, listener)| listener.at).collect();
        let at = self.bind(at, &used)?;
        let id = ListenerId { index: 0, generation: 0 };
        let backlog = usize::from(backlog.max(1));
        let listener = Listener { id, at, backlog, ready: Default::default(), waits: true };
        let (index, generation) = self.listeners.insert(listener);
        let id = ListenerId { index, generation };
        if let Some(listener) = self.listeners.get_mut(index) {
            listener.id = id;
        }
        Ok(id)
    }

    /// Returns the address with its port, if it is free.
    fn bind(&mut self, at: SocketAddr, used: &[SocketAddr]) -> Result<SocketAddr, BindError> {
        if !at.ip().is_unspecified() && !self.addresses.contains(&at.ip()) {
            return Err(BindError::NoAddress);
        }
        let is_free = |at: SocketAddr| {
            let overlaps = |other: IpAddr| {
                other.is_ipv4() == at.is_ipv4()
                    && (other == at.ip() || other.is_unspecified() || at.ip().is_unspecified())
            };
            !used.iter().any(|other| other.port() == at.port() && overlaps(other.ip()))
        };
        if at.port() != 0 {
            return if is_free(at) { Ok(at) } else { Err(BindError::InUse) };
        }
        let tuple = Tuple { local: at.ip(), peer: at.ip(), local_port: 0, peer_port: 0 };
        let offset = self.common.secret.number(Purpose::Port, &tuple) as u16;
        for _ in 0..PORT_COUNT {
            let counter = &mut self.port_counters[0];
            *counter = counter.wrapping_add(1);
            let port = PORTS.start() + offset.wrapping_add(*counter) % PORT_COUNT;
            let at = SocketAddr::new(at.ip(), port);
            if is_free(at) {
                return Ok(at);
            }
        }
        Err(BindError::NoPort)
    }

    /// Returns the address of a listener.
    pub fn listener_address(&self, id: ListenerId) -> Option<SocketAddr> {
        self.listeners.get(id.index).filter(|listener| listener.id == id).map(|listener| listener.at)
    }

    /// Returns the next connection. `None`: wait for [`crate::Event::Acceptable`].
    pub fn accept(&mut self, id: ListenerId) -> Option<StreamId> {
        let listener = self.listeners.get_mut(id.index).filter(|listener| listener.id == id)?;
        let stream = listener.ready.pop_front();
        listener.waits |= stream.is_none();
        stream
    }

    /// Ends a listener. Connections that were not accepted are reset.
    pub fn release_listener(&mut self, id: ListenerId, now: Instant) {
        self.tick(now);
        if self.listener_address(id).is_none() {
            return;
        }
        for index in self.half_open.of_listener(id.index) {
            self.forget_half_open(index);
        }
        if let Some(listener) = self.listeners.remove(id.index) {
            listener.ready.into_iter().for_each(|stream| self.reset(stream, now));
        }
    }

    /// Returns a stream that the application has.
    fn stream_mut(&mut self, id: StreamId) -> Result<&mut Connection, StreamError> {
        let stream = self.streams.get_mut(id.index).filter(|stream| stream.id == id && !stream.is_released);
        stream.map(|stream| &mut **stream).ok_or(StreamError::Closed)
    }

    /// Calls `f` with a stream, and brings it up to date.
    fn with_stream<R>(
        &mut self,
        id: StreamId,
        f: impl FnOnce(&mut Connection, &mut crate::common::Common) -> Result<R, StreamError>,
    ) -> Result<R, StreamError> {
        self.stream_mut(id)?;
        let stream = self.streams.get_mut(id.index).ok_or(StreamError::Closed)?;
        let result = f(stream, &mut self.common);
        self.settle(id.index);
        result
    }

    /// Takes what has arrived. `None`: wait for [`crate::Event::Readable`]. An empty chunk: the peer has
    /// finished.
    ///
    /// # Errors
    /// The connection is no more, and everything that had arrived was taken.
    pub fn take(&mut self, id: StreamId, now: Instant) -> Result<Option<Chunk>, StreamError> {
        self.tick(now);
        self.with_stream(id, Connection::take)
    }

    /// Makes the buffer of a chunk available for its next use.
    pub fn give_back(&mut self, chunk: Chunk) {
        self.common.pool.put(chunk.into_buffer());
    }

    /// Returns an empty chunk to write to: room to send is a permit. `None`: wait for
    /// [`crate::Event::Writable`].
    ///
    /// # Errors
    /// The connection is no more, or this end has finished.
    pub fn reserve(&mut self, id: StreamId) -> Result<Option<Chunk>, StreamError> {
        self.stream_mut(id)?;
        let stream = self.streams.get_mut(id.index).ok_or(StreamError::Closed)?;
        stream.reserve(&mut self.common)
    }

    /// Sends what is in a chunk.
    ///
    /// # Errors
    /// Those of [`Self::reserve`].
    pub fn put(&mut self, id: StreamId, chunk: Chunk, now: Instant) -> Result<(), StreamError> {
        self.tick(now);
        self.with_stream(id, |stream, common| stream.put(chunk, common))
    }

    /// Ends this direction: what was put is sent, then FIN.
    pub fn finish(&mut self, id: StreamId, now: Instant) {
        self.tick(now);
        let finish = |stream: &mut Connection, common: &mut _| {
            stream.finish(common);
            Ok(())
        };
        self.with_stream(id, finish).unwrap_or_default();
    }

    /// Tells the peer that the connection is no more. `id` is invalid from then on.
    pub fn reset(&mut self, id: StreamId, now: Instant) {
        self.tick(now);
        let reset = |stream: &mut Connection, common: &mut _| {
            stream.reset(common);
            Ok(())
        };
        self.with_stream(id, reset).unwrap_or_default();
    }

    /// Tells the peers of all connections that they are no more.
    pub fn reset_all(&mut self, now: Instant) {
        self.tick(now);
        self.common.most_replies += self.streams.len();
        for index in self.streams.indices() {
            if let Some(stream) = self.streams.get_mut(index) {
                stream.reset(&mut self.common);
                self.settle(index);
            }
        }
    }

    /// The application is gone, and `id` is invalid from then on. As close(2): what was put is sent, then
    /// FIN; if something was not taken, the peer gets a reset.
    pub fn release(&mut self, id: StreamId, now: Instant) {
        self.tick(now);
        let release = |stream: &mut Connection, common: &mut _| {
            stream.release(common);
            Ok(())
        };
        self.with_stream(id, release).unwrap_or_default();
    }

    /// Has a connection fail when its peer acknowledges nothing of what is sent for this time, also after it
    /// was released (RFC 5482).
    pub fn give_up_after(&mut self, id: StreamId, time: Duration, now: Instant) {
        self.tick(now);
        let give_up_after = |stream: &mut Connection, _: &mut _| {
            stream.give_up_after(time);
            Ok(())
        };
        self.with_stream(id, give_up_after).unwrap_or_default();
    }

    /// Reports whether the peer sends nothing more, behind what was not taken.
    pub fn has_ended(&self, id: StreamId) -> bool {
        self.stream_of(id).is_none_or(Connection::has_ended)
    }

    /// Reports whether the connection has failed.
    pub fn has_failed(&self, id: StreamId) -> bool {
        self.stream_of(id).is_none_or(|stream| stream.error.is_some())
    }

    /// Returns the addresses of this end and of the peer.
    pub fn addresses(&self, id: StreamId) -> Option<(SocketAddr, SocketAddr)> {
        self.stream(id).map(|stats| (stats.local, stats.peer))
    }

    /// Returns figures of a stream.
    pub fn stream(&self, id: StreamId) -> Option<StreamStats> {
        self.stream_of(id).map(Connection::stats)
    }

    fn stream_of(&self, id: StreamId) -> Option<&Connection> {
        let stream = self.streams.get(id.index).filter(|stream| stream.id == id && !stream.is_released);
        stream.map(|stream| &**stream)
    }

    /// Returns the state of every stream that exists, those that applications have released included.
    pub fn streams(&self) -> impl Iterator<Item = StreamStats> {
        self.streams
            .iter()
            .map(|(_, stream)| stream.stats())
            .filter(|stats| stats.state != StreamState::Closed)
    }

    /// Makes a UDP socket. Port 0 selects a free port. An unspecified address means all addresses of its
    /// family.
    ///
    /// # Errors
    /// The address is not one of the endpoint, or in use.
    pub fn bind_udp(&mut self, at: SocketAddr) -> Result<UdpId, BindError> {
        let used: Vec<SocketAddr> = self.udp.iter().map(|(_, socket)| socket.at).collect();
        let at = self.bind(at, &used)?;
        let tuple = Tuple { local: at.ip(), peer: at.ip(), local_port: at.port(), peer_port: 0 };
        let identification = self.common.secret.number(Purpose::Identification, &tuple) as u32;
        let id = UdpId { index: 0, generation: 0 };
        let (index, generation) = self.udp.insert(udp::Socket::new(id, at, identification));
        let id = UdpId { index, generation };
        if let Some(socket) = self.udp.get_mut(index) {
            socket.id = id;
        }
        self.udp_ports.entry(at.port()).or_default().push(index);
        Ok(id)
    }

    fn socket_mut(&mut self, id: UdpId) -> Option<&mut udp::Socket> {
        self.udp.get_mut(id.index).filter(|socket| socket.id == id)
    }

    /// Returns the address of a socket.
    pub fn udp_address(&self, id: UdpId) -> Option<SocketAddr> {
        self.udp.get(id.index).filter(|socket| socket.id == id).map(|socket| socket.at)
    }

    /// Sends a datagram. False: there is no room, wait for [`crate::Event::UdpWritable`].
    ///
    /// # Errors
    /// This socket cannot send such a datagram there.
    pub fn send_udp(&mut self, id: UdpId, to: SocketAddr, payload: &[u8]) -> Result<bool, UdpError> {
        let limit = self.common.limits.udp_buffer;
        let has_source = source_for(&self.addresses, to.ip()).is_some();
        let socket = self.socket_mut(id).ok_or(UdpError::Closed)?;
        if !has_source || socket.at.is_ipv4() != to.is_ipv4() {
            return Err(UdpError::NoAddress);
        }
        if to.port() == 0 || !is_host(to.ip()) {
            return Err(UdpError::InvalidDestination);
        }
        if payload.len() > MAX_DATAGRAM[usize::from(to.is_ipv6())] {
            return Err(UdpError::TooLong);
        }
        let is_taken = socket.send(to, payload, limit);
        if socket.has_output() && !std::mem::replace(&mut socket.is_in_queue, true) {
            self.udp_queue.push_back(id.index);
        }
        Ok(is_taken)
    }

    /// Copies the next datagram into `into`; what does not fit is lost. Returns its bytes there and its
    /// source. `None`: wait for [`crate::Event::Datagram`].
    pub fn take_udp(&mut self, id: UdpId, into: &mut [u8]) -> Option<(usize, SocketAddr)> {
        self.socket_mut(id)?.take(into)
    }

    /// Ends a UDP socket.
    pub fn release_udp(&mut self, id: UdpId) {
        let Some(at) = self.udp_address(id) else { return };
        self.udp.remove(id.index);
        if let Some(sockets) = self.udp_ports.get_mut(&at.port()) {
            sockets.retain(|index| *index != id.index);
            if sockets.is_empty() {
                self.udp_ports.remove(&at.port());
            }
        }
    }
}
