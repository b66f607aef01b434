//! Platforms without an implementation: opening the sockets fails.

use std::convert::Infallible;
use std::io;
use std::task::{Context, Poll};

use weft_tunnel::Transmit;

use super::{BindError, RecvBuffers, SendError, Sent, SocketFacts, Udp, UdpConfig, UdpStats};

/// Number of receiving sockets, of both address families together.
pub const RECEIVING_SOCKETS: usize = 2;

/// The descriptor of a socket. It has no values on this platform.
pub type Descriptor = Infallible;

/// Returns the properties of a socket that was handed in.
pub fn check_socket(descriptor: &Descriptor) -> Result<SocketFacts, String> {
    match *descriptor {}
}

/// An IPv4 and an IPv6 socket on one port. It has no values on this platform.
#[derive(Debug)]
pub struct UdpSockets {
    never: Infallible,
}

impl UdpSockets {
    /// Fails with [`io::ErrorKind::Unsupported`].
    pub fn bind(_config: &UdpConfig) -> Result<Self, BindError> {
        let message = format!("not written for {} yet", std::env::consts::OS);
        Err(BindError::Io {
            what: "open UDP sockets".into(),
            source: io::Error::new(io::ErrorKind::Unsupported, message),
        })
    }

    /// Fails as [`Self::bind`] does.
    pub fn adopt(_descriptors: Vec<Descriptor>, config: &UdpConfig) -> Result<Self, BindError> {
        Self::bind(config)
    }
}

impl Udp for UdpSockets {
    fn poll_send(&mut self, _: &mut Context<'_>, _: &Transmit<'_>) -> Poll<Result<Sent, SendError>> {
        match self.never {}
    }

    fn poll_recv(&mut self, _: &mut Context<'_>, _: &mut RecvBuffers) -> Poll<io::Result<usize>> {
        match self.never {}
    }

    fn rebind(&mut self, _: Option<u16>, _: Option<u32>) -> Result<u16, BindError> {
        match self.never {}
    }

    fn stats(&self) -> UdpStats {
        match self.never {}
    }
}
