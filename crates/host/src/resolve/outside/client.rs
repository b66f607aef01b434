//! Asks name servers over sockets that the caller opens (RFC 1035, RFC 7766).

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use socket2::{Socket, Type};
use weft_dns_message::{Answer, Pair, Query};

use super::super::no_address;
use crate::dns::Upstream;

/// The port of a socket that never sends.
pub(super) const ANY_PORT: u16 = 53;
/// How long a server has for its answer at first, and later, unless resolv.conf says otherwise.
const FIRST_PATIENCE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(3);
/// The longest that one server has: a packet waits for the look-up of a restart.
const LONGEST_PATIENCE: Duration = Duration::from_secs(5);
/// How long the answer of one family waits for that of the other.
const OTHER_FAMILY: Duration = Duration::from_secs(1);
/// The longest answer of a datagram.
const MAX_DATAGRAM: usize = 4096;

/// A name server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) address: SocketAddr,
    /// The device that its packets have to leave through; `None`: the routes decide.
    pub(super) device: Option<String>,
}

impl Server {
    /// Reports whether it is on this machine.
    pub(super) fn is_here(&self) -> bool {
        self.address.ip().is_loopback()
    }
}

/// Whom to ask, and how.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) upstream: Upstream,
    pub(super) servers: Vec<Server>,
}

/// Opens a socket to a server.
pub(super) type Open<'a> = dyn Fn(&Server, Type) -> io::Result<Socket> + 'a;

impl Client {
    /// Returns the addresses of a name, at least one.
    pub(super) fn ask(&self, name: &str, open: &Open<'_>) -> io::Result<Vec<IpAddr>> {
        if self.servers.is_empty() {
            let message = "there are no name servers but those of the tunnel";
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        let search = self.upstream.search.iter().map(String::as_str);
        for candidate in weft_dns_message::candidates(name, search, self.upstream.ndots) {
            let found = self.ask_in_turn(&candidate, open)?.addresses;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Err(no_address())
    }

    /// Asks one server after the other until one answers.
    fn ask_in_turn(&self, name: &str, open: &Open<'_>) -> io::Result<Answer> {
        let count = self.servers.len();
        let first = if self.upstream.rotate { rand::random_range(0..count) } else { 0 };
        let mut failed = io::Error::from(io::ErrorKind::TimedOut);
        for attempt in 0..self.upstream.attempts {
            let usual = if attempt == 0 { FIRST_PATIENCE } else { PATIENCE };
            let patience = self.upstream.timeout.unwrap_or(usual).min(LONGEST_PATIENCE);
            for server in self.servers.iter().cycle().skip(first).take(count) {
                let answer = match self.ask_one(server, name, self.upstream.edns, patience, open) {
                    // It knows no EDNS (RFC 6891, section 7).
                    Err(error) if self.upstream.edns && error.kind() == io::ErrorKind::Unsupported => {
                        self.ask_one(server, name, false, patience, open)
                    }
                    other => other,
                };
                match answer {
                    Ok(answer) => return Ok(answer),
                    Err(error) => {
                        let reason = match error.kind() {
                            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "no answer".to_owned(),
                            _ => error.to_string(),
                        };
                        let message = format!("name server {}: {reason}", server.address.ip());
                        failed = io::Error::new(error.kind(), message);
                    }
                }
            }
        }
        Err(failed)
    }

    /// Asks a server for the addresses of both families at once.
    fn ask_one(
        &self,
        server: &Server,
        name: &str,
        edns: bool,
        patience: Duration,
        open: &Open<'_>,
    ) -> io::Result<Answer> {
        let mut deadline = Instant::now() + patience;
        let pair = Pair::new(name)?;
        let mut pair = if edns { pair.with_edns() } else { pair };
        if self.upstream.use_tcp {
            for place in 0..pair.queries().len() {
                let answer = by_tcp(server, &pair.queries()[place], deadline, open);
                pair.put(place, answer);
            }
            return pair.end();
        }
        // A port for each name, chosen by the system (RFC 5452, section 9). Others cannot send to it.
        let socket = open(server, Type::DGRAM)?;
        socket.connect(&server.address.into())?;
        for query in pair.queries() {
            socket.send(query.bytes())?;
        }
        while !pair.is_complete() {
            let bytes = match receive(&socket, deadline) {
                Ok(bytes) => bytes,
                // One of the answers may do.
                Err(error) => return pair.end().map_err(|_| error),
            };
            let Some(place) = pair.answered_by(&bytes) else { continue };
            if edns && weft_dns_message::is_format_error(&bytes) {
                return Err(io::ErrorKind::Unsupported.into());
            }
            let query = &pair.queries()[place];
            let whole = match weft_dns_message::is_truncated(&bytes) {
                true => by_tcp(server, query, deadline, open),
                false => query.read(&bytes),
            };
            if pair.put(place, whole) {
                deadline = deadline.min(Instant::now() + OTHER_FAMILY);
            }
        }
        pair.end()
    }
}

/// Returns what is left until a deadline.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn receive(socket: &Socket, deadline: Instant) -> io::Result<Vec<u8>> {
    socket.set_read_timeout(Some(left(deadline)?))?;
    let mut socket = socket;
    let mut bytes = vec![0; MAX_DATAGRAM];
    let length = socket.read(&mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

/// Asks over TCP, as for an answer that did not fit into a datagram.
fn by_tcp(server: &Server, query: &Query, deadline: Instant, open: &Open<'_>) -> io::Result<Answer> {
    let socket = open(server, Type::STREAM)?;
    socket.connect_timeout(&server.address.into(), left(deadline)?)?;
    let mut stream = &socket;
    let length = u16::try_from(query.bytes().len()).map_err(io::Error::other)?;
    socket.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(&[&length.to_be_bytes(), query.bytes()].concat())?;
    let mut read = |bytes: &mut [u8]| {
        // A server that sends byte by byte gets no more time.
        let mut done = 0;
        while done < bytes.len() {
            socket.set_read_timeout(Some(left(deadline)?))?;
            done += match stream.read(&mut bytes[done..])? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                count => count,
            };
        }
        Ok(())
    };
    let mut length = [0; 2];
    read(&mut length)?;
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
    read(&mut bytes)?;
    if query.is_answered_by(&bytes) { query.read(&bytes) } else { Err(weft_dns_message::unusable()) }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
