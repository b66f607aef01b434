//! Datagrams that the kernel refuses because they are longer than the MTU of their path.
//!
//! ```text
//!   refused ──► asked: in pieces ──► the path carries them: in one piece, whatever the kernel has learnt
//!                   (a probe)   └──► it does not: in pieces, and the next datagrams are shorter
//! ```
//!
//! The kernel knows the MTU of a path from the route, the device, and ICMP messages. Any host can forge such
//! a message: it names no secret, and it holds for ten minutes. So a probe of the refused length finds out
//! what the path carries. A router that drops it sends its ICMP message to the port of the probe, which is
//! random and open for a moment, and the device answers itself.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use libc::c_int;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use socket2::{Domain, Protocol, Socket, Type};
use weft_tunnel::Transmit;

use super::PathMtu;
use super::passage::{Advice, Passage};
use super::sockopt::{get_option, set_option};

/// How long a router may take to answer a probe. Meanwhile datagrams are sent in pieces.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long the outcome of a probe is used. An attacker who hits the port of a probe harms a path as long.
const VALID_FOR: Duration = Duration::from_secs(60);
/// Minimum time between two reports of one path. A reported MTU applies to the next packet already.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of paths that are known. Beyond it all are forgotten, which costs a probe each.
const CAPACITY: usize = 1024;
/// Maximum number of probes on their way. Datagrams on further paths are sent in pieces meanwhile.
const MAX_PROBES: usize = 32;

/// Maximum number of errors that are read of a probe at once: others may send more all the time.
const MAX_ERRORS: usize = 16;

/// Values of IP_MTU_DISCOVER and IPV6_MTU_DISCOVER; their numbers are the same (ip(7), ipv6(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
enum Discovery {
    /// DF is clear. This machine makes fragments of what is longer than the path is known to carry.
    Dont = libc::IP_PMTUDISC_DONT,
    /// DF is set. A datagram that is longer than the path is known to carry is refused, which shows weft that
    /// it is too long.
    Do = libc::IP_PMTUDISC_DO,
    /// DF is set. The MTU of the device alone counts.
    Probe = libc::IP_PMTUDISC_PROBE,
    /// DF is clear. The MTU of the device alone counts.
    Omit = libc::IP_PMTUDISC_OMIT,
}

impl Discovery {
    /// Returns the mode of a socket.
    ///
    /// Over IPv4 routers fragment what is too long, unless DF is set. Over IPv6 only this machine can, and it
    /// has to know for which paths: these sockets refuse what is too long, whether or not it is to be sent in
    /// pieces then.
    fn of(path_mtu: PathMtu, is_v6: bool) -> Self {
        if path_mtu == PathMtu::Off && !is_v6 { Self::Omit } else { Self::Do }
    }

    fn for_passage(passage: Passage, is_v6: bool) -> Self {
        match passage {
            Passage::Whole => Self::Probe,
            Passage::InPieces if is_v6 => Self::Dont,
            Passage::InPieces => Self::Omit,
        }
    }

    fn set(self, socket: &impl AsRawFd, is_v6: bool) -> io::Result<()> {
        let (level, name) = if is_v6 {
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER)
        } else {
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER)
        };
        match set_option(socket, level, name, self as c_int) {
            // Before Linux 3.15, and elsewhere where Linux is imitated.
            Err(error) if self == Self::Omit && error.raw_os_error() == Some(libc::EINVAL) => {
                set_option(socket, level, name, Self::Dont as c_int)
            }
            result => result,
        }
    }
}

/// Sets whether datagrams may be fragmented on their way.
pub(crate) fn set_discovery(socket: &Socket, is_v6: bool, path_mtu: PathMtu) -> io::Result<()> {
    Discovery::of(path_mtu, is_v6).set(socket, is_v6)
}

/// Reports whether the sockets refuse datagrams that are longer than the MTU of their path.
pub(crate) fn refuses_too_long(path_mtu: PathMtu, destination: SocketAddr) -> bool {
    Discovery::of(path_mtu, destination.is_ipv6()) == Discovery::Do
}

