//! Streams of the kernel, whose end can be waited for beside whatever has them.

use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::time::sleep;

use crate::network::{Connection, Later};

/// A connection over a socket of the kernel. What waits for its end has a share in the socket.
#[derive(Debug)]
pub struct Stream<S>(Arc<S>);

impl<S> From<S> for Stream<S> {
    fn from(socket: S) -> Self {
        Self(Arc::new(socket))
    }
}

/// What the end of a stream makes ready, and unread data does not: EPOLLRDHUP.
#[cfg(any(target_os = "linux", target_os = "android"))]
const END: Interest = Interest::PRIORITY;
/// Elsewhere unread data hides the end, which is then looked for again and again.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const END: Interest = Interest::READABLE;
const LOOK_AGAIN: Duration = Duration::from_secs(1);

macro_rules! connection {
    ($socket:ty, $address:expr, $abort:expr, $give_up_after:expr) => {
        impl AsyncRead for Stream<$socket> {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                into: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                loop {
                    ready!(self.0.poll_read_ready(cx))?;
                    if let Some(read) = unless_blocked(self.0.try_read_buf(into)) {
                        return Poll::Ready(read.map(drop));
                    }
                }
            }
        }

        impl AsyncWrite for Stream<$socket> {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                data: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.poll_write_vectored(cx, &[IoSlice::new(data)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                data: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                loop {
                    ready!(self.0.poll_write_ready(cx))?;
                    if let Some(written) = unless_blocked(self.0.try_write_vectored(data)) {
                        return Poll::Ready(written);
                    }
                }
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
            }
        }

        impl Connection for Stream<$socket> {
            fn local_addr(&self) -> Option<SocketAddr> {
                let address: fn(io::Result<_>) -> _ = $address;
                address(self.0.local_addr())
            }

            fn peer_addr(&self) -> Option<SocketAddr> {
                let address: fn(io::Result<_>) -> _ = $address;
                address(self.0.peer_addr())
            }

            fn abort(&self) {
                let abort: fn(&SockRef<'_>) = $abort;
                abort(&SockRef::from(&*self.0));
            }

            fn ended(&self) -> Later<'static, ()> {
                let socket = Arc::clone(&self.0);
                Box::pin(async move {
                    while let Ok(ready) = socket.ready(END).await
                        && !ready.is_read_closed()
                    {
                        sleep(LOOK_AGAIN).await;
                    }
                })
            }

            fn failed(&self) -> Later<'static, ()> {
                let socket = Arc::clone(&self.0);
                // An error of its own means the same.
                Box::pin(async move { drop(socket.ready(Interest::ERROR).await) })
            }

            fn give_up_after(&self, time: Duration) {
                let give_up_after: fn(&SockRef<'_>, Duration) = $give_up_after;
                give_up_after(&SockRef::from(&*self.0), time);
            }
        }
    };
}

fn unless_blocked<T>(done: io::Result<T>) -> Option<io::Result<T>> {
    Some(done).filter(|done| !done.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock))
}

connection!(
    TcpStream,
    Result::ok,
    // Without it the other end sees the end of the stream, which is still better than nothing.
    |socket| drop(socket.set_linger(Some(Duration::ZERO))),
    give_up_after
);

#[cfg(unix)]
connection!(
    UnixStream,
    |_: io::Result<tokio::net::unix::SocketAddr>| None,
    // A Unix socket resets its peer if data is left unread, and else cannot.
    |_| (),
    // What it has not taken goes with this end.
    |_, _| ()
);

#[cfg(any(target_os = "linux", target_os = "android"))]
fn give_up_after(socket: &SockRef<'_>, time: Duration) {
    // Without it the kernel tries for minutes.
    let _ = socket.set_tcp_user_timeout(Some(time));
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn give_up_after(_: &SockRef<'_>, _: Duration) {}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Returns both ends of a connection.
    async fn pair() -> (Stream<TcpStream>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (listener.accept().await.unwrap().0.into(), client)
    }

    async fn is_ready(later: &mut Later<'_, ()>) -> bool {
        poll_fn(|cx| Poll::Ready(later.as_mut().poll(cx).is_ready())).await
    }

    #[tokio::test]
    async fn the_end_is_seen_before_what_was_sent_is_read_and_a_failure_is_another() {
        let (mut here, mut client) = pair().await;
        let (mut ended, mut failed) = (here.ended(), here.failed());
        client.write_all(&[7; 1 << 16]).await.unwrap();
        here.read_exact(&mut [0]).await.unwrap();
        assert!(!is_ready(&mut ended).await && !is_ready(&mut failed).await);
        client.shutdown().await.unwrap();
        ended.await;
        assert!(!is_ready(&mut failed).await, "it reads on");
        let mut rest = Vec::new();
        here.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest.len(), (1 << 16) - 1);
        here.write_all(b"well").await.unwrap();
        here.ended().await;
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        failed.await;
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_kernel_gives_up_when_it_is_told_to() {
        let (here, _client) = pair().await;
        here.give_up_after(Duration::from_secs(20));
        assert_eq!(SockRef::from(&*here.0).tcp_user_timeout().unwrap(), Some(Duration::from_secs(20)));
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn the_end_of_a_unix_socket_is_seen_too() {
        let (here, mut client) = UnixStream::pair().unwrap();
        let here = Stream::from(here);
        let mut ended = here.ended();
        client.write_all(b"unread").await.unwrap();
        assert!(!is_ready(&mut ended).await);
        drop(client);
        ended.await;
    }
}
