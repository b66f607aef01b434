//! The lanes of one address family: sockets on one port, and the kernel chooses one by the address and port that a datagram
//! came from.
//!
//! What waits in a socket is one queue for all, and what does not fit is thrown away, whatever it is. A source that sends more
//! than weft can open fills its lane; the others are read in turn, and lose nothing to it. Those that share a lane with it
//! do until it is seen to be full: then the source that most of what was authentic in it came from gets a lane for itself.
//! Junk earns none, however much it is.

use std::hash::BuildHasher as _;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::task::{Context, Poll};

use rustc_hash::FxBuildHasher;
use weft_sched::{DeficitRoundRobin, LinearCounter, MajorityVote};

use super::super::{RecvBuffers, UdpStats, cost_of};
use super::recv;
use super::socket::UdpSocket;
use super::steering::Steering;

/// Lanes that any source may have, chosen by a hash; a power of two.
pub(super) const SHARED: usize = 8;
/// Lanes for single sources out of a full shared one.
pub(super) const OWN: usize = 8;
/// Lanes of one family.
pub(super) const LANES: usize = SHARED + OWN;
/// More messages than a receive buffer holds: each takes at least 768 bytes of what the kernel counts.
const BACKLOG: usize = 20_000;
/// What came out of a lane that was not empty meanwhile, after which it counts as full: a part of what a receive buffer holds,
/// as [`cost_of`] counts, because short datagrams fill it too.
const FULL: u64 = 2 << 20;
/// A shared lane gets a turn for each of its sources, but not more than about so many for each turn of a source that has a
/// lane for itself, nor than so many, or twice as many as others, for each turn of another shared one: who sends from many
/// ports, or in the name of many hosts, must not have all turns.
const MOST_TURNS: usize = 4;

/// At least one.
#[derive(Debug)]
pub(super) struct Lanes {
    sockets: Vec<UdpSocket>,
    waiting: Vec<Waiting>,
    /// Of those that the kernel puts something into.
    scheduler: DeficitRoundRobin,
    /// How many any source may be in.
    shared: usize,
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
    /// What came out since it was empty last.
    cost: u64,
    /// Of what was authentic.
    vote: MajorityVote<SocketAddr>,
    sources: LinearCounter,
}

impl Lanes {
    /// The first `shared` are for any source, and the first `read` may have something. The sources of those that `left` names
    /// may have other lanes from now on.
    pub(super) fn new(sockets: Vec<UdpSocket>, shared: usize, read: usize, left: Range<usize>) -> Self {
        let mut waiting: Vec<_> = sockets.iter().map(|_| Waiting::default()).collect();
        for lane in left {
            come_after(&mut waiting, lane, 0..sockets.len());
        }
        Self { shared: shared.min(sockets.len()), scheduler: DeficitRoundRobin::new(read), waiting, sockets }
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
        mut steering: Option<&mut Steering>,
        stats: &mut UdpStats,
    ) -> Poll<io::Result<usize>> {
        self.scheduler.begin_round();
        // Each gets its share of the buffers, or one that is always full would have most of them.
        let share = free(buffers).div_ceil(self.scheduler.busy());
        let mut filled = 0;
        while buffers.has_room()
            && let Some(lane) = self.scheduler.next()
        {
            let before = *stats;
            match self.recv_turn(lane, cx, buffers, share.min(free(buffers)), stats) {
                Poll::Ready(Ok(more)) => {
                    filled += more;
                    let bytes = stats.bytes_received - before.bytes_received;
                    let datagrams = stats.datagrams_received - before.datagrams_received;
                    self.scheduler.record(lane, self.part(cost_of(bytes as usize, datagrams as usize), lane));
                    if let Some(steering) = steering.as_deref_mut() {
                        self.steer(lane, steering, stats.bytes_received);
                    }
                }
                Poll::Ready(Err(error)) if filled == 0 => return Poll::Ready(Err(error)),
                Poll::Ready(Err(error)) => tracing::debug!(%error, "cannot receive"),
                Poll::Pending => self.scheduler.mark_empty(lane),
            }
        }
        if filled > 0 { Poll::Ready(Ok(filled)) } else { Poll::Pending }
    }

    /// What each of those who share a lane got of it, about: as much as each of the others, whoever else is in its lane.
    fn part(&self, cost: usize, lane: usize) -> usize {
        let shared = self.shared;
        if lane >= shared {
            return cost;
        }
        let count = |lane: usize| self.waiting[lane].sources.count();
        let mut counts = [0; LANES];
        let mut busy = 0;
        for other in (0..shared).filter(|other| *other == lane || self.scheduler.is_busy(*other)) {
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

    /// Notes that so much of what a source sent was authentic.
    pub(super) fn record_authentic(&mut self, lane: usize, source: SocketAddr, cost: usize) {
        self.waiting[lane].vote.observe(source, cost);
    }

    /// Moves the heaviest authentic source out of a shared lane that is full.
    fn steer(&mut self, lane: usize, steering: &mut Steering, received: u64) {
        let Self { sockets, waiting, scheduler, .. } = self;
        if lane >= SHARED {
            return steering.had(lane, received);
        }
        if waiting[lane].cost < FULL {
            return;
        }
        waiting[lane].cost = 0;
        let Some(source) = waiting[lane].vote.take() else { return };
        let is_empty = |lane| !scheduler.is_busy(lane);
        match steering.give(sockets[0].io.get_ref(), source, received, is_empty) {
            Ok(Some(own)) => {
                come_after(waiting, lane, own..own + 1);
                scheduler.extend_to(own + 1);
                tracing::debug!(%source, lane, own, "a source in a full lane has one for itself from now on");
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, %source, "a source in a full lane stays there"),
        }
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
fn come_after(waiting: &mut [Waiting], before: usize, lanes: Range<usize>) {
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
    let Waiting { cost, sources, .. } = waiting;
    let result = recv::recv(socket.io.get_ref().as_fd(), buffers, limit, stats, |source, of_message| {
        *cost += of_message as u64;
        sources.observe(FxBuildHasher.hash_one(source), of_message);
    });
    let is_empty = match &result {
        Ok(filled) => *filled < limit,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    };
    if is_empty {
        waiting.vote.mark_empty();
        (waiting.cost, waiting.backlog) = (0, 0);
    } else if let Ok(filled) = &result {
        waiting.backlog = waiting.backlog.saturating_sub(*filled);
    }
    result
}

#[cfg(test)]
mod tests;
