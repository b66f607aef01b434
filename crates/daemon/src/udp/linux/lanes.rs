//! The receiving sockets of one address family: several on one port, and the kernel chooses one by the address and port
//! that a datagram came from (SO_REUSEPORT, socket(7)).
//!
//! What waits in a socket is one queue for all, and what does not fit is thrown away, whoever sent it. A source that
//! sends more than weft can open fills its own lane; the others are read in turn, and lose nothing to it. Those that
//! share a lane with it do until it is seen to be full: then the source gets a lane that nobody else has.

use std::hash::BuildHasher as _;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::task::{Context, Poll};

use rustc_hash::FxBuildHasher;
use socket2::{Domain, Protocol, Socket, Type};
use weft_tun::{Distinct, Heaviest, Turns};

use self::steering::Steering;
use super::super::{BindError, DATAGRAM_COST, RecvBuffers, UdpConfig, UdpStats};
use super::kernel::Release;
use super::recv;
use super::socket::{Buffers, UdpSocket};
use crate::memory_budget;

mod steering;

/// Lanes that any source may have, chosen by a hash; a power of two.
const SHARED: usize = 8;
/// Lanes for single sources that filled a shared one.
const OWN: usize = 8;
/// Sockets of one family.
pub(super) const LANES: usize = SHARED + OWN;
const _: () = assert!(LANES == memory_budget::RECEIVE_SOCKETS);
/// More messages than a receive buffer holds: each takes at least 768 bytes of what the kernel counts.
const BACKLOG: usize = 20_000;
/// Bytes out of a lane that was not empty meanwhile, after which it counts as full: a part of what a receive buffer holds.
const FULL: u64 = 2 << 20;
/// A shared lane gets a turn for each of its sources, but not more than about so many for each turn of a source that has a
/// lane for itself, nor than so many, or twice as many as others, for each turn of another shared one: who sends from many
/// ports, or in the name of many hosts, must not have all turns.
const MOST_TURNS: usize = 4;

/// The sockets of one family on one port; at least one. What goes out is sent by the first.
#[derive(Debug)]
pub(super) struct Lanes {
    sockets: Vec<UdpSocket>,
    waiting: Vec<Waiting>,
    /// Of those that the kernel puts something into.
    turns: Turns,
    /// `None` where the kernel chooses by itself, among all of them.
    steering: Option<Steering>,
}

/// What is known of what waits in a lane.
#[derive(Debug, Default)]
struct Waiting {
    /// Messages that may be there from before the kernel was told to put those of their sources elsewhere; 0 once it was
    /// empty.
    backlog: usize,
    /// The lanes, a bit each, whose backlog may hold older messages of the sources of this one. They are read first: what a
    /// source sent is handled in order.
    older: u32,
    heaviest: Heaviest<SocketAddr>,
    sources: Distinct,
}

impl Lanes {
    /// Takes over bound sockets of one family and one port, and binds more beside them until there are enough. `None`
    /// without any. `are_own`: this process bound them, and nobody has any others of the port.
    pub(super) fn from_sockets(
        mut sockets: Vec<Socket>,
        is_v6: bool,
        are_own: bool,
        config: &UdpConfig,
        release: Release,
    ) -> Result<Option<Self>, BindError> {
        let before = sockets.len();
        if let Some(first) = sockets.first() {
            match widen(first, is_v6, LANES.saturating_sub(before)) {
                Ok(more) => sockets.extend(more),
                Err(error) => tracing::debug!(%error, "all sources share {before} sockets"),
            }
        }
        let Some(first) = sockets.first() else { return Ok(None) };
        let steering = if sockets.len() == LANES {
            Steering::attach(first, is_v6)
                .inspect_err(|error| tracing::debug!(%error, "the kernel chooses a socket for each source"))
                .ok()
        } else {
            None
        };
        // Of some that were left by an incomplete set the kernel may have other numbers: all are asked.
        let is_numbered = are_own || before == LANES;
        let turns = Turns::new(if steering.is_some() && is_numbered { SHARED } else { sockets.len() });
        let buffer_bytes = memory_budget::receive_buffer_bytes();
        let open = |(number, socket)| {
            let buffers = Buffers { receive: buffer_bytes, sends: number == 0 };
            UdpSocket::from_socket(socket, is_v6, buffers, config, release)
        };
        let sockets = sockets.into_iter().enumerate().map(open).collect::<Result<Vec<_>, _>>()?;
        let mut waiting: Vec<_> = sockets.iter().map(|_| Waiting::default()).collect();
        // Whose sources have other lanes from now on: of as many as there are now, those that were somebody's own.
        let left = if before == LANES { SHARED..LANES } else { 0..before };
        if before == LANES || before < sockets.len() {
            for lane in left {
                come_after(&mut waiting, lane, 0..sockets.len());
            }
        }
        Ok(Some(Self { sockets, waiting, turns, steering }))
    }

    /// The socket that sends.
    pub(super) fn first(&self) -> &UdpSocket {
        &self.sockets[0]
    }

