//! A tunnel of a configuration, from its names to its end, for programs.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::thread;

use ipnet::IpNet;
use tokio::sync::{oneshot, watch};
use weft_config::device::{DeviceChange, PeerChange, PeerState};
use weft_config::{Config, Endpoint, LoadError, Source};
use weft_control::{Controller, Handle};
use weft_dataplane::{DataplaneError, OnEvent};
use weft_network::{Connection, Datagrams, Listener, LookUpError, Network, Resolver, connect_first};
use weft_tunnel::{Event, PrivateKey, PublicKey, Tunnel as StateMachine, TunnelConfig};
use weft_uapi::{Control as _, ControlError};
use weft_udp::{BindError, Udp as _, UdpConfig, UdpSockets};

use crate::stack::Stack;

/// WireGuard's usual MTU: 1500 bytes less its overhead over IPv6.
const DEFAULT_MTU: u16 = 1420;
const DEFAULT_MEMORY: u64 = 64 << 20;

/// The configuration of a tunnel, and the memory that it may use.
#[derive(Clone, Debug)]
pub struct Settings {
    config: Config,
    memory: u64,
}

impl Settings {
    /// Reads the file of wg-quick(8) at a path. Of `[Interface]`, PrivateKey, Address, DNS, ListenPort and
    /// MTU (1420 if it is missing) count; what would change the system, such as FwMark and PostUp, has no
    /// effect.
    ///
    /// # Errors
    /// The file cannot be read or has errors, each with its line; the tunnel would have no key or no address.
    pub fn read(file: &Path) -> Result<Self, OpenError> {
        // A bare word is a file here too.
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let source = Source::read(&file.to_string_lossy())?;
        Self::checked(source.parse()?)
    }

    /// Parses the text of such a file.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn parse(text: &str) -> Result<Self, OpenError> {
        let name = "embedded".parse().map_err(LoadError::from)?;
        Self::checked(weft_config::parse(text, Path::new("the text"), name).map_err(LoadError::from)?)
    }

    fn checked(parsed: weft_config::Parsed) -> Result<Self, OpenError> {
        for warning in &parsed.warnings {
            tracing::warn!("{warning}");
        }
        let interface = &parsed.config.interface;
        if interface.settings.private_key.is_none() {
            return Err(OpenError::Missing("PrivateKey"));
        }
        if interface.addresses.is_empty() {
            return Err(OpenError::Missing("Address"));
        }
        Ok(Self { config: parsed.config, memory: DEFAULT_MEMORY })
    }

    /// Sets the bytes that connections may reserve all together, 64 MiB otherwise. The buffers of sockets and
    /// of packets take about 10 MiB more.
    #[must_use]
    pub fn memory(self, bytes: u64) -> Self {
        Self { memory: bytes, ..self }
    }
}

