//! UDP sockets that send and receive several datagrams per call, as one super-packet (GSO, GRO).

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt, sockopt,
};

/// Upper bound of the bytes received with one call.
pub const BUFFER: usize = 65_536;
/// Large enough that losses are not caused by the ends.
const SOCKET_BUFFER: usize = 32 << 20;

/// Opens a socket that receives super-packets.
pub fn bind(address: impl Into<IpAddr>, port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address.into(), port))?;
    setsockopt(&socket, sockopt::UdpGroSegment, &true)?;
    // Root may exceed the system's limit.
    setsockopt(&socket, sockopt::RcvBufForce, &SOCKET_BUFFER)?;
    setsockopt(&socket, sockopt::SndBufForce, &SOCKET_BUFFER)?;
    Ok(socket)
}

/// Sends datagrams of `segment` bytes, the last of which may be shorter, with one call.
pub fn send(socket: &UdpSocket, contents: &[u8], segment: usize, to: Option<SocketAddrV4>) -> io::Result<()> {
    let size = u16::try_from(segment).map_err(io::Error::other)?;
    let several = [ControlMessage::UdpGsoSegments(&size)];
    let messages = if contents.len() > segment { &several[..] } else { &[] };
    let to = to.map(SockaddrIn::from);
    sendmsg(socket.as_raw_fd(), &[IoSlice::new(contents)], messages, MsgFlags::empty(), to.as_ref())?;
    Ok(())
}

/// Receives into `buffer`. Returns the number of bytes, and the length of each datagram but the last; `None`
/// if nothing is pending, or the peer of a connected socket refuses.
pub fn receive(
    socket: &UdpSocket,
    buffer: &mut [u8],
    control: &mut [u8],
) -> io::Result<Option<(usize, usize)>> {
    let mut vectors = [IoSliceMut::new(buffer)];
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut vectors, Some(control), MsgFlags::empty());
    let message = match received {
        Ok(message) => message,
        Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut stride = message.bytes;
    for ancillary in message.cmsgs()? {
        if let ControlMessageOwned::UdpGroSegments(bytes) = ancillary {
            stride = usize::try_from(bytes).unwrap_or(stride);
        }
    }
    Ok(Some((message.bytes, stride.max(1))))
}

/// Creates a buffer for the ancillary data that [`receive`] gets.
pub fn control_buffer() -> Vec<u8> {
    vec![0; 64]
}
