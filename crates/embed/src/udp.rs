//! UDP sockets.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::ReadBuf;
use weft_endpoint::{UdpError, UdpId};
use weft_network::Datagrams;

use crate::routes::Routes;
use crate::shared::Shared;
use crate::stream::bind_error;

/// A UDP socket.
pub struct UdpSocket {
    shared: Arc<Shared>,
    routes: Arc<Routes>,
    id: UdpId,
}

impl UdpSocket {
    pub(crate) fn bind(shared: Arc<Shared>, routes: Arc<Routes>, at: SocketAddr) -> io::Result<Self> {
        let id = shared.call(|state| {
            let id = state.endpoint.bind_udp(at).map_err(bind_error)?;
            state.udp.add(id);
            io::Result::Ok(id)
        })?;
        Ok(Self { shared, routes, id })
    }
}

impl Datagrams for UdpSocket {
    fn poll_recv(&self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<SocketAddr>> {
        let (id, buffer) = (self.id, into.initialize_unfilled());
        let (len, from) = ready!(self.shared.poll(
            cx,
            |state| Ok(state.endpoint.take_udp(id, buffer)),
            |state| state.udp.of(id).map(|slot| &mut slot.read),
        ))?;
        into.advance(len);
        Poll::Ready(Ok(from))
    }

    fn poll_send(&self, cx: &mut Context<'_>, datagram: &[u8], to: SocketAddr) -> Poll<io::Result<()>> {
        self.routes.check(to.ip())?;
        let id = self.id;
        self.shared.poll(
            cx,
            |state| {
                let is_sent = state.endpoint.send_udp(id, to, datagram).map_err(udp_error)?;
                Ok(is_sent.then_some(()))
            },
            |state| state.udp.of(id).map(|slot| &mut slot.write),
        )
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.shared.lock().endpoint.udp_address(self.id).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        self.shared.call(|state| {
            state.udp.remove(self.id);
            state.endpoint.release_udp(self.id);
        });
    }
}

fn udp_error(error: UdpError) -> io::Error {
    let kind = match error {
        UdpError::Closed => io::ErrorKind::NotConnected,
        UdpError::NoAddress => io::ErrorKind::NetworkUnreachable,
        UdpError::InvalidDestination | UdpError::TooLong => io::ErrorKind::InvalidInput,
    };
    io::Error::new(kind, error)
}
