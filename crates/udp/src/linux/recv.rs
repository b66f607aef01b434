//! Inbound, first step: one `recvmmsg` receives the waiting messages, joined by the kernel's GRO where
//! possible.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use weft_tunnel::RecvMeta;

use super::super::{RecvBuffers, UdpStats};
use super::cmsg::{Ancillary, AncillaryBuffer};
use super::send::retry;

/// Fills at most `limit` of the free buffers and returns the number filled. Fails with
/// [`io::ErrorKind::WouldBlock`] if nothing has arrived.
pub(super) fn recv(
    fd: BorrowedFd<'_>,
    buffers: &mut RecvBuffers,
    limit: usize,
    stats: &mut UdpStats,
) -> io::Result<usize> {
    type Names = [libc::sockaddr_in6; RecvBuffers::COUNT];
    type Vectors = [libc::iovec; RecvBuffers::COUNT];
    type Headers = [libc::mmsghdr; RecvBuffers::COUNT];
    // SAFETY: sockaddr_in6, iovec and mmsghdr of zeros are valid.
    let (mut names, mut vectors, mut headers): (Names, Vectors, Headers) = unsafe { mem::zeroed() };
    let mut controls = [AncillaryBuffer::new(); RecvBuffers::COUNT];
    let mut free = 0;
    for ((((buffer, name), vector), control), message) in buffers
        .free_buffers()
        .take(limit)
        .zip(&mut names)
        .zip(&mut vectors)
        .zip(&mut controls)
        .zip(&mut headers)
    {
        *vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let header = &mut message.msg_hdr;
        header.msg_name = ptr::from_mut(name).cast();
        header.msg_namelen = mem::size_of_val(name) as libc::socklen_t;
        header.msg_iov = vector;
        header.msg_iovlen = 1;
        control.attach_whole(header);
        free += 1;
    }
    // SAFETY: each of the first `free` headers points to a name, a vector, a control buffer and a buffer that
    // no other header points to, with their true sizes; all live until after the call, and nothing else uses
    // them meanwhile.
    let count = retry(|| unsafe {
        let headers = headers.as_mut_ptr();
        libc::recvmmsg(fd.as_raw_fd(), headers, free, 0, ptr::null_mut()) as isize
    })?;
    stats.recv_calls += 1;
    buffers.push(headers.iter().zip(&names).take(count).map(|(message, name)| {
        // SAFETY: the kernel has just received with this header, into an aligned control buffer.
        let ancillary = unsafe { Ancillary::parse(&message.msg_hdr) };
        let len = message.msg_len as usize;
        let stride = ancillary.segment_bytes.unwrap_or(len).max(1);
        stats.datagrams_received += len.div_ceil(stride).max(1) as u64;
        stats.bytes_received += len as u64;
        let source = address_of(name);
        let meta = RecvMeta { source, local: ancillary.local, ecn: ancillary.ecn, len, stride };
        (meta, message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0)
    }));
    Ok(count)
}

/// Returns the address that the kernel wrote: IPv4 if its family is AF_INET, otherwise IPv6.
fn address_of(name: &libc::sockaddr_in6) -> SocketAddr {
    if libc::c_int::from(name.sin6_family) == libc::AF_INET {
        // SAFETY: a sockaddr_in is no longer and no more aligned than a sockaddr_in6, and all its bit
        // patterns are valid.
        let name = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in>() };
        let address = Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes());
        SocketAddrV4::new(address, u16::from_be(name.sin_port)).into()
    } else {
        let address = Ipv6Addr::from(name.sin6_addr.s6_addr);
        SocketAddrV6::new(address, u16::from_be(name.sin6_port), name.sin6_flowinfo, name.sin6_scope_id)
            .into()
    }
}
