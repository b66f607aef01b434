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

/// Upper bound of the bytes received with one call.
pub(crate) const BUFFER: usize = 65_536;
/// Large enough that losses are not caused by the ends.
const SOCKET_BUFFER: usize = 32 << 20;

/// Opens a socket that receives super-packets.
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

/// Creates a file in memory, for [`send_file`].
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

/// Creates a buffer for the ancillary data that [`receive`] gets.
pub(crate) fn control_buffer() -> Vec<u8> {
    vec![0; 64]
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    /// Opens two sockets, the first of which receives.
    fn sockets() -> (UdpSocket, UdpSocket) {
        let [to, from] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        setsockopt(&to, sockopt::UdpGroSegment, &true).unwrap();
        from.connect(to.local_addr().unwrap()).unwrap();
        (to, from)
    }

    #[test]
    fn what_is_sent_of_a_file_arrives_as_datagrams() {
        let (to, from) = sockets();
        let file = file().unwrap();
        // Long enough for all pages of a call but a few bytes, at the second place in the file.
        let (segment, count) = (1452, 45);
        let contents: Vec<u8> = (0..segment * count).map(|byte| (byte / 7) as u8).collect();
        file.write_all_at(&contents, BUFFER as u64).unwrap();
        set_segment(&from, segment).unwrap();
        send_file(&from, &file, BUFFER, contents.len()).unwrap();
        let (mut buffer, mut control, mut all) = (vec![0; BUFFER], control_buffer(), Vec::new());
        while all.len() < contents.len() {
            let (len, stride) = receive(&to, &mut buffer, &mut control).unwrap().unwrap();
            assert_eq!(stride, segment);
            all.extend_from_slice(&buffer[..len]);
        }
        assert!(all == contents);
        assert!(send_file(&from, &file, 2 * BUFFER, 1).is_err(), "behind the end");
    }

    #[test]
    fn what_is_sent_as_several_arrives_as_several() {
        let (to, from) = sockets();
        send(&from, &[7; 250], 100, None).unwrap();
        let (mut buffer, mut control) = (vec![0; BUFFER], control_buffer());
        let (mut bytes, mut datagrams) = (0, 0);
        while bytes < 250 {
            let (len, stride) = receive(&to, &mut buffer, &mut control).unwrap().unwrap();
            bytes += len;
            datagrams += len.div_ceil(stride);
        }
        assert_eq!((bytes, datagrams), (250, 3));
        to.set_nonblocking(true).unwrap();
        assert_eq!(receive(&to, &mut buffer, &mut control).unwrap(), None);
    }
}
