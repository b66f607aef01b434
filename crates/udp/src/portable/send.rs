//! Outbound, last step: a batch with one call where the system and the path accept batches, otherwise one
//! call a datagram.

use std::io;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use weft_tunnel::{MAX_BATCH_BYTES, MAX_BATCH_SEGMENTS, Transmit};

use super::pause::Pause;
use crate::codes::{self, EMSGSIZE, ENOBUFS};
use crate::fallback::Fallbacks;
use crate::passage::{Advice, Passage};
use crate::system::{self, Paths};
use crate::{PathMtu, SendError, Sent, UdpStats};

/// The calls of a socket that send. Tests put a script in its place.
pub(crate) trait Outlet {
    /// Makes `call` once the socket is writable. If it fails with [`io::ErrorKind::WouldBlock`], waits until
    /// the socket is writable again.
    fn poll_call<T>(&self, cx: &mut Context<'_>, call: impl FnMut() -> io::Result<T>) -> Poll<io::Result<T>>;

    /// Sends all of a transmit of at most [`Self::max_segments`] datagrams, or nothing of it.
    fn send(&self, transmit: &Transmit<'_>) -> io::Result<()>;

    /// Returns the number of datagrams that one call can send.
    fn max_segments(&self) -> usize;

    /// Calls `send` while datagrams pass in this way.
    fn let_pass<T>(
        &self,
        transmit: &Transmit<'_>,
        passage: Passage,
        send: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T>;

    /// Returns what to do with a transmit that the system refused as too long for its path.
    fn advise(&self, paths: &mut Paths, transmit: &Transmit<'_>) -> Advice;
}

/// Sends transmits, and remembers which destinations accept no batches.
#[derive(Debug)]
pub(crate) struct Sender {
    gso: bool,
    path_mtu: PathMtu,
    mangles_equal_segments: bool,
    /// Whether ENOBUFS means that a queue is full, and that the same datagrams are to be sent again.
    waits_on_enobufs: bool,
    pause: Pause,
    fallbacks: Fallbacks,
    paths: Paths,
}

impl Sender {
    /// Returns a sender that uses GSO if `gso` is true, but not for equal segments if the kernel mangles
    /// them. `path_mtu` says whether its sockets set DF.
    pub(super) fn new(
        gso: bool,
        path_mtu: PathMtu,
        mangles_equal_segments: bool,
        waits_on_enobufs: bool,
    ) -> Self {
        Self {
            gso,
            path_mtu,
            mangles_equal_segments,
            waits_on_enobufs,
            pause: Pause::default(),
            fallbacks: Fallbacks::default(),
            paths: Paths::default(),
        }
    }

    /// Reports whether batches are sent where destinations accept them.
    pub(crate) fn uses_gso(&self) -> bool {
        self.gso
    }

    /// Sends as much as the socket accepts, as [`crate::Udp::poll_send`].
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        socket: &impl Outlet,
        transmit: &Transmit<'_>,
        stats: &mut UdpStats,
    ) -> Poll<Result<Sent, SendError>> {
        loop {
            ready!(self.pause.poll(cx));
            match ready!(socket.poll_call(cx, || self.send(socket, transmit, stats))) {
                Ok(sent) => {
                    self.pause.end();
                    return Poll::Ready(Ok(sent));
                }
                // The socket stays writable meanwhile. To clear its readiness would mean to wait for ever.
                Err(error) if self.waits_on_enobufs && is(&error, ENOBUFS) => self.pause.begin(),
                Err(error) if is(&error, EMSGSIZE) => return Poll::Ready(Err(SendError::TooLong)),
                Err(error) => return Poll::Ready(Err(SendError::Failed(error))),
            }
        }
    }

    fn send(
        &mut self,
        socket: &impl Outlet,
        transmit: &Transmit<'_>,
        stats: &mut UdpStats,
    ) -> io::Result<Sent> {
        let transmit = one_turn(transmit);
        match self.send_from_source(socket, &transmit, stats) {
            Ok(bytes) => Ok(Sent { bytes, source_unusable: false, path_mtu: None }),
            Err(error)
                if is(&error, EMSGSIZE) && system::refuses_too_long(self.path_mtu, transmit.destination) =>
            {
                self.send_too_long(socket, &transmit, stats)
            }
            Err(error) if transmit.source.is_some() && may_be_the_source(&error) => {
                let anywhere = Transmit { source: None, ..transmit };
                match self.send_from_source(socket, &anywhere, stats) {
                    Ok(bytes) => Ok(Sent { bytes, source_unusable: true, path_mtu: None }),
                    Err(other) if is_full(&other) => Err(other),
                    Err(_) => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Sends datagrams that are longer than the path carries, as far as the system knows.
    fn send_too_long(
        &mut self,
        socket: &impl Outlet,
        transmit: &Transmit<'_>,
        stats: &mut UdpStats,
    ) -> io::Result<Sent> {
        let advice = socket.advise(&mut self.paths, transmit);
        let path_mtu = advice.mtu.filter(|_| self.path_mtu == PathMtu::On);
        if advice.passage == Passage::Whole {
            let send = || self.send_from_source(socket, transmit, stats);
            match socket.let_pass(transmit, Passage::Whole, send) {
                // The device itself carries less.
                Err(error) if is(&error, EMSGSIZE) => {}
                sent => return Ok(Sent { bytes: sent?, source_unusable: false, path_mtu }),
            }
        }
        let send = || send_calls(socket, transmit, 1, stats);
        let bytes = socket.let_pass(transmit, Passage::InPieces, send)?;
        stats.gso_fallbacks += u64::from(transmit.segments() > 1 && self.gso);
        Ok(Sent { bytes, source_unusable: false, path_mtu })
    }

    fn send_from_source(
        &mut self,
        socket: &impl Outlet,
        transmit: &Transmit<'_>,
        stats: &mut UdpStats,
    ) -> io::Result<usize> {
        if transmit.segments() == 1 || !self.gso {
            return send_calls(socket, transmit, 1, stats);
        }
        let Transmit { destination, segment_size, .. } = *transmit;
        let mangled = self.mangles_equal_segments && transmit.contents.len().is_multiple_of(segment_size);
        let mut refusal = None;
        if !mangled && !self.fallbacks.refuses(destination.ip(), segment_size, Instant::now) {
            match send_calls(socket, transmit, socket.max_segments(), stats) {
                Err(error) if may_be_gso(&error) => refusal = Some(error),
                result => return result,
            }
        }
        let bytes = send_calls(socket, transmit, 1, stats)?;
        stats.gso_fallbacks += 1;
        // The single datagrams were accepted, so the batch was refused, not the source address or the
        // destination.
        if let Some(refusal) = refusal {
            // This error concerns the device, whatever the size. The other errors may concern the MTU of the
            // route.
            let from_bytes = if is(&refusal, codes::NO_BATCHES) { 0 } else { segment_size };
            if self.fallbacks.remember(destination.ip(), from_bytes, Instant::now()) {
                tracing::debug!(%destination, segment_bytes = segment_size, %refusal, "sending without GSO");
            }
        }
        Ok(bytes)
    }
}

/// Sends a transmit with calls of `segments` datagrams each, up to the first call that is not accepted. If
/// that is the first of all, it fails; otherwise the next attempt meets the error.
fn send_calls(
    socket: &impl Outlet,
    transmit: &Transmit<'_>,
    segments: usize,
    stats: &mut UdpStats,
) -> io::Result<usize> {
    let mut accepted = 0;
    for contents in transmit.contents.chunks(segments.max(1) * transmit.segment_size) {
        let call = Transmit { contents, ..*transmit };
        match socket.send(&call) {
            Ok(()) => {
                stats.count_sent(1, call.segments(), contents.len());
                accepted += contents.len();
            }
            Err(error) if accepted == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(accepted)
}

/// Returns the part of a transmit that fits into one batch.
fn one_turn<'a>(transmit: &Transmit<'a>) -> Transmit<'a> {
    let segments = (MAX_BATCH_BYTES / transmit.segment_size).clamp(1, MAX_BATCH_SEGMENTS);
    let bytes = transmit.contents.len().min(segments * transmit.segment_size);
    Transmit { contents: &transmit.contents[..bytes], ..*transmit }
}

fn is(error: &io::Error, code: i32) -> bool {
    error.raw_os_error() == Some(code)
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || is(error, ENOBUFS)
}

/// Reports whether GSO may be the cause of an error.
fn may_be_gso(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| codes::OF_BATCHES.contains(&code))
}

/// Reports whether the source address may be the cause of an error.
fn may_be_the_source(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| codes::OF_SOURCES.contains(&code))
}
