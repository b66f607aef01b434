//! Windows.

use std::io;
use std::net::SocketAddr;
use std::os::windows::io::AsRawSocket;

use socket2::Socket;
use windows_sys::Win32::Networking::WinSock::{
    IP_DONTFRAGMENT, IPPROTO_IP, IPPROTO_IPV6, IPV6_DONTFRAG, SO_EXCLUSIVEADDRUSE, SOL_SOCKET,
};

use crate::sockopt::set_option;
use crate::{BindError, PathMtu, SEND_BUFFER_BYTES};

/// Keeps other programs from binding the same port and taking datagrams away.
pub(crate) fn claim_port(socket: &Socket) -> io::Result<()> {
    set_option(socket, SOL_SOCKET, SO_EXCLUSIVEADDRUSE, 1)
}

/// Packets have no mark here.
pub(crate) fn set_mark(_: &Socket, mark: u32) -> Result<(), BindError> {
    if mark == 0 { Ok(()) } else { Err(BindError::FwmarkUnavailable { mark, system: "Windows" }) }
}

/// Does nothing: the errors of a socket are told as they are.
pub(crate) fn report_errors(_: &Socket, _: bool) {}

/// Sets whether datagrams may be fragmented on their way.
pub(crate) fn set_fragmentation(socket: &impl AsRawSocket, is_v6: bool, path_mtu: PathMtu) -> io::Result<()> {
    let (level, name) = if is_v6 { (IPPROTO_IPV6, IPV6_DONTFRAG) } else { (IPPROTO_IP, IP_DONTFRAGMENT) };
    set_option(socket, level, name, i32::from(path_mtu == PathMtu::On))
}

/// The MTU of a path is not asked for.
#[derive(Debug, Default)]
pub(crate) struct Paths {}

/// Reports whether the sockets refuse datagrams that are longer than the MTU of their path.
pub(crate) fn refuses_too_long(path_mtu: PathMtu, _: SocketAddr) -> bool {
    path_mtu == PathMtu::On
}

/// Windows can join datagrams (UDP_RECV_MAX_COALESCED_SIZE), but a driver that joins wrongly loses them, and
/// no option of weft could switch it off. So the option stays as it is: off.
pub(crate) fn joins_datagrams(_: &Socket) -> bool {
    false
}

/// Enlarges the receive buffer, and the send buffer of a socket that sends. Windows has no limit to meet.
pub(crate) fn enlarge_buffers(socket: &Socket, receive_bytes: usize, sends: bool) -> io::Result<()> {
    socket.set_recv_buffer_size(receive_bytes)?;
    let bytes = usize::try_from(SEND_BUFFER_BYTES).unwrap_or(usize::MAX);
    if sends { socket.set_send_buffer_size(bytes) } else { Ok(()) }
}

/// Returns the bytes of the receive buffer; 0 if they cannot be read.
pub(crate) fn receive_buffer_bytes(socket: &Socket) -> u64 {
    socket.recv_buffer_size().unwrap_or_default() as u64
}

/// Returns the bytes of the send buffer; 0 if they cannot be read.
pub(crate) fn send_buffer_bytes(socket: &Socket) -> u64 {
    socket.send_buffer_size().unwrap_or_default() as u64
}

/// Windows counts what did not fit the receive buffers for the whole machine only.
pub(crate) fn dropped(_: &Socket) -> u64 {
    0
}

pub(crate) fn mangles_equal_segments() -> bool {
    false
}

/// Whether ENOBUFS means that a queue is full: WSAENOBUFS is passing, and nothing signals when there is room.
pub(crate) const ENOBUFS_IS_A_FULL_QUEUE: bool = true;
