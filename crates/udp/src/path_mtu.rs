//! Datagrams that are longer than the MTU of their path, when DF is set: they are sent in fragments, and the
//! MTU of the path is looked up, so that the next datagrams are shorter.
//!
//! Only datagrams that the kernel refused come here. The kernel knows the MTU of a path from the route, the
//! device, and the ICMP messages that came back from the path. The lookup sends nothing and changes no other
//! socket.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use libc::c_int;
use socket2::{Domain, Protocol, Socket, Type};
use weft_tunnel::Transmit;

use super::PathMtu;
use super::sockopt::{get_option, set_option};

/// Minimum time between two lookups of one path. A learned MTU applies to the next packet already.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of paths with a known time of lookup. Beyond it all are forgotten, which costs a lookup
/// each.
const CAPACITY: usize = 1024;

impl PathMtu {
    /// Returns the level, the name and the value of the option IP_MTU_DISCOVER or IPV6_MTU_DISCOVER.
    ///
    /// `On` is IP_PMTUDISC_DO: it sets DF, and refuses datagrams that the path is known not to carry. The
    /// refusal shows weft that they are too long. IP_PMTUDISC_PROBE would send them all the same, and
    /// IP_PMTUDISC_WANT would fragment them silently.
    pub(crate) fn option(self, is_v6: bool) -> (c_int, c_int, c_int) {
        match (self, is_v6) {
            (Self::Off, false) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT),
            (Self::On, false) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
            (Self::Off, true) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT),
            (Self::On, true) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
        }
    }
}

/// Calls `send` with DF clear, so that the kernel may fragment the datagrams.
pub(crate) fn in_pieces<T>(
    fd: BorrowedFd<'_>,
    destination: SocketAddr,
    send: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let set = |path_mtu: PathMtu| {
        let (level, name, value) = path_mtu.option(destination.is_ipv6());
        set_option(&fd, level, name, value)
    };
    set(PathMtu::Off)?;
    let sent = send();
    set(PathMtu::On)?;
    sent
}

/// The time of the last lookup of each path.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    asked: HashMap<IpAddr, Instant>,
}

impl Questions {
    /// Returns the MTU of the path of a transmit, if it is smaller than the datagrams and was not looked up
    /// within the last second ([`ASK_EVERY`]).
    pub(crate) fn path_mtu(&mut self, fd: BorrowedFd<'_>, transmit: &Transmit<'_>) -> Option<u16> {
        let destination = transmit.destination;
        if !self.may_ask(destination.ip(), Instant::now()) {
            return None;
        }
        match mtu_towards(fd, transmit) {
            Ok(mtu) => {
                let headers = if destination.is_ipv6() { 40 + 8 } else { 20 + 8 };
                let mtu = u16::try_from(mtu).ok()?;
                (transmit.segment_size + headers > usize::from(mtu)).then_some(mtu)
            }
            Err(error) => {
                tracing::debug!(%destination, %error, "cannot ask for the MTU of a path");
                None
            }
        }
    }

    fn may_ask(&mut self, destination: IpAddr, now: Instant) -> bool {
        if self.asked.get(&destination).is_some_and(|asked| now.duration_since(*asked) < ASK_EVERY) {
            return false;
        }
        if self.asked.len() >= CAPACITY {
            self.asked.clear();
        }
        self.asked.insert(destination, now);
        true
    }
}

/// Looks up the MTU of a path in the kernel, with a separate socket that is connected and never sends.
fn mtu_towards(fd: BorrowedFd<'_>, transmit: &Transmit<'_>) -> io::Result<c_int> {
    let destination = transmit.destination;
    let socket = Socket::new(Domain::for_address(destination), Type::DGRAM, Some(Protocol::UDP))?;
    // The lookup is routed with the same mark as the packets.
    let mark = get_option(&fd, libc::SOL_SOCKET, libc::SO_MARK)?;
    if mark != 0 {
        set_option(&socket, libc::SOL_SOCKET, libc::SO_MARK, mark)?;
    }
    if let Some(source) = transmit.source {
        let mut source = SocketAddr::new(source, 0);
        if let (SocketAddr::V6(source), SocketAddr::V6(to)) = (&mut source, destination) {
            // A link-local source is one of the link that the packets leave by.
            source.set_scope_id(to.scope_id());
        }
        socket.bind(&source.into())?;
    }
    socket.connect(&destination.into())?;
    let (level, name) = if destination.is_ipv6() {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU)
    };
    get_option(&socket, level, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_asked_about_once_a_second_and_the_table_is_bounded() {
        let (mut questions, now) = (Questions::default(), Instant::now());
        let path = |number: u32| IpAddr::from(number.to_be_bytes());
        assert!(questions.may_ask(path(1), now));
        assert!(!questions.may_ask(path(1), now + ASK_EVERY / 2));
        assert!(questions.may_ask(path(2), now));
        assert!(questions.may_ask(path(1), now + ASK_EVERY));
        for number in 0..5000 {
            questions.may_ask(path(number), now);
            assert!(questions.asked.len() <= CAPACITY);
        }
    }
}
