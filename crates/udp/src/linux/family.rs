//! The sockets of one address family and one shard on one port, in the order of their numbers in the kernel's
//! group: data, handshake messages, and of the first shard initiations and the drain. If the kernel accepts
//! no program, any datagram may arrive in any socket.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::task::{Context, Poll};

use socket2::{Domain, Protocol, Socket, Type};

use super::socket::{Buffers, UdpSocket, configure};
use super::steering::{DATA, DRAIN, HANDSHAKES, SOCKETS, SOCKETS_OF_A_SHARD, Steering, sockets_of};
use super::{drain, recv};
use crate::bind::failed;
use crate::{BindError, Half, RecvBuffers, UdpConfig, UdpStats, system};

/// Maximum size of the receive buffers of handshake messages, in bytes: more than a thousand messages, for
/// each of which the kernel counts at least 768 bytes.
const MAX_HANDSHAKE_BYTES: usize = 1 << 20;

/// The sockets of one address family and one shard.
#[derive(Debug)]
pub(crate) struct Family {
    /// At least one socket; the first sends. There are more if the kernel chooses by its own hash, among
    /// sockets that were adopted.
    data: Vec<UdpSocket>,
    steered: Option<Steered<UdpSocket>>,
}

#[derive(Debug)]
struct Steered<S> {
    steering: Steering,
    /// The socket of handshake messages, then, of the first shard, that of initiations without a cookie.
    handshakes: Vec<S>,
    /// Only the first shard has one.
    drain: Option<S>,
    /// The drain again, for its count; `None` at the first shard.
    drain_of_first: Option<Socket>,
}

/// The sockets of a [`Family`] before they are registered with a runtime.
#[derive(Debug)]
pub(crate) struct BoundFamily {
    data: Vec<Socket>,
    steered: Option<Steered<Socket>>,
}

impl BoundFamily {
    /// Adopts bound sockets of one family and one port, and binds more sockets to the port until the group is
    /// complete. Returns the sockets of each shard, in order, or nothing if `sockets` is empty. `are_own`
    /// means that this process bound them, and that no other socket has the port.
    pub(crate) fn all(
        mut sockets: Vec<Socket>,
        is_v6: bool,
        are_own: bool,
        shards: usize,
        config: &UdpConfig,
    ) -> Result<Vec<Self>, BindError> {
        let before = sockets.len();
        let Some(first) = sockets.first() else { return Ok(Vec::new()) };
        let is_alone = before == 1 && (are_own || !first.reuse_port().unwrap_or(true));
        let is_complete = before >= SOCKETS
            && (before - SOCKETS).is_multiple_of(SOCKETS_OF_A_SHARD)
            && drain::is_drain(&sockets[DRAIN]);
        // In another set, the numbers of the sockets in the kernel's group are not known.
        let steering = if is_alone || is_complete {
            steer(&mut sockets, is_v6, shards)
                .inspect_err(|error| tracing::debug!(%error, "the kernel chooses a socket for each source"))
                .ok()
        } else {
            None
        };
        let Some(steering) = steering else {
            return Self::unsteered(sockets, is_v6, before, shards, config);
        };
        let drain = (1..shards)
            .map(|_| sockets[DRAIN].try_clone())
            .collect::<io::Result<Vec<_>>>()
            .map_err(|source| failed("duplicate a UDP socket", source))?;
        let mut drain_of_first = std::iter::once(None).chain(drain.into_iter().map(Some));
        let mut sockets = (0..).zip(sockets).map(|(number, socket)| {
            let is_data = number == DATA || number >= SOCKETS && number.is_multiple_of(SOCKETS_OF_A_SHARD);
            let receive = match number {
                DRAIN => 0,
                _ if is_data => config.receive_buffer_bytes,
                _ => config.receive_buffer_bytes.min(MAX_HANDSHAKE_BYTES),
            };
            configure(socket, is_v6, Buffers { receive, sends: is_data }, config)
        });
        let mut take = |count| sockets.by_ref().take(count).collect::<Result<Vec<_>, _>>();
        let of_shard = |(shard, steering)| {
            let is_first = shard == 0;
            Ok(Self {
                data: take(1)?,
                steered: Some(Steered {
                    steering,
                    handshakes: take(if is_first { DRAIN - HANDSHAKES } else { 1 })?,
                    drain: take(usize::from(is_first))?.pop(),
                    drain_of_first: drain_of_first.next().flatten(),
                }),
            })
        };
        steering.into_iter().enumerate().map(of_shard).collect()
    }

