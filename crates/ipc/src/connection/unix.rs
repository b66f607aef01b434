//! A Unix socket.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::runtime_dir;

/// The users that may connect to a daemon, for messages.
pub const MAY_CONNECT: &str = "root, or as the user who runs it";

/// A connection to a daemon. Several threads may use it.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
}

impl Connection {
    /// Connects to the daemon that listens on `path`.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] or [`io::ErrorKind::ConnectionRefused`] if no process listens, and
    /// [`io::ErrorKind::TimedOut`] at the deadline.
    pub fn connect(path: &Path, deadline: Instant) -> io::Result<Self> {
        let address = SockAddr::unix(path)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // Also bounds connect(2), which blocks if a daemon hangs and its backlog is full.
        socket.set_write_timeout(Some(left(deadline)?))?;
        socket.connect(&address).map_err(in_time)?;
        Ok(Self { stream: socket.into() })
    }

    /// Returns the user that listens. The caller decides whether to trust that user, before anything is sent.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn server(&self) -> io::Result<Option<u32>> {
        runtime_dir::server_of(&self.stream).map(Some)
    }

    /// Returns the process that listens, if the system tells: its id at the time of listen(2).
    pub fn server_process(&self) -> Option<u32> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        return nix::sys::socket::getsockopt(&self.stream, nix::sys::socket::sockopt::PeerCredentials)
            .ok()
            .and_then(|peer| u32::try_from(peer.pid()).ok());
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        None
    }

    /// Reads what has arrived, or waits for it. Returns 0 at the end of the connection.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if nothing arrives until the deadline.
    pub fn read(&self, bytes: &mut [u8], deadline: Instant) -> io::Result<usize> {
        self.until(|mut stream| {
            stream.set_read_timeout(Some(left(deadline)?))?;
            stream.read(bytes)
        })
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if the daemon has not taken them until the deadline.
    pub fn write_all(&self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.until(|mut stream| {
                stream.set_write_timeout(Some(left(deadline)?))?;
                stream.write(bytes)
            })?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Returns another handle of the connection, for another thread.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { stream: self.stream.try_clone()? })
    }

    fn until(&self, mut call: impl FnMut(&UnixStream) -> io::Result<usize>) -> io::Result<usize> {
        loop {
            match call(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map_err(in_time),
            }
        }
    }
}

impl From<UnixStream> for Connection {
    fn from(stream: UnixStream) -> Self {
        Self { stream }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Returns the time until the deadline. A time limit of 0 would be none.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A socket reports that a time limit has passed as EAGAIN.
fn in_time(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}
