//! A tunnel that ends in the process: its connections are sockets of the program.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use socket2::{Domain, SockRef, Socket};
use tokio::io::Interest;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream, UnixDatagram};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use weft_embed::{Connection, Datagrams, Listener, Settings, Tunnel, datagram};

use crate::Error;

/// Bytes that are copied at once, each way.
const BUFFER: usize = 64 << 10;
/// The least bytes for connections.
const MIN_MEMORY: u64 = 1 << 20;
/// How long the loopback may take for a connection.
const LOOPBACK_PATIENCE: Duration = Duration::from_secs(5);
/// Connections of other programs to the loopback port of a pair that are turned away.
const MAX_STRANGERS: u32 = 64;

const SILENT: &str = "no answer in time";
const NO_HANDSHAKE: &str =
    "; no peer has answered a handshake: are its key, its endpoint and this key right?";

/// A tunnel, and the thread that copies between its connections and the sockets of the program.
pub struct EmbeddedTunnel {
    tunnel: Tunnel,
    runtime: Handle,
    /// The process that opened it: a child of fork(2) has none of its threads.
    process: u32,
    /// The number of connections that sockets of the program carry.
    carried: watch::Sender<usize>,
    /// What ends the thread when it is dropped, and the thread.
    thread: Option<(oneshot::Sender<()>, thread::JoinHandle<()>)>,
}

impl Drop for EmbeddedTunnel {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take().filter(|_| self.process == std::process::id()) {
            drop(stop);
            let _ = thread.join();
        }
    }
}

/// Accepts connections in a tunnel.
pub struct EmbeddedListener {
    pub(crate) tunnel: Arc<EmbeddedTunnel>,
    listener: Box<dyn Listener>,
}

