//! The sockets of a proxy: made all together before anything is served, and served until the end.

use std::convert::Infallible;
use std::fmt;
use std::future::{pending, poll_fn};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::sleep;
use weft_ipc::holder::{Held, Holder};
use weft_ipc::{Place, Source, serve_each};
use weft_network::{Connection, Datagrams, Listener, Network};

use crate::access::Users;
use crate::address::{Forward, LocalAddress, Reverse, Transport, TunnelAddress};
use crate::budget::Budget;
use crate::destination::Destination;
use crate::gone::unless_gone;
use crate::mapping::Sources;
use crate::moves::Moves;
use crate::proxy::Proxy;
use crate::reach::Reach;
use crate::relay::relay;
use crate::udp_forward::{self, Target};
use crate::{http, socks5, system};

/// How long a client usually has for its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const WAITING_BYTES: usize = 16 << 20;
/// How often memory is given back to the system after much of it was used.
const GIVE_BACK_INTERVAL: Duration = Duration::from_secs(5);

const SOCKS5: &str = "SOCKS5";
const HTTP: &str = "HTTP";
const FORWARD: &str = "a forward";

/// Clients at once.
pub(crate) const CLIENTS: usize = 8192;
/// UDP sockets at once, of all sources of forwards and all associations.
pub(crate) const UDP_SOCKETS: usize = CLIENTS;

/// What a proxy serves.
#[derive(Debug)]
pub struct Options {
    /// Where SOCKS5 is spoken.
    pub socks5: Vec<LocalAddress>,
    /// Where HTTP is spoken.
    pub http: Vec<LocalAddress>,
    /// Ports of the host that lead into the tunnel.
    pub forwards: Vec<Forward>,
    /// Ports of the tunnel that lead to the host.
    pub reverses: Vec<Reverse>,
    /// Users of SOCKS5 and HTTP; `None`: no password is asked for.
    pub users: Option<Users>,
    /// Let other machines use what asks for no password.
    pub allow_anyone: bool,
    /// Clients at once, in equal parts for the listening sockets. When a socket has as many, one that has not
    /// sent its request gives way to a new one.
    pub clients: usize,
    /// UDP sockets at once, of the sources of forwards and of associations. A forward has as many as it
    /// leaves to the others; then a source gives way to a new one.
    pub udp_sockets: usize,
    /// How long a client has for its request.
    pub request_timeout: Duration,
    /// Bytes that wait for something slow, of all clients together: for the rest of a head, a name, or a
    /// receiver.
    pub waiting_bytes: usize,
    /// Gives memory back to the system that much of it was freed of.
    pub give_back: fn(),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            socks5: Vec::new(),
            http: Vec::new(),
            forwards: Vec::new(),
            reverses: Vec::new(),
            users: None,
            allow_anyone: false,
            clients: CLIENTS,
            udp_sockets: UDP_SOCKETS,
            request_timeout: REQUEST_TIMEOUT,
            waiting_bytes: WAITING_BYTES,
            give_back: || (),
        }
    }
}

impl Options {
    /// Checks what needs no socket.
    ///
    /// # Errors
    /// [`StartError::Nothing`] and [`StartError::OpenToAnyone`].
    pub fn check(&self) -> Result<(), StartError> {
        if self.socks5.is_empty()
            && self.http.is_empty()
            && self.forwards.is_empty()
            && self.reverses.is_empty()
        {
            return Err(StartError::Nothing);
        }
        let open = self.without_password().find(|(_, address)| !address.is_local());
        match open.filter(|_| !self.allow_anyone) {
            Some((service, address)) => Err(StartError::OpenToAnyone { service, address: address.clone() }),
            None => Ok(()),
        }
    }

    /// What asks for no password, and where.
    fn without_password(&self) -> impl Iterator<Item = (&'static str, &LocalAddress)> {
        let is_asked = self.users.is_some();
        let socks5 = self.socks5.iter().map(|address| (SOCKS5, address));
        let http = self.http.iter().map(|address| (HTTP, address));
        let forwards = self.forwards.iter().map(|forward| (FORWARD, &forward.local));
        socks5.chain(http).filter(move |_| !is_asked).chain(forwards)
    }

