//! The listening socket. It is opened before anything else is set up, so that an unusable address is reported
//! at once.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use weft_config::exit;
use weft_config::metrics::Address;
use weft_ipc::holder::{Held, Holder};

#[cfg(target_os = "linux")]
mod inherited;
#[cfg(unix)]
mod local;

#[cfg(not(unix))]
pub(super) use crate::unsupported::LocalListener;
#[cfg(unix)]
pub(super) use local::LocalListener;

/// Length of the accept queue. A client that finds it full retries after a second (RFC 6298).
const BACKLOG: i32 = 1024;

/// Why metrics cannot be served at an address.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another program listens there.
    #[error(
        "cannot serve metrics on {0}: another program listens there{1}; choose another port with --metrics or \
         `# weft: Metrics = …` (`ss -ltnp` shows which one)"
    )]
    InUse(SocketAddr, Holder),
    /// Not permitted.
    #[error(
        "cannot serve metrics on {0}: not permitted; ports below 1024 need CAP_NET_BIND_SERVICE, choose a higher \
         one, as 9586"
    )]
    Forbidden(SocketAddr),
    /// The machine does not have this address.
    #[error("cannot serve metrics on {0}: this machine has no such address; see `ip address`")]
    NotOurs(SocketAddr),
    /// The Unix socket cannot be opened.
    #[error("cannot serve metrics on a Unix socket: {0}")]
    Local(Box<dyn std::error::Error + Send + Sync>, io::ErrorKind),
    /// The path is longer than a Unix socket's may be.
    #[error(
        "cannot serve metrics on unix:{path}: the path has {length} bytes, and a socket's may have at most {limit}; \
         choose a shorter one, as /run/weft/NAME/metrics.sock"
    )]
    TooLong {
        path: String,
        length: usize,
        /// Maximum length in bytes.
        limit: usize,
    },
    /// This platform has no Unix sockets.
    #[error("cannot serve metrics on {0}: there are no Unix sockets here; give an address and port")]
    NoLocal(Address),
    #[error("cannot serve metrics on {address}: {source}")]
    Io {
        address: Address,
        /// The system's reason.
        source: io::Error,
    },
}

impl ListenError {
    /// Returns the exit code for the error.
    pub fn exit_code(&self) -> exit::Code {
        match self {
            Self::Forbidden(_) | Self::Local(_, io::ErrorKind::PermissionDenied) => exit::Code::Permission,
            Self::TooLong { .. } | Self::NoLocal(_) => exit::Code::Usage,
            _ => exit::Code::Failure,
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    pub(super) address: Address,
    /// Whether the service manager opened the socket.
    pub(super) is_inherited: bool,
    pub(super) socket: ListenerSocket,
}

#[derive(Debug)]
pub(super) enum ListenerSocket {
    Tcp(TcpListener),
    Local(LocalListener),
}

impl Listener {
    /// Listens at an address. On Linux the machine need not have the address yet, such as that of the
    /// interface itself.
    ///
    /// # Errors
    /// Those of [`ListenError`].
    pub fn open(address: &Address) -> Result<Self, ListenError> {
        let socket = match address {
            Address::Tcp(tcp) => ListenerSocket::Tcp(open_tcp(*tcp)?),
            Address::Unix(path) => ListenerSocket::Local(LocalListener::open(path)?),
        };
        Ok(Self { address: address.clone(), is_inherited: false, socket })
    }

    /// Says why [`Self::open`] would fail now. Unix sockets are not tried.
    ///
    /// # Errors
    /// Those of [`ListenError`].
    pub fn foresee(address: &Address) -> Result<(), ListenError> {
        if let Address::Tcp(tcp) = address { open_tcp(*tcp).map(drop) } else { Ok(()) }
    }

    pub fn address(&self) -> &Address {
        &self.address
    }
}

fn open_tcp(address: SocketAddr) -> Result<TcpListener, ListenError> {
    let open = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // Connections of a previous daemon may linger. On Windows the option would let other programs bind
        // the same address.
        #[cfg(unix)]
        socket.set_reuse_address(true)?;
        // The machine need not have the address yet.
        #[cfg(target_os = "linux")]
        match address {
            SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
            SocketAddr::V6(_) => socket.set_freebind_v6(true)?,
        }
        if address.is_ipv6() {
            // `[::]` accepts IPv4 too.
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    open().map_err(|source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse(address, Holder::of(Held::Tcp(address))),
        io::ErrorKind::PermissionDenied => ListenError::Forbidden(address),
        io::ErrorKind::AddrNotAvailable => ListenError::NotOurs(address),
        _ => ListenError::Io { address: Address::Tcp(address), source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_in_use_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = Listener::open(&Address::Tcp(address)).unwrap_err();
        assert!(matches!(&error, ListenError::InUse(at, _) if *at == address), "{error:?}");
        if cfg!(target_os = "linux") {
            let own = format!("another program listens there (process {}, ", std::process::id());
            assert!(error.to_string().contains(&own), "{error}");
        }
        assert_eq!(error.exit_code(), exit::Code::Failure);
        assert!(error.to_string().contains(&address.to_string()) && error.to_string().contains("--metrics"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_address_that_comes_later_can_be_listened_on() {
        let later = "192.0.2.77:9586".parse().unwrap();
        assert_eq!(Listener::open(&later).unwrap().address(), &later);
    }

    #[test]
    #[cfg(unix)]
    fn a_path_that_is_too_long_is_an_error_of_use() {
        let address = Address::Unix(format!("/run/{}", "x".repeat(200)).into());
        let error = Listener::open(&address).unwrap_err();
        assert_eq!(error.exit_code(), exit::Code::Usage);
        assert!(error.to_string().contains("205 bytes") && error.to_string().contains("xxx"), "{error}");
    }
}
