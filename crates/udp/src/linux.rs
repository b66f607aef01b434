//! Linux: `sendmsg` with UDP_SEGMENT out, `recvmmsg` with UDP_GRO in, readiness from tokio.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::task::{Context, Poll, ready};

use weft_tunnel::Transmit;

use self::family::Family;
use self::send::Sender;
use self::socket::UdpSocket;
use super::{
    BindError, Descriptor, Half, RecvBuffers, SendError, Sent, Udp, UdpConfig, UdpFeatures, UdpStats, adopt,
    bind, system,
};

mod cmsg;
mod drain;
mod family;
mod program;
mod recv;
mod send;
mod socket;
mod steering;
#[cfg(test)]
mod tests;

/// Number of receiving sockets, of both address families together: for data, handshake messages and
/// initiations.
pub const RECEIVING_SOCKETS: usize = 2 * steering::DRAIN;

/// Sockets for IPv4 and for IPv6 on one port, or for one family if the machine lacks the other.
#[derive(Debug)]
pub struct UdpSockets {
    v4: Option<Family>,
    v6: Option<Family>,
    /// The requested configuration, with the port in use.
    config: UdpConfig,
    /// Whether the next receive call polls IPv6 first. The families alternate, so that neither starves.
    v6_first: bool,
    sender: Sender,
    stats: UdpStats,
}

impl UdpSockets {
    /// Opens the sockets on all addresses. Must be called within a tokio runtime with I/O.
    ///
    /// # Errors
    /// Those of [`BindError`]. If only one address family is missing, that is logged and is not an error.
    pub fn bind(config: &UdpConfig) -> Result<Self, BindError> {
        let (v4, v6) = bind::bind_both(config)?;
        let (v4, v6) = (v4.into_iter().collect(), v6.into_iter().collect());
        let mut sockets = Self::from_sockets(v4, v6, true, config)?;
        sockets.config.port = sockets.local_port();
        Ok(sockets)
    }

    /// Adopts sockets that passed [`super::check_socket`] and have the port of `config`. Opens new sockets if
    /// `descriptors` is empty. Must be called within a tokio runtime with I/O.
    ///
    /// # Errors
    /// Those of [`BindError`].
    pub fn adopt(descriptors: Vec<Descriptor>, config: &UdpConfig) -> Result<Self, BindError> {
        if descriptors.is_empty() {
            return Self::bind(config);
        }
        let (v4, v6) = adopt::sort(descriptors, config)?;
        Self::from_sockets(v4, v6, false, config)
    }

    fn from_sockets(
        v4: Vec<socket2::Socket>,
        v6: Vec<socket2::Socket>,
        are_own: bool,
        config: &UdpConfig,
    ) -> Result<Self, BindError> {
        let v4 = Family::from_sockets(v4, false, are_own, config)?;
        let v6 = Family::from_sockets(v6, true, are_own, config)?;
        let gso = config.gso && [&v4, &v6].into_iter().flatten().all(|family| family.first().knows_gso());
        let sender = Sender::new(gso, config.path_mtu, system::mangles_equal_segments());
        Ok(Self { v4, v6, config: *config, v6_first: false, sender, stats: UdpStats::default() })
    }

    fn set_mark(&mut self, fwmark: u32) -> Result<(), BindError> {
        let before = self.config.fwmark;
        let set = |mark| move |socket: &UdpSocket| system::set_mark(socket.io.get_ref(), mark);
        if let Err(error) = self.each().try_for_each(set(fwmark)) {
            // The previous mark could be set before, so it can be set again.
            let _ = self.each().try_for_each(set(before));
            return Err(error);
        }
        self.config.fwmark = fwmark;
        Ok(())
    }

    fn local_port(&self) -> u16 {
        self.each().find_map(UdpSocket::local_port).unwrap_or_default()
    }

    fn families(&self) -> impl Iterator<Item = &Family> {
        [&self.v4, &self.v6].into_iter().flatten()
    }

