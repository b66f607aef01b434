//! Asks what the network says of an endpoint. The sockets of the tunnel serve many peers and are not
//! connected, so that the system tells them nothing of ICMP errors. These may be forged: no more than a hint
//! follows from them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

use crate::system;

/// A datagram on its way to an endpoint, from another port than that of the tunnel.
#[derive(Debug)]
pub struct Probe(Socket);

impl Probe {
    /// Sends a datagram that WireGuard ignores, with the mark of the tunnel's own (0: none).
    ///
    /// # Errors
    /// There is no route, or no permission for the mark.
    pub fn send(to: SocketAddr, fwmark: u32) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        system::set_mark(&socket, fwmark).map_err(io::Error::other)?;
        system::report_errors(&socket, to.is_ipv6());
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        socket.bind(&SocketAddr::new(any, 0).into())?;
        socket.connect(&to.into())?;
        // No message of WireGuard has one byte.
        socket.send(&[0])?;
        Ok(Self(socket))
    }

    /// Returns the error that came back, if one did until now.
    pub fn refusal(&self) -> Option<io::Error> {
        self.0.take_error().ok().flatten()
    }
}
