//! UDP sockets with large buffers, and polling for any of them.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use nix::sys::socket::{MsgFlags, SockaddrStorage, recvmsg};

use crate::Namespace;

/// Large enough that datagrams are not dropped in the receiver's buffer.
const BUFFER_BYTES: i32 = 8 << 20;
/// Upper bound of source sockets: more would use up descriptors without benefit.
const MOST_SOURCES: u32 = 128;

/// Returns the numbers of source and destination sockets for `flows` flows. Their product is at least
/// `flows`.
pub(super) fn grid(flows: u32) -> (usize, usize) {
    let sources = flows.isqrt().clamp(1, MOST_SOURCES);
    (sources as usize, flows.div_ceil(sources) as usize)
}

#[derive(Debug)]
pub(super) struct Sockets(Vec<UdpSocket>);

impl Sockets {
    /// Opens `count` sockets on free ports of an address in a namespace.
    pub(super) fn open(namespace: &Namespace, address: IpAddr, count: usize) -> io::Result<Self> {
        let open = || (0..count).map(|_| Self::open_one(address)).collect::<io::Result<Vec<_>>>();
        Ok(Self(namespace.run(open)?))
    }

    fn open_one(address: IpAddr) -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind(SocketAddr::new(address, 0))?;
        for (force, plain) in
            [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
        {
            // The FORCE variant needs CAP_NET_ADMIN in the initial user namespace.
            if set_option(&socket, libc::SOL_SOCKET, force, BUFFER_BYTES).is_err() {
                set_option(&socket, libc::SOL_SOCKET, plain, BUFFER_BYTES)?;
            }
        }
        Ok(socket)
    }

    /// Makes the kernel segment sent data into datagrams of this size (UDP_SEGMENT).
    pub(super) fn set_segment_size(&self, bytes: usize) -> io::Result<()> {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        self.0.iter().try_for_each(|socket| set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, bytes))
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.iter().map(UdpSocket::try_clone).collect::<io::Result<_>>()?))
    }

    pub(super) fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.0.iter().map(UdpSocket::local_addr).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, index: usize) -> &UdpSocket {
        &self.0[index]
    }

    /// Waits at most `timeout` until a socket is readable, and calls `work` for each readable socket.
    pub(super) fn for_each_readable(&self, timeout: Duration, mut work: impl FnMut(&UdpSocket)) {
        let mut polled: Vec<libc::pollfd> = self
            .0
            .iter()
            .map(|socket| libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 })
            .collect();
        let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the pointer and the length are those of one vector, which outlives the call.
        let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, millis) };
        if ready > 0 {
            let readable = self.0.iter().zip(&polled).filter(|(_, polled)| polled.revents != 0);
            readable.for_each(|(socket, _)| work(socket));
        }
    }
}

/// Receives a datagram if one is pending. Does not block, whatever mode the socket is in.
pub(super) fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    let mut buffers = [io::IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut buffers, None, MsgFlags::MSG_DONTWAIT)?;
    let from =
        message.address.and_then(|address| match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => Some(SocketAddr::V4((*v4).into())),
            (_, Some(v6)) => Some(SocketAddr::V6((*v6).into())),
            _ => None,
        });
    Ok((message.bytes, from.ok_or(io::ErrorKind::InvalidData)?))
}

fn set_option(socket: &UdpSocket, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
