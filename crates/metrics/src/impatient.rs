//! A connection that ends when its client stops reading, so that the answer is not kept in memory for it, and
//! that reports to its place what the client is expected to do next.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use weft_ipc::Place;

/// How long a client may read nothing of what is sent to it.
const STUCK: Duration = Duration::from_secs(5);

/// A stream with a time limit for blocked writes.
pub(super) struct Impatient<S> {
    stream: S,
    /// The timer of a blocked write.
    stuck: Option<Pin<Box<Sleep>>>,
    place: Arc<Place>,
    /// Whether something was written since the last flush.
    is_writing: bool,
}

impl<S> Impatient<S> {
    pub(super) fn new(stream: S, place: Arc<Place>) -> Self {
        Self { stream, stuck: None, place, is_writing: false }
    }

    fn wrote(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if outcome.is_ready() {
            self.is_writing = true;
            self.place.expect_progress();
        }
        self.judge(cx, outcome)
    }

    fn judge<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stuck = None;
            return outcome;
        }
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(STUCK)));
        ready!(stuck.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.wrote(cx, outcome)
    }

    /// Like the inner stream: avoids copying a long answer.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        // hyper flushes a connection when it has written a whole answer, and in between without need.
        if outcome.is_ready() && std::mem::take(&mut self.is_writing) {
            self.place.expect_request();
        }
        self.judge(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
