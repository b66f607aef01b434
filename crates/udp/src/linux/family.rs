//! The sockets of one address family on one port, in the order of their numbers in the kernel's group: data,
//! handshake messages, initiations, and the drain. If the kernel accepts no program, any datagram may arrive
//! in any socket.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::task::{Context, Poll};

use socket2::{Domain, Protocol, Socket, Type};

use super::socket::{Buffers, UdpSocket};
use super::steering::{DRAIN, SOCKETS, Steering};
use super::{drain, recv};
use crate::{BindError, Half, RecvBuffers, UdpConfig, UdpStats, system};

/// Maximum size of the receive buffers of handshake messages, in bytes: more than a thousand messages, for
/// each of which the kernel counts at least 768 bytes.
const MAX_HANDSHAKE_BYTES: usize = 1 << 20;

/// The sockets of one address family.
#[derive(Debug)]
pub(crate) struct Family {
    /// At least one socket; the first sends. There are more if the kernel chooses by its own hash, among
    /// sockets that were adopted.
    data: Vec<UdpSocket>,
    steered: Option<Steered>,
}

#[derive(Debug)]
struct Steered {
    steering: Steering,
    /// The socket of handshake messages, then that of initiations without a cookie.
    handshakes: [UdpSocket; 2],
    drain: UdpSocket,
}

impl Family {
    /// Adopts bound sockets of one family and one port, and binds more sockets to the port until the group is
    /// complete. Returns `None` if `sockets` is empty. `are_own` means that this process bound them, and that
    /// no other socket has the port.
    pub(crate) fn from_sockets(
        mut sockets: Vec<Socket>,
        is_v6: bool,
        are_own: bool,
        config: &UdpConfig,
    ) -> Result<Option<Self>, BindError> {
        let before = sockets.len();
        let Some(first) = sockets.first() else { return Ok(None) };
        let is_alone = before == 1 && (are_own || !first.reuse_port().unwrap_or(true));
        let is_complete = before == SOCKETS && drain::is_drain(&sockets[DRAIN]);
        // In another set, the numbers of the sockets in the kernel's group are not known.
        let steering = if is_alone || is_complete {
            steer(&mut sockets, is_v6)
                .inspect_err(|error| tracing::debug!(%error, "the kernel chooses a socket for each source"))
                .ok()
        } else {
            release_all(&sockets);
            None
        };
        let data_count = if steering.is_some() { 1 } else { sockets.len() };
        let open = |(number, socket)| {
            let receive = match number {
                number if number < data_count => config.receive_buffer_bytes,
                DRAIN => 0,
                _ => config.receive_buffer_bytes.min(MAX_HANDSHAKE_BYTES),
            };
            let buffers = Buffers { receive, sends: number == 0 };
            UdpSocket::from_socket(socket, is_v6, buffers, config)
        };
        let mut sockets = sockets.into_iter().enumerate().map(open);
        let data = sockets.by_ref().take(data_count).collect::<Result<Vec<_>, _>>()?;
        let steered = match (steering, sockets.next(), sockets.next(), sockets.next()) {
            (Some(steering), Some(handshakes), Some(initiations), Some(drain)) => {
                Some(Steered { steering, handshakes: [handshakes?, initiations?], drain: drain? })
            }
            _ => None,
        };
        Ok(Some(Self { data, steered }))
    }

    /// Returns the socket that sends.
    pub(crate) fn first(&self) -> &UdpSocket {
        &self.data[0]
    }

    /// Returns all sockets, in the order of their numbers.
    pub(crate) fn each(&self) -> impl Iterator<Item = &UdpSocket> {
        let others = self.steered.iter();
        let others = others.flat_map(|steered| steered.handshakes.iter().chain([&steered.drain]));
        self.data.iter().chain(others)
    }

    /// Returns the bytes of the smallest receive buffer for data.
    pub(crate) fn receive_buffer_bytes(&self) -> u64 {
        self.data
            .iter()
            .map(|socket| system::receive_buffer_bytes(socket.io.get_ref()))
            .min()
            .unwrap_or_default()
    }

    /// Returns the number of datagrams that did not fit a receive buffer.
    pub(crate) fn overflows(&self) -> u64 {
        let handshakes = self.steered.iter().flat_map(|steered| &steered.handshakes);
        self.data.iter().chain(handshakes).map(UdpSocket::dropped).sum()
    }

    /// Returns the number of datagrams that the drain dropped.
    pub(crate) fn junk_dropped(&self) -> u64 {
        self.steered.as_ref().map(|steered| steered.drain.dropped()).unwrap_or_default()
    }