    /// Divides sockets among the shards, among which the kernel chooses by its own hash: those that there
    /// were `before`, and as many more as each shard needs to send.
    fn unsteered(
        mut sockets: Vec<Socket>,
        is_v6: bool,
        before: usize,
        shards: usize,
        config: &UdpConfig,
    ) -> Result<Vec<Self>, BindError> {
        release_all(&sockets);
        sockets.truncate(before.max(shards));
        if sockets.len() < shards {
            let more = widen(&sockets[0], is_v6, shards - sockets.len())
                .map_err(|source| failed("bind a UDP socket for each packet thread", source))?;
            sockets.extend(more);
        }
        let mut opened: Vec<_> = (0..shards).map(|_| Self { data: Vec::new(), steered: None }).collect();
        for (number, socket) in sockets.into_iter().enumerate() {
            let buffers = Buffers { receive: config.receive_buffer_bytes, sends: number < shards };
            opened[number % shards].data.push(configure(socket, is_v6, buffers, config)?);
        }
        Ok(opened)
    }
}

impl Family {
    /// Registers the sockets with the runtime.
    pub(crate) fn register(opened: BoundFamily) -> Result<Self, BindError> {
        let register =
            |sockets: Vec<Socket>| sockets.into_iter().map(UdpSocket::register).collect::<Result<_, _>>();
        let steered = match opened.steered {
            None => None,
            Some(Steered { steering, handshakes, drain, drain_of_first }) => Some(Steered {
                steering,
                handshakes: register(handshakes)?,
                drain: drain.map(UdpSocket::register).transpose()?,
                drain_of_first,
            }),
        };
        let data = register(opened.data)?;
        if let Some(steered) = &steered {
            steered.steering.enter();
        }
        Ok(Self { data, steered })
    }

    /// Reports whether the program chooses the socket of a datagram.
    pub(crate) fn is_steered(&self) -> bool {
        self.steered.is_some()
    }

    /// Returns the socket that sends.
    pub(crate) fn first(&self) -> &UdpSocket {
        &self.data[0]
    }

    /// Returns all sockets, in the order of their numbers.
    pub(crate) fn each(&self) -> impl Iterator<Item = &UdpSocket> {
        let others = self.steered.iter();
        let others = others.flat_map(|steered| steered.handshakes.iter().chain(&steered.drain));
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

    /// Returns the number of datagrams that the drain dropped, of all shards, at each of them.
    pub(crate) fn junk_of_all(&self) -> u64 {
        let drain = self.steered.as_ref().and_then(|steered| steered.drain_of_first.as_ref());
        drain.map_or_else(|| self.junk_dropped(), system::dropped)
    }

    /// Returns the number of datagrams that the drain dropped: of all shards, at the first.
    pub(crate) fn junk_dropped(&self) -> u64 {
        let drain = self.steered.as_ref().and_then(|steered| steered.drain.as_ref());
        drain.map(UdpSocket::dropped).unwrap_or_default()
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

    /// Makes the kernel drop messages with other receiver indices of this shard; `None` lets all of them
    /// pass. Returns whether the kernel drops any messages now.
    pub(crate) fn let_pass(&mut self, receivers: Option<&[u32]>) -> bool {
        let Some(steered) = &self.steered else { return false };
        let (is_filtering, result) = steered.steering.let_pass(self.first().io.get_ref(), receivers);
        if let Err(error) = result {
            tracing::warn!("cannot set the kernel's list of messages to let pass: {error}");
        }
        is_filtering
    }

    /// Lets initiations without a cookie pass only from sources in `half`; `None` lets all pass.
    pub(crate) fn let_half_ask(&mut self, half: Option<Half>) {
        let Some(steered) = &self.steered else { return };
        if let Err(error) = steered.steering.let_half_ask(self.first().io.get_ref(), half) {
            tracing::warn!("cannot choose the initiations that the kernel lets pass: {error}");
        }
    }

    /// Sets the mark of the packets that all sockets send.
    pub(crate) fn set_mark(&self, mark: u32) -> Result<(), BindError> {
        self.each().try_for_each(|socket| system::set_mark(socket.io.get_ref(), mark))
    }

    /// Reports whether the kernel joins received datagrams, on all sockets.
    pub(crate) fn joins_datagrams(&self) -> bool {
        self.each().all(|socket| system::joins_datagrams(socket.io.get_ref()))
    }

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
        let Some(steered) = &self.steered else { return };
        if let Err(error) = steered.steering.leave(self.first().io.get_ref()) {
            tracing::warn!("cannot let the kernel pass all messages: {error}");
        }
    }
}

/// Makes one receive call for each socket. Each gets its share of the free buffers, otherwise one that is
/// always full would get all.
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

/// Completes the group of `sockets`, attaches the program to it, and closes the sockets of further shards.
fn steer(sockets: &mut Vec<Socket>, is_v6: bool, shards: usize) -> io::Result<Vec<Steering>> {
    let count = sockets_of(shards);
    let more = widen(&sockets[0], is_v6, count.saturating_sub(sockets.len()))?;
    sockets.extend(more);
    let steering = Steering::attach(&sockets[0], is_v6, shards)?;
    drain::close(&sockets[DRAIN])?;
    // The last first: the kernel moves the last one to the place of one that is closed.
    while sockets.len() > count {
        sockets.pop();
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
