//! The network that applications of this process use.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Waker;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use weft_endpoint::{StreamState, StreamStats};
use weft_network::{Connection, Datagrams, Later, Listener, LookUpError, Network, Resolver, Stats};

use crate::routes::Routes;
use crate::shared::Shared;
use crate::stream::{TcpListener, TcpStream};
use crate::udp::UdpSocket;

/// Connections that wait to be accepted.
const BACKLOG: u16 = 1024;
/// A peer that is gone is noticed even if neither end has something to send.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(120);

/// The TCP/IP stack of a tunnel. Connections are refused by [`io::ErrorKind::NetworkUnreachable`] where no
/// route leads.
#[derive(Clone)]
pub struct Stack {
    shared: Arc<Shared>,
    routes: Arc<Routes>,
    resolver: Arc<Resolver>,
    /// The network that carries queries for names, if it is another one.
    names: Option<Arc<dyn Network>>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Counters {
    connected: AtomicU64,
    failed: AtomicU64,
    accepted: AtomicU64,
    udp_sockets: AtomicU64,
    look_ups: AtomicU64,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stack").field("stats", &Network::stats(self)).finish_non_exhaustive()
    }
}

impl Stack {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            routes: Arc::default(),
            resolver: Arc::new(Resolver::without_servers()),
            names: None,
            counters: Arc::default(),
        }
    }

    /// Looks names up with this resolver, which sends its queries into the tunnel, or into another network.
    #[must_use]
    pub fn with_names(self, resolver: Resolver, network: Option<Arc<dyn Network>>) -> Self {
        Self { resolver: Arc::new(resolver), names: network, ..self }
    }

    /// Sets the prefixes that packets are sent to: the AllowedIPs of each of the peers.
    pub fn set_routes(&self, peers: &[Vec<IpNet>]) {
        self.routes.set(peers.concat());
        self.shared.lock().endpoint.set_owners(peers);
    }

    /// Opens a TCP connection.
    ///
    /// # Errors
    /// No route leads to the destination, or it refuses.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let opened = async {
            self.routes.check(to.ip())?;
            TcpStream::connect(Arc::clone(&self.shared), to).await
        };
        let opened = opened.await;
        let counter = if opened.is_ok() { &self.counters.connected } else { &self.counters.failed };
        counter.fetch_add(1, Relaxed);
        opened
    }

    /// Listens for TCP connections. Port 0 selects a free port.
    ///
    /// # Errors
    /// The address is in use, or is not one of this stack.
    pub fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        let counters = Arc::clone(&self.counters);
        let on_accept = move || {
            counters.accepted.fetch_add(1, Relaxed);
        };
        TcpListener::bind(Arc::clone(&self.shared), at, BACKLOG, Box::new(on_accept))
    }

    /// Waits until the other ends of all connections have acknowledged what was sent to them, their end
    /// included, and until nothing else is to be sent. Connections that are open are waited for too.
    pub async fn drained(&self) {
        const TICK: Duration = Duration::from_millis(10);
        let is_acknowledged =
            |state| matches!(state, StreamState::FinWait2 | StreamState::TimeWait | StreamState::Closed);
        let is_drained = || {
            let state = self.shared.lock();
            let mut streams = state.endpoint.streams();
            state.is_gone
                || !state.endpoint.has_output() && streams.all(|stream| is_acknowledged(stream.state))
        };
        while !is_drained() {
            tokio::time::sleep(TICK).await;
        }
    }

    /// Resets all connections and fails what applications wait for, before the packet thread ends. Waits
    /// until that thread has taken the resets, for a quarter of a second at most.
    pub fn end(&self) {
        const PATIENCE: Duration = Duration::from_millis(250);
        const TICK: Duration = Duration::from_millis(1);
        let begin = Instant::now();
        self.reset_all();
        while self.shared.lock().endpoint.has_output() && begin.elapsed() < PATIENCE {
            std::thread::sleep(TICK);
        }
    }

    /// The same without waiting.
    pub(crate) fn reset_all(&self) {
        let mut woken = Vec::new();
        self.shared.call(|state| {
            state.endpoint.reset_all(Instant::now());
            state.end(&mut woken);
        });
        woken.into_iter().for_each(Waker::wake);
    }

    /// Returns the TCP connections, in no order.
    pub fn connections(&self) -> Vec<StreamStats> {
        self.shared.lock().endpoint.streams().collect()
    }

    /// Returns the counters of the endpoint.
    pub(crate) fn endpoint_stats(&self) -> weft_endpoint::Stats {
        self.shared.lock().endpoint.stats()
    }

    /// Makes a UDP socket. Port 0 selects a free port.
    ///
    /// # Errors
    /// Those of [`Self::listen`].
    pub fn udp(&self, at: SocketAddr) -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind(Arc::clone(&self.shared), Arc::clone(&self.routes), at)?;
        self.counters.udp_sockets.fetch_add(1, Relaxed);
        Ok(socket)
    }
}

impl Network for Stack {
    fn connect(&self, to: SocketAddr) -> Later<'_, io::Result<Box<dyn Connection>>> {
        Box::pin(async move {
            let connection: Box<dyn Connection> = Box::new(Self::connect(self, to).await?);
            Ok(connection)
        })
    }

    fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(Self::listen(self, at)?))
    }

    fn udp(&self, at: SocketAddr) -> io::Result<Arc<dyn Datagrams>> {
        Ok(Arc::new(Self::udp(self, at)?))
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
