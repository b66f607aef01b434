//! The sockets of one address family on one port: the lanes, the socket of handshake messages, and the drain,
//! in the order of their numbers in the kernel's group. If the kernel accepts no program, every socket is a
//! lane, and any datagram may arrive in any of them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

use socket2::{Domain, Protocol, Socket, Type};

use super::super::{BindError, Half, RecvBuffers, UdpConfig, UdpStats};
use super::kernel::Release;
use super::lanes::{LANES, Lanes, SHARED};
use super::program::Key;
use super::socket::{Buffers, UdpSocket};
use super::steering::{DRAIN, SOCKETS, Steering};
use super::{drain, handshakes};

/// The sockets of one address family: at least one lane. The first lane sends.
#[derive(Debug)]
pub(super) struct Family {
    lanes: Lanes,
    /// `None` if the kernel chooses by its own hash, among the lanes.
    steered: Option<Steered>,
}

#[derive(Debug)]
struct Steered {
    steering: Steering,
    handshakes: UdpSocket,
    drain: UdpSocket,
}

impl Family {
    /// Adopts bound sockets of one family and one port, and binds more sockets to the port until the group is
    /// complete. Returns `None` if `sockets` is empty. `are_own` means that this process bound them, and that
    /// no other socket has the port.
    pub(super) fn from_sockets(
        mut sockets: Vec<Socket>,
        is_v6: bool,
        are_own: bool,
        config: &UdpConfig,
        release: Release,
    ) -> Result<Option<Self>, BindError> {
        let before = sockets.len();
        let Some(first) = sockets.first() else { return Ok(None) };
        let is_alone = before == 1 && (are_own || !first.reuse_port().unwrap_or(true));
        let kept_key = match before {
            // The sockets of an older weft, with lanes only.
            LANES => Some(Key::of_lanes_alone(is_v6)),
            SOCKETS => drain::key_of(&sockets[DRAIN]),
            _ => None,
        };
        // In an incomplete set, the numbers of the sockets in the kernel's group are not known.
        let key = kept_key.or_else(|| is_alone.then(Key::random));
        let steering = if let Some(key) = key {
            steer(&mut sockets, is_v6, key)
                .inspect_err(|error| tracing::debug!(%error, "the kernel chooses a socket for each source"))
                .ok()
        } else {
            release_all(&sockets);
            None
        };
        let lane_bytes = config.receive_buffer_bytes;
        let lane_count = if steering.is_some() { LANES } else { sockets.len() };
        let open = |(number, socket)| {
            let receive = match number {
                number if number < lane_count => lane_bytes,
                DRAIN => 0,
                _ => lane_bytes.min(handshakes::MAX_WAITING),
            };
            let buffers = Buffers { receive, sends: number == 0 };
            UdpSocket::from_socket(socket, is_v6, buffers, config, release)
        };
        let mut sockets = sockets.into_iter().enumerate().map(open);
        let lanes = sockets.by_ref().take(lane_count).collect::<Result<Vec<_>, _>>()?;
        let steered = match (steering, sockets.next(), sockets.next()) {
            (Some(steering), Some(handshakes), Some(drain)) => {
                Some(Steered { steering, handshakes: handshakes?, drain: drain? })
            }
            _ => None,
        };
        let read = if steered.is_some() && (are_own || before != 1) { SHARED } else { lanes.len() };
        // Lanes with sources that may have other lanes from now on. With the same key, these are the lanes of
        // single sources.
        let left = if kept_key.is_some() { SHARED..LANES } else { 0..before.min(lanes.len()) };
        let lanes = Lanes::new(lanes, if steered.is_some() { SHARED } else { LANES }, read, left);
        Ok(Some(Self { lanes, steered }))
    }

    /// Returns the socket that sends.
    pub(super) fn first(&self) -> &UdpSocket {
        self.lanes.first()
    }

    /// Returns all sockets, in the order of their numbers.
    pub(super) fn each(&self) -> impl Iterator<Item = &UdpSocket> {
        let others = self.steered.iter().flat_map(|steered| [&steered.handshakes, &steered.drain]);
        self.lanes.each().chain(others)
    }

    /// Returns the bytes of the smallest receive buffer among the lanes.
    pub(super) fn receive_buffer_bytes(&self) -> u64 {
        self.lanes.each().map(UdpSocket::receive_buffer_bytes).min().unwrap_or_default()
    }

    /// Returns the number of datagrams that did not fit a receive buffer.
    pub(super) fn overflows(&self) -> u64 {
        let handshakes = self.steered.iter().map(|steered| &steered.handshakes);
        self.lanes.each().chain(handshakes).map(UdpSocket::dropped).sum()
    }

    /// Returns the number of datagrams that the drain dropped.
    pub(super) fn junk_dropped(&self) -> u64 {
        self.steered.as_ref().map(|steered| steered.drain.dropped()).unwrap_or_default()
    }

    pub(super) fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
        stats: &mut UdpStats,
    ) -> Poll<io::Result<usize>> {
        let steering = self.steered.as_mut().map(|steered| &mut steered.steering);
        self.lanes.poll_recv(cx, buffers, steering, stats)
    }

    pub(super) fn poll_recv_handshakes(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
        stats: &mut UdpStats,
    ) -> Poll<io::Result<usize>> {
        let Some(steered) = &self.steered else { return Poll::Pending };
        handshakes::poll_recv(&steered.handshakes, cx, buffers, stats)
    }

    pub(super) fn record_authentic(&mut self, source: SocketAddr, cost: usize) {
        let lane = self.steered.as_ref().and_then(|steered| steered.steering.shared_lane(source));
        if let Some(lane) = lane {
            self.lanes.record_authentic(lane, source, cost);
        }
    }

    /// Makes the kernel drop messages with other receiver indices; `None` lets all pass. Returns whether the
    /// kernel drops any messages now.
    pub(super) fn let_pass(&mut self, receivers: Option<&[u32]>) -> bool {
        let Some(steered) = &mut self.steered else { return false };
        if let Err(error) = steered.steering.let_pass(self.lanes.first().io.get_ref(), receivers) {
            tracing::warn!("cannot tell the kernel which messages to let pass: {error}");
        }
        steered.steering.is_filtering()
    }

    /// Lets initiations without a cookie pass only from sources in `half`; `None` lets all pass.
    pub(super) fn let_half_ask(&mut self, half: Option<Half>) {
        let Some(steered) = &mut self.steered else { return };
        if let Err(error) = steered.steering.let_half_ask(self.lanes.first().io.get_ref(), half) {
            tracing::warn!("cannot tell the kernel which initiations to let pass: {error}");
        }
    }

    /// Returns duplicates of the descriptors of all sockets, in the order of their numbers.
    pub(super) fn try_clone(&self) -> io::Result<Vec<OwnedFd>> {
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

/// Completes the group of `sockets` and attaches the program to it.
fn steer(sockets: &mut Vec<Socket>, is_v6: bool, key: Key) -> io::Result<Steering> {
    let more = widen(&sockets[0], is_v6, SOCKETS - sockets.len())?;
    sockets.extend(more);
    let steering = Steering::attach(&sockets[0], is_v6, key)?;
    if let Err(error) = drain::close(&sockets[DRAIN], key) {
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
