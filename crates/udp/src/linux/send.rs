//! Outbound, last step: one `sendmsg` for a GSO batch, or one `sendmmsg` for single datagrams where the
//! kernel or the path does not accept batches.

use std::io;
use std::mem;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use socket2::SockAddr;
use weft_tunnel::{Ecn, MAX_BATCH_BYTES, MAX_BATCH_SEGMENTS, Transmit};

use super::cmsg::AncillaryBuffer;
use super::socket::UdpSocket;
use crate::fallback::Fallbacks;
use crate::passage::Passage;
use crate::system::{self, Paths};
use crate::{PathMtu, SendError, Sent, UdpStats};

/// Sends transmits, and remembers which destinations accept no batches.
#[derive(Debug)]
pub(crate) struct Sender {
    gso: bool,
    mangles_equal_segments: bool,
    path_mtu: PathMtu,
    fallbacks: Fallbacks,
    paths: Paths,
    fallback_logged: bool,
}

impl Sender {
    /// Returns a sender that uses GSO if `gso` is true, but not for equal segments if the kernel mangles
    /// them. `path_mtu` says whether its sockets set DF.
    pub(super) fn new(gso: bool, path_mtu: PathMtu, mangles_equal_segments: bool) -> Self {
        Self {
            gso,
            mangles_equal_segments,
            path_mtu,
            fallbacks: Fallbacks::default(),
            paths: Paths::default(),
            fallback_logged: false,
        }
    }

    /// Reports whether batches are sent where destinations accept them.
    pub(crate) fn uses_gso(&self) -> bool {
        self.gso
    }

    /// Sends as much as one call accepts, as [`crate::Udp::poll_send`].
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        socket: &UdpSocket,
        transmit: &Transmit<'_>,
        stats: &mut UdpStats,
    ) -> Poll<Result<Sent, SendError>> {
        loop {
            let mut guard = ready!(socket.io.poll_write_ready(cx)).map_err(SendError::Failed)?;
            match self.send(socket.io.get_ref().as_fd(), transmit, stats) {
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

    /// Sends as much as one call accepts. Fails with [`io::ErrorKind::WouldBlock`] if the socket is full.
    fn send(
        &mut self,
        fd: BorrowedFd<'_>,
        transmit: &Transmit<'_>,
        stats: &mut UdpStats,
    ) -> io::Result<Sent> {
        let transmit = one_call(transmit);
        match self.send_from_source(fd, &transmit, stats) {
            Ok(bytes) => Ok(Sent { bytes, source_unusable: false, path_mtu: None }),
            Err(error)
                if is_too_long(&error) && system::refuses_too_long(self.path_mtu, transmit.destination) =>
            {
                self.send_too_long(fd, &transmit, stats)
            }
            Err(error) if transmit.source.is_some() && may_be_the_source(&error) => {
                let anywhere = Transmit { source: None, ..transmit };
                match self.send_from_source(fd, &anywhere, stats) {
                    Ok(bytes) => Ok(Sent { bytes, source_unusable: true, path_mtu: None }),
                    Err(other) if other.kind() == io::ErrorKind::WouldBlock => Err(other),
                    Err(_) => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Sends datagrams that are longer than the path carries, as far as the kernel knows.
    fn send_too_long(
        &mut self,
        fd: BorrowedFd<'_>,
        transmit: &Transmit<'_>,
        stats: &mut UdpStats,
    ) -> io::Result<Sent> {
        let advice = self.paths.advise(fd, transmit);
        let path_mtu = advice.mtu.filter(|_| self.path_mtu == PathMtu::On);
        if advice.passage == Passage::Whole {
            let send = || self.send_from_source(fd, transmit, stats);
            match system::let_pass(fd, transmit.destination, Passage::Whole, send) {
                // The device itself carries less.
                Err(error) if is_too_long(&error) => {}
                sent => return Ok(Sent { bytes: sent?, source_unusable: false, path_mtu }),
            }
        }
        let send = || send_singles(fd, transmit, stats);
        let bytes = system::let_pass(fd, transmit.destination, Passage::InPieces, send)?;
        stats.gso_fallbacks += u64::from(transmit.segments() > 1 && self.gso);
        Ok(Sent { bytes, source_unusable: false, path_mtu })
    }

    fn send_from_source(
        &mut self,
        fd: BorrowedFd<'_>,
        transmit: &Transmit<'_>,
        stats: &mut UdpStats,
    ) -> io::Result<usize> {
        let Transmit { destination, segment_size, .. } = *transmit;
        if transmit.segments() == 1 {
            return send_one(fd, transmit, stats);
        }
        if !self.gso {
            return send_singles(fd, transmit, stats);
        }
        let mangled = self.mangles_equal_segments && transmit.contents.len().is_multiple_of(segment_size);
        let mut refusal = None;
        if !mangled && !self.fallbacks.refuses(destination.ip(), segment_size, Instant::now) {
            match send_batch(fd, transmit, stats) {
                Err(error) if may_be_gso(&error) => refusal = Some(error),
                result => return result,
            }
        }
        let bytes = send_singles(fd, transmit, stats)?;
        stats.gso_fallbacks += 1;
        // The single datagrams were accepted, so the batch was refused, not the source address or the
        // destination.
        if let Some(refusal) = refusal {
            self.remember(transmit, &refusal);
        }
        Ok(bytes)
    }

    fn remember(&mut self, transmit: &Transmit<'_>, refusal: &io::Error) {
        let destination = transmit.destination.ip();
        // EIO concerns the device, whatever the size. The other errors may concern the MTU of the route.
        let from_bytes = if refusal.raw_os_error() == Some(libc::EIO) { 0 } else { transmit.segment_size };
        if !self.fallbacks.remember(destination, from_bytes, Instant::now()) {
            return;
        }
        if self.fallback_logged {
            tracing::debug!(%destination, segment_bytes = transmit.segment_size, %refusal, "sending without GSO");
        } else {
            self.fallback_logged = true;
            tracing::info!(
                %destination, segment_bytes = transmit.segment_size, %refusal,
                "sending datagrams one by one: the route takes no batches of this size (an MTU too small for \
                 the tunnel, or a device without checksum offload); further destinations are logged as debug",
            );
        }
    }
}

/// Returns the part of a transmit that fits into one call.
fn one_call<'a>(transmit: &Transmit<'a>) -> Transmit<'a> {
    let segments = (MAX_BATCH_BYTES / transmit.segment_size).clamp(1, MAX_BATCH_SEGMENTS);
    let bytes = transmit.contents.len().min(segments * transmit.segment_size);
    Transmit { contents: &transmit.contents[..bytes], ..*transmit }
}

fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMSGSIZE)
}

/// Reports whether GSO may be the cause of an error. Older kernels report EINVAL in place of EMSGSIZE, and so
/// do devices without the feature.
fn may_be_gso(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMSGSIZE | libc::EIO | libc::EINVAL))
}

