//! A socket of Windows with its options set, registered with the runtime: `WSASendMsg` out, `WSARecvMsg` in.
//! One call receives one message.
//!
//! An option that cannot be set is not used: what Windows and its drivers have differs by version.

use std::io::{self, IoSliceMut};
use std::task::{Context, Poll, ready};

use socket2::{SockRef, Socket};
use tokio::io::Interest;
use weft_tunnel::{Ecn, MAX_BATCH_SEGMENTS, RecvMeta, Transmit};
use windows_sys::Win32::Networking::WinSock::{
    IP_ECN, IP_PKTINFO, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP, IPV6_ECN, IPV6_PKTINFO, SIO_UDP_CONNRESET,
    SIO_UDP_NETRESET, UDP_SEND_MSG_SIZE,
};

use self::message::Messages;
use super::filled::Filled;
use super::send::Outlet;
use crate::bind::failed;
use crate::passage::{Advice, Passage};
use crate::sockopt::set_option;
use crate::system::{self, Paths};
use crate::{BindError, PathMtu, UdpConfig};

#[path = "windows/control.rs"]
mod control;
#[path = "windows/message.rs"]
mod message;

/// Number of messages that one call receives.
pub(super) const MESSAGES_PER_CALL: usize = 1;

/// A bound socket of one address family.
#[derive(Debug)]
pub(crate) struct UdpSocket {
    io: tokio::net::UdpSocket,
    messages: Messages,
    is_v6: bool,
    max_segments: usize,
    has_ecn: bool,
}

impl UdpSocket {
    /// Sets up a bound socket, of IPv6 if `is_v6`, and registers it with the runtime.
    pub(super) fn from_socket(socket: Socket, is_v6: bool, config: &UdpConfig) -> Result<Self, BindError> {
        let set_up = |source| failed("set up the UDP socket", source);
        system::enlarge_buffers(&socket, config.receive_buffer_bytes, true).map_err(set_up)?;
        system::set_mark(&socket, config.fwmark)?;
        if let Err(error) = system::set_fragmentation(&socket, is_v6, config.path_mtu) {
            // Datagrams may be fragmented if nothing is said.
            if config.path_mtu == PathMtu::On {
                return Err(set_up(error));
            }
            tracing::debug!(%error, "cannot set whether datagrams may be fragmented");
        }
        let (level, packet_info, ecn) = match is_v6 {
            false => (IPPROTO_IP, IP_PKTINFO, IP_ECN),
            true => (IPPROTO_IPV6, IPV6_PKTINFO, IPV6_ECN),
        };
        if let Err(error) = set_option(&socket, level, packet_info, 1) {
            tracing::warn!(%error, "answers may leave from another address than the peer wrote to");
        }
        let has_ecn = is_accepted("ECN", set_option(&socket, level, ecn, 1));
        // The size of the segments goes with each batch: 0 lets a message without one be a single datagram.
        let has_batches = is_accepted(
            "batches (UDP segmentation offload)",
            set_option(&socket, IPPROTO_UDP, UDP_SEND_MSG_SIZE, 1200)
                .and_then(|()| set_option(&socket, IPPROTO_UDP, UDP_SEND_MSG_SIZE, 0)),
        );
        // Otherwise an ICMP message about one peer makes a receive call for all of them fail.
        for control in [SIO_UDP_CONNRESET, SIO_UDP_NETRESET] {
            is_accepted("switching ICMP errors off", message::switch_off(&socket, control));
        }
        let messages = Messages::of(&socket).map_err(set_up)?;
        socket.set_nonblocking(true).map_err(set_up)?;
        let io = tokio::net::UdpSocket::from_std(socket.into())
            .map_err(|error| failed("register the UDP socket with the runtime", error))?;
        let max_segments = if has_batches { MAX_BATCH_SEGMENTS } else { 1 };
        Ok(Self { io, messages, is_v6, max_segments, has_ecn })
    }

    /// Returns what `ask` returns for the socket.
    pub(super) fn with<T>(&self, ask: impl FnOnce(&Socket) -> T) -> T {
        ask(&SockRef::from(&self.io))
    }

    /// Reports whether one call can send several datagrams.
    pub(crate) fn knows_gso(&self) -> bool {
        self.max_segments > 1
    }

    /// Calls `recv` once the socket is readable.
    pub(super) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        mut recv: impl FnMut(&Self) -> io::Result<Filled>,
    ) -> Poll<io::Result<usize>> {
        let Filled { buffers, is_empty_now } = ready!(self.poll_io(cx, Interest::READABLE, || recv(self)))?;
        if is_empty_now {
            // Tells the runtime, which asks the system for the next event only then.
            let empty = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
            let _ = self.io.try_io(Interest::READABLE, empty);
        }
        Poll::Ready(Ok(buffers))
    }

    /// Receives one message.
    pub(super) fn recv(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [Option<RecvMeta>],
    ) -> io::Result<usize> {
        let (Some(buffer), Some(meta)) = (buffers.first_mut(), metas.first_mut()) else { return Ok(0) };
        *meta = Some(self.messages.recv(&self.io, buffer)?);
        Ok(1)
    }

    /// Makes `call` once the socket is ready, and again each time that it was not.
    fn poll_io<T>(
        &self,
        cx: &mut Context<'_>,
        interest: Interest,
        mut call: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            ready!(match interest.is_readable() {
                true => self.io.poll_recv_ready(cx),
                false => self.io.poll_send_ready(cx),
            })?;
            match self.io.try_io(interest, &mut call) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

/// Reports whether an option could be set.
fn is_accepted(what: &str, result: io::Result<()>) -> bool {
    result.inspect_err(|error| tracing::debug!(%error, "this system has no option for {what}")).is_ok()
}

impl Outlet for UdpSocket {
    fn poll_call<T>(&self, cx: &mut Context<'_>, call: impl FnMut() -> io::Result<T>) -> Poll<io::Result<T>> {
        self.poll_io(cx, Interest::WRITABLE, call)
    }

    fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let ecn = if self.has_ecn { transmit.ecn } else { Ecn::NotEct };
        self.messages.send(&self.io, &Transmit { ecn, ..*transmit })
    }

    fn max_segments(&self) -> usize {
        self.max_segments
    }

    fn let_pass<T>(
        &self,
        _: &Transmit<'_>,
        _: Passage,
        send: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        system::set_fragmentation(&self.io, self.is_v6, PathMtu::Off)?;
        let sent = send();
        system::set_fragmentation(&self.io, self.is_v6, PathMtu::On)?;
        sent
    }

    fn advise(&self, _: &mut Paths, _: &Transmit<'_>) -> Advice {
        Advice::IN_PIECES
    }
}