/// Calls `send` while the socket sends datagrams in this way.
pub(crate) fn let_pass<T>(
    fd: BorrowedFd<'_>,
    destination: SocketAddr,
    passage: Passage,
    send: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let is_v6 = destination.is_ipv6();
    Discovery::for_passage(passage, is_v6).set(&fd, is_v6)?;
    let sent = send();
    Discovery::Do.set(&fd, is_v6)?;
    sent
}

/// What is known of paths on which the kernel refused datagrams.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    paths: HashMap<IpAddr, Path>,
}

#[derive(Debug)]
struct Path {
    state: State,
    until: Instant,
}

#[derive(Debug)]
enum State {
    /// A probe with IP packets of so many bytes is on its way; `None`: it could not be sent.
    Asked(Option<Probe>, usize),
    /// The path carries IP packets of so many bytes, as far as it was tried.
    Carries(usize),
    /// The path carries IP packets of so many bytes, and no longer ones.
    Limited { bytes: u16, reported: Option<Instant> },
}

impl Paths {
    /// Returns what to do with a transmit that the kernel refused.
    pub(crate) fn advise(&mut self, fd: BorrowedFd<'_>, transmit: &Transmit<'_>) -> Advice {
        let headers = if transmit.destination.is_ipv6() { 40 + 8 } else { 20 + 8 };
        let bytes = transmit.segment_size + headers;
        let send = || {
            let probe = Probe::send(fd, transmit);
            probe.inspect_err(|error| {
                tracing::debug!(destination = %transmit.destination, %error, "cannot ask for the MTU of a path");
            })
        };
        self.advise_at(transmit.destination.ip(), bytes, Instant::now(), || send().ok())
    }

    fn advise_at(
        &mut self,
        destination: IpAddr,
        bytes: usize,
        now: Instant,
        send: impl FnOnce() -> Option<Probe>,
    ) -> Advice {
        let path = self.paths.get_mut(&destination);
        if let Some(Path { state, until }) = path {
            if let State::Asked(probe, probed) = state {
                if let Some(mtu) = probe.as_ref().and_then(Probe::answer) {
                    (*state, *until) = (State::Limited { bytes: mtu, reported: None }, now + VALID_FOR);
                } else if *until <= now && probe.is_some() {
                    (*state, *until) = (State::Carries(*probed), now + VALID_FOR);
                }
            }
            if now < *until {
                match state {
                    State::Asked(..) => return Advice::IN_PIECES,
                    State::Carries(carried) if bytes <= *carried => {
                        return Advice { passage: Passage::Whole, mtu: None };
                    }
                    State::Carries(_) => {}
                    State::Limited { bytes: limit, .. } if bytes <= usize::from(*limit) => {
                        return Advice { passage: Passage::Whole, mtu: None };
                    }
                    State::Limited { bytes: limit, reported } => {
                        let is_due = reported.is_none_or(|reported| now - reported >= REPORT_EVERY);
                        if is_due {
                            *reported = Some(now);
                        }
                        return Advice { mtu: is_due.then_some(*limit), ..Advice::IN_PIECES };
                    }
                }
            }
        }
        if self.make_room(destination, now) {
            let probe = send();
            // A message of the device is there already.
            let answered = probe.as_ref().and_then(Probe::answer);
            let (state, until) = match answered {
                Some(mtu) => (State::Limited { bytes: mtu, reported: Some(now) }, now + VALID_FOR),
                None => (State::Asked(probe, bytes), now + ANSWER_WITHIN),
            };
            self.paths.insert(destination, Path { state, until });
            return Advice { mtu: answered, ..Advice::IN_PIECES };
        }
        Advice::IN_PIECES
    }

    /// Returns whether there is room for another probe.
    fn make_room(&mut self, destination: IpAddr, now: Instant) -> bool {
        if self.paths.len() >= CAPACITY && !self.paths.contains_key(&destination) {
            self.paths.clear();
        }
        let probes = |paths: &HashMap<_, Path>| {
            paths.values().filter(|path| matches!(path.state, State::Asked(Some(_), _))).count()
        };
        if probes(&self.paths) >= MAX_PROBES {
            // Paths on which nothing was sent any more.
            self.paths.retain(|_, path| now < path.until);
        }
        probes(&self.paths) < MAX_PROBES
    }
}

