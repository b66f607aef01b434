//! The socket of handshake messages: data does not wait behind them, and a flood of them overflows only this
//! socket.

use std::io;
use std::os::fd::AsFd as _;
use std::task::{Context, Poll};

use super::super::{RecvBuffers, UdpStats};
use super::recv;
use super::socket::UdpSocket;

/// Maximum size of the receive buffer, in bytes: more than a thousand messages, for each of which the kernel
/// counts at least 768 bytes.
pub(super) const MAX_WAITING: usize = 1 << 20;

/// Receives messages into `buffers`, as [`super::super::Udp::poll_recv_handshakes`].
pub(super) fn poll_recv(
    socket: &UdpSocket,
    cx: &mut Context<'_>,
    buffers: &mut RecvBuffers,
    stats: &mut UdpStats,
) -> Poll<io::Result<usize>> {
    let limit = RecvBuffers::COUNT - buffers.filled();
    socket.poll_recv(cx, limit, || recv::recv(socket.io.get_ref().as_fd(), buffers, limit, stats, |_, _| {}))
}