    /// Returns what others than this user can use, with no password, and who they are: to be told to the
    /// user.
    pub fn open_to_others(&self) -> Vec<String> {
        let open = |is_local: bool| {
            let addresses = self.without_password().filter(move |(_, address)| match address {
                LocalAddress::Ip(_) => address.is_local() == is_local,
                LocalAddress::Unix(_) => false,
            });
            addresses
                .map(|(service, address)| format!("{service} on {address}"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let told = [
            (open(true), "every user of this machine"),
            (open(false), "every machine that reaches them, and every user of this one,"),
        ];
        let told = told.into_iter().filter(|(open, _)| !open.is_empty());
        told.map(|(open, who)| {
            format!(
                "{open}: {who} can reach the tunnel there without a password; a Unix socket is for its user \
                 alone, and --password-file asks for one (SOCKS5 and HTTP)"
            )
        })
        .collect()
    }
}

/// Why a proxy cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is nothing to serve.
    #[error("nothing to serve: give --socks5, --http, --forward, --reverse or --stdio")]
    Nothing,
    /// Other machines would have access to the tunnel.
    #[error(
        "{service} on {address} would let every machine that reaches it into the tunnel: listen on 127.0.0.1, \
         [::1] or a Unix socket, set a password with --password-file (SOCKS5 and HTTP), or accept it with \
         --allow-anyone"
    )]
    OpenToAnyone {
        /// What would be served.
        service: &'static str,
        /// Where.
        address: LocalAddress,
    },
    /// A socket cannot be made.
    #[error("cannot listen on {address} for {service}: {}{holder}", reason(source))]
    Listen {
        /// What would be served.
        service: &'static str,
        /// Where.
        address: String,
        /// What has the address, if it is in use.
        holder: Holder,
        /// What the system said.
        source: io::Error,
    },
}

impl StartError {
    fn is_in_use(&self) -> bool {
        matches!(self, Self::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }
}

/// A proxy with all its sockets, ready to serve.
pub struct Server {
    proxy: Arc<Proxy>,
    services: Vec<Service>,
    datagrams: Vec<(Arc<dyn Datagrams>, Arc<Target>)>,
    addresses: Vec<(&'static str, String)>,
    clients: usize,
    give_back: fn(),
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

struct Service {
    /// What is served, and where.
    name: String,
    listener: Box<dyn Listener>,
    kind: Arc<Kind>,
}

/// What is spoken with the clients of a listening socket.
enum Kind {
    Socks5,
    Http,
    /// Leads to a destination in the tunnel.
    Forward(Destination),
    /// Leads to an address of the host.
    Reverse(LocalAddress, Arc<dyn Network>),
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Socks5 => SOCKS5,
            Self::Http => HTTP,
            Self::Forward(_) => FORWARD,
            Self::Reverse(..) => "a reverse forward",
        }
    }
}

impl Server {
    /// Makes all sockets: those of the host in `host`, those of the tunnel by `reach`. Nothing is served yet,
    /// and if one socket cannot be made, none is left.
    ///
    /// # Errors
    /// Those of [`StartError`].
    pub fn bind(options: Options, reach: Reach, host: &Arc<dyn Network>) -> Result<Self, StartError> {
        options.check()?;
        let Options { socks5, http, forwards, reverses, users, clients, request_timeout, give_back, .. } =
            options;
        let Options { waiting_bytes, udp_sockets, .. } = options;
        let proxy = Proxy::new(reach, Arc::clone(host), users, request_timeout, waiting_bytes, udp_sockets);
        let proxy = Arc::new(proxy);
        let mut server =
            Self { proxy, services: vec![], datagrams: vec![], addresses: vec![], clients, give_back };
        for address in socks5 {
            server.listen(host, &address, Kind::Socks5)?;
        }
        for address in http {
            server.listen(host, &address, Kind::Http)?;
        }
        for Forward { transport, local, remote } in forwards {
            match (transport, &local) {
                (Transport::Udp, LocalAddress::Ip(at)) => {
                    server.receive(&**host, *at, Target::Remote(server.proxy.reach.clone(), remote))?;
                }
                _ => server.listen(host, &local, Kind::Forward(remote))?,
            }
        }
        for Reverse { transport, tunnel, local } in reverses {
            server.reverse(host, transport, tunnel, &local)?;
        }
        Ok(server)
    }

