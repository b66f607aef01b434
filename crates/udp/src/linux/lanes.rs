//! The lanes of one address family: sockets on one port. The kernel chooses the lane of a datagram by its
//! source address and port.
//!
//! A socket has one queue for all its sources, and the kernel drops whatever does not fit. A source that
//! sends more than weft can open fills its lane. The other lanes are read in turn, and lose nothing. Sources
//! that share the full lane lose datagrams until weft sees that the lane is full: then the source of most
//! authentic bytes in it gets a lane for itself. Junk earns no lane, however much of it arrives.

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

/// Number of shared lanes, chosen by a hash of the source; a power of two.
pub(super) const SHARED: usize = 8;
/// Number of lanes for single sources that were moved out of a full shared lane.
pub(super) const OWN: usize = 8;
/// Number of lanes of one family.
pub(super) const LANES: usize = SHARED + OWN;
/// More messages than a receive buffer holds: the kernel counts at least 768 bytes for each.
const BACKLOG: usize = 20_000;
/// Cost of the messages read from a lane without finding it empty, after which the lane counts as full. It is
/// a part of what a receive buffer holds, and is counted as in [`cost_of`], because short datagrams fill a
/// buffer too.
const FULL: u64 = 2 << 20;
/// Limits the turns of a shared lane. It gets a turn for each of its sources, but at most about this many for
/// each turn of a single-source lane, and for each turn of another shared lane at most this many, or twice
/// the median number of sources. A sender that uses many ports, or spoofs many hosts, must not get all turns.
const MOST_TURNS: usize = 4;

/// The lanes of a family, at least one.
#[derive(Debug)]
pub(super) struct Lanes {
    sockets: Vec<UdpSocket>,
    waiting: Vec<Waiting>,
    /// Chooses among the lanes that the kernel delivers to.
    scheduler: DeficitRoundRobin,
    /// Number of lanes that any source may be in.
    shared: usize,
}

/// The state of the queue of a lane.
#[derive(Debug, Default)]
struct Waiting {
    /// Upper bound of the messages that arrived before the kernel began to put their sources into other
    /// lanes; 0 once the lane was empty.
    backlog: usize,
    /// The lanes, a bit each, with a backlog that may hold older messages of this lane's sources. They are
    /// read first, so that the messages of a source are handled in order.
    older: u32,
    /// Cost of the messages read since the lane was last empty or counted as full.
    cost: u64,
    /// Finds the source of most of the authentic cost.
    vote: MajorityVote<SocketAddr>,
    sources: LinearCounter,
}

impl Lanes {
    /// Returns the lanes of `sockets`. The first `shared` lanes are for any source, and the kernel delivers
    /// to the first `read` lanes. The sources of the lanes in `left` may have other lanes from now on.
    pub(super) fn new(sockets: Vec<UdpSocket>, shared: usize, read: usize, left: Range<usize>) -> Self {
        let mut waiting: Vec<_> = sockets.iter().map(|_| Waiting::default()).collect();
        for lane in left {
            come_after(&mut waiting, lane, 0..sockets.len());
        }
        Self { shared: shared.min(sockets.len()), scheduler: DeficitRoundRobin::new(read), waiting, sockets }
    }

    /// Returns the socket that sends.
    pub(super) fn first(&self) -> &UdpSocket {
        &self.sockets[0]
    }

    /// Returns all sockets, in the order of their numbers.
    pub(super) fn each(&self) -> std::slice::Iter<'_, UdpSocket> {
        self.sockets.iter()
    }

    /// Receives messages, lane after lane, while a buffer is free, as [`super::super::Udp::poll_recv`].
    pub(super) fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
        mut steering: Option<&mut Steering>,
        stats: &mut UdpStats,
    ) -> Poll<io::Result<usize>> {
        self.scheduler.begin_round();
        // Each lane gets its share of the buffers, otherwise a lane that is always full would get most of
        // them.
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

    /// Returns the part of `cost` that the scheduler records for a lane: about the cost of one of its
    /// sources, so that every source gets the same, however many share its lane. [`MOST_TURNS`] limits the
    /// effect of the number of sources.
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

    /// Makes one receive call for at most `limit` messages, on the lane or on a lane that may hold older
    /// messages of its sources. The latter is read even if the runtime does not report it as readable.
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
        let socket = &sockets[lane];
        socket.poll_recv(cx, limit, || recv_some(socket, &mut waiting[lane], buffers, limit, stats))
    }

    /// Records that authentic datagrams of `source` cost `cost` bytes.
    pub(super) fn record_authentic(&mut self, lane: usize, source: SocketAddr, cost: usize) {
        self.waiting[lane].vote.observe(source, cost);
    }

    /// Moves the source of most authentic bytes out of a full shared lane.
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

/// Returns the number of the lowest bit that is set.
fn first_of(lanes: u32) -> Option<usize> {
    (lanes != 0).then(|| lanes.trailing_zeros() as usize)
}

/// Records that from now on `lanes` receive what `before` received until now.
fn come_after(waiting: &mut [Waiting], before: usize, lanes: Range<usize>) {
    waiting[before].backlog = BACKLOG;
    for (number, lane) in waiting.iter_mut().enumerate() {
        if lanes.contains(&number) && number != before {
            lane.older |= 1 << before;
        }
    }
}

/// Makes one receive call for at most `limit` messages, and updates the state of the lane.
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
