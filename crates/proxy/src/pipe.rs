//! Connections of tests: pipes in memory.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::watch;
use weft_network::{Connection, Later};

/// One end of a pipe, with what was read from it and whether it was aborted.
pub(crate) struct End {
    pipe: DuplexStream,
    seen: Arc<Seen>,
}

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) read: AtomicUsize,
    pub(crate) aborted: AtomicBool,
    /// The next read fails.
    pub(crate) is_broken: AtomicBool,
    /// What the connection says of its end.
    pub(crate) ended: watch::Sender<bool>,
    pub(crate) failed: watch::Sender<bool>,
}

/// Returns an end for the relay, what it sees, and the other end. The pipe holds `capacity` bytes each way.
pub(crate) fn end(capacity: usize) -> (Box<dyn Connection>, Arc<Seen>, DuplexStream) {
    let (pipe, other) = tokio::io::duplex(capacity);
    let seen = Arc::<Seen>::default();
    (Box::new(End { pipe, seen: Arc::clone(&seen) }), seen, other)
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.pipe).poll_read(cx, into))?;
        if self.seen.is_broken.load(Relaxed) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        self.seen.read.fetch_add(into.filled().len() - before, Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}

impl Connection for End {
    fn local_addr(&self) -> Option<SocketAddr> {
        None
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        None
    }

    fn abort(&self) {
        self.seen.aborted.store(true, Relaxed);
    }

    fn ended(&self) -> Later<'static, ()> {
        is_true(&self.seen.ended)
    }

    fn failed(&self) -> Later<'static, ()> {
        is_true(&self.seen.failed)
    }
}

fn is_true(told: &watch::Sender<bool>) -> Later<'static, ()> {
    let mut told = told.subscribe();
    Box::pin(async move {
        if told.wait_for(|told| *told).await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}
