//! Lists of the kernel. A list comes in parts, and may change between them: it then lacks what moved to a
//! part that was read already. The kernel says so (NLM_F_DUMP_INTR), and the list is read again.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::BufMut;
use futures_util::{Stream, TryStreamExt as _};
use rtnetlink::Handle;
use rtnetlink::packet_core::{NLM_F_DUMP_INTR, NetlinkBuffer};
use rtnetlink::sys::{AsyncSocket, Socket, SocketAddr, TokioSocket};

use super::{Failure, Netlink};

/// How often a list is read at most that changes each time.
const ATTEMPTS: usize = 16;
/// The largest datagram of netlink messages that the kernel makes, in bytes.
const DATAGRAM: usize = 64 << 10;

/// How many datagrams said that the list which they belong to has changed.
pub(super) type Interruptions = Arc<AtomicU64>;

/// A socket that also reads what the crate keeps to itself: whether a list has changed. This may be in the
/// message that ends the list.
pub(super) struct ListSocket {
    socket: TokioSocket,
    datagram: Mutex<Vec<u8>>,
    interruptions: Interruptions,
}

impl ListSocket {
    pub(super) fn new(socket: TokioSocket, interruptions: Interruptions) -> Self {
        Self { socket, datagram: Mutex::new(Vec::with_capacity(DATAGRAM)), interruptions }
    }
}

impl AsyncSocket for ListSocket {
    fn socket_ref(&self) -> &Socket {
        self.socket.socket_ref()
    }

    fn socket_mut(&mut self) -> &mut Socket {
        self.socket.socket_mut()
    }

    fn new(protocol: isize) -> io::Result<Self> {
        Ok(Self::new(TokioSocket::new(protocol)?, Interruptions::default()))
    }

    fn poll_send(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.socket.poll_send(cx, buf)
    }

    fn poll_send_to(&self, cx: &mut Context<'_>, buf: &[u8], to: &SocketAddr) -> Poll<io::Result<usize>> {
        self.socket.poll_send_to(cx, buf, to)
    }

    fn poll_recv<B: BufMut>(&self, cx: &mut Context<'_>, buf: &mut B) -> Poll<io::Result<()>> {
        self.poll_recv_from(cx, buf).map_ok(|_| ())
    }

    fn poll_recv_from<B: BufMut>(&self, cx: &mut Context<'_>, buf: &mut B) -> Poll<io::Result<SocketAddr>> {
        let mut datagram = self.datagram.lock().unwrap_or_else(PoisonError::into_inner);
        datagram.clear();
        let from = ready!(self.socket.poll_recv_from(cx, &mut *datagram))?;
        if says_that_a_list_changed(&datagram) {
            self.interruptions.fetch_add(1, Ordering::Relaxed);
        }
        buf.put_slice(&datagram);
        Poll::Ready(Ok(from))
    }

    fn poll_recv_from_full(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Vec<u8>, SocketAddr)>> {
        let mut datagram = Vec::with_capacity(DATAGRAM);
        self.poll_recv_from(cx, &mut datagram).map_ok(|from| (datagram, from))
    }
}

fn says_that_a_list_changed(datagram: &[u8]) -> bool {
    let mut rest = datagram;
    while let Ok(message) = NetlinkBuffer::new_checked(rest) {
        if message.flags() & NLM_F_DUMP_INTR != 0 {
            return true;
        }
        let next = (message.length() as usize).next_multiple_of(4);
        rest = rest.get(next..).unwrap_or_default();
    }
    false
}

impl Netlink {
    /// Reads a list, and adds each message to what is returned. It is read again, into an empty one, if it
    /// changes meanwhile. One that does not come to rest may lack entries, which is logged.
    pub(super) fn read<T, L: Default, S>(
        &self,
        request: impl Fn(Handle) -> S,
        mut add: impl FnMut(&mut L, T),
    ) -> Result<L, Failure>
    where
        S: Stream<Item = Result<T, rtnetlink::Error>>,
    {
        let mut attempts = 1;
        loop {
            let before = self.interruptions.load(Ordering::Relaxed);
            let mut list = L::default();
            let mut messages = pin!(request(self.handle()));
            // The time of a long list has no limit, only that of each message.
            while let Some(message) = self.wait(messages.try_next())? {
                add(&mut list, message);
            }
            if self.interruptions.load(Ordering::Relaxed) == before {
                return Ok(list);
            }
            if attempts == ATTEMPTS {
                tracing::warn!(
                    "a list of addresses, routes or rules changed each of the {ATTEMPTS} times that it was read: \
                     it may lack entries"
                );
                return Ok(list);
            }
            attempts += 1;
        }
    }
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
