//! The connection to a server, and a bound for its informational answers (RFC 9110, section 15.2).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::ext::on_informational;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weft_network::Connection;

use super::Refusal;
use super::buffers::Buffers;
use crate::destination::Destination;
use crate::gone::LINGER;

/// Informational answers to one request. A server has a reason for two: 100 to a request that expects it, and
/// 103. They are not passed on, so without a bound one server keeps the thread busy while no client sees any
/// of it.
pub(super) const MAX_INFORMATIONAL: usize = 16;

/// A connection to a server, for one request at a time.
pub(super) struct Upstream {
    pub(super) destination: Destination,
    pub(super) sender: SendRequest<Incoming>,
    /// Informational answers to the last request.
    informational: Arc<AtomicUsize>,
}

impl Upstream {
    pub(super) async fn open(
        destination: Destination,
        remote: Box<dyn Connection>,
        buffers: Buffers,
    ) -> Result<Self, Refusal> {
        let informational = Arc::<AtomicUsize>::default();
        let remote = Bounded { remote, informational: Arc::clone(&informational) };
        let mut builder = Builder::new();
        builder.preserve_header_case(true).max_buf_size(buffers.bytes).max_header_size(buffers.bytes);
        match builder.handshake(TokioIo::new(remote)).await {
            Ok((sender, connection)) => {
                // Ends with its sender and its last answer.
                tokio::spawn(async move {
                    // The client of the proxy sees it.
                    let _ = connection.await;
                    drop(buffers);
                });
                Ok(Self { destination, sender, informational })
            }
            Err(error) => Err(Refusal::Server(destination, error)),
        }
    }

    /// Begins to count the informational answers to a request that is sent next.
    pub(super) fn count_for(&self, request: &mut Request<Incoming>) {
        self.informational.store(0, Relaxed);
        let informational = Arc::clone(&self.informational);
        on_informational(request, move |_| {
            informational.fetch_add(1, Relaxed);
        });
    }

    /// Reports whether the server has sent more informational answers than are accepted.
    pub(super) fn is_over_limit(&self) -> bool {
        self.informational.load(Relaxed) > MAX_INFORMATIONAL
    }

    /// Says why a request has no answer.
    pub(super) fn refusal(&self, error: hyper::Error) -> Refusal {
        let destination = self.destination.clone();
        if self.is_over_limit() {
            Refusal::Informational(destination)
        } else {
            Refusal::Server(destination, error)
        }
    }
}

/// A connection that is not read any more after too many informational answers. hyper skips them in a loop
/// that only the end of what can be read interrupts.
struct Bounded {
    remote: Box<dyn Connection>,
    informational: Arc<AtomicUsize>,
}

impl Drop for Bounded {
    fn drop(&mut self) {
        // What the server has not taken by now is of a request that was given up.
        self.remote.give_up_after(LINGER);
    }
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.informational.load(Relaxed) > MAX_INFORMATIONAL {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        Pin::new(&mut self.remote).poll_read(cx, into)
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.remote).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.remote).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.remote.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.remote).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.remote).poll_shutdown(cx)
    }
}
