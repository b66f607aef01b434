//! Watches the network on Linux: netlink reports addresses, routes, rules and links, and a timer reports
//! sleep.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use rtnetlink::MulticastGroup;
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{Socket, SocketAddr as NetlinkAddr};

use self::sleep::{Jump, SleepTimer};
use super::{NetworkChange, WatchError};
use crate::routes::Link;

#[path = "linux/events.rs"]
mod events;
#[path = "linux/sleep.rs"]
mod sleep;
#[path = "linux/way.rs"]
mod way;

pub use events::Observer;
pub use way::way_to;

const GROUPS: [MulticastGroup; 7] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
];
/// The size of the receive buffer in bytes. It holds some thousand messages, as when a routing daemon starts.
const RECEIVE_BUFFER: usize = 1 << 20;
/// The largest datagram of netlink messages that the kernel makes, in bytes.
const DATAGRAM: usize = 64 << 10;
/// The number of datagrams that are read before the other descriptors are handled.
const DATAGRAMS_A_TURN: usize = 1024;

fn open_netlink() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    // A failure is ignored: with a smaller buffer, more events may be lost.
    let _ = socket.set_rx_buf_sz(RECEIVE_BUFFER as libc::c_int);
    socket.set_non_blocking(true)?;
    let groups = GROUPS.iter().fold(0, |groups, group| groups | 1 << (*group as u32 - 1));
    socket.bind(&NetlinkAddr::new(0, groups))?;
    Ok(socket)
}

/// A netlink socket, and a clock.
pub(super) struct Source {
    socket: Socket,
    sleep: SleepTimer,
    observer: Observer,
    datagram: Vec<u8>,
}

impl Source {
    pub(super) fn open(device: Option<&Link>) -> Result<Self, WatchError> {
        let refused = |what| move |source| WatchError::Refused { what, source };
        Ok(Self {
            socket: open_netlink().map_err(refused("listen to netlink"))?,
            sleep: SleepTimer::new().map_err(refused("watch the clock"))?,
            observer: Observer::new(device),
            datagram: Vec::with_capacity(DATAGRAM),
        })
    }

    /// Returns the descriptors to wait for: of netlink and of the clock.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        // SAFETY: the socket is open as long as `self` is borrowed.
        let netlink = unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) };
        [netlink, self.sleep.as_fd()]
    }

    /// Reads what is pending; `ready` says which of the descriptors are readable.
    pub(super) fn read(&mut self, ready: &[bool], mut note: impl FnMut(NetworkChange)) -> io::Result<()> {
        let &[netlink, clock] = ready else { return Ok(()) };
        if clock {
            let Jump { slept, set_forward } = self.sleep.jumped();
            note(NetworkChange { slept, clock_set_forward: set_forward, ..NetworkChange::default() });
        }
        if !netlink {
            return Ok(());
        }
        for _ in 0..DATAGRAMS_A_TURN {
            self.datagram.clear();
            match self.socket.recv_from(&mut self.datagram, 0) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                // Any process may send to the socket; only the kernel has port number 0.
                Ok((_, from)) if from.port_number() != 0 => {}
                Ok(_) => {
                    note(self.observer.read(&self.datagram));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    // A rule of the tunnel may be among what was lost.
                    note(NetworkChange { missed: true, rules_removed: true, ..NetworkChange::default() });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "linux/tests.rs"]
mod tests;