impl EmbeddedTunnel {
    /// Opens a tunnel from the text of a file of wg-quick(8), with `memory` bytes for connections; 0: 64 MiB.
    ///
    /// # Errors
    /// The text is not valid, the name of an endpoint has no address, or the system refuses a socket.
    pub fn open(text: &str, memory: u64) -> Result<Arc<Self>, Error> {
        let settings = Settings::parse(text).map_err(|error| Error::Configuration(error.to_string()))?;
        let settings = match memory {
            0 => settings,
            MIN_MEMORY.. => settings.memory(memory),
            _ => return Err(Error::Memory(memory)),
        };
        let (answer, opened) = mpsc::sync_channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(answer.send(Err(error.to_string()))),
            };
            let handle = runtime.handle().clone();
            runtime.block_on(async {
                let tunnel = Tunnel::open(settings).await.map_err(|error| error.to_string());
                drop(answer.send(tunnel.map(|tunnel| (tunnel, handle))));
                // Fails when the tunnel is closed.
                let _ = stopped.await;
            });
            // What it still copies fails.
            runtime.shutdown_background();
        };
        let system = |error: io::Error| Error::System(error.to_string());
        let thread = thread::Builder::new().name("weft-embedded".to_owned()).spawn(run).map_err(system)?;
        let opened = opened.recv().unwrap_or_else(|_| Err("its thread has ended".to_owned()));
        let (tunnel, runtime) = opened.map_err(Error::System)?;
        let thread = Some((stop, thread));
        let carried = watch::Sender::new(0);
        Ok(Arc::new(Self { tunnel, runtime, process: std::process::id(), carried, thread }))
    }

    /// Connects to a name or an address, and returns a TCP socket of the loopback that carries the
    /// connection, its reset included. `patience`: 30 s if it is `None`.
    ///
    /// # Errors
    /// The destination is not reached, or the loopback is down.
    pub fn connect(&self, host: &str, port: u16, patience: Option<Duration>) -> Result<OwnedFd, Error> {
        let to = || format!("{host}, port {port}");
        let connect = async || {
            let connected = self.tunnel.connect(host, port).await.map_err(|error| match error.kind() {
                io::ErrorKind::TimedOut => io::Error::new(error.kind(), SILENT),
                _ => error,
            });
            self.carry(connected?).await
        };
        self.wait(patience, to, connect)
    }

    /// Listens at an address of the tunnel.
    ///
    /// # Errors
    /// The address is in use, or is not one of the tunnel.
    pub fn listen(self: &Arc<Self>, address: IpAddr, port: u16) -> Result<EmbeddedListener, Error> {
        self.expect_own()?;
        let _inside = self.runtime.enter();
        let at = SocketAddr::new(address, port);
        let listener = self.tunnel.listen(at);
        let listener = listener.map_err(|error| Error::Network(at.to_string(), error.to_string()))?;
        Ok(EmbeddedListener { tunnel: Arc::clone(self), listener })
    }

    /// Returns a socket for datagrams to one destination and from it.
    ///
    /// # Errors
    /// The name of the destination has no address, or the tunnel has none of its family.
    pub fn udp(&self, host: &str, port: u16) -> Result<OwnedFd, Error> {
        let to = || format!("{host}, port {port}");
        let look_up = async || match weft_embed::address_of(host)? {
            Some(address) => Ok(address),
            None => self.tunnel.look_up(host).await.map(|found| found[0]).map_err(io::Error::other),
        };
        let address = self.wait(None, to, look_up)?;
        let failed = |error: io::Error| Error::Network(to(), error.to_string());
        let own = self.tunnel.addresses().iter().find(|own| own.is_ipv4() == address.is_ipv4());
        let own = own.ok_or_else(|| failed(io::ErrorKind::AddrNotAvailable.into()))?;
        let socket = self.tunnel.udp(SocketAddr::new(*own, 0)).map_err(failed)?;
        let (program, ours) = message_pair().map_err(failed)?;
        let _inside = self.runtime.enter();
        let ours = UnixDatagram::from_std(ours.into()).map_err(failed)?;
        self.runtime.spawn(carry_datagrams(ours, socket, SocketAddr::new(address, port)));
        Ok(program.into())
    }

    /// Waits until the program has closed its sockets, and the other ends have all that came from them.
    ///
    /// # Errors
    /// That did not happen in time.
    pub fn drain(&self, patience: Option<Duration>) -> Result<(), Error> {
        let mut carried = self.carried.subscribe();
        let drain = async || {
            // The sender is not dropped meanwhile.
            let _ = carried.wait_for(|carried| *carried == 0).await;
            self.tunnel.drained().await;
            Ok(())
        };
        self.wait(patience, || "connections are open, or other ends have not taken all".to_owned(), drain)
    }

    /// Ends the tunnel: what waits for it, and its sockets of the program, fail. Its port is free then.
    ///
    /// # Errors
    /// The call comes from a callback.
    pub fn close(&self) -> Result<(), Error> {
        self.expect_own()?;
        self.tunnel.shut_down();
        self.runtime.block_on(self.tunnel.ended());
        Ok(())
    }

    /// Returns the counters of the tunnel.
    ///
    /// # Errors
    /// The tunnel has ended.
    pub fn stats(&self) -> Result<(weft_embed::Stats, Vec<weft_embed::PeerState>), Error> {
        let peers = self.wait(
            None,
            || "the peers".to_owned(),
            async || self.tunnel.peers().await.map_err(io::Error::other),
        )?;
        Ok((self.tunnel.stats(), peers))
    }

    /// Fails in a child of fork(2).
    pub(crate) fn expect_own(&self) -> Result<(), Error> {
        crate::interface::refuse_callbacks()?;
        if self.process == std::process::id() { Ok(()) } else { Err(Error::TunnelEnded) }
    }

    /// Waits on the thread of the caller.
    fn wait<T>(
        &self,
        patience: Option<Duration>,
        what: impl Fn() -> String,
        call: impl AsyncFnOnce() -> io::Result<T>,
    ) -> Result<T, Error> {
        self.expect_own()?;
        let call = async {
            match patience {
                Some(patience) => {
                    let late = |_| io::Error::new(io::ErrorKind::TimedOut, SILENT);
                    timeout(patience, call()).await.map_err(late)?
                }
                None => call().await,
            }
        };
        self.runtime.block_on(call).map_err(|error| {
            let is_silent = error.kind() == io::ErrorKind::TimedOut && !self.has_heard_of_a_peer();
            let of_peers = if is_silent { NO_HANDSHAKE } else { "" };
            Error::Network(what(), format!("{error}{of_peers}"))
        })
    }

    /// Reports whether a handshake has completed so far.
    fn has_heard_of_a_peer(&self) -> bool {
        let peers = self.runtime.block_on(self.tunnel.peers()).unwrap_or_default();
        peers.iter().any(|peer| peer.last_handshake.is_some())
    }

    /// Has a connection of the tunnel carried by a socket, and returns that.
    async fn carry(&self, mut remote: Box<dyn Connection>) -> io::Result<OwnedFd> {
        let (program, ours) = timeout(LOOPBACK_PATIENCE, stream_pair()).await.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::HostUnreachable, "the loopback does not answer: is lo up?"))
        })?;
        // Also if the task is dropped before its first poll.
        let (carried, mut ours) = (Carried::new(&self.carried), ResetOnDrop(Some(ours)));
        self.runtime.spawn(async move {
            let _carried = carried;
            let Some(stream) = &mut ours.0 else { return };
            match copy_bidirectional_with_sizes(stream, &mut remote, BUFFER, BUFFER).await {
                Ok(_) => drop(ours.0.take()),
                Err(_) => remote.abort(),
            }
        });
        let program = program.into_std()?;
        program.set_nonblocking(false)?;
        Ok(program.into())
    }
}

