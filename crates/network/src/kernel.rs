//! A network of the kernel: that of the calling thread, or one that the caller makes sockets in.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::ReadBuf;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};

use crate::network::{Connection, Datagrams, Later, Listener, LookUpError, Network, Stats};
use crate::resolver::Resolver;
use crate::stream::Stream;

/// Connections that wait to be accepted; the kernel has a limit as well.
const BACKLOG: i32 = 1024;
/// A peer that is gone is noticed even if neither end has something to send.
const KEEPALIVE: Duration = Duration::from_secs(120);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// Makes a socket of a family and a type. A socket of another network namespace may take a round trip to a
/// process in it.
pub type MakeSocket = Box<dyn Fn(Domain, Type) -> io::Result<Socket> + Send + Sync>;

/// A network of the kernel.
pub struct Kernel {
    make: MakeSocket,
    resolver: Resolver,
    /// The network that carries queries for names, if it is another one.
    names: Option<Arc<dyn Network>>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    connected: AtomicU64,
    failed: AtomicU64,
    accepted: Arc<AtomicU64>,
    udp_sockets: AtomicU64,
    look_ups: AtomicU64,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Kernel {
    /// Creates the network in which `make` makes sockets. `resolver` sends its queries into it.
    pub fn new(make: MakeSocket, resolver: Resolver) -> Self {
        Self { make, resolver, names: None, counters: Counters::default() }
    }

    /// Has the resolver send its queries into another network.
    #[must_use]
    pub fn with_names_of(self, names: Arc<dyn Network>) -> Self {
        Self { names: Some(names), ..self }
    }

    /// Creates the network of the calling thread, without names.
    pub fn of_this_thread() -> Self {
        let make = |domain, kind| Socket::new(domain, kind, None);
        Self::new(Box::new(make), Resolver::without_servers())
    }

    fn socket(&self, address: SocketAddr, kind: Type) -> io::Result<Socket> {
        let socket = (self.make)(Domain::for_address(address), kind)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    fn bound(&self, at: SocketAddr, kind: Type) -> io::Result<Socket> {
        let socket = self.socket(at, kind)?;
        if at.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        if kind == Type::STREAM && cfg!(unix) {
            // Windows would let another process take the port.
            socket.set_reuse_address(true)?;
        }
        socket.bind(&at.into())?;
        Ok(socket)
    }

    async fn open(&self, to: SocketAddr) -> io::Result<Box<dyn Connection>> {
        let socket = TcpSocket::from_std_stream(self.socket(to, Type::STREAM)?.into());
        let stream = socket.connect(to).await?;
        Ok(Box::new(prepared(stream)))
    }
}

/// Data is sent at once, and a peer that is gone is noticed.
fn prepared(stream: TcpStream) -> Stream<TcpStream> {
    let socket = SockRef::from(&stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_INTERVAL);
    // A connection without these options still works.
    let _ = socket.set_tcp_nodelay(true).and_then(|()| socket.set_tcp_keepalive(&keepalive));
    stream.into()
}

impl Network for Kernel {
    fn connect(&self, to: SocketAddr) -> Later<'_, io::Result<Box<dyn Connection>>> {
        Box::pin(async move {
            let opened = self.open(to).await;
            let counter = if opened.is_ok() { &self.counters.connected } else { &self.counters.failed };
            counter.fetch_add(1, Relaxed);
            opened
        })
    }

    fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>> {
        let socket = self.bound(at, Type::STREAM)?;
        socket.listen(BACKLOG)?;
        let socket = TcpListener::from_std(socket.into())?;
        Ok(Box::new(TcpAcceptor { socket, accepted: Arc::clone(&self.counters.accepted) }))
    }

    fn udp(&self, at: SocketAddr) -> io::Result<Arc<dyn Datagrams>> {
        let socket = UdpSocket::from_std(self.bound(at, Type::DGRAM)?.into())?;
        self.counters.udp_sockets.fetch_add(1, Relaxed);
        Ok(Arc::new(socket))
    }

    fn look_up<'a>(&'a self, name: &'a str) -> Later<'a, Result<Vec<IpAddr>, LookUpError>> {
        self.counters.look_ups.fetch_add(1, Relaxed);
        Box::pin(self.resolver.look_up(self.names.as_deref().unwrap_or(self), name))
    }

    fn stats(&self) -> Stats {
        let counters = &self.counters;
        Stats {
            connected: counters.connected.load(Relaxed),
            failed: counters.failed.load(Relaxed),
            accepted: counters.accepted.load(Relaxed),
            udp_sockets: counters.udp_sockets.load(Relaxed),
            look_ups: counters.look_ups.load(Relaxed),
        }
    }
}

struct TcpAcceptor {
    socket: TcpListener,
    accepted: Arc<AtomicU64>,
}

impl Listener for TcpAcceptor {
    fn accept(&self) -> Later<'_, io::Result<Box<dyn Connection>>> {
        Box::pin(async move {
            let (stream, _) = self.socket.accept().await?;
            self.accepted.fetch_add(1, Relaxed);
            let connection: Box<dyn Connection> = Box::new(prepared(stream));
            Ok(connection)
        })
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }
}

impl Datagrams for UdpSocket {
    fn poll_recv(&self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<SocketAddr>> {
        self.poll_recv_from(cx, into)
    }

    fn poll_send(&self, cx: &mut Context<'_>, datagram: &[u8], to: SocketAddr) -> Poll<io::Result<()>> {
        ready!(self.poll_send_to(cx, datagram, to))?;
        Poll::Ready(Ok(()))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }
}