    fn listen(
        &mut self,
        host: &Arc<dyn Network>,
        address: &LocalAddress,
        kind: Kind,
    ) -> Result<(), StartError> {
        let listener = match address {
            LocalAddress::Ip(at) => {
                // That of a reverse forward is of the tunnel, where other processes are.
                let held = (!matches!(kind, Kind::Reverse(..))).then_some(Held::Tcp(*at));
                host.listen(*at).map_err(|error| failed(kind.name(), at, held, error))?
            }
            LocalAddress::Unix(path) => system::listen(path)
                .map_err(|error| failed(kind.name(), &path.display(), Some(Held::Socket(path)), error))?,
        };
        let shown = listener.local_addr().map_or_else(|| address.to_string(), |address| address.to_string());
        let name = format!("{} on {shown}", kind.name());
        self.addresses.push((kind.name(), shown));
        self.services.push(Service { name, listener, kind: Arc::new(kind) });
        Ok(())
    }

    fn receive(&mut self, network: &dyn Network, at: SocketAddr, target: Target) -> Result<(), StartError> {
        let service = "datagrams";
        let held = (!matches!(target, Target::Host(..))).then_some(Held::Udp(at.port()));
        let socket = network.udp(at).map_err(|error| failed(service, &at, held, error))?;
        let shown = socket.local_addr().unwrap_or(at).to_string();
        self.addresses.push((service, shown));
        self.datagrams.push((socket, Arc::new(target)));
        Ok(())
    }

    /// Makes the sockets of a reverse forward. Without an address they are on all addresses of the tunnel; it
    /// is enough if one family has some.
    fn reverse(
        &mut self,
        host: &Arc<dyn Network>,
        transport: Transport,
        tunnel: TunnelAddress,
        local: &LocalAddress,
    ) -> Result<(), StartError> {
        let every: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let addresses = tunnel.address.map_or(every.to_vec(), |address| vec![address]);
        let network = Arc::clone(self.proxy.reach.tunnel());
        let mut is_missing = Ok(());
        let before = self.addresses.len();
        for address in addresses {
            let at = SocketAddr::new(address, tunnel.port);
            let made = match (transport, local) {
                (Transport::Udp, LocalAddress::Ip(to)) => {
                    self.receive(&*network, at, Target::Host(Arc::clone(host), *to))
                }
                _ => self.listen(
                    &network,
                    &LocalAddress::Ip(at),
                    Kind::Reverse(local.clone(), Arc::clone(host)),
                ),
            };
            match made {
                Err(error) if !error.is_in_use() && tunnel.address.is_none() => is_missing = Err(error),
                made => made?,
            }
        }
        if self.addresses.len() > before { Ok(()) } else { is_missing }
    }

