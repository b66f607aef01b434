//! Unix sockets as connections.

use std::net::SocketAddr;

use tokio::net::UnixStream;

use crate::network::Connection;

impl Connection for UnixStream {
    fn local_addr(&self) -> Option<SocketAddr> {
        None
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        None
    }

    /// A Unix socket resets its peer if data is left unread, and else cannot.
    fn abort(&self) {}
}
