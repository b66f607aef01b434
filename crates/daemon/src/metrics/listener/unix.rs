//! A socket in the file system.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use socket2::{Socket, Type};
use tokio::net::UnixStream;

use super::{ListenError, Listener, ListenerSocket};
use crate::control::listener::{self, SocketFile};
use crate::metrics::Address;

/// The longest path of a socket (unix(7): 108 bytes with the one that ends it; 104 elsewhere).
const LONGEST: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// A socket in the file system, for its owner alone. Dropping it removes its file.
#[derive(Debug)]
pub(in super::super) struct LocalListener {
    socket: UnixListener,
    /// One that was handed in is removed by who made it.
    file: Option<SocketFile>,
}

/// The same within a runtime.
pub(in super::super) struct LocalAcceptor {
    socket: tokio::net::UnixListener,
    _file: Option<SocketFile>,
}

impl Listener {
    /// A socket that listens already, TCP or Unix, as a service manager hands it in (sd_listen_fds(3)).
    ///
    /// # Errors
    /// When it is no such socket.
    pub fn adopt(descriptor: OwnedFd) -> io::Result<Self> {
        let socket = Socket::from(descriptor);
        if socket.r#type()? != Type::STREAM || !socket.is_listener()? {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no stream socket that listens"));
        }
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        if let Some(address) = address.as_socket() {
            return Ok(Self { address: Address::Tcp(address), socket: ListenerSocket::Tcp(socket.into()) });
        }
        let path = address.as_pathname().unwrap_or_else(|| Path::new("")).to_owned();
        let local = LocalListener { socket: socket.into(), file: None };
        Ok(Self { address: Address::Unix(path), socket: ListenerSocket::Local(local) })
    }
}

impl LocalListener {
    pub(super) fn open(path: &Path) -> Result<Self, ListenError> {
        let length = path.as_os_str().as_bytes().len();
        if length > LONGEST {
            return Err(ListenError::TooLong { path: path.display().to_string(), length, most: LONGEST });
        }
        let (socket, file) = listener::listen(path, 0o700).map_err(|error| {
            let kind = error.kind();
            ListenError::Local(Box::new(error), kind)
        })?;
        Ok(Self { socket, file: Some(file) })
    }

    pub(in super::super) fn acceptor(self) -> io::Result<LocalAcceptor> {
        Ok(LocalAcceptor { socket: tokio::net::UnixListener::from_std(self.socket)?, _file: self.file })
    }
}

impl LocalAcceptor {
    pub(in super::super) async fn accept(&self) -> io::Result<UnixStream> {
        self.socket.accept().await.map(|(stream, _)| stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_listen_are_taken_over_and_others_are_not() {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(tcp.local_addr().unwrap());
        assert_eq!(Listener::adopt(tcp.into()).unwrap().address(), &address);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics");
        let local = UnixListener::bind(&path).unwrap();
        assert_eq!(Listener::adopt(local.into()).unwrap().address(), &Address::Unix(path));
        assert!(Listener::adopt(std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into()).is_err());
        assert!(Listener::adopt(std::fs::File::open("/dev/null").unwrap().into()).is_err());
    }
}
