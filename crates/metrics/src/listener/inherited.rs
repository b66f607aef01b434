//! A listening socket that the service manager opened (systemd.socket(5)).

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use socket2::{Socket, Type};
use weft_config::metrics::Address;

use super::{Listener, ListenerSocket, LocalListener};

impl Listener {
    /// Adopts a socket that listens already, TCP or Unix.
    ///
    /// # Errors
    /// When it is of another type, or does not listen.
    pub fn adopt(descriptor: OwnedFd) -> io::Result<Self> {
        let socket = Socket::from(descriptor);
        if socket.r#type()? != Type::STREAM || !socket.is_listener()? {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no stream socket that listens"));
        }
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let (address, socket) = if let Some(address) = address.as_socket() {
            (Address::Tcp(address), ListenerSocket::Tcp(socket.into()))
        } else {
            let path = address.as_pathname().unwrap_or_else(|| Path::new("")).to_owned();
            let local = LocalListener { socket: socket.into(), file: None };
            (Address::Unix(path), ListenerSocket::Local(local))
        };
        Ok(Self { address, is_inherited: true, socket })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

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
