//! Queues of every kind on sockets that keep message boundaries, with errors that a script puts before their
//! writes. A socket stands in for the kernel's end of a TUN: it may be full and announces room (EAGAIN).

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::SeqCst};

use nix::errno::Errno;
use nix::sys::socket::sockopt::SndBuf;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair};

use crate::batch::Slab;
use crate::device::Queue;
use crate::device::descriptor::set_nonblocking;
use crate::device::queue::{Read, WriteError};
use crate::family::{FamilyQueue, family_of};
use crate::linux::vnet::VnetQueue;
use crate::plain::PlainQueue;

/// A kind of queue, and what it puts in front of a packet.
pub(super) trait Kind: Queue + Sized {
    fn on(socket: OwnedFd) -> Self;
    fn header(packet: &[u8]) -> Vec<u8>;
}

impl Kind for VnetQueue {
    fn on(socket: OwnedFd) -> Self {
        Self::new(socket)
    }

    fn header(_: &[u8]) -> Vec<u8> {
        vec![0; 10]
    }
}

impl Kind for PlainQueue {
    fn on(socket: OwnedFd) -> Self {
        Self::new(socket)
    }

    fn header(_: &[u8]) -> Vec<u8> {
        Vec::new()
    }
}

impl Kind for FamilyQueue<OwnedFd> {
    fn on(socket: OwnedFd) -> Self {
        Self::new(socket)
    }

    fn header(packet: &[u8]) -> Vec<u8> {
        family_of(packet).unwrap().to_vec()
    }
}

/// For ever, as a number of attempts.
pub(super) const FOR_EVER: u64 = u64::MAX;

/// The errors before writes, and what was counted of them.
#[derive(Debug)]
pub(super) struct Script {
    error: Errno,
    /// Number of the next attempts that fail.
    pub(super) failing: AtomicU64,
    /// After each accepted packet, this number of attempts fail.
    pub(super) burst: u64,
    /// Bytes that a ring holds, and those that are in it: beyond them, attempts fail.
    ring: usize,
    in_ring: AtomicUsize,
    pub(super) attempts: AtomicU64,
    pub(super) failed: AtomicU64,
    /// The thread of the last attempt.
    pub(super) thread: AtomicI32,
}

impl Script {
    pub(super) fn new(error: Errno, failing: u64, burst: u64, ring: usize) -> Arc<Self> {
        Arc::new(Self {
            error,
            failing: failing.into(),
            burst,
            ring,
            in_ring: AtomicUsize::new(0),
            attempts: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            thread: AtomicI32::new(0),
        })
    }

    /// A script in which only the socket refuses packets.
    pub(super) fn nothing() -> Arc<Self> {
        Self::new(Errno::EIO, 0, 0, usize::MAX)
    }

    fn next(&self, bytes: usize) -> Result<(), Errno> {
        self.thread.store(nix::unistd::gettid().as_raw(), SeqCst);
        self.attempts.fetch_add(1, SeqCst);
        let fails = match self.failing.load(SeqCst) {
            0 => self.in_ring.load(SeqCst).saturating_add(bytes) > self.ring,
            FOR_EVER => true,
            _ => self.failing.fetch_sub(1, SeqCst) > 0,
        };
        if fails {
            self.failed.fetch_add(1, SeqCst);
            return Err(self.error);
        }
        Ok(())
    }
}

/// A queue of a kind that follows a script.
#[derive(Debug)]
pub(super) struct Scripted<Q> {
    queue: Q,
    script: Arc<Script>,
}

/// Returns a queue, and the kernel's end of it.
pub(super) fn scripted<Q: Kind>(script: &Arc<Script>) -> (Scripted<Q>, Kernel<Q>) {
    let (family, kind) = (AddressFamily::Unix, SockType::SeqPacket);
    let (ours, theirs) = socketpair(family, kind, None, SockFlag::SOCK_CLOEXEC).unwrap();
    for socket in [&ours, &theirs] {
        set_nonblocking(socket.as_fd()).unwrap();
        // Room for more than the ring of a script, where the kernel counts 2,304 bytes for a packet of 1,000.
        setsockopt(socket, SndBuf, &212_992).unwrap();
    }
    let kernel = Kernel { socket: theirs.into(), script: Arc::clone(script), kind: std::marker::PhantomData };
    (Scripted { queue: Q::on(ours), script: Arc::clone(script) }, kernel)
}

impl<Q: Queue> AsFd for Scripted<Q> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl<Q: Queue> AsRawFd for Scripted<Q> {
    fn as_raw_fd(&self) -> RawFd {
        self.queue.as_raw_fd()
    }
}

impl<Q: Queue> Queue for Scripted<Q> {
    fn read(&self, slab: &mut Slab) -> Read {
        self.queue.read(slab)
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> Result<(), Errno> {
        let bytes = pieces[1..].iter().map(|piece| piece.len()).sum();
        self.script.next(bytes)?;
        self.queue.write(pieces)?;
        self.script.in_ring.fetch_add(bytes, SeqCst);
        self.script.failing.store(self.script.burst, SeqCst);
        Ok(())
    }

    fn meaning_of(error: Errno) -> WriteError {
        Q::meaning_of(error)
    }
}

/// The kernel's end of a queue.
pub(super) struct Kernel<Q> {
    socket: UnixDatagram,
    script: Arc<Script>,
    kind: std::marker::PhantomData<Q>,
}

impl<Q: Kind> Kernel<Q> {
    /// Takes the next packet that was written, after a check of its header.
    pub(super) fn take(&self) -> Option<Vec<u8>> {
        let mut buffer = [0; 2000];
        let len = self.socket.recv(&mut buffer).ok().filter(|len| *len > 0)?;
        let header = Q::header(super::LIKE);
        let packet = buffer[..len].strip_prefix(&header[..]).expect("the header of the platform");
        self.script.in_ring.fetch_sub(packet.len(), SeqCst);
        Some(packet.to_vec())
    }

    /// Routes a packet into the tunnel.
    pub(super) fn deliver(&self, packet: &[u8]) {
        self.deliver_bytes(&[&Q::header(packet)[..], packet].concat());
    }

    /// Makes a read return these bytes.
    pub(super) fn deliver_bytes(&self, bytes: &[u8]) {
        assert_eq!(self.socket.send(bytes).unwrap(), bytes.len());
    }
}