/// A datagram on its way, which the peer ignores, from a socket that is told of its loss.
#[derive(Debug)]
struct Probe(Socket);

impl Probe {
    /// Sends a datagram as long as those of a transmit, from the same source and with the same mark.
    fn send(fd: BorrowedFd<'_>, transmit: &Transmit<'_>) -> io::Result<Self> {
        let destination = transmit.destination;
        let socket = Socket::new(Domain::for_address(destination), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        let mark = get_option(&fd, libc::SOL_SOCKET, libc::SO_MARK)?;
        if mark != 0 {
            set_option(&socket, libc::SOL_SOCKET, libc::SO_MARK, mark)?;
        }
        let (level, report_errors) = if destination.is_ipv6() {
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        } else {
            (libc::IPPROTO_IP, libc::IP_RECVERR)
        };
        set_option(&socket, level, report_errors, 1)?;
        Discovery::Probe.set(&socket, destination.is_ipv6())?;
        if let Some(source) = transmit.source {
            let mut source = SocketAddr::new(source, 0);
            if let (SocketAddr::V6(source), SocketAddr::V6(to)) = (&mut source, destination) {
                // A link-local source is one of the link that the packets leave by.
                source.set_scope_id(to.scope_id());
            }
            socket.bind(&source.into())?;
        }
        socket.connect(&destination.into())?;
        // No message of WireGuard has the type 0.
        match socket.send(&vec![0; transmit.segment_size]) {
            Err(error) if error.raw_os_error() != Some(libc::EMSGSIZE) => Err(error),
            _ => Ok(Self(socket)),
        }
    }

    /// Returns the MTU that a router on the path, or the device, has reported.
    fn answer(&self) -> Option<u16> {
        let errors = std::iter::from_fn(|| next_error(&self.0)).take(MAX_ERRORS);
        errors.flatten().find_map(|error| {
            let mtu = u16::try_from(error.ee_info).ok().filter(|mtu| *mtu > 0);
            mtu.filter(|_| error.ee_errno == libc::EMSGSIZE.unsigned_abs())
        })
    }
}

/// Takes the next error of a socket (ip(7), IP_RECVERR). `None` if there is none; `Some(None)` if it cannot
/// be read.
fn next_error(socket: &Socket) -> Option<Option<libc::sock_extended_err>> {
    // An error comes with the address of its origin.
    let mut control = nix::cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut [], Some(&mut control), flags).ok()?;
    let Ok(mut messages) = received.cmsgs() else { return Some(None) };
    Some(messages.find_map(|message| match message {
        ControlMessageOwned::Ipv4RecvErr(error, _) | ControlMessageOwned::Ipv6RecvErr(error, _) => {
            Some(error)
        }
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_probes_are_bounded() {
        let (mut paths, now) = (Paths::default(), Instant::now());
        let socket = || Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
        let mut probes = 0;
        let mut ask = |paths: &mut Paths, number: u32, now| {
            paths.advise_at(IpAddr::from(number.to_be_bytes()), 1500, now, || {
                probes += 1;
                Some(Probe(socket()))
            })
        };
        for number in 0..100 {
            assert_eq!(ask(&mut paths, number, now), Advice::IN_PIECES);
        }
        // Nothing has come back.
        let later = now + ANSWER_WITHIN;
        assert_eq!(ask(&mut paths, 0, later), Advice { passage: Passage::Whole, mtu: None });
        assert_eq!(ask(&mut paths, 99, later), Advice::IN_PIECES, "it was not asked about before");
        assert_eq!(ask(&mut paths, 0, later + VALID_FOR), Advice::IN_PIECES, "it is asked about again");
        assert_eq!(probes, MAX_PROBES + 2);
        for number in 0..5000 {
            paths.advise_at(IpAddr::from(u32::to_be_bytes(number)), 1500, later, || None);
            assert!(paths.paths.len() <= CAPACITY);
        }
    }
}
