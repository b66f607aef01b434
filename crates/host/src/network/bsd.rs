//! Watches the network on macOS and FreeBSD: a routing socket (route(4)) reports addresses, routes and
//! interfaces.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use weft_tun::thread_guard::EndProcessOnPanic;

use super::coalesce::Coalescer;
use super::{Change, WatchError, Way, rtsock};
use crate::routes::Link;
use crate::routes::bsd::LAYOUT;
use crate::routes::bsd::message::messages;

/// The longest message, in bytes: the kernels write less than 1 KiB.
const MESSAGE: usize = 16 << 10;

/// A thread that watches the network until it is dropped.
#[derive(Debug)]
pub struct Watch {
    /// Its end ends the thread.
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches the network from now on. `device` is weft's device: changes of its routes and addresses are
    /// not reported. `on_change` is called on the watching thread, at most once in 200 ms, and at most a
    /// second after the change; it should only pass the change on.
    pub fn start(
        device: Option<&Link>,
        on_change: impl FnMut(Change) + Send + 'static,
    ) -> Result<Self, WatchError> {
        let refused = |what| move |source| WatchError::Refused { what, source };
        let socket = open().map_err(refused("listen to a routing socket"))?;
        let (stop, stopped) = UnixStream::pair().map_err(refused("make a pair of sockets"))?;
        let index = device.map(|link| link.index);
        let thread = std::thread::Builder::new()
            .name("weft-network".to_owned())
            .spawn(move || {
                let _guard = EndProcessOnPanic;
                if let Err(error) = watch(socket, &stopped, index, on_change) {
                    tracing::warn!(%error, "cannot watch the network any more: its changes go unnoticed");
                }
            })
            .map_err(refused("start a thread"))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.stop.write(&[0]);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // The guard ends the process on a panic, so there is none to pass on.
            let _ = thread.join();
        }
    }
}

fn open() -> io::Result<std::fs::File> {
    // SAFETY: the call takes three numbers.
    let descriptor = unsafe { libc::socket(libc::PF_ROUTE, libc::SOCK_RAW, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    for (get, set, flag) in
        [(libc::F_GETFD, libc::F_SETFD, libc::FD_CLOEXEC), (libc::F_GETFL, libc::F_SETFL, libc::O_NONBLOCK)]
    {
        // SAFETY: both calls take and return numbers, for a descriptor that is open.
        let result = unsafe {
            let flags = libc::fcntl(socket.as_raw_fd(), get);
            libc::fcntl(socket.as_raw_fd(), set, flags | flag)
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(socket.into())
}

fn watch(
    mut socket: std::fs::File,
    stopped: &UnixStream,
    device: Option<u32>,
    mut on_change: impl FnMut(Change),
) -> io::Result<()> {
    let mut coalescer = Coalescer::default();
    let mut buffer = vec![0; MESSAGE];
    loop {
        let timeout = match coalescer.due() {
            None => PollTimeout::NONE,
            Some(due) => {
                // Rounded up, so as not to come back too early.
                let millis = due.saturating_duration_since(Instant::now()).as_millis() + 1;
                PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
            }
        };
        let mut ready = [socket.as_fd(), stopped.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut ready, timeout) {
            Err(Errno::EINTR) => continue,
            other => other?,
        };
        let [readable, ended] = ready.map(|fd| fd.revents().is_some_and(|events| !events.is_empty()));
        if ended {
            return Ok(());
        }
        if readable {
            match socket.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    for message in messages(&buffer[..length], LAYOUT) {
                        coalescer.note(rtsock::change(&message, device), Instant::now());
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    coalescer.note(Change { missed: true, ..Change::default() }, Instant::now());
                }
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(change) = coalescer.take(Instant::now()) {
            tracing::debug!(?change, "the network changed");
            on_change(change);
        }
    }
}

/// Returns the route that the routing table chooses to an address. The mark does not matter here, and the MTU
/// of the route is not known.
///
/// # Errors
/// There is no route.
pub fn way_to(destination: SocketAddr, _: u32) -> io::Result<Way> {
    let unspecified: SocketAddr =
        if destination.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(unspecified)?;
    socket.connect(destination)?;
    Ok(Way { source: socket.local_addr()?.ip(), mtu: None })
}