    /// Returns what is served, and where.
    pub fn addresses(&self) -> &[(&'static str, String)] {
        &self.addresses
    }

    /// Serves clients. Never returns: drop it to end. It is one task; clients are tasks of the runtime.
    pub async fn serve(self) -> Infallible {
        let Self { proxy, services, datagrams, clients, give_back, .. } = self;
        let clients = (clients / services.len().max(1)).max(1);
        let mut tasks: Vec<Pin<Box<dyn Future<Output = Infallible>>>> = Vec::new();
        for Service { name, listener, kind } in services {
            let proxy = Arc::clone(&proxy);
            tasks.push(Box::pin(async move {
                let next = async || {
                    let client = listener.accept().await?;
                    let source = client.peer_addr().map(|peer| match &*kind {
                        Kind::Reverse(..) => proxy.reach.source(peer.ip()),
                        _ => peer.ip().into(),
                    });
                    Ok((client, source.unwrap_or(Source::Unknown)))
                };
                let serve =
                    |client, place| serve_client(client, place, Arc::clone(&kind), Arc::clone(&proxy));
                serve_each(&name, clients, next, serve).await
            }));
        }
        for (socket, target) in datagrams {
            let [waiting, sockets] = [&proxy.budget, &proxy.udp_sockets].map(Budget::account);
            let sources = match &*target {
                Target::Host(..) => Sources::of_tunnel(proxy.reach.clone()),
                Target::Remote(..) => Sources::default(),
            };
            tasks.push(Box::pin(udp_forward::serve(socket, sources, target, waiting, sockets)));
        }
        tasks.push(Box::pin(async move {
            loop {
                sleep(GIVE_BACK_INTERVAL).await;
                if proxy.budget.has_shrunk() {
                    give_back();
                }
            }
        }));
        poll_fn(|cx| {
            // A task that always has something to do uses up what the runtime allows for a turn. The next
            // turn begins with another one.
            let turn = usize::from(!tasks.is_empty());
            tasks.rotate_left(turn);
            for task in &mut tasks {
                if let Poll::Ready(never) = task.as_mut().poll(cx) {
                    return Poll::Ready(never);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Serves a client. Whatever is done for it, it gives way to others once it has ended its side, or nothing
/// moves.
async fn serve_client(client: Box<dyn Connection>, place: Arc<Place>, kind: Arc<Kind>, proxy: Arc<Proxy>) {
    let ended = client.ended();
    let client = Moves::of_client(client, &place);
    let watch = async {
        ended.await;
        place.end();
        pending::<Infallible>().await
    };
    tokio::select! {
        biased;
        () = speak(client, &place, &kind, &proxy) => {}
        never = watch => match never {},
    }
}

async fn speak(client: Box<dyn Connection>, place: &Arc<Place>, kind: &Kind, proxy: &Arc<Proxy>) {
    match kind {
        Kind::Socks5 => socks5::serve(client, place, proxy).await,
        Kind::Http => http::serve(client, Arc::clone(place), Arc::clone(proxy)).await,
        Kind::Forward(destination) => {
            place.begin_serving();
            let opened = unless_gone(client.ended(), proxy.reach.connect(destination)).await;
            if let Some(Err(error)) = &opened {
                proxy.refusals.report("a client of a forward", error);
            }
            forward(client, opened.and_then(Result::ok), place, proxy).await;
        }
        Kind::Reverse(local, host) => {
            place.begin_serving();
            let opening = async {
                match local {
                    LocalAddress::Ip(to) => host.connect(*to).await,
                    LocalAddress::Unix(path) => system::connect(path).await,
                }
            };
            let opened = unless_gone(client.ended(), opening).await;
            if let Some(Err(error)) = &opened {
                proxy.refusals.report("a client of a reverse forward", &format!("{local}: {error}"));
            }
            forward(client, opened.and_then(Result::ok), place, proxy).await;
        }
    }
}

/// Relays a client that asked for nothing: its socket says where it goes.
async fn forward(
    client: Box<dyn Connection>,
    remote: Option<Box<dyn Connection>>,
    place: &Arc<Place>,
    proxy: &Proxy,
) {
    match remote.map(|remote| Moves::of_remote(remote, place)) {
        Some(remote) => drop(relay(client, remote, Vec::new(), &proxy.relayed).await),
        // There is no other way to tell it.
        None => client.abort(),
    }
}

fn failed(
    service: &'static str,
    address: &dyn fmt::Display,
    held: Option<Held<'_>>,
    source: io::Error,
) -> StartError {
    let held = held.filter(|_| source.kind() == io::ErrorKind::AddrInUse);
    let holder = held.map_or(Holder::Unknown, Holder::of);
    StartError::Listen { service, address: address.to_string(), holder, source }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another program uses this address".to_owned(),
        io::ErrorKind::AddrNotAvailable => "there is no such address".to_owned(),
        _ => error.to_string(),
    }
}