impl EmbeddedListener {
    /// Accepts a connection, and returns its socket and the address of the other end.
    ///
    /// # Errors
    /// None came in time, or the tunnel has ended.
    pub fn accept(&self, patience: Option<Duration>) -> Result<(OwnedFd, Option<SocketAddr>), Error> {
        let at = || self.listener.local_addr().map_or_else(String::new, |at| at.to_string());
        self.tunnel.wait(patience, at, async || {
            let accepted = self.listener.accept().await?;
            let from = accepted.peer_addr();
            Ok((self.tunnel.carry(accepted).await?, from))
        })
    }

    /// Returns the address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Our end of a connection to the program. Dropped before the end of the data, it is reset: also where a
/// child of fork(2) has it too, and closing it would do nothing.
struct ResetOnDrop(Option<TcpStream>);

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        if let Some(stream) = &self.0 {
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
            #[cfg(target_os = "linux")]
            let _ = rustix::net::connect_unspec(stream);
        }
    }
}

/// A connection that counts among those that are carried.
struct Carried(watch::Sender<usize>);

impl Carried {
    fn new(all: &watch::Sender<usize>) -> Self {
        all.send_modify(|carried| *carried += 1);
        Self(all.clone())
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.0.send_modify(|carried| *carried -= 1);
    }
}

/// Returns two ends of a TCP connection over the loopback, the first one for the program. A pair of Unix
/// sockets could not tell a reset from the end of the data.
async fn stream_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let program = TcpStream::connect(listener.local_addr()?).await?;
    program.set_nodelay(true)?;
    for _ in 0..MAX_STRANGERS {
        let (ours, from) = listener.accept().await?;
        // Other users may connect to the port meanwhile.
        if from == program.local_addr()? {
            ours.set_nodelay(true)?;
            return Ok((program, ours));
        }
    }
    Err(io::Error::other("other programs connect to ports of the loopback"))
}

/// Returns a pair of sockets that keeps the bounds of messages. The first one blocks.
fn message_pair() -> io::Result<(Socket, Socket)> {
    // Only these tell the other end that one was closed; other systems do not have them.
    let kind = if cfg!(target_os = "linux") { libc::SOCK_SEQPACKET } else { libc::SOCK_DGRAM };
    let (program, ours) = Socket::pair(Domain::UNIX, kind.into(), None)?;
    ours.set_nonblocking(true)?;
    Ok((program, ours))
}

/// Carries datagrams until the program has closed its end, or the tunnel is gone. What there is no room for
/// is dropped, as by any UDP.
async fn carry_datagrams(program: UnixDatagram, socket: Arc<dyn Datagrams>, to: SocketAddr) {
    let mut buffer = vec![0; BUFFER];
    loop {
        tokio::select! {
            ready = program.ready(Interest::READABLE) => {
                let Ok(ready) = ready else { return };
                match program.try_recv(&mut buffer) {
                    // An empty datagram is one.
                    Ok(0) if ready.is_read_closed() => return,
                    Ok(len) => drop(datagram::send(&*socket, &buffer[..len], to).await),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
            received = datagram::receive(&*socket, 0) => match received {
                Ok((datagram, from)) if from == to => {
                    let _full = program.try_send(&datagram);
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}
