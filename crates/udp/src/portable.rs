//! Every system but Linux: readiness from tokio, and calls over quinn-udp (`sendmsg` out, `recvmmsg` or `recvmsg`
//! in) or, on Windows, weft's own.
//!
//! Each address family has one socket. Handshake messages have none apart: they arrive with data, and the
//! queues of [`RecvBuffers`] keep them apart from what other sources send. Nothing filters junk in the kernel.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use weft_tunnel::Transmit;

use self::send::Sender;
use self::socket::UdpSocket;
use super::{
    BindError, Descriptor, RecvBuffers, SEND_BUFFER_BYTES, SendError, Sent, Udp, UdpConfig, UdpFeatures,
    UdpStats, adopt, bind, codes, system,
};

mod pause;
mod recv;
mod send;
#[cfg_attr(windows, path = "windows.rs")]
mod socket;
#[cfg(test)]
#[cfg_attr(windows, path = "windows/tests.rs")]
mod tests;

/// Number of receiving sockets, of both address families together.
pub const RECEIVING_SOCKETS: usize = 2;

/// A socket for IPv4 and one for IPv6 on one port, or for one family if the machine lacks the other.
#[derive(Debug)]
pub struct UdpSockets {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
    /// The requested configuration, with the port in use.
    config: UdpConfig,
    /// Whether the next receive call polls IPv6 first. The families alternate, so that neither starves.
    v6_first: bool,
    sender: Sender,
    stats: UdpStats,
}

impl UdpSockets {
    /// Opens the sockets on all addresses. Must be called within a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// Those of [`BindError`]. If only one address family is missing, that is logged and is not an error.
    pub fn bind(config: &UdpConfig) -> Result<Self, BindError> {
        let (v4, v6) = bind::bind_both(config)?;
        let mut sockets = Self::from_sockets(v4, v6, config)?;
        let port = sockets.each().find_map(UdpSocket::local_port);
        sockets.config.port = port.unwrap_or_default();
        Ok(sockets)
    }

    /// Adopts sockets that passed [`super::check_socket`] and have the port of `config`; of several sockets of one
    /// family the first. Opens new sockets if `descriptors` is empty. Must be called within a tokio runtime with
    /// I/O and time.
    ///
    /// # Errors
    /// Those of [`BindError`].
    pub fn adopt(descriptors: Vec<Descriptor>, config: &UdpConfig) -> Result<Self, BindError> {
        if descriptors.is_empty() {
            return Self::bind(config);
        }
        let (v4, v6) = adopt::sort(descriptors, config)?;
        Self::from_sockets(v4.into_iter().next(), v6.into_iter().next(), config)
    }

    fn from_sockets(
        v4: Option<socket2::Socket>,
        v6: Option<socket2::Socket>,
        config: &UdpConfig,
    ) -> Result<Self, BindError> {
        let v4 = v4.map(|socket| UdpSocket::from_socket(socket, false, config)).transpose()?;
        let v6 = v6.map(|socket| UdpSocket::from_socket(socket, true, config)).transpose()?;
        let gso = config.gso && [&v4, &v6].into_iter().flatten().all(UdpSocket::knows_gso);
        let sender = Sender::new(
            gso,
            config.path_mtu,
            system::mangles_equal_segments(),
            system::ENOBUFS_IS_A_FULL_QUEUE,
        );
        Ok(Self { v4, v6, config: *config, v6_first: false, sender, stats: UdpStats::default() })
    }

    fn set_mark(&mut self, fwmark: u32) -> Result<(), BindError> {
        let before = self.config.fwmark;
        let set = |mark| move |socket: &UdpSocket| socket.with(|socket| system::set_mark(socket, mark));
        if let Err(error) = self.each().try_for_each(set(fwmark)) {
            // The previous mark could be set before, so it can be set again.
            let _ = self.each().try_for_each(set(before));
            return Err(error);
        }
        self.config.fwmark = fwmark;
        Ok(())
    }

    fn each(&self) -> impl Iterator<Item = &UdpSocket> {
        [&self.v4, &self.v6].into_iter().flatten()
    }
}

impl Udp for UdpSockets {
    fn poll_send(&mut self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<Result<Sent, SendError>> {
        let socket = match transmit.destination {
            SocketAddr::V4(_) => &self.v4,
            SocketAddr::V6(_) => &self.v6,
        };
        let Some(socket) = socket else {
            let error = io::Error::from_raw_os_error(codes::EAFNOSUPPORT);
            return Poll::Ready(Err(SendError::Failed(error)));
        };
        self.sender.poll_send(cx, socket, transmit, &mut self.stats)
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>, buffers: &mut RecvBuffers) -> Poll<io::Result<usize>> {
        if buffers.room() == 0 {
            return Poll::Ready(Err(io::ErrorKind::InvalidInput.into()));
        }
        let mut filled = 0;
        for is_v6 in [self.v6_first, !self.v6_first] {
            let socket = if is_v6 { &self.v6 } else { &self.v4 };
            let Some(socket) = socket.as_ref().filter(|_| buffers.room() > 0) else { continue };
            match socket.poll_recv(cx, |socket| recv::recv(socket, buffers, &mut self.stats)) {
                Poll::Ready(Ok(more)) => filled += more,
                Poll::Ready(Err(error)) if filled == 0 => return Poll::Ready(Err(error)),
                Poll::Ready(Err(error)) => tracing::debug!(%error, "cannot receive"),
                Poll::Pending => {}
            }
        }
        if filled == 0 {
            return Poll::Pending;
        }
        self.v6_first = !self.v6_first;
        Poll::Ready(Ok(filled))
    }

    fn rebind(&mut self, port: Option<u16>, fwmark: Option<u32>) -> Result<u16, BindError> {
        let config = UdpConfig {
            port: port.unwrap_or(self.config.port),
            fwmark: fwmark.unwrap_or(self.config.fwmark),
            ..self.config
        };
        if port.is_some_and(|port| port != self.config.port) {
            // Unread datagrams of the old port are lost, like those that arrive there a moment later.
            let mut sockets = Self::bind(&config)?;
            sockets.stats = self.stats();
            *self = sockets;
        } else if config.fwmark != self.config.fwmark {
            self.set_mark(config.fwmark)?;
        }
        Ok(self.config.port)
    }

    fn descriptors(&self) -> io::Result<Vec<Descriptor>> {
        self.each().filter_map(|socket| socket.with(adopt::duplicate)).collect()
    }

    fn features(&self) -> UdpFeatures {
        let smallest = |bytes: fn(&_) -> u64| self.each().map(|socket| socket.with(bytes)).min();
        UdpFeatures {
            gso: self.sender.uses_gso(),
            gro: self.each().all(|socket| socket.with(system::joins_datagrams)),
            receive_buffer_bytes: smallest(system::receive_buffer_bytes).unwrap_or_default(),
            send_buffer_bytes: smallest(system::send_buffer_bytes).unwrap_or_default(),
            wanted_receive_buffer_bytes: self.config.receive_buffer_bytes as u64,
            wanted_send_buffer_bytes: SEND_BUFFER_BYTES,
        }
    }

    fn port(&self) -> u16 {
        self.config.port
    }

    fn stats(&self) -> UdpStats {
        let dropped: u64 = self.each().map(|socket| socket.with(system::dropped)).sum();
        UdpStats { receive_overflows: self.stats.receive_overflows + dropped, ..self.stats }
    }
}
