//! What an attacker on the path to the target sees of a peer.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::frame;
use super::junk::seen;
use super::socket::FrameSocket;
use crate::Namespace;

const TICK: Duration = Duration::from_millis(1);

/// A data message observed on the path to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedMessage {
    /// The peer's address and port.
    pub source: SocketAddr,
    /// The receiver index, by which the target finds the session.
    pub receiver_index: u32,
}

impl ObservedMessage {
    /// Waits for a data message that arrives on `link` for `target`.
    ///
    /// # Errors
    /// When none arrives within `limit`.
    pub fn on_path(
        namespace: &Namespace,
        link: &str,
        target: SocketAddr,
        limit: Duration,
    ) -> io::Result<Self> {
        let socket = namespace.run(|| FrameSocket::open(link, target.is_ipv6(), true))?;
        let start = Instant::now();
        loop {
            match socket.receive_frame()? {
                Some(bytes) => {
                    if let Some((source, to, datagram)) = frame::parse(&bytes)
                        && to == target
                        && let Some(seen) = seen(source, datagram)
                    {
                        return Ok(seen);
                    }
                }
                None if start.elapsed() >= limit => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "the peer sends no data to the target",
                    ));
                }
                None => std::thread::sleep(TICK),
            }
        }
    }
}
