//! Connections of a client and of its remote, of which its place is told what moves. While a receiver takes
//! nothing, its sender is not read, and the end of a sender that closes stays behind what it has sent. So the
//! end is no measure there: who needs a place takes that of a client for which nothing has moved.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weft_ipc::Place;
use weft_network::{Connection, Later};

pub(crate) struct Moves {
    connection: Box<dyn Connection>,
    place: Arc<Place>,
    /// It is the client's: whoever has it holds bytes while something was read and no more is asked for, or
    /// while the client takes nothing.
    is_client: bool,
    has_unread: bool,
    has_unsent: bool,
}

impl Moves {
    pub(crate) fn of_client(connection: Box<dyn Connection>, place: &Arc<Place>) -> Box<dyn Connection> {
        place.moved();
        Box::new(Self::new(connection, place, true))
    }

    pub(crate) fn of_remote(connection: Box<dyn Connection>, place: &Arc<Place>) -> Box<dyn Connection> {
        Box::new(Self::new(connection, place, false))
    }

    fn new(connection: Box<dyn Connection>, place: &Arc<Place>, is_client: bool) -> Self {
        Self { connection, place: Arc::clone(place), is_client, has_unread: false, has_unsent: false }
    }

    fn tell(&self, has_moved: bool) {
        if self.is_client {
            self.place.hold(self.has_unread || self.has_unsent);
        }
        if has_moved {
            self.place.moved();
        }
    }

    fn wrote(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.has_unsent = written.is_pending();
        self.tell(matches!(written, Poll::Ready(Ok(1..))));
        written
    }
}

impl AsyncRead for Moves {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.connection).poll_read(cx, into);
        self.has_unread = into.filled().len() > before;
        self.tell(self.has_unread);
        read
    }
}

impl AsyncWrite for Moves {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write(cx, data);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write_vectored(cx, data);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

impl Connection for Moves {
    fn local_addr(&self) -> Option<SocketAddr> {
        self.connection.local_addr()
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        self.connection.peer_addr()
    }

    fn abort(&self) {
        self.connection.abort();
    }

    fn ended(&self) -> Later<'static, ()> {
        self.connection.ended()
    }

    fn failed(&self) -> Later<'static, ()> {
        self.connection.failed()
    }

    fn give_up_after(&self, time: Duration) {
        self.connection.give_up_after(time);
    }
}
