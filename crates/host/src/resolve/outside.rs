//! Looks names up past a tunnel: at the name servers that the machine has without it, by packets that no
//! route leads into it.
//!
//! Threads that read answers may set no mark. Another thread opens their sockets, and finds out what to ask:
//!
//! ```text
//!   weft-names ───── the servers, a socket ─────► weft-outside
//!        └────────── query, answer ──────────────► name server
//! ```

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Once};
use std::thread;

use socket2::{Domain, Socket, Type};
use weft_confine::EndProcessOnPanic;

use super::tunnel::Tunnel;
use crate::dns;
use crate::misrouted::Misrouted;
use crate::routes::Netlink;
use crate::system_file;
use client::{Client, Server};

#[path = "outside/client.rs"]
mod client;
#[path = "outside/hosts.rs"]
mod hosts;

/// Where names stand that need no server.
const HOSTS: &str = "/etc/hosts";

type Job = Box<dyn FnOnce() + Send>;

/// The thread that does what the threads of look-ups may not do. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Outside {
    jobs: Sender<Job>,
}

/// A look-up past the tunnel.
pub(super) struct Query {
    outside: Arc<Outside>,
    mark: u32,
    host: String,
    client: Client,
}

impl Outside {
    /// Starts the thread, with the capabilities and namespaces of the calling thread.
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        thread::Builder::new().name("weft-outside".to_owned()).spawn(move || {
            let _guard = EndProcessOnPanic;
            // It reads nothing from the network, and asks the kernel, systemd-resolved and resolvconf, as the
            // control thread does.
            while let Ok(job) = queue.recv() {
                job();
            }
        })?;
        Ok(Self { jobs })
    }

    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let (done, result) = mpsc::sync_channel(1);
        let job = move || drop(done.send(work()));
        let ended = || io::Error::other("the thread that opens sockets has ended");
        self.jobs.send(Box::new(job)).map_err(|_| ended())?;
        result.recv().map_err(|_| ended())
    }

    /// Finds out whom to ask for a name. `None`: the tunnel is not in the way of the system's look-up.
    pub(super) fn prepare(self: &Arc<Self>, tunnel: &Tunnel, host: &str) -> Option<Query> {
        let (tunnel, name) = (tunnel.clone(), host.to_owned());
        let mark = tunnel.mark;
        let client = self.run(move || prepare(&tunnel, &name)).ok()??;
        Some(Query { outside: Arc::clone(self), mark, host: host.to_owned(), client })
    }

    /// Opens a socket for packets past the tunnel, through a device if it has to be that one.
    fn socket(&self, to: SocketAddr, kind: Type, mark: u32, device: Option<String>) -> io::Result<Socket> {
        self.run(move || {
            let socket = Socket::new(Domain::for_address(to), kind, None)?;
            if mark != 0 {
                socket.set_mark(mark)?;
            }
            if let Some(device) = device {
                socket.bind_device(Some(device.as_bytes()))?;
            }
            Ok(socket)
        })?
    }
}

impl Query {
    /// Returns the addresses of the name, the preferred ones first; at least one.
    pub(super) fn addresses(&self) -> io::Result<Vec<IpAddr>> {
        let text = system_file::read_text(Path::new(HOSTS));
        let known = text.map(|text| hosts::find(&text, &self.host)).unwrap_or_default();
        let found = if known.is_empty() {
            let open = |server: &Server, kind| {
                self.outside.socket(server.address, kind, self.mark, server.device.clone())
            };
            self.client.ask(&self.host, &open)?
        } else {
            known
        };
        Ok(self.in_order(found))
    }

    /// Sorts addresses by whether they are reached past the tunnel, and IPv6 first (RFC 6724): an address is
    /// no use from a source of a smaller scope.
    fn in_order(&self, mut found: Vec<IpAddr>) -> Vec<IpAddr> {
        let rank = |address: &IpAddr| match (address, self.source(*address)) {
            (_, None) => 3,
            (IpAddr::V6(to), Some(IpAddr::V6(from))) if is_narrower(from, *to) => 2,
            (IpAddr::V6(_), _) => 0,
            (IpAddr::V4(_), _) => 1,
        };
        found.sort_by_cached_key(rank);
        found.dedup();
        found
    }

    /// Returns the source address of packets to an address, if it has a route past the tunnel. No packet is
    /// sent.
    fn source(&self, to: IpAddr) -> Option<IpAddr> {
        let to = SocketAddr::new(to, client::ANY_PORT);
        let socket = self.outside.socket(to, Type::DGRAM, self.mark, None).ok()?;
        socket.connect(&to.into()).ok()?;
        Some(socket.local_addr().ok()?.as_socket()?.ip())
    }
}

/// Reports whether a source cannot reach a destination of the Internet: it is link-local or unique local.
fn is_narrower(from: Ipv6Addr, to: Ipv6Addr) -> bool {
    let is_narrow = |address: Ipv6Addr| address.is_unicast_link_local() || address.is_unique_local();
    is_narrow(from) && !is_narrow(to)
}

fn prepare(tunnel: &Tunnel, name: &str) -> Option<Client> {
    let mut upstream = dns::System::default().upstream(tunnel.interface.as_str(), tunnel.index, name);
    let netlink = Netlink::open().inspect_err(|error| tracing::debug!("{error}")).ok();
    let own = tunnel.interface.as_str();
    let mut is_in_the_way = tunnel.carries_look_ups;
    let mut servers = Vec::new();
    for address in std::mem::take(&mut upstream.servers) {
        let goes_through = |mark| netlink.as_ref().filter(|netlink| netlink.goes_through(own, address, mark));
        is_in_the_way |= goes_through(0).is_some();
        let device = match goes_through(tunnel.mark).map(|netlink| netlink.device_beside(own, address)) {
            // It is a server of the tunnel.
            Some(None) => continue,
            other => other.flatten(),
        };
        servers.push(Server { address, device });
    }
    if tunnel.carries_look_ups && !servers.is_empty() && servers.iter().all(Server::is_here) {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let local = Misrouted::LocalResolver { server: servers[0].address.ip(), mark: tunnel.mark };
            tracing::warn!("{local}; {}", local.advice());
        });
    }
    is_in_the_way.then_some(Client { upstream, servers })
}
