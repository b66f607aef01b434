//! TCP connections, as tokio has them.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weft_endpoint::{BindError, Chunk, ConnectError, Endpoint, ListenerId, StreamError, StreamId};
use weft_network::{Connection, Later, Listener};

use crate::shared::Shared;

/// A TCP connection. Dropping it is close(2): what was written is still sent.
pub struct TcpStream {
    shared: Arc<Shared>,
    id: StreamId,
    /// What was taken out of the endpoint and not read.
    reading: Option<Chunk>,
    is_at_end: bool,
    is_aborted: AtomicBool,
}

impl TcpStream {
    pub(crate) async fn connect(shared: Arc<Shared>, to: SocketAddr) -> io::Result<Self> {
        let id = shared.call(|state| {
            let id = state.endpoint.connect(to, Instant::now()).map_err(connect_error)?;
            state.streams.add(id);
            io::Result::Ok(id)
        })?;
        // A task that gives up drops the stream.
        let stream = Self::new(shared, id);
        poll_fn(|cx| {
            let settled =
                |outcome: Option<Result<(), StreamError>>| outcome.transpose().map_err(stream_error);
            stream.shared.poll(
                cx,
                |state| settled(state.streams.of(id).and_then(|slot| slot.outcome)),
                |state| state.streams.of(id).map(|slot| &mut slot.write),
            )
        })
        .await?;
        Ok(stream)
    }

    fn new(shared: Arc<Shared>, id: StreamId) -> Self {
        Self { shared, id, reading: None, is_at_end: false, is_aborted: AtomicBool::new(false) }
    }

    fn watch(&self, has_come: fn(&Endpoint, StreamId) -> bool) -> Later<'static, ()> {
        let (shared, id) = (Arc::clone(&self.shared), self.id);
        Box::pin(poll_fn(move |cx| shared.poll_watch(cx, id, has_come)))
    }

    /// Takes the next bytes out of the endpoint, and keeps them to be read. If nothing is there, `cx` is
    /// woken when there is.
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (id, emptied) = (self.id, self.reading.take());
        let chunk = ready!(self.shared.poll(
            cx,
            |state| {
                emptied.into_iter().for_each(|chunk| state.endpoint.give_back(chunk));
                state.endpoint.take(id, Instant::now()).map_err(stream_error)
            },
            |state| state.streams.of(id).map(|slot| &mut slot.read),
        ))?;
        self.is_at_end = chunk.is_empty();
        self.reading = Some(chunk).filter(|chunk| !chunk.is_empty());
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        loop {
            if let Some(chunk) = &mut this.reading {
                let count = chunk.len().min(into.remaining());
                into.put_slice(&chunk.bytes()[..count]);
                chunk.advance(count);
            }
            if into.remaining() == 0 || this.is_at_end {
                return Poll::Ready(Ok(()));
            }
            match this.poll_take(cx) {
                Poll::Ready(Ok(())) => {}
                // What was read before is returned first.
                _ if into.filled().len() > before => return Poll::Ready(Ok(())),
                other => return other,
            }
        }
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let id = self.id;
        let mut chunk = ready!(self.shared.poll(
            cx,
            |state| state.endpoint.reserve(id).map_err(stream_error),
            |state| state.streams.of(id).map(|slot| &mut slot.write),
        ))?;
        let count = chunk.fill(data);
        self.shared.call(|state| state.endpoint.put(id, chunk, Instant::now())).map_err(stream_error)?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.call(|state| state.endpoint.finish(self.id, Instant::now()));
        Poll::Ready(Ok(()))
    }
}

impl Connection for TcpStream {
    fn local_addr(&self) -> Option<SocketAddr> {
        self.shared.lock().endpoint.addresses(self.id).map(|(local, _)| local)
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        self.shared.lock().endpoint.addresses(self.id).map(|(_, peer)| peer)
    }

    fn abort(&self) {
        self.is_aborted.store(true, Relaxed);
    }