    fn each(&self) -> impl Iterator<Item = &UdpSocket> {
        self.families().flat_map(Family::each)
    }

    /// Receives from both families with `poll`. The families alternate in being first, so that neither
    /// starves.
    fn poll_families(
        &mut self,
        buffers: &mut RecvBuffers,
        mut poll: impl FnMut(&mut Family, &mut RecvBuffers, &mut UdpStats) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if buffers.room() == 0 {
            return Poll::Ready(Err(io::ErrorKind::InvalidInput.into()));
        }
        let mut filled = 0;
        for is_v6 in [self.v6_first, !self.v6_first] {
            let family = if is_v6 { &mut self.v6 } else { &mut self.v4 };
            let Some(family) = family.as_mut().filter(|_| buffers.room() > 0) else { continue };
            match poll(family, buffers, &mut self.stats) {
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
}

impl Udp for UdpSockets {
    fn poll_send(&mut self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<Result<Sent, SendError>> {
        let socket = match transmit.destination {
            SocketAddr::V4(_) => &self.v4,
            SocketAddr::V6(_) => &self.v6,
        };
        let Some(socket) = socket.as_ref().map(Family::first) else {
            let error = io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
            return Poll::Ready(Err(SendError::Failed(error)));
        };
        loop {
            let mut guard = ready!(socket.io.poll_write_ready(cx)).map_err(SendError::Failed)?;
            match self.sender.send(socket.io.get_ref().as_fd(), transmit, &mut self.stats) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                    return Poll::Ready(Err(SendError::TooLong));
                }
                // ENOBUFS is among these. For UDP it means that the kernel is out of memory (a full queueing
                // discipline drops silently). The socket stays writable, so a wait for room might never end.
                result => return Poll::Ready(result.map_err(SendError::Failed)),
            }
        }
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>, buffers: &mut RecvBuffers) -> Poll<io::Result<usize>> {
        self.poll_families(buffers, |family, buffers, stats| family.poll_recv(cx, buffers, stats))
    }

    fn poll_recv_handshakes(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
    ) -> Poll<io::Result<usize>> {
        self.poll_families(buffers, |family, buffers, stats| family.poll_recv_handshakes(cx, buffers, stats))
    }

    fn let_pass(&mut self, receivers: Option<&[u32]>) -> bool {
        let mut is_filtering = false;
        for family in [&mut self.v4, &mut self.v6].into_iter().flatten() {
            is_filtering |= family.let_pass(receivers);
        }
        is_filtering
    }

    fn let_half_ask(&mut self, half: Option<Half>) {
        for family in [&mut self.v4, &mut self.v6].into_iter().flatten() {
            family.let_half_ask(half);
        }
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
        let each = self.families().map(Family::try_clone);
        Ok(each.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    fn features(&self) -> UdpFeatures {
        let senders = self.families().map(|family| family.first().io.get_ref());
        UdpFeatures {
            gso: self.sender.uses_gso(),
            gro: self.each().all(|socket| system::joins_datagrams(socket.io.get_ref())),
            receive_buffer_bytes: self.families().map(Family::receive_buffer_bytes).min().unwrap_or_default(),
            send_buffer_bytes: senders.map(system::send_buffer_bytes).min().unwrap_or_default(),
            wanted_receive_buffer_bytes: self.config.receive_buffer_bytes as u64,
            wanted_send_buffer_bytes: super::SEND_BUFFER_BYTES,
        }
    }

    fn port(&self) -> u16 {
        self.config.port
    }

    fn stats(&self) -> UdpStats {
        let overflows: u64 = self.families().map(Family::overflows).sum();
        let junk: u64 = self.families().map(Family::junk_dropped).sum();
        UdpStats {
            receive_overflows: self.stats.receive_overflows + overflows,
            junk_dropped: self.stats.junk_dropped + junk,
            ..self.stats
        }
    }
}
