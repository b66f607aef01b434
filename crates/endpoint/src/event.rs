//! What an endpoint tells its caller: events, reasons to wake up, errors.

/// A TCP connection. A number is used again with another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A listening TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A UDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UdpId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

macro_rules! index {
    ($($id:ty)*) => { $(impl $id {
        /// Returns the number of the slot: small, unique among the sockets of this kind that exist.
        pub fn index(self) -> usize {
            self.index as usize
        }
    })* };
}
index!(StreamId ListenerId UdpId);

/// What happened to a socket.
///
/// `Readable`, `Writable`, `Acceptable` and `Datagram` come once after a call answered that there is nothing
/// (`take`, `reserve`, `accept`, `take_udp` or `send_udp`), and once for a new socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// [`crate::Endpoint::take`] has something: bytes, the end, or an error.
    Readable(StreamId),
    /// [`crate::Endpoint::reserve`] has room, or an error.
    Writable(StreamId),
    /// The connection is open.
    Connected(StreamId),
    /// The peer sends nothing more, behind what was not taken.
    Ended(StreamId),
    /// The connection failed, or could not be opened.
    Failed(StreamId, StreamError),
    /// [`crate::Endpoint::accept`] has a connection.
    Acceptable(ListenerId),
    /// [`crate::Endpoint::take_udp`] has a datagram.
    Datagram(UdpId),
    /// [`crate::Endpoint::send_udp`] has room again.
    UdpWritable(UdpId),
    /// A connection of this peer gave way to another one, since memory is short.
    GaveWay(std::net::IpAddr),
}

/// Why a stream is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The peer answered the first segment with a reset.
    #[error("connection refused")]
    Refused,
    /// The peer reset the connection.
    #[error("connection reset by peer")]
    Reset,
    /// The peer does not answer.
    #[error("connection timed out")]
    TimedOut,
    /// A router says that there is no way to the peer.
    #[error("no route to host")]
    Unreachable,
    /// This end has finished its direction, so it may not send.
    #[error("broken pipe")]
    Finished,
    /// The stream was reset or released by this end.
    #[error("the stream is closed")]
    Closed,
    /// Another connection needed its memory.
    #[error("too little memory for all connections (--memory-limit)")]
    GaveWay,
}

/// Why a connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The endpoint has no address of this family.
    #[error("no address of this family")]
    NoAddress,
    /// The destination is not an address of a host, or its port is 0.
    #[error("not a destination")]
    InvalidDestination,
    /// Every port to this destination is in use.
    #[error("every port is in use")]
    NoPort,
    /// There are as many connections as there may be.
    #[error("too many connections")]
    TooMany,
}

/// Why a socket cannot be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The endpoint does not have this address.
    #[error("not an address of this network")]
    NoAddress,
    /// Another socket has the address and the port.
    #[error("the address is in use")]
    InUse,
    /// Every port is in use.
    #[error("every port is in use")]
    NoPort,
}

/// Why a datagram cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UdpError {
    /// The socket was released.
    #[error("the socket is closed")]
    Closed,
    /// The endpoint has no address of this family, or the socket is bound to the other one.
    #[error("no address of this family")]
    NoAddress,
    /// The destination is not an address of a host, or its port is 0.
    #[error("not a destination")]
    InvalidDestination,
    /// A datagram has at most 65,507 bytes (IPv4) or 65,527 (IPv6).
    #[error("the datagram is too long")]
    TooLong,
}
