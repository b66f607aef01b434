//! Binding an IPv4 and an IPv6 socket to one port, on all addresses.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

use super::codes::{EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT};
use super::{BindError, UdpConfig, system};

/// How often a random port is tried until it is free for both IPv4 and IPv6.
const RANDOM_PORT_ATTEMPTS: usize = 16;

/// Binds an IPv4 and an IPv6 socket to all addresses and one port. At least one of the two is `Some`.
pub(crate) fn bind_both(config: &UdpConfig) -> Result<(Option<Socket>, Option<Socket>), BindError> {
    let mut attempts = if config.port == 0 { RANDOM_PORT_ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        match bind_once(config.port) {
            Err(BindError::PortInUse { .. }) if attempts > 0 => {}
            result => return result,
        }
    }
}

fn bind_once(port: u16) -> Result<(Option<Socket>, Option<Socket>), BindError> {
    let v4 = bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?;
    let port = match &v4 {
        Some(socket) => local_port(socket).map_err(|source| failed("read the UDP port", source))?,
        None => port,
    };
    let v6 = bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
    if v4.is_none() && v6.is_none() {
        return Err(BindError::NoAddressFamily);
    }
    Ok((v4, v6))
}

/// Returns a socket bound to `address`; `None` if the machine does not have the address family.
pub(crate) fn bind(address: SocketAddr) -> Result<Option<Socket>, BindError> {
    let bound =
        Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP)).and_then(|socket| {
            if address.is_ipv6() {
                socket.set_only_v6(true)?;
            }
            system::claim_port(&socket)?;
            socket.bind(&address.into())?;
            Ok(socket)
        });
    match bound {
        Ok(socket) => Ok(Some(socket)),
        Err(error) => match error.raw_os_error() {
            Some(EADDRINUSE) => Err(BindError::PortInUse { address }),
            Some(EAFNOSUPPORT | EADDRNOTAVAIL) => {
                let family = if address.is_ipv6() { "IPv6" } else { "IPv4" };
                tracing::warn!(%error, "no {family} on this machine: peers are reached without it");
                Ok(None)
            }
            _ => Err(failed(&format!("bind {address}"), error)),
        },
    }
}

pub(crate) fn failed(what: &str, source: io::Error) -> BindError {
    BindError::Io { what: what.to_owned(), source }
}

pub(crate) fn local_port(socket: &Socket) -> io::Result<u16> {
    let address = socket.local_addr()?.as_socket();
    address.map(|address| address.port()).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
