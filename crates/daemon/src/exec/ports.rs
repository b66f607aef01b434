//! Ports between the host and the namespace of the command, beside the tunnel.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tokio::runtime::Builder;
use weft_config::exit::{Code, Error};
use weft_ipc::ServerThread;
use weft_ipc::holder::Held;
use weft_ipc::runtime_dir::runtime_dir;
use weft_network::{Connection, Datagrams, Kernel, Later, Listener, LookUpError, Network, Stats};
use weft_proxy::{LocalAddress, Options, Reach, Reverse, Server, StartError, Transport, TunnelAddress};
use weft_rootless::Sockets;

use crate::cli::ExecArgs;
use crate::proxy;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LOOPBACK_V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
/// At most, of one command: for published ports, for those of the host, and for name servers.
const SERVERS: usize = 3;
/// The port of name servers.
const DNS: u16 = 53;

/// An address inside that stands for a name server of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resolver {
    pub(super) inside: IpAddr,
    host: IpAddr,
}

impl Resolver {
    /// Returns one for each server. Commands share the namespace, so that each has its addresses, of the
    /// loopback network and with the number of its process in them.
    pub(super) fn of_host(servers: &[IpAddr]) -> Vec<Self> {
        // At most 22 bits (proc(5), pid_max): two more number the servers.
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let inside = |place: u8| Ipv4Addr::new(127, place << 6 | high & 0x3f, middle, low).into();
        (1..=3).zip(servers).map(|(place, host)| Self { inside: inside(place), host: *host }).collect()
    }
}

/// Serves the ports that the arguments name, and the resolvers, until the threads are dropped.
///
/// # Errors
/// A port is busy. None is served then.
pub(super) fn serve(
    args: &ExecArgs,
    resolvers: &[Resolver],
    sockets: &Sockets,
) -> Result<Vec<ServerThread>, Error> {
    let host: Arc<dyn Network> = Arc::new(EitherLoopback(Kernel::of_this_thread()));
    let make = proxy::maker(sockets.clone(), None);
    let inside: Arc<dyn Network> =
        Arc::new(EitherLoopback(Kernel::new(make, weft_network::Resolver::without_servers())));
    let published =
        args.publish.iter().map(|publish| carry(Transport::Tcp, publish.at, (LOOPBACK, publish.port)));
    let loopbacks = if has_ipv6(sockets) { &[LOOPBACK, LOOPBACK_V6][..] } else { &[LOOPBACK] };
    let of_host = args.host_port.iter().flat_map(|port| {
        loopbacks.iter().map(|at| carry(Transport::Tcp, (*at, *port).into(), (LOOPBACK, *port)))
    });
    let names = resolvers.iter().flat_map(|Resolver { inside, host }| {
        let at = SocketAddr::new(*inside, DNS);
        [Transport::Udp, Transport::Tcp].map(|transport| carry(transport, at, (*host, DNS)))
    });
    for publish in &args.publish {
        weft_host::wait_for_release(&runtime_dir(), Held::Tcp(publish.at));
    }
    let mut threads = Vec::new();
    threads.extend(start("--publish", published.collect(), &host, &inside)?);
    threads.extend(start("--host-port", of_host.collect(), &inside, &host)?);
    threads.extend(start("--dns host", names.collect(), &inside, &host)?);
    Ok(threads)
}

/// Reports whether the loopback device of the namespace has an IPv6 address.
fn has_ipv6(sockets: &Sockets) -> bool {
    let bound =
        sockets.udp(socket2::Domain::IPV6).map(|socket| socket.bind(&SocketAddr::new(LOOPBACK_V6, 0).into()));
    matches!(bound, Ok(Ok(())))
}

/// Carries connections or datagrams to `at` in one network to an address of the other network.
fn carry(transport: Transport, at: SocketAddr, to: impl Into<SocketAddr>) -> Reverse {
    Reverse {
        transport,
        tunnel: TunnelAddress { address: Some(at.ip()), port: at.port() },
        local: LocalAddress::Ip(to.into()),
    }
}

/// Starts a thread that listens in one network and connects in the other; `None` if there is nothing to do.
fn start(
    option: &str,
    reverses: Vec<Reverse>,
    from: &Arc<dyn Network>,
    to: &Arc<dyn Network>,
) -> Result<Option<ServerThread>, Error> {
    if reverses.is_empty() {
        return Ok(None);
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let options = proxy::bounded(Options { reverses, ..Options::default() }, None, SERVERS)?;
    let server = {
        let _inside = runtime.enter();
        let reach = Reach::new(Arc::clone(from), Vec::new(), None);
        let bound = Server::bind(options, reach, to);
        bound.map_err(|error| match &error {
            StartError::Listen { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                let reason = format!("{option}: {error}; ports below 1024 need root: choose a higher one");
                Error::new(Code::Permission, reason)
            }
            _ => Error::new(Code::Failure, format!("{option}: {error}")),
        })?
    };
    let serve = async move || {
        server.serve().await;
    };
    Ok(Some(ServerThread::start("weft-ports", runtime, serve)?))
}

/// A network in which a port of 127.0.0.1 is also that of ::1, where programs that mean `localhost` may
/// listen.
struct EitherLoopback(Kernel);

impl Network for EitherLoopback {
    fn connect(&self, to: SocketAddr) -> Later<'_, io::Result<Box<dyn Connection>>> {
        Box::pin(async move {
            match self.0.connect(to).await {
                Err(refused) if to.ip() == LOOPBACK => {
                    self.0.connect((LOOPBACK_V6, to.port()).into()).await.map_err(|_| refused)
                }
                connected => connected,
            }
        })
    }

    fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>> {
        self.0.listen(at)
    }

    fn udp(&self, at: SocketAddr) -> io::Result<Arc<dyn Datagrams>> {
        self.0.udp(at)
    }

    fn look_up<'a>(&'a self, name: &'a str) -> Later<'a, Result<Vec<IpAddr>, LookUpError>> {
        self.0.look_up(name)
    }

    fn stats(&self) -> Stats {
        self.0.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_of_the_host_has_an_address_of_the_loopback_network() {
        let servers = ["192.0.2.1", "192.0.2.2", "2001:db8::1", "192.0.2.4"].map(|it| it.parse().unwrap());
        let resolvers = Resolver::of_host(&servers);
        assert_eq!(resolvers.iter().map(|resolver| resolver.host).collect::<Vec<_>>(), servers[..3]);
        let mut inside: Vec<IpAddr> = resolvers.iter().map(|resolver| resolver.inside).collect();
        assert!(inside.iter().all(|address| address.is_loopback() && *address != LOOPBACK), "{inside:?}");
        inside.dedup();
        assert_eq!(inside.len(), 3);
    }
}
