//! A packet socket that sends several frames per call, and receives replies.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};

use super::frame::{self, Mac};
use crate::packet_socket;

/// Receive buffer, for the replies to a burst.
const BUFFER_BYTES: usize = 8 << 20;
const LONGEST: usize = 2048;

/// Returns the hardware address of a link in the calling thread's namespace.
pub(super) fn hardware_address(link: &str) -> io::Result<Mac> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("{link}: no hardware address"));
    getifaddrs()?
        .filter(|found| found.interface_name == link)
        .find_map(|found| found.address?.as_link_addr()?.addr())
        .ok_or_else(missing)
}

/// A packet socket on one link, for frames of one IP family.
#[derive(Debug)]
pub(super) struct FrameSocket {
    fd: OwnedFd,
    received: RefCell<Vec<u8>>,
}

impl FrameSocket {
    /// Opens a packet socket in the calling thread's namespace. It receives frames only if `reads` is set.
    pub(super) fn open(link: &str, is_v6: bool, reads: bool) -> io::Result<Self> {
        let ethertype = if is_v6 { libc::ETH_P_IPV6 } else { libc::ETH_P_IP };
        let socket = packet_socket::open(link, if reads { ethertype as u16 } else { 0 })?;
        socket.set_nonblocking(true)?;
        let fd = OwnedFd::from(socket);
        // The FORCE variant needs CAP_NET_ADMIN in the initial user namespace; with a smaller buffer, replies
        // are lost earlier.
        let _ = setsockopt(&fd, sockopt::RcvBufForce, &BUFFER_BYTES)
            .or_else(|_| setsockopt(&fd, sockopt::RcvBuf, &BUFFER_BYTES));
        Ok(Self { fd, received: RefCell::new(vec![0; LONGEST]) })
    }

    /// Sends the frames of a batch, and returns how many the link accepted.
    pub(super) fn send(&self, batch: &mut Batch) -> io::Result<usize> {
        let Batch { buffers, lens, .. } = batch;
        let mut vectors: Vec<libc::iovec> = buffers
            .iter_mut()
            .zip(&*lens)
            .map(|(buffer, len)| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: *len })
            .collect();
        let header = |vector: &mut libc::iovec| {
            // SAFETY: mmsghdr is pointers and integers, for which zero is a valid value.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = vector;
            message.msg_hdr.msg_iovlen = 1;
            message
        };
        let mut messages: Vec<libc::mmsghdr> = vectors.iter_mut().map(header).collect();
        let count = messages.len() as libc::c_uint;
        // SAFETY: the headers point to `vectors`, and those to the buffers; all outlive the call, and none is
        // moved.
        let sent = unsafe { libc::sendmmsg(self.fd.as_raw_fd(), messages.as_mut_ptr(), count, 0) };
        match Errno::result(sent) {
            Ok(sent) => Ok(sent.unsigned_abs() as usize),
            // The link's queue is full.
            Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::EINTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the next received frame, if one is pending.
    pub(super) fn receive_frame(&self) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = self.received.borrow_mut();
        match recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(len) => Ok(Some(buffer[..len].to_vec())),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the payload of the next received UDP datagram, if one is pending.
    pub(super) fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        while let Some(bytes) = self.receive_frame()? {
            if let Some((_, _, datagram)) = frame::parse(&bytes) {
                return Ok(Some(datagram.to_vec()));
            }
        }
        Ok(None)
    }
}

/// Frames that are sent with one call.
#[derive(Debug)]
pub(super) struct Batch {
    buffers: Vec<Vec<u8>>,
    lens: Vec<usize>,
}

impl Batch {
    /// Creates `count` frames of at most `longest` bytes.
    pub(super) fn new(count: usize, longest: usize) -> Self {
        Self { buffers: vec![vec![0; longest]; count], lens: vec![0; count] }
    }

    /// Fills one frame; `write` returns its length.
    pub(super) fn fill(&mut self, slot: usize, write: impl FnOnce(&mut [u8]) -> usize) {
        self.lens[slot] = write(&mut self.buffers[slot]);
    }
}