    /// Receives into the free buffers, as [`crate::Udp::poll_recv`].
    pub(crate) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
        stats: &mut UdpStats,
    ) -> Poll<io::Result<usize>> {
        poll_each(&self.data, cx, buffers, stats)
    }

    /// Receives handshake messages, as [`crate::Udp::poll_recv_handshakes`].
    pub(crate) fn poll_recv_handshakes(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
        stats: &mut UdpStats,
    ) -> Poll<io::Result<usize>> {
        let Some(steered) = &self.steered else { return Poll::Pending };
        poll_each(&steered.handshakes, cx, buffers, stats)
    }

    /// Makes the kernel drop messages with other receiver indices; `None` lets all pass. Returns whether the
    /// kernel drops any messages now.
    pub(crate) fn let_pass(&mut self, receivers: Option<&[u32]>) -> bool {
        let Some(steered) = &mut self.steered else { return false };
        if let Err(error) = steered.steering.let_pass(self.data[0].io.get_ref(), receivers) {
            tracing::warn!("cannot tell the kernel which messages to let pass: {error}");
        }
        steered.steering.is_filtering()
    }

    /// Lets initiations without a cookie pass only from sources in `half`; `None` lets all pass.
    pub(crate) fn let_half_ask(&mut self, half: Option<Half>) {
        let Some(steered) = &mut self.steered else { return };
        if let Err(error) = steered.steering.let_half_ask(self.data[0].io.get_ref(), half) {
            tracing::warn!("cannot tell the kernel which initiations to let pass: {error}");
        }
    }

    /// Sets the mark of the packets that all sockets send.
    pub(crate) fn set_mark(&self, mark: u32) -> Result<(), BindError> {
        self.each().try_for_each(|socket| system::set_mark(socket.io.get_ref(), mark))
    }

    pub(crate) fn local_port(&self) -> Option<u16> {
        self.first().local_port()
    }

    /// Reports whether the kernel joins received datagrams, on all sockets.
    pub(crate) fn joins_datagrams(&self) -> bool {
        self.each().all(|socket| system::joins_datagrams(socket.io.get_ref()))
    }

    /// Returns the bytes of the send buffer.
    pub(crate) fn send_buffer_bytes(&self) -> u64 {
        system::send_buffer_bytes(self.first().io.get_ref())
    }

    /// Returns duplicates of the descriptors of all sockets, in the order of their numbers.
    pub(crate) fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        self.each().map(UdpSocket::try_clone).collect()
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        // Another process may keep the sockets open, and does not know of these restrictions.
        if self.steered.as_ref().is_some_and(|steered| steered.steering.is_restricted()) {
            self.let_pass(None);
            self.let_half_ask(None);
        }
    }
}

/// Makes one receive call for each socket. Each gets its share of the free buffers, otherwise one that is always
/// full would get all.
fn poll_each(
    sockets: &[UdpSocket],
    cx: &mut Context<'_>,
    buffers: &mut RecvBuffers,
    stats: &mut UdpStats,
) -> Poll<io::Result<usize>> {
    let mut filled = 0;
    for (number, socket) in sockets.iter().enumerate() {
        let limit = buffers.room().div_ceil(sockets.len() - number);
        if limit == 0 {
            break;
        }
        match socket.poll_recv(cx, limit, || recv::recv(socket.io.get_ref().as_fd(), buffers, limit, stats)) {
            Poll::Ready(Ok(more)) => filled += more,
            Poll::Ready(Err(error)) if filled == 0 => return Poll::Ready(Err(error)),
            Poll::Ready(Err(error)) => tracing::debug!(%error, "cannot receive"),
            Poll::Pending => {}
        }
    }
    if filled > 0 { Poll::Ready(Ok(filled)) } else { Poll::Pending }
}

/// Completes the group of `sockets` and attaches the program to it.
fn steer(sockets: &mut Vec<Socket>, is_v6: bool) -> io::Result<Steering> {
    let more = widen(&sockets[0], is_v6, SOCKETS - sockets.len())?;
    sockets.extend(more);
    let steering = Steering::attach(&sockets[0], is_v6)?;
    if let Err(error) = drain::close(&sockets[DRAIN]) {
        release_all(sockets);
        return Err(error);
    }
    Ok(steering)
}

/// Detaches all programs from the sockets.
fn release_all(sockets: &[Socket]) {
    for socket in sockets {
        // Most sockets have no filter.
        let _ = socket.detach_filter();
    }
    if let Some(first) = sockets.first() {
        Steering::detach(first);
    }
}

/// Returns `count` more sockets on the port of `first`. No other user can bind the port meanwhile: it was
/// bound exclusively, and only processes of the same user may join adopted sockets (socket(7)).
fn widen(first: &Socket, is_v6: bool, count: usize) -> io::Result<Vec<Socket>> {
    let port = first.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidInput)?.port();
    let address = if is_v6 {
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))
    } else {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))
    };
    first.set_reuse_port(true)?;
    let bind = |_| {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if is_v6 {
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        Ok(socket)
    };
    (0..count).map(bind).collect()
}