    /// All of them, in the order of their numbers.
    pub(super) fn each(&self) -> std::slice::Iter<'_, UdpSocket> {
        self.sockets.iter()
    }

    /// Adds what has arrived, lane after lane, while there is a free buffer; as [`super::super::Udp::poll_recv`].
    pub(super) fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
        stats: &mut UdpStats,
    ) -> Poll<io::Result<usize>> {
        self.turns.begin();
        // Each gets its share of the buffers, or one that is always full would have most of them.
        let share = free(buffers).div_ceil(self.turns.busy());
        let mut filled = 0;
        while buffers.has_room()
            && let Some(lane) = self.turns.next()
        {
            let cost =
                |stats: &UdpStats| stats.bytes_received + DATAGRAM_COST as u64 * stats.datagrams_received;
            let before = cost(stats);
            match self.recv_turn(lane, cx, buffers, share.min(free(buffers)), stats) {
                Poll::Ready(Ok(more)) => {
                    filled += more;
                    self.turns.had(lane, self.part((cost(stats) - before) as usize, lane));
                    self.steer(lane, stats.bytes_received);
                }
                Poll::Ready(Err(error)) if filled == 0 => return Poll::Ready(Err(error)),
                Poll::Ready(Err(error)) => tracing::debug!(%error, "cannot receive"),
                Poll::Pending => self.turns.was_empty(lane),
            }
        }
        if filled > 0 { Poll::Ready(Ok(filled)) } else { Poll::Pending }
    }

    /// What each of those who share a lane got of it, about: as much as each of the others, whoever else is in its lane.
    fn part(&self, cost: usize, lane: usize) -> usize {
        let shared = if self.steering.is_some() { SHARED } else { self.sockets.len().min(LANES) };
        if lane >= shared {
            return cost;
        }
        let count = |lane: usize| self.waiting[lane].sources.count();
        let mut counts = [0; LANES];
        let mut busy = 0;
        for other in (0..shared).filter(|other| *other == lane || self.turns.is_busy(*other)) {
            counts[busy] = count(other);
            busy += 1;
        }
        counts[..busy].sort_unstable();
        let middle = counts[(busy - 1) / 2];
        let turns = count(lane).min(MOST_TURNS.max(2 * middle));
        cost * (middle / MOST_TURNS).max(1) / turns
    }

    /// One receive call for at most `limit` messages, if there is something: of the lane, or of one that may hold older ones
    /// of its sources, whether the runtime knows of them already or not.
    fn recv_turn(
        &mut self,
        lane: usize,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
        limit: usize,
        stats: &mut UdpStats,
    ) -> Poll<io::Result<usize>> {
        let Self { sockets, waiting, .. } = self;
        while let Some(older) = first_of(waiting[lane].older) {
            if waiting[older].backlog > 0 {
                match recv_some(&sockets[older], &mut waiting[older], buffers, limit, stats) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    result => return Poll::Ready(result),
                }
            }
            waiting[lane].older &= !(1 << older);
        }
        while let Poll::Ready(guard) = sockets[lane].io.poll_read_ready(cx) {
            let mut guard = guard?;
            match recv_some(&sockets[lane], &mut waiting[lane], buffers, limit, stats) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Ok(filled) => {
                    // A short count means that the socket is empty: no need to ask once more.
                    if filled < limit {
                        guard.clear_ready();
                    }
                    return Poll::Ready(Ok(filled));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Pending
    }

    /// Gives whoever fills a shared lane one of its own.
    fn steer(&mut self, lane: usize, received: u64) {
        let Self { sockets, waiting, turns, steering: Some(steering) } = self else { return };
        if lane >= SHARED {
            return steering.had(lane, received);
        }
        let heaviest = &mut waiting[lane].heaviest;
        let Some(source) = (heaviest.bytes() >= FULL).then(|| heaviest.take()).flatten() else { return };
        let is_empty = |lane| !turns.is_busy(lane);
        match steering.give(sockets[0].io.get_ref(), source, received, is_empty) {
            Ok(Some(own)) => {
                come_after(waiting, lane, own..own + 1);
                turns.extend_to(own + 1);
                tracing::debug!(%source, lane, own, "a source that fills its lane has one of its own from now on");
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, %source, "a source that fills its lane stays there"),
        }
    }

    /// Further descriptors of all of them, in the order of their numbers.
    pub(super) fn try_clone(&self) -> io::Result<Vec<OwnedFd>> {
        self.each().map(UdpSocket::try_clone).collect()
    }
}

fn free(buffers: &RecvBuffers) -> usize {
    RecvBuffers::COUNT - buffers.filled()
}

/// The lowest bit that is set.
fn first_of(lanes: u32) -> Option<usize> {
    (lanes != 0).then(|| lanes.trailing_zeros() as usize)
}

/// From now on `lanes` get what went to `before` until now.
fn come_after(waiting: &mut [Waiting], before: usize, lanes: std::ops::Range<usize>) {
    waiting[before].backlog = BACKLOG;
    for (number, lane) in waiting.iter_mut().enumerate() {
        if lanes.contains(&number) && number != before {
            lane.older |= 1 << before;
        }
    }
}

/// One receive call for at most `limit` messages.
fn recv_some(
    socket: &UdpSocket,
    waiting: &mut Waiting,
    buffers: &mut RecvBuffers,
    limit: usize,
    stats: &mut UdpStats,
) -> io::Result<usize> {
    let Waiting { heaviest, sources, .. } = waiting;
    let result = recv::recv(socket.io.get_ref().as_fd(), buffers, limit, stats, |source, bytes| {
        heaviest.saw(source, bytes);
        sources.saw(FxBuildHasher.hash_one(source), bytes);
    });
    let is_empty = match &result {
        Ok(filled) => *filled < limit,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    };
    if is_empty {
        waiting.heaviest.was_empty();
        waiting.backlog = 0;
    } else if let Ok(filled) = &result {
        waiting.backlog = waiting.backlog.saturating_sub(*filled);
    }
    result
}

/// So many more sockets on the port of `first`. Nobody else could have bound it meanwhile: it was bound alone, and only
/// processes of the same user may join what was taken over (socket(7)).
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

#[cfg(test)]
mod tests;
