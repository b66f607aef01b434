//! Sockets of the network namespace, for use outside of it: a socket stays in the namespace that it was made
//! in.

use std::io;
use std::sync::Arc;

use socket2::{Domain, Protocol, Socket, Type};

use crate::ask::Connection;

/// Makes sockets in the network namespace. A call waits for the child there, some 50 µs. It fails once the
/// [`Inside`](crate::Inside) that it is of is gone.
#[derive(Clone, Debug)]
pub struct Sockets(pub(crate) Arc<Connection>);

impl Sockets {
    /// Returns a TCP socket of IPv4 or IPv6 that blocks, to connect or to listen. This process may bind it to
    /// any port.
    ///
    /// # Errors
    /// The kernel refuses the socket, or the child is gone.
    pub fn tcp(&self, domain: Domain) -> io::Result<Socket> {
        self.open(domain, Type::STREAM, Some(Protocol::TCP))
    }

    /// Returns a UDP socket of IPv4 or IPv6 that blocks.
    ///
    /// # Errors
    /// As of [`Self::tcp`].
    pub fn udp(&self, domain: Domain) -> io::Result<Socket> {
        self.open(domain, Type::DGRAM, Some(Protocol::UDP))
    }

    fn open(&self, domain: Domain, kind: Type, protocol: Option<Protocol>) -> io::Result<Socket> {
        let protocol = protocol.map_or(0, i32::from);
        Ok(Socket::from(self.0.socket(domain.into(), kind.into(), protocol)?))
    }
}