/// Why a tunnel was not opened. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration cannot be read, or has errors.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The configuration lacks a setting.
    #[error("[Interface] has no {0}, which a tunnel in a program needs")]
    Missing(&'static str),
    /// The name of an endpoint has no address.
    #[error("peer {peer}: cannot look up the endpoint {endpoint}: {error}")]
    Name {
        /// The public key of the peer.
        peer: PublicKey,
        /// The endpoint, as configured.
        endpoint: Endpoint,
        /// The error of the system.
        error: io::Error,
    },
    /// The UDP sockets cannot be opened.
    #[error(transparent)]
    Sockets(#[from] BindError),
    /// The system refuses a thread, descriptors or random numbers.
    #[error("the system refuses what the tunnel needs: {0}")]
    System(#[from] io::Error),
}

/// A tunnel that ends in this process. Its methods must be called inside of a runtime of tokio with timers
/// and I/O. Dropping it resets its connections, also those that were dropped and still send (see
/// [`Self::drained`]); what still has one of them gets errors.
pub struct Tunnel {
    network: Arc<Stack>,
    addresses: Vec<IpAddr>,
    /// `None` once the tunnel is shut down: the event loop ends with the last sender of commands.
    controller: Mutex<Option<Arc<Controller>>>,
    /// Closed when the driver has ended.
    running: watch::Receiver<()>,
    /// The thread of the driver, unless the caller polls it.
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

/// Moves the packets of a tunnel: poll it until it ends, which it does when the tunnel is dropped.
#[must_use = "a tunnel moves nothing unless its driver is polled"]
pub struct Driver {
    event_loop: Pin<Box<dyn Future<Output = Result<(), DataplaneError>> + Send>>,
    running: Option<watch::Sender<()>>,
}

impl Future for Driver {
    type Output = Result<(), DataplaneError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.event_loop.as_mut().poll(cx)
    }
}

impl Tunnel {
    /// Opens a tunnel on a new thread. A handshake begins with the first packet, or at once with
    /// PersistentKeepalive.
    ///
    /// # Errors
    /// Those of [`OpenError`].
    pub async fn open(settings: Settings) -> Result<Self, OpenError> {
        let endpoints = look_up_endpoints(&settings.config).await?;
        let (answer, opened) = oneshot::channel();
        let thread = thread::Builder::new().name("weft-packets".to_owned()).spawn(move || {
            let made = weft_dataplane::runtime().map_err(OpenError::from).and_then(|runtime| {
                let inside = runtime.enter();
                let (tunnel, driver) = Self::set_up(settings, &endpoints)?;
                drop(inside);
                Ok((tunnel, driver, runtime))
            });
            let (tunnel, mut driver, runtime) = match made {
                Ok(made) => made,
                Err(error) => return drop(answer.send(Err(error))),
            };
            let running = driver.running.take();
            // If the caller has gone, this drops the tunnel, and the driver ends.
            drop(answer.send(Ok(tunnel)));
            if let Err(error) = runtime.block_on(driver) {
                tracing::error!("the tunnel has ended: {error}");
            }
            // A look-up of a name may take its time.
            runtime.shutdown_background();
            drop(running);
        })?;
        let tunnel = opened.await.unwrap_or_else(|_| Err(io::Error::other("its thread has ended").into()))?;
        *lock(&tunnel.thread) = Some(thread);
        Ok(tunnel)
    }

    /// Opens a tunnel in the runtime of the caller, who polls the [`Driver`], in a task for example. The
    /// runtime should ask the system for events often (`event_interval(1)`): one turn of the driver is a
    /// poll.
    ///
    /// # Errors
    /// Those of [`OpenError`].
    pub async fn open_in_runtime(settings: Settings) -> Result<(Self, Driver), OpenError> {
        let endpoints = look_up_endpoints(&settings.config).await?;
        Self::set_up(settings, &endpoints)
    }

    /// Call it inside of the runtime that polls the driver.
    fn set_up(settings: Settings, endpoints: &[Option<SocketAddr>]) -> Result<(Self, Driver), OpenError> {
        let Settings { config, memory } = settings;
        let interface = &config.interface;
        let port = interface.settings.listen_port;
        let udp = UdpSockets::bind(&UdpConfig { port, ..UdpConfig::default() })?;
        let mtu = interface.mtu.unwrap_or(DEFAULT_MTU);
        let addresses: Vec<_> = interface.addresses.iter().map(IpNet::addr).collect();
        let (device, stack) = crate::open(crate::Config { addresses: addresses.clone(), mtu, memory });
        let prefixes: Vec<_> = config.peers.iter().map(|peer| peer.allowed_ips.clone()).collect();
        stack.set_routes(&prefixes);
        let dns = &interface.host.dns;
        let network = Arc::new(stack.with_names(Resolver::new(&dns.servers, &dns.search), None));

        let (handle, commands) = Handle::new();
        let controller = Arc::new(Controller::new(handle, udp.port(), 0));
        let tunnel = TunnelConfig { mtu, staging_bytes: weft_dataplane::staging_bytes(Some(memory)) };
        // The change has the key.
        let tunnel = StateMachine::new(PrivateKey::generate().map_err(io::Error::other)?, tunnel);
        let stats = Arc::clone(device.stats());
        let mut event_loop = weft_dataplane::event_loop(tunnel, device, stats, udp, commands);
        event_loop.configure(controller.configure(&config.change(endpoints)));
        event_loop.report_events(Some(follow_names(&config, &controller)));
        let (ended, running) = watch::channel(());
        let driver = Driver { event_loop: Box::pin(event_loop.run()), running: Some(ended) };
        let controller = Mutex::new(Some(controller));
        Ok((Self { network, addresses, controller, running, thread: Mutex::default() }, driver))
    }

    /// Returns the addresses of this end in the tunnel.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Connects to a name or an address. A name is looked up at the servers of `DNS`, through the tunnel.
    ///
    /// # Errors
    /// The name has no address, no peer has one of its addresses, or none accepts the connection in 30 s.
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<Box<dyn Connection>> {
        let addresses = match address_of(host)? {
            Some(address) => vec![address],
            None => self.look_up(host).await.map_err(io::Error::other)?,
        };
        let network: Arc<dyn Network> = Arc::<Stack>::clone(&self.network);
        let route = |address: IpAddr| (SocketAddr::new(address.to_canonical(), port), Arc::clone(&network));
        connect_first(addresses.into_iter().map(route).collect()).await
    }

    /// Listens for TCP connections at an address of [`Self::addresses`]. Port 0 selects a free port.
    ///
    /// # Errors
    /// The address is in use, or is not one of this end.
    pub fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Network::listen(&*self.network, at)
    }

    /// Makes a UDP socket at an address of [`Self::addresses`]. Port 0 selects a free port.
    ///
    /// # Errors
    /// Those of [`Self::listen`].
    pub fn udp(&self, at: SocketAddr) -> io::Result<Arc<dyn Datagrams>> {
        Network::udp(&*self.network, at)
    }

    /// Returns the addresses of a name, at least one.
    ///
    /// # Errors
    /// Those of [`LookUpError`].
    pub async fn look_up(&self, name: &str) -> Result<Vec<IpAddr>, LookUpError> {
        Network::look_up(&*self.network, name).await
    }

    /// Returns the network in the tunnel, which outlives neither the tunnel nor its driver.
    pub fn network(&self) -> Arc<dyn Network> {
        Arc::<Stack>::clone(&self.network)
    }

    /// Returns the counters of TCP, and what it has reserved.
    pub fn stats(&self) -> weft_endpoint::Stats {
        self.network.endpoint_stats()
    }

    /// Returns the peers with their endpoints, handshakes and bytes, once the driver has been polled.
    ///
    /// # Errors
    /// The tunnel has ended.
    pub async fn peers(&self) -> Result<Vec<PeerState>, ControlError> {
        let controller = lock(&self.controller).clone().ok_or(ControlError::Ended)?;
        let (answer, answered) = oneshot::channel();
        // It waits for the packet thread, and a runtime that ends would wait for a task that blocks.
        let ask = move || drop(answer.send(controller.get().map(|state| state.peers)));
        let asked = thread::Builder::new().name("weft-ask".to_owned()).spawn(ask);
        asked.map_err(|error| ControlError::Refused(error.to_string()))?;
        answered.await.unwrap_or(Err(ControlError::Ended))
    }

    /// Waits until the other ends have acknowledged all that was sent to them, also by connections that were
    /// dropped. Connections that are open are waited for, without limit.
    pub async fn drained(&self) {
        self.network.drained().await;
    }

    /// Resets all connections, and begins the end of the tunnel: what waits for it fails.
    pub fn shut_down(&self) {
        self.network.reset_all();
        // The resets leave before the event loop ends.
        lock(&self.controller).take();
    }

    /// Returns when the tunnel has ended, because it was shut down or its sockets failed: they are closed,
    /// and nothing moves any more. A caller that runs the tunnel itself has to poll or drop the driver for
    /// it.
    pub async fn ended(&self) {
        let mut running = self.running.clone();
        // Fails once the driver is gone.
        while running.changed().await.is_ok() {}
        // It returns, and nothing else.
        let thread = lock(&self.thread).take();
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }

    /// Shuts the tunnel down, and waits until it has ended.
    pub async fn close(self) {
        self.shut_down();
        self.ended().await;
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl std::fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunnel").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Returns the address that stands for itself; `None` for a name.
///
/// # Errors
/// No host has such a name: it is not looked up.
pub fn address_of(host: &str) -> io::Result<Option<IpAddr>> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match bare.parse() {
        Ok(address) => Ok(Some(address)),
        Err(_) if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "[]:/%".contains(c)) => {
            let reason = format!("{host:?} is neither a name nor an address (the port is given apart)");
            Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
        }
        Err(_) => Ok(None),
    }
}

async fn look_up_endpoints(config: &Config) -> Result<Vec<Option<SocketAddr>>, OpenError> {
    let mut endpoints = config.endpoint_addresses();
    for (peer, address) in config.peers.iter().zip(&mut endpoints) {
        let Some(endpoint @ Endpoint::Name { host, port }) = &peer.endpoint else { continue };
        let found = tokio::net::lookup_host((host.as_str(), *port)).await;
        let found = found.and_then(|mut found| found.next().ok_or_else(|| io::ErrorKind::NotFound.into()));
        let failed = |error| OpenError::Name { peer: peer.public_key, endpoint: endpoint.clone(), error };
        *address = Some(found.map_err(failed)?);
    }
    Ok(endpoints)
}

/// Looks the name of an endpoint up again when the peer does not answer: it may have moved.
fn follow_names(config: &Config, controller: &Arc<Controller>) -> OnEvent {
    let name = |peer: &weft_config::Peer| match &peer.endpoint {
        Some(Endpoint::Name { host, port }) => Some((peer.public_key, (host.clone(), *port))),
        _ => None,
    };
    let names: Vec<_> = config.peers.iter().filter_map(name).collect();
    // A strong one would keep the event loop running.
    let controller = Arc::downgrade(controller);
    let is_busy = Arc::new(AtomicBool::new(false));
    Box::new(move |event| {
        let Event::HandshakeUnanswered { peer, .. } = event else { return };
        let Some((_, name)) = names.iter().find(|(key, _)| *key == peer) else { return };
        if is_busy.swap(true, Relaxed) {
            return;
        }
        let (name, controller, is_busy) = (name.clone(), Weak::clone(&controller), Arc::clone(&is_busy));
        // The packet thread does not wait for it.
        tokio::task::spawn_blocking(move || {
            let found = name.to_socket_addrs().ok().and_then(|mut found| found.next());
            if let (Some(endpoint), Some(controller)) = (found, controller.upgrade()) {
                let change =
                    PeerChange { update_only: true, endpoint: Some(endpoint), ..PeerChange::new(peer) };
                let _ended = controller.set(DeviceChange { peers: vec![change], ..DeviceChange::default() });
            }
            is_busy.store(false, Relaxed);
        });
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is half changed after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