    fn ended(&self) -> Later<'static, ()> {
        self.watch(Endpoint::has_ended)
    }

    fn failed(&self) -> Later<'static, ()> {
        self.watch(Endpoint::has_failed)
    }

    fn give_up_after(&self, time: Duration) {
        self.shared.call(|state| state.endpoint.give_up_after(self.id, time, Instant::now()));
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        // As close(2): the peer learns that bytes were not read.
        let has_unread = self.reading.as_ref().is_some_and(|chunk| !chunk.is_empty());
        let is_aborted = self.is_aborted.load(Relaxed) || has_unread;
        let (id, chunk) = (self.id, self.reading.take());
        let watchers = self.shared.call(|state| {
            let watchers = state.streams.remove(id);
            chunk.into_iter().for_each(|chunk| state.endpoint.give_back(chunk));
            let now = Instant::now();
            if is_aborted {
                state.endpoint.reset(id, now);
            } else {
                state.endpoint.release(id, now);
            }
            watchers
        });
        watchers.into_iter().for_each(Waker::wake);
    }
}

/// Accepts TCP connections.
pub struct TcpListener {
    shared: Arc<Shared>,
    id: ListenerId,
    on_accept: Box<dyn Fn() + Send + Sync>,
    /// Held by the task that waits for a connection.
    turn: tokio::sync::Mutex<()>,
}

impl TcpListener {
    /// `on_accept` is called for each connection.
    pub(crate) fn bind(
        shared: Arc<Shared>,
        at: SocketAddr,
        backlog: u16,
        on_accept: Box<dyn Fn() + Send + Sync>,
    ) -> io::Result<Self> {
        let id = shared.call(|state| {
            let id = state.endpoint.listen(at, backlog).map_err(bind_error)?;
            state.listeners.add(id);
            io::Result::Ok(id)
        })?;
        Ok(Self { shared, id, on_accept, turn: tokio::sync::Mutex::default() })
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// The tunnel has ended.
    pub async fn accept(&self) -> io::Result<TcpStream> {
        // Tasks that wait at once have their turn one after the other.
        let _turn = self.turn.lock().await;
        let id = self.id;
        let accept = |cx: &mut Context<'_>| {
            self.shared.poll(
                cx,
                |state| {
                    let accepted = state.endpoint.accept(id);
                    accepted.into_iter().for_each(|stream| state.streams.add(stream));
                    Ok(accepted)
                },
                |state| state.listeners.of(id).map(|slot| &mut slot.read),
            )
        };
        let stream = poll_fn(accept).await?;
        (self.on_accept)();
        Ok(TcpStream::new(Arc::clone(&self.shared), stream))
    }
}

impl Listener for TcpListener {
    fn accept(&self) -> Later<'_, io::Result<Box<dyn Connection>>> {
        Box::pin(async move {
            let connection: Box<dyn Connection> = Box::new(Self::accept(self).await?);
            Ok(connection)
        })
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.shared.lock().endpoint.listener_address(self.id)
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.shared.call(|state| {
            state.listeners.remove(self.id);
            state.endpoint.release_listener(self.id, Instant::now());
        });
    }
}

fn stream_error(error: StreamError) -> io::Error {
    let kind = match error {
        StreamError::Refused => io::ErrorKind::ConnectionRefused,
        StreamError::Reset => io::ErrorKind::ConnectionReset,
        StreamError::TimedOut => io::ErrorKind::TimedOut,
        StreamError::Unreachable => io::ErrorKind::HostUnreachable,
        StreamError::Finished => io::ErrorKind::BrokenPipe,
        StreamError::Closed => io::ErrorKind::NotConnected,
        StreamError::GaveWay => io::ErrorKind::ConnectionAborted,
    };
    io::Error::new(kind, error)
}

fn connect_error(error: ConnectError) -> io::Error {
    let kind = match error {
        ConnectError::NoAddress => io::ErrorKind::NetworkUnreachable,
        ConnectError::InvalidDestination => io::ErrorKind::InvalidInput,
        ConnectError::NoPort | ConnectError::TooMany => io::ErrorKind::AddrNotAvailable,
    };
    io::Error::new(kind, error)
}

pub(crate) fn bind_error(error: BindError) -> io::Error {
    let kind = match error {
        BindError::NoAddress => io::ErrorKind::AddrNotAvailable,
        BindError::InUse | BindError::NoPort => io::ErrorKind::AddrInUse,
    };
    io::Error::new(kind, error)
}
