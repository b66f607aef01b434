//! UDP sockets that send and receive several datagrams per call, as one super-packet (GSO, GRO).

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::sendfile::sendfile;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt, sockopt,
};

pub(crate) const BUFFER: usize = 65_536;
/// Large enough that losses are not caused by the ends.
const SOCKET_BUFFER: usize = 32 << 20;

pub(crate) fn bind(address: impl Into<IpAddr>, port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address.into(), port))?;
    setsockopt(&socket, sockopt::UdpGroSegment, &true)?;
    // Root may exceed the system's limit.
    setsockopt(&socket, sockopt::RcvBufForce, &SOCKET_BUFFER)?;
    setsockopt(&socket, sockopt::SndBufForce, &SOCKET_BUFFER)?;
    Ok(socket)
}

/// Sends datagrams of `segment` bytes, the last of which may be shorter, with one call.
pub(crate) fn send(
    socket: &UdpSocket,
    contents: &[u8],
    segment: usize,
    to: Option<SocketAddrV4>,
) -> io::Result<()> {
    let size = u16::try_from(segment).map_err(io::Error::other)?;
    let several = [ControlMessage::UdpGsoSegments(&size)];
    let messages = if contents.len() > segment { &several[..] } else { &[] };
    let to = to.map(SockaddrIn::from);
    sendmsg(socket.as_raw_fd(), &[IoSlice::new(contents)], messages, MsgFlags::empty(), to.as_ref())?;
    Ok(())
}

/// Lets the system calls of [`send_file`] send datagrams of `segment` bytes.
pub(crate) fn set_segment(socket: &UdpSocket, segment: usize) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::UdpGsoSegment, &i32::try_from(segment).map_err(io::Error::other)?)?)
}

/// Sends `count` bytes of a file as datagrams of the length that the socket was given, with one call. The
/// kernel copies nothing, so the bytes stay as they are until they were received.
///
/// They have to begin at a page and fill no more than 16.
pub(crate) fn send_file(socket: &UdpSocket, file: &File, offset: usize, count: usize) -> io::Result<()> {
    let mut position = i64::try_from(offset).map_err(io::Error::other)?;
    let sent = sendfile(socket, file, Some(&mut position), count)?;
    if sent == count { Ok(()) } else { Err(io::Error::other(format!("{sent} bytes of {count} were sent"))) }
}

pub(crate) fn file() -> io::Result<File> {
    Ok(memfd_create(c"weft-bench", MFdFlags::MFD_CLOEXEC)?.into())
}

/// Receives into `buffer`. Returns the number of bytes, and the length of each datagram but the last; `None`
/// if nothing is pending, or the peer of a connected socket refuses.
pub(crate) fn receive(
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

pub(crate) fn control_buffer() -> Vec<u8> {
    vec![0; 64]
}
