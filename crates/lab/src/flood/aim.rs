//! Knowledge that lets an attacker hit the queue of one peer's datagrams.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::frame;
use super::junk::seen;
use super::socket::FrameSocket;
use crate::Namespace;

/// Number of queues that a hash chooses from, in builds of weft that hash without a key.
const QUEUES: u32 = 8;
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

/// Reports whether two sources share a queue of a weft that hashes sources without a key. For a weft with a
/// keyed hash the result carries no information.
pub fn same_queue(one: SocketAddr, other: SocketAddr) -> bool {
    queue(one) == queue(other)
}

fn queue(source: SocketAddr) -> u32 {
    const GOLDEN: u32 = 0x9e37_79b1;
    let address = match source.ip() {
        IpAddr::V4(address) => vec![address.to_bits()],
        IpAddr::V6(address) => [96, 64, 32, 0].map(|shift| (address.to_bits() >> shift) as u32).to_vec(),
    };
    let words = address.into_iter().chain([source.port().into()]);
    let hash = words.fold(0_u32, |hash, word| hash.wrapping_add(word).wrapping_mul(GOLDEN));
    (hash ^ (hash >> 15)).wrapping_mul(GOLDEN) >> (u32::BITS - QUEUES.ilog2())
}
