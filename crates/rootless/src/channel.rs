//! Messages between the processes of a tunnel, with descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType, getsockopt,
    recvmsg, sendmsg, shutdown, socketpair, sockopt,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::probe::Step;

/// The largest message: the text of resolv.conf and nsswitch.conf is far below it.
const MOST_BYTES: usize = 64 << 10;
/// Descriptors of one message at most.
const MOST_DESCRIPTORS: usize = 4;

/// What weft asks of a child in the namespaces.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// A device with queues: a [`Reply::Done`] with one descriptor for each.
    Tun { name: String, queues: usize },
    /// A network namespace for the far end of a veth pair: a netlink socket and a packet socket of it, and
    /// its counters.
    FarNamespace,
    /// A mount namespace with these name servers: a [`Reply::Done`] with its descriptor.
    Names { resolv_conf: String, has_servers: bool },
    /// Limits of the kernel.
    Sysctls { group: u32, tcp_buffer_bytes: u64 },
    /// The congestion control of the network namespace, if it is not the present one.
    Congestion { name: String, may_change: bool },
    /// A socket.
    Socket { domain: i32, kind: i32, protocol: i32 },
}

/// What the child answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The child is in the namespaces. If it has made them, there are descriptors: user and network
    /// namespace.
    Inside,
    /// The namespaces cannot be made, or entered.
    Refused { step: Step, errno: i32 },
    /// Done, with warnings.
    Done { warnings: Vec<String> },
    /// The request failed.
    Failed { message: String, is_permission: bool, errno: i32 },
}

/// One end of the connection. Messages keep their bounds.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

impl Channel {
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        Ok((Self(a), Self(b)))
    }

    pub(crate) fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(MsgFlags::empty(), message, descriptors)
    }

    /// Sends a message, unless the other end has not read its earlier ones.
    pub(crate) fn send_now(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.send_with(MsgFlags::MSG_DONTWAIT, message, descriptors)
    }

    fn send_with(
        &self,
        flags: MsgFlags,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let raw: Vec<_> = descriptors.iter().map(BorrowedFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &rights[..0] } else { &rights[..] };
        let flags = flags | MsgFlags::MSG_NOSIGNAL;
        loop {
            match sendmsg::<()>(self.0.as_raw_fd(), &[IoSlice::new(&bytes)], control, flags, None) {
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Tells the other end that no message follows. It may still send some.
    pub(crate) fn finish(&self) -> io::Result<()> {
        Ok(shutdown(self.0.as_raw_fd(), Shutdown::Write)?)
    }

    /// Returns the process that made the pair.
    pub(crate) fn process(&self) -> io::Result<u32> {
        Ok(getsockopt(self, sockopt::PeerCredentials)?.pid().cast_unsigned())
    }

    /// Reports whether a message, or the end, comes within this time.
    pub(crate) fn is_ready(&self, patience: Duration) -> io::Result<bool> {
        let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.as_fd(), PollFlags::POLLIN)], patience) {
            Err(Errno::EINTR) => Ok(true),
            ready => Ok(ready? > 0),
        }
    }

    /// Waits for a message. [`io::ErrorKind::UnexpectedEof`]: the other end is gone.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<(T, Vec<OwnedFd>)> {
        let mut bytes = vec![0; MOST_BYTES];
        let mut control = nix::cmsg_space!([std::os::fd::RawFd; MOST_DESCRIPTORS]);
        let (length, descriptors) = loop {
            let mut pieces = [IoSliceMut::new(&mut bytes)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            match recvmsg::<()>(self.0.as_raw_fd(), &mut pieces, Some(&mut control), flags) {
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
                Ok(message) => {
                    let rights = message.cmsgs()?.flat_map(|control| match control {
                        ControlMessageOwned::ScmRights(descriptors) => descriptors,
                        _ => Vec::new(),
                    });
                    // SAFETY: the kernel has just created these descriptors for this message, and nothing
                    // else owns them.
                    let rights = rights.map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }).collect();
                    break (message.bytes, rights);
                }
            }
        };
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((serde_json::from_slice(&bytes[..length])?, descriptors))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}
