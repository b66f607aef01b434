//! Receives and sends single datagrams.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::ready;

use tokio::io::ReadBuf;

use crate::network::Datagrams;

/// The largest datagram.
const MAX: usize = 65_535;

thread_local! {
    /// Where datagrams arrive, so that a socket on which nothing arrives holds no memory.
    static SHARED: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX]);
}

/// Receives a datagram, with `headroom` bytes in front of it, and its source.
pub async fn receive(socket: &dyn Datagrams, headroom: usize) -> io::Result<(Vec<u8>, SocketAddr)> {
    poll_fn(|cx| {
        SHARED.with_borrow_mut(|shared| {
            let mut buffer = ReadBuf::new(shared);
            let from = ready!(socket.poll_recv(cx, &mut buffer))?;
            let mut datagram = Vec::with_capacity(headroom + buffer.filled().len());
            datagram.resize(headroom, 0);
            datagram.extend_from_slice(buffer.filled());
            Ok((datagram, from)).into()
        })
    })
    .await
}

/// Sends a datagram, once there is room for it.
pub async fn send(socket: &dyn Datagrams, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
    poll_fn(|cx| socket.poll_send(cx, datagram, to)).await
}
