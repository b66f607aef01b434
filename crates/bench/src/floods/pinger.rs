//! Paced pings over IPv4: no ping waits for the answer to an
//! earlier one.

use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use weft_lab::Namespace;

use crate::peers::priority::stepping_forward;
use crate::worker::Worker;

/// 200 a second: enough for a 99th percentile in a few seconds, too few to matter beside the stream.
const INTERVAL: Duration = Duration::from_millis(5);
/// A ping unanswered for this long is lost, and counts with this time.
pub(crate) const LOST: Duration = Duration::from_secs(2);
/// ICMP (RFC 792): echo request and reply, each with a checksum, an identifier and a number.
const ECHO: u8 = 8;
const ECHO_REPLY: u8 = 0;
const HEADER: usize = 8;
const PACKET: usize = 64;
const IDENTIFIER: u16 = 0x7765;
/// A raw socket receives replies with their IPv4 header, which has no options.
const IPV4_HEADER: usize = 20;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ping {
    pub(crate) sent: Instant,
    /// Time to the answer; `None` without an answer.
    pub(crate) took: Option<Duration>,
}

/// Pings until it is finished, and then returns the pings once all are answered or lost.
pub(crate) type Pinger = Worker<io::Result<Vec<Ping>>>;

pub(crate) fn start(client: &Namespace, target: impl Into<IpAddr>) -> io::Result<Pinger> {
    let target = target.into();
    let open = || -> io::Result<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
        socket.connect(&SocketAddr::from((target, 0)).into())?;
        Ok(socket)
    };
    let socket = client.run(open)?;
    let work = move |stop: &AtomicBool| stepping_forward(move || ping(socket, stop))();
    Worker::start("ping", work)
}

fn ping(mut socket: Socket, stop: &AtomicBool) -> io::Result<Vec<Ping>> {
    let mut pings: Vec<Ping> = Vec::new();
    let mut answered = 0;
    let mut due = Instant::now();
    let mut ended = None;
    loop {
        let now = Instant::now();
        if ended.is_none() && stop.load(Relaxed) {
            ended = Some(now);
        }
        match ended {
            Some(end) if answered == pings.len() || now.saturating_duration_since(end) >= LOST => {
                return Ok(pings);
            }
            None if now >= due => {
                let number = pings.len() as u16;
                pings.push(Ping { sent: now, took: None });
                // A request that the socket does not accept counts as lost.
                let _ = socket.send(&request(number));
                due = (due + INTERVAL).max(now);
                continue;
            }
            _ => {}
        }
        let wait = if ended.is_some() { INTERVAL } else { due.saturating_duration_since(now) };
        socket.set_read_timeout(Some(wait.max(Duration::from_micros(1))))?;
        let mut buffer = [0; 256];
        let Ok(len) = socket.read(&mut buffer) else { continue };
        let Some(number) = reply(&buffer[..len]) else { continue };
        // The newest ping with this number: the 16-bit numbers wrap after five minutes.
        let last = pings.len().wrapping_sub(1);
        let place = last.wrapping_sub(usize::from((last as u16).wrapping_sub(number)));
        if let Some(ping) = pings.get_mut(place).filter(|ping| ping.took.is_none()) {
            ping.took = Some(ping.sent.elapsed());
            answered += 1;
        }
    }
}

fn request(number: u16) -> [u8; PACKET] {
    let mut packet = [0; PACKET];
    packet[0] = ECHO;
    packet[4..6].copy_from_slice(&IDENTIFIER.to_be_bytes());
    packet[6..8].copy_from_slice(&number.to_be_bytes());
    // All other bytes are zero: the sum has three words, and at most one carry (RFC 1071).
    let sum = u32::from(ECHO) * 256 + u32::from(IDENTIFIER) + u32::from(number);
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[2..4].copy_from_slice(&checksum.to_be_bytes());
    packet
}

fn reply(packet: &[u8]) -> Option<u16> {
    let message = packet.get(IPV4_HEADER..)?;
    let word = |at: usize| Some(u16::from_be_bytes(*message.get(at..)?.first_chunk()?));
    let is_ours = message.len() >= HEADER && message[0] == ECHO_REPLY && word(4)? == IDENTIFIER;
    is_ours.then_some(word(6)?)
}
