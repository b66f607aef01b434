//! The socket of handshake messages: data does not wait behind them, and a flood of them overflows this socket alone.

use std::io;
use std::os::fd::AsFd as _;
use std::task::{Context, Poll};

use super::super::{Received, RecvBuffers, UdpStats};
use super::recv;
use super::socket::UdpSocket;

/// Bytes of each buffer: as many initiations as the kernel's GRO joins. One socket with GRO off would switch it off for a part
/// of all sources, because the kernel asks any socket of the group before the program chooses one.
const BUFFER_BYTES: usize = 64 * 148;
/// Receive calls a turn, each for [`RecvBuffers::COUNT`] messages.
const CALLS: usize = 4;

/// Where handshake messages are received; one for both address families, because nothing stays in it.
pub(super) fn buffers() -> RecvBuffers {
    RecvBuffers::with_buffer_bytes(BUFFER_BYTES)
}

/// Hands what has arrived to `take`, as [`super::super::Udp::poll_handshakes`].
pub(super) fn poll(
    socket: &UdpSocket,
    cx: &mut Context<'_>,
    buffers: &mut RecvBuffers,
    stats: &mut UdpStats,
    take: &mut dyn FnMut(&Received<'_>),
) -> Poll<io::Result<()>> {
    for _ in 0..CALLS {
        let Poll::Ready(guard) = socket.io.poll_read_ready(cx) else { return Poll::Pending };
        let mut guard = guard?;
        match recv::recv(socket.io.get_ref().as_fd(), buffers, RecvBuffers::COUNT, stats, |_, _| {}) {
            Ok(RecvBuffers::COUNT) => {}
            // A short count means that the socket is empty.
            Ok(_) => guard.clear_ready(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
            Err(error) => return Poll::Ready(Err(error)),
        }
        while let Some(received) = buffers.next() {
            take(&received);
        }
    }
    Poll::Ready(Ok(()))
}
