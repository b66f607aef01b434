//! Standard input and output as a connection into the tunnel, for ssh's ProxyCommand.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, Stdin, Stdout};
use weft_network::Connection;

use crate::budget::Budget;
use crate::destination::Destination;
use crate::reach::{Reach, ReachError};
use crate::relay::{BUFFER, relay};

struct Stdio {
    input: Stdin,
    output: Stdout,
}

/// Connects standard input and output to a destination, until both directions have ended.
///
/// # Errors
/// When the destination is not reached, and when the connection fails.
pub async fn connect_stdio(reach: &Reach, to: &Destination) -> Result<(), ReachError> {
    let remote = reach.connect(to).await?;
    let here = Box::new(Stdio { input: tokio::io::stdin(), output: tokio::io::stdout() });
    let (_, result) = relay(here, remote, Vec::new(), &Budget::new(2 * BUFFER).account()).await;
    result.map_err(|error| ReachError::Connect(to.clone(), error))
}

impl AsyncRead for Stdio {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.input).poll_read(cx, into)
    }
}

impl AsyncWrite for Stdio {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.output).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_shutdown(cx)
    }
}

impl Connection for Stdio {
    fn local_addr(&self) -> Option<SocketAddr> {
        None
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        None
    }

    fn abort(&self) {}
}
