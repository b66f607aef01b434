//! Adopts sockets that another process opened: checks them, and uses them as if they were just bound.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};

use socket2::{SockRef, Socket, Type};

use super::bind::{bind, failed};
use super::system::{is_of_our_user, is_udp};
use super::{BindError, SocketFacts, UdpConfig};

/// The descriptor of a socket, which can be handed to another process.
pub type Descriptor = OwnedFd;

/// Returns the properties of a socket that an interface can use: a UDP socket that is bound to a port on all
/// addresses, and in case of IPv6 receives only IPv6.
///
/// # Errors
/// A description of what the socket is instead.
pub fn check_socket(descriptor: &Descriptor) -> Result<SocketFacts, String> {
    if !is_of_our_user(descriptor) {
        return Err("another user has opened it, and a kill switch holds its packets back".to_owned());
    }
    let descriptor = descriptor.as_fd();
    let socket = SockRef::from(&descriptor);
    let asked = || -> std::io::Result<_> {
        let is_udp = socket.r#type()? == Type::DGRAM && is_udp(&socket)?;
        Ok((is_udp, socket.local_addr()?.as_socket()))
    };
    let (is_udp, address) = asked().map_err(|error| format!("it is not a socket ({error})"))?;
    if !is_udp {
        return Err("it is not a UDP socket".to_owned());
    }
    let address = address.filter(|address| address.port() != 0);
    let Some(address) = address else { return Err("it has no port".to_owned()) };
    if !address.ip().is_unspecified() {
        return Err(format!("it listens on {address} only"));
    }
    if address.is_ipv6() && !socket.only_v6().unwrap_or(false) {
        return Err("it takes IPv4 as well as IPv6".to_owned());
    }
    Ok(SocketFacts { is_v6: address.is_ipv6(), port: address.port() })
}

/// Sorts the descriptors into IPv4 and IPv6 sockets, in their order. All must have the port of the
/// configuration. A family without a socket is bound to the same port, if possible.
pub(crate) fn sort(
    descriptors: Vec<Descriptor>,
    config: &UdpConfig,
) -> Result<(Vec<Socket>, Vec<Socket>), BindError> {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for descriptor in descriptors {
        let facts = check_socket(&descriptor)
            .and_then(|facts| match facts.port == config.port {
                true => Ok(facts),
                false => Err(format!("it has port {}, not {}", facts.port, config.port)),
            })
            .map_err(|reason| failed("take over a UDP socket", std::io::Error::other(reason)))?;
        if facts.is_v6 { &mut v6 } else { &mut v4 }.push(Socket::from(descriptor));
    }
    for (family, address) in [
        (&mut v4, SocketAddr::from((Ipv4Addr::UNSPECIFIED, config.port))),
        (&mut v6, SocketAddr::from((Ipv6Addr::UNSPECIFIED, config.port))),
    ] {
        if family.is_empty() {
            family.extend(bind(address).unwrap_or_else(|error| {
                tracing::warn!("{error}; peers are reached without that address family");
                None
            }));
        }
    }
    if v4.is_empty() && v6.is_empty() { Err(BindError::NoAddressFamily) } else { Ok((v4, v6)) }
}

/// Returns a duplicate of the descriptor of a socket; `None` on systems where no process takes one over.
#[allow(clippy::unnecessary_wraps, reason = "on Windows it is always `None`")]
#[cfg_attr(all(target_os = "linux", not(feature = "portable")), expect(dead_code))]
pub(crate) fn duplicate(socket: &Socket) -> Option<std::io::Result<Descriptor>> {
    Some(socket.try_clone().map(Descriptor::from))
}