/// Reports whether the source address may be the cause of an error. Linux reports EINVAL for a source that is
/// not, or no longer, an address of the machine.
fn may_be_the_source(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EADDRNOTAVAIL | libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENODEV)
    )
}

fn send_batch(fd: BorrowedFd<'_>, transmit: &Transmit<'_>, stats: &mut UdpStats) -> io::Result<usize> {
    let segment_size =
        u16::try_from(transmit.segment_size).map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
    let address = SockAddr::from(transmit.destination);
    let mut control = control_of(transmit);
    control.push_segment_size(segment_size);
    let mut bytes = iovec(transmit.contents);
    let header = header(&address, &mut bytes, &control);
    // SAFETY: everything that `header` points to lives until after the call, which only reads it.
    retry(|| unsafe { libc::sendmsg(fd.as_raw_fd(), &header, 0) })?;
    stats.count_sent(1, transmit.segments(), transmit.contents.len());
    Ok(transmit.contents.len())
}

/// Sends a transmit of a single datagram, as is usual with many peers.
fn send_one(fd: BorrowedFd<'_>, transmit: &Transmit<'_>, stats: &mut UdpStats) -> io::Result<usize> {
    let address = SockAddr::from(transmit.destination);
    let control = control_of(transmit);
    let mut bytes = iovec(transmit.contents);
    let header = header(&address, &mut bytes, &control);
    // SAFETY: everything that `header` points to lives until after the call, which only reads it.
    retry(|| unsafe { libc::sendmsg(fd.as_raw_fd(), &header, 0) })?;
    stats.count_sent(1, 1, transmit.contents.len());
    Ok(transmit.contents.len())
}

/// Sends the datagrams separately, with one call, up to the first that is not accepted. If that is the first
/// of all, the call fails; otherwise the next call reports the error.
fn send_singles(fd: BorrowedFd<'_>, transmit: &Transmit<'_>, stats: &mut UdpStats) -> io::Result<usize> {
    let address = SockAddr::from(transmit.destination);
    let control = control_of(transmit);
    let mut datagrams: [libc::iovec; MAX_BATCH_SEGMENTS] = [iovec(&[]); MAX_BATCH_SEGMENTS];
    // SAFETY: an mmsghdr of zeros is a valid one.
    let mut headers: [libc::mmsghdr; MAX_BATCH_SEGMENTS] = unsafe { mem::zeroed() };
    let mut count = 0;
    for ((datagram, bytes), message) in
        transmit.contents.chunks(transmit.segment_size).zip(&mut datagrams).zip(&mut headers)
    {
        *bytes = iovec(datagram);
        message.msg_hdr = header(&address, bytes, &control);
        count += 1;
    }
    // SAFETY: the first `count` headers were filled in, and all that they point to lives until after the
    // call, which writes only the `msg_len` of each.
    let sent = retry(|| unsafe { libc::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), count, 0) as isize })?;
    let bytes = transmit.contents.len().min(sent * transmit.segment_size);
    stats.count_sent(sent, 1, bytes);
    Ok(bytes)
}

fn control_of(transmit: &Transmit<'_>) -> AncillaryBuffer {
    let mut control = AncillaryBuffer::new();
    if let Some(source) = transmit.source {
        control.push_source(source);
    }
    if transmit.ecn != Ecn::NotEct {
        control.push_ecn(transmit.ecn, transmit.destination.is_ipv6());
    }
    control
}

fn iovec(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

fn header(address: &SockAddr, bytes: &mut libc::iovec, control: &AncillaryBuffer) -> libc::msghdr {
    // SAFETY: a msghdr of zeros is a valid one; some targets have private padding fields in it.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_name = address.as_ptr().cast_mut().cast();
    header.msg_namelen = address.len();
    header.msg_iov = bytes;
    header.msg_iovlen = 1;
    control.attach(&mut header);
    header
}

/// Repeats a call until no signal interrupts it.
pub(super) fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(result) => return Ok(result),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}
