//! A socket with its options set, registered with the runtime, and the calls that the packet path makes of
//! it.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd as _;
use std::task::{Context, Poll, ready};

pub(super) use quinn_udp::BATCH_SIZE as MESSAGES_PER_CALL;
use quinn_udp::{EcnCodepoint, UdpSockRef, UdpSocketState};
use socket2::Socket;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use weft_tunnel::{Ecn, RecvMeta, Transmit};

use super::filled::Filled;
use super::send::Outlet;
use crate::bind::failed;
use crate::passage::{Advice, Passage};
use crate::system::{self, Paths};
use crate::{BindError, RecvBuffers, UdpConfig};

/// A bound socket of one address family.
#[derive(Debug)]
pub(crate) struct UdpSocket {
    io: AsyncFd<Socket>,
    state: RefCell<UdpSocketState>,
    is_v6: bool,
    config: UdpConfig,
}

impl UdpSocket {
    /// Sets up a bound socket, of IPv6 if `is_v6`, and registers it with the runtime.
    pub(super) fn from_socket(socket: Socket, is_v6: bool, config: &UdpConfig) -> Result<Self, BindError> {
        let set_up = |source| failed("set up the UDP socket", source);
        // Before quinn-udp, which remembers the size of the send buffer on some systems.
        system::enlarge_buffers(&socket, config.receive_buffer_bytes, true).map_err(set_up)?;
        let state = new_state(&socket, is_v6, config).map_err(set_up)?;
        system::set_mark(&socket, config.fwmark)?;
        // SAFETY: a `Socket` owns its descriptor, exposes no other descriptor, and closes it only when it is
        // dropped.
        let io = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE | Interest::WRITABLE) }
            .map_err(|error| failed("register the UDP socket with the runtime", error.into()))?;
        Ok(Self { io, state: RefCell::new(state), is_v6, config: *config })
    }

    fn get(&self) -> &Socket {
        self.io.get_ref()
    }

    /// Returns what `ask` returns for the socket.
    pub(super) fn with<T>(&self, ask: impl FnOnce(&Socket) -> T) -> T {
        ask(self.get())
    }

    /// Reports whether one call can send several datagrams.
    pub(crate) fn knows_gso(&self) -> bool {
        self.state.borrow().max_gso_segments() > 1
    }

    /// Calls `recv` once the socket is readable.
    pub(super) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        mut recv: impl FnMut(&Self) -> io::Result<Filled>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.io.poll_read_ready(cx))?;
            match recv(self) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Ok(filled) => {
                    if filled.is_empty_now {
                        guard.clear_ready();
                    }
                    return Poll::Ready(Ok(filled.buffers));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Receives messages with one call.
    pub(super) fn recv(
        &self,
        buffers: &mut [io::IoSliceMut<'_>],
        metas: &mut [Option<RecvMeta>],
    ) -> io::Result<usize> {
        let mut received = [quinn_udp::RecvMeta::default(); RecvBuffers::COUNT];
        let room = metas.len();
        let count = self.state.borrow().recv(UdpSockRef::from(self.get()), buffers, &mut received[..room])?;
        for (meta, received) in metas.iter_mut().zip(&received[..count]) {
            let quinn_udp::RecvMeta { addr: source, len, stride, ecn, dst_ip: local, .. } = *received;
            let ecn = ecn.map_or(Ecn::NotEct, |ecn| Ecn::from_bits(ecn as u8));
            *meta = Some(RecvMeta { source, local, ecn, len, stride: stride.max(1) });
        }
        Ok(count)
    }
}

impl Outlet for UdpSocket {
    fn poll_call<T>(
        &self,
        cx: &mut Context<'_>,
        mut call: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            let mut guard = ready!(self.io.poll_write_ready(cx))?;
            match call() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                result => return Poll::Ready(result),
            }
        }
    }

    fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Transmit { destination, source, ecn, segment_size, contents } = *transmit;
        let transmit = quinn_udp::Transmit {
            destination,
            ecn: EcnCodepoint::from_bits(ecn as u8),
            contents,
            segment_size: Some(segment_size),
            src_ip: source,
        };
        let sent = self.state.borrow().try_send(UdpSockRef::from(self.get()), &transmit);
        if let Err(error) = &sent
            && let Some(libc::EINVAL | libc::EIO) = error.raw_os_error()
        {
            // After one such error quinn-udp sends no batches and no ECN field to any peer. Most of these
            // errors concern one destination or one source address.
            match new_state(self.get(), self.is_v6, &self.config) {
                Ok(state) => *self.state.borrow_mut() = state,
                Err(error) => tracing::debug!(%error, "cannot set up the UDP socket again"),
            }
        }
        sent
    }

    fn max_segments(&self) -> usize {
        self.state.borrow().max_gso_segments()
    }

    fn let_pass<T>(
        &self,
        transmit: &Transmit<'_>,
        passage: Passage,
        send: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        system::let_pass(self.get().as_fd(), transmit.destination, passage, send)
    }

    fn advise(&self, paths: &mut Paths, transmit: &Transmit<'_>) -> Advice {
        paths.advise(self.get().as_fd(), transmit)
    }
}

/// Lets quinn-udp set the options of a socket, and corrects those that are not for WireGuard.
fn new_state(socket: &Socket, is_v6: bool, config: &UdpConfig) -> io::Result<UdpSocketState> {
    let state = UdpSocketState::new(UdpSockRef::from(socket))?;
    // quinn-udp sets DF. With DF clear, as in the kernel's WireGuard, the outer packet may be fragmented, on
    // its way and by this machine.
    system::set_fragmentation(socket, is_v6, config.path_mtu)?;
    system::join_datagrams(socket);
    Ok(state)
}
