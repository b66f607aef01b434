//! Watches the network on Linux: netlink reports addresses, routes, rules and links, and a timer reports
//! sleep.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{Socket, SocketAddr as NetlinkAddr};
use weft_tun::thread_guard::EndProcessOnPanic;

use self::events::Observer;
use self::sleep::{Jump, SleepTimer};
use super::coalesce::Coalescer;
use super::{Change, WatchError};
use crate::routes::Link;

#[path = "linux/events.rs"]
mod events;
#[path = "linux/sleep.rs"]
mod sleep;
#[path = "linux/way.rs"]
mod way;

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
const DATAGRAMS_A_TURN: usize = 64;

/// A thread that watches the network until it is dropped.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches the network namespace of this thread from now on. `device` is weft's device: changes of its
    /// routes and addresses are not reported. `on_change` is called on the watching thread, at most once in
    /// 200 ms, and at most a second after the change; it should only pass the change on.
    pub fn start(
        device: Option<&Link>,
        on_change: impl FnMut(Change) + Send + 'static,
    ) -> Result<Self, WatchError> {
        let refused = |what| move |source| WatchError::Refused { what, source };
        let socket = open_netlink().map_err(refused("listen to netlink"))?;
        let sleep = SleepTimer::new().map_err(refused("watch the clock"))?;
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let stop = Arc::new(stop.map_err(io::Error::from).map_err(refused("make an eventfd"))?);
        let watching = Watching {
            socket,
            sleep,
            stop: Arc::clone(&stop),
            observer: Observer::new(device),
            coalescer: Coalescer::default(),
            datagram: Vec::with_capacity(DATAGRAM),
        };
        let thread = std::thread::Builder::new()
            .name("weft-network".to_owned())
            .spawn(move || {
                let _guard = EndProcessOnPanic;
                watching.run(on_change);
            })
            .map_err(refused("start a thread"))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The write fails only if the counter is full, and then the thread is ending already.
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // The guard ends the process on a panic, so there is none to pass on.
            let _ = thread.join();
        }
    }
}

fn open_netlink() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    // A failure is ignored: with a smaller buffer, more events may be lost.
    let _ = socket.set_rx_buf_sz(RECEIVE_BUFFER as libc::c_int);
    socket.set_non_blocking(true)?;
    let groups = GROUPS.iter().fold(0, |groups, group| groups | 1 << (*group as u32 - 1));
    socket.bind(&NetlinkAddr::new(0, groups))?;
    Ok(socket)
}

struct Watching {
    socket: Socket,
    sleep: SleepTimer,
    stop: Arc<EventFd>,
    observer: Observer,
    coalescer: Coalescer,
    datagram: Vec<u8>,
}

impl Watching {
    fn run(mut self, mut on_change: impl FnMut(Change)) {
        loop {
            let [netlink, clock, stop] = match self.wait() {
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                Err(error) => {
                    tracing::warn!(%error, "cannot watch the network any more");
                    return;
                }
            };
            if stop {
                return;
            }
            if clock {
                let Jump { slept, set_forward } = self.sleep.jumped();
                let change = Change { slept, clock_set_forward: set_forward, ..Change::default() };
                self.coalescer.note(change, Instant::now());
            }
            if netlink && let Err(error) = self.read() {
                tracing::warn!(%error, "cannot listen to netlink any more: network changes go unnoticed");
                return;
            }
            if let Some(change) = self.coalescer.take(Instant::now()) {
                tracing::debug!(?change, "the network changed");
                on_change(change);
            }
        }
    }

    /// Waits for an event, or until a change is to be reported. Returns which descriptors are ready: netlink,
    /// the clock, the end.
    fn wait(&self) -> Result<[bool; 3], Errno> {
        // SAFETY: the socket is open as long as `self` is borrowed.
        let netlink = unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) };
        let mut fds =
            [netlink, self.sleep.as_fd(), self.stop.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let timeout = match self.coalescer.due() {
            None => PollTimeout::NONE,
            Some(due) => {
                // Rounded up, so as not to come back too early.
                let millis = due.saturating_duration_since(Instant::now()).as_millis() + 1;
                PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
            }
        };
        poll(&mut fds, timeout)?;
        Ok(fds.map(|fd| fd.revents().is_some_and(|events| !events.is_empty())))
    }

    /// Reads the pending netlink messages.
    fn read(&mut self) -> io::Result<()> {
        for _ in 0..DATAGRAMS_A_TURN {
            self.datagram.clear();
            match self.socket.recv_from(&mut self.datagram, 0) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                // Any process may send to the socket; only the kernel has port number 0.
                Ok((_, from)) if from.port_number() != 0 => {}
                Ok(_) => {
                    let change = self.parse();
                    self.coalescer.note(change, Instant::now());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.coalescer.note(Change { missed: true, ..Change::default() }, Instant::now());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn parse(&mut self) -> Change {
        let mut change = Change::default();
        let mut rest = self.datagram.as_slice();
        while let Some(len) = rest.first_chunk::<4>().map(|len| u32::from_ne_bytes(*len) as usize) {
            match NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) {
                Ok(message) => {
                    if let NetlinkPayload::InnerMessage(message) = message.payload {
                        change.add(self.observer.see(&message));
                    }
                }
                // The kernel may be newer than the library.
                Err(error) => {
                    tracing::debug!(%error, "unknown message from netlink");
                    change.missed = true;
                }
            }
            let Some(next) = len.checked_next_multiple_of(4).filter(|len| *len > 0) else { break };
            rest = rest.get(next..).unwrap_or_default();
        }
        change
    }
}

#[cfg(test)]
#[path = "linux/tests.rs"]
mod tests;
