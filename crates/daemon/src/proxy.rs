//! `weft proxy`: SOCKS5, HTTP and forwards into a tunnel without root.

use std::future::ready;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use socket2::{Domain, Type};
use tokio::runtime::Builder;
use tokio::time::timeout;
use weft_commands::output;
use weft_commands::signals::{self, Signal};
use weft_config::Dns;
use weft_config::exit::{Code, Error};
use weft_host::memory;
use weft_ipc::ServerThread;
use weft_ipc::holder::Held;
use weft_ipc::runtime_dir::runtime_dir;
use weft_network::{Kernel, Later, MakeSocket, Network, Resolver};
use weft_proxy::{
    DESCRIPTORS, Destination, Elsewhere, LocalAddress, Options, Reach, Server, StartError, Stdio, Transport,
    Users, UsersError, connect_stdio,
};
use weft_rootless::{News, RootlessError, Sockets, TunnelState};

use crate::cli::{ProxyArgs, Stack};
use crate::up::detached::{self, End};
use crate::up::rootless::{self, NameServers};
use crate::{logging, wiping_allocator};

const THREAD: &str = "weft-proxy";
/// The available memory has at most this share for clients, each of which may take as much as an HTTP client
/// does: its head and its body, and those of the answer.
const CLIENTS_SHARE: u64 = 8;
const CLIENT_BYTES: u64 = 128 << 10;
const MIN_CLIENTS: u64 = 64;
/// How long the other end of `--stdio` may take for what was sent last.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `weft proxy` until a signal, the end of the tunnel, or the end of the connection of `--stdio`. Call
/// it before the first thread is started.
///
/// # Errors
/// The arguments are wrong, an address is not free, the tunnel cannot be brought up, or it failed.
pub fn run(args: &ProxyArgs) -> Result<(), Error> {
    // Before anything is set up.
    let options = options(args)?;
    if !args.elsewhere_allow.is_empty() && !args.elsewhere.is_direct() {
        return Err(Error::new(Code::Usage, "--elsewhere-allow needs --elsewhere direct"));
    }
    if args.stdio.is_none() {
        options.check().map_err(start_error)?;
    }
    let signal = Arc::<OnceLock<Signal>>::default();
    let first = Arc::clone(&signal);
    let hear = |end: End| {
        let heard = move |received| {
            first.get_or_init(|| received);
            end(Some(received));
        };
        Ok(signals::watch(heard)?)
    };
    let (report, reported) = mpsc::channel();
    let start = |reach, host: &_, sent, end: End| match args.stdio.clone() {
        Some(to) => serve_stdio(reach, to, sent, move |result| {
            let _ = report.send(result);
            end(None);
        }),
        None => Ok(serve(options, args.memory_limit, reach, host)?.0),
    };
    let result = use_tunnel(args, hear, start);
    let signal = signal.get().copied();
    let of_connection = match reported.try_recv() {
        // The end of the tunnel is not why it failed.
        Ok(result) if result.is_ok() || signal.is_none() => result,
        _ => cut_short(args.stdio.as_ref(), signal),
    };
    result.and(of_connection)
}

/// Joins the tunnel or brings it up, has `start` serve something in it, and runs until the tunnel ends. Both
/// `hear` and `start` get what ends it, and `start` also what has everything sent that was given to the
/// tunnel. Call it before the first thread is started.
///
/// # Errors
/// The tunnel cannot be brought up, or it failed; those of `hear` and `start`.
pub(crate) fn use_tunnel(
    args: &ProxyArgs,
    hear: impl FnOnce(End) -> Result<(), Error>,
    start: impl FnOnce(Reach, &Arc<dyn Network>, Later<'static, ()>, End) -> Result<ServerThread, Error>,
) -> Result<(), Error> {
    if args.stack == Stack::Own {
        return run_in_process(args, hear, start);
    }
    if args.memory_limit.is_some() {
        return Err(Error::new(Code::Usage, "--memory-limit needs --stack own"));
    }
    let (mut member, inside) = match rootless::join(&args.rootless) {
        Err(error) if may_be_own(args, &error) => {
            tracing::info!("the tunnel ends in weft's own TCP/IP stack (`--stack kernel` says why)");
            return run_in_process(args, hear, start);
        }
        joined => joined?,
    };
    let (ending, ended) = mpsc::channel();
    let of_tunnel = ending.clone();
    let end: End = Arc::new(move |_| drop(ending.send(Ok(()))));
    hear(Arc::clone(&end))?;
    let host: Arc<dyn Network> = Arc::new(Kernel::of_this_thread());
    let tunnel: Arc<dyn Network> = Arc::new(network(args, &inside.sockets(), member.state(), &host)?);
    let reach = Reach::new(Arc::clone(&tunnel), member.state().allowed_ips.clone(), elsewhere(args, &host));
    let changed = reach.clone();
    member.hear(move |news| match news {
        News::Changed(state) => changed.allow(state.allowed_ips),
        News::Down => drop(of_tunnel.send(Ok(()))),
        News::Failed(error) => drop(of_tunnel.send(Err(error.into()))),
    })?;
    // A socket waits as it is closed.
    let thread = start(reach, &host, Box::pin(ready(())), end)?;
    let result = ended.recv().unwrap_or(Ok(()));
    // Waits for the thread.
    drop(thread);
    report_end(&*tunnel);
    result
}

/// Reports whether the stack of this process takes the place of the kernel's, which cannot be used.
fn may_be_own(args: &ProxyArgs, error: &Error) -> bool {
    args.stack == Stack::Auto
        && args.rootless.congestion.is_none()
        && error.cause().is_some_and(RootlessError::is_forbidden)
}

/// The same with a tunnel that ends in this process.
fn run_in_process(
    args: &ProxyArgs,
    hear: impl FnOnce(End) -> Result<(), Error>,
    start: impl FnOnce(Reach, &Arc<dyn Network>, Later<'static, ()>, End) -> Result<ServerThread, Error>,
) -> Result<(), Error> {
    if args.rootless.congestion.is_some() {
        return Err(Error::new(Code::Usage, "--congestion needs --stack kernel"));
    }
    // Its thread has the signals blocked that `hear` blocks.
    let mut log = None;
    let hear = |end| {
        hear(end)?;
        log = Some(logging::queue::start());
        Ok(())
    };
    let tunnel = detached::bring_up(&args.rootless, args.memory_limit, hear)?;
    let host: Arc<dyn Network> = Arc::new(Kernel::of_this_thread());
    let (resolver, names) = names(args, &tunnel.dns, &host)?;
    let network: Arc<dyn Network> = Arc::new(tunnel.stack.clone().with_names(resolver, names));
    let reach = Reach::new(Arc::clone(&network), tunnel.allowed_ips.clone(), elsewhere(args, &host));
    let changed = reach.clone();
    let stack = tunnel.stack.clone();
    let drained = Box::pin(async move { stack.drained().await });
    let thread = start(reach, &host, drained, Arc::clone(&tunnel.end))?;
    let result = tunnel.work(move |allowed_ips| changed.allow(allowed_ips));
    // Waits for the thread.
    drop(thread);
    report_end(&*network);
    result
}

/// Returns how a proxy ends by a signal, or with its tunnel. A connection of standard input and output is cut
/// short, which the other end of a pipe does not see.
fn cut_short(stdio: Option<&Destination>, signal: Option<Signal>) -> Result<(), Error> {
    let Some(to) = stdio else { return Ok(()) };
    let what = match signal {
        // ssh(1) sends it when it needs no more.
        Some(Signal::HangUp) => return Ok(()),
        Some(signal) => format!("ended by {signal}"),
        None => "the tunnel was taken down".to_owned(),
    };
    Err(Error::new(Code::Failure, format!("{what} before the connection to {to} had ended")))
}

fn elsewhere(args: &ProxyArgs, host: &Arc<dyn Network>) -> Option<Elsewhere> {
    let allowed = args.elsewhere_allow.clone();
    args.elsewhere.is_direct().then(|| Elsewhere::new(Arc::clone(host), allowed))
}

fn report_end(tunnel: &dyn Network) {
    let stats = tunnel.stats();
    tracing::info!(
        connected = stats.connected,
        failed = stats.failed,
        accepted = stats.accepted,
        "the proxy has ended"
    );
}

fn options(args: &ProxyArgs) -> Result<Options, Error> {
    let users = args.password_file.as_deref().map(Users::read).transpose().map_err(users_error)?;
    if let Some(file) = &args.password_file {
        warn_of_readers(file);
    }
    Ok(Options {
        socks5: args.socks5.clone(),
        http: args.http.clone(),
        forwards: args.forward.clone(),
        reverses: args.reverse.clone(),
        users,
        allow_anyone: args.allow_anyone,
        ..Options::default()
    })
}

/// The network of the tunnel: sockets in its namespace, and names at its DNS servers.
fn network(
    args: &ProxyArgs,
    sockets: &Sockets,
    state: &TunnelState,
    host: &Arc<dyn Network>,
) -> Result<Kernel, Error> {
    let congestion = args.rootless.congestion.as_deref();
    if let Some(name) = congestion {
        let set = sockets.tcp(Domain::IPV4).and_then(|socket| socket.set_tcp_congestion(name.as_bytes()));
        set.map_err(|error| congestion_error(name, &error))?;
    }
    let (resolver, names) = names(args, &state.dns, host)?;
    // Else what the kernel has left to send at the end goes with the namespace.
    let linger = args.stdio.as_ref().map(|_| PATIENCE);
    let make = maker(sockets.clone(), congestion);
    let lingering: MakeSocket = Box::new(move |domain, kind| {
        let socket = make(domain, kind)?;
        if kind == Type::STREAM {
            socket.set_linger(linger)?;
        }
        Ok(socket)
    });
    let network = Kernel::new(lingering, resolver);
    Ok(match names {
        Some(names) => network.with_names_of(names),
        None => network,
    })
}

/// Returns what looks names up, and the network that carries its queries if that is not the tunnel.
fn names(
    args: &ProxyArgs,
    dns: &Dns,
    host: &Arc<dyn Network>,
) -> Result<(Resolver, Option<Arc<dyn Network>>), Error> {
    let (names, network) = match rootless::name_servers(&args.rootless, dns)? {
        NameServers::Tunnel(names) => (names, None),
        NameServers::Host(names) => (names, Some(Arc::clone(host))),
    };
    let search: Vec<_> = names.search.iter().filter_map(|domain| domain.parse().ok()).collect();
    Ok((Resolver::new(&names.servers, &search), network))
}

fn congestion_error(name: &str, error: &std::io::Error) -> Error {
    let available = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let available = available.unwrap_or_default();
    Error::new(
        Code::Failure,
        format!("cannot use the congestion control {name}: {error}; this kernel has {}", available.trim()),
    )
}

/// Returns what makes sockets in the tunnel, those of TCP with this congestion control.
pub(crate) fn maker(sockets: Sockets, congestion: Option<&str>) -> MakeSocket {
    let congestion = congestion.map(str::to_owned);
    Box::new(move |domain: Domain, kind: Type| match kind {
        Type::STREAM => {
            let socket = sockets.tcp(domain)?;
            if let Some(name) = &congestion {
                socket.set_tcp_congestion(name.as_bytes())?;
            }
            Ok(socket)
        }
        _ => sockets.udp(domain),
    })
}

/// What is served, and where.
type Addresses = Vec<(&'static str, String)>;

/// Serves until the thread is dropped. Counts on at most `memory_limit` MiB.
pub(crate) fn serve(
    options: Options,
    memory_limit: Option<u32>,
    reach: Reach,
    host: &Arc<dyn Network>,
) -> Result<(ServerThread, Addresses), Error> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let options = bounded(options, memory_limit, 1)?;
    wait_for_release(&options);
    let open = options.open_to_others();
    let server = {
        let _inside = runtime.enter();
        Server::bind(options, reach, host).map_err(start_error)?
    };
    let addresses = server.addresses().to_vec();
    for (service, address) in &addresses {
        tracing::info!("{service} on {address}");
    }
    for open in open {
        tracing::warn!("{open}");
    }
    tracing::info!("serving");
    let serve = async move || {
        server.serve().await;
    };
    Ok((ServerThread::start(THREAD, runtime, serve)?, addresses))
}

/// Waits for a proxy that is ending and has an address of this one.
fn wait_for_release(options: &Options) {
    let forwards = options.forwards.iter().map(|forward| (&forward.local, forward.transport));
    let proxies = options.socks5.iter().chain(&options.http).map(|local| (local, Transport::Tcp));
    for (local, transport) in proxies.chain(forwards) {
        let held = match (local, transport) {
            (LocalAddress::Ip(address), Transport::Tcp) => Held::Tcp(*address),
            (LocalAddress::Ip(address), Transport::Udp) => Held::Udp(address.port()),
            (LocalAddress::Unix(path), _) => Held::Socket(path),
        };
        weft_host::wait_for_release(&runtime_dir(), held);
    }
}

/// Relays standard input and output, and reports the end once everything is `sent`.
fn serve_stdio(
    reach: Reach,
    to: Destination,
    sent: Later<'static, ()>,
    end: impl FnOnce(Result<(), Error>) + Send + 'static,
) -> Result<ServerThread, Error> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let stdio = Stdio::open()?;
    let serve = async move || {
        let result = connect_stdio(&reach, &to, stdio).await;
        let _ = timeout(PATIENCE, sent).await;
        end(result.map_err(|error| Error::new(Code::Failure, error)));
    };
    Ok(ServerThread::start(THREAD, runtime, serve)?)
}

/// Bounds a proxy by the memory, of which it counts on at most `memory_limit` MiB, and by the descriptors
/// that this process may have, as one of `servers`.
pub(crate) fn bounded(
    options: Options,
    memory_limit: Option<u32>,
    servers: usize,
) -> std::io::Result<Options> {
    let limit = memory_limit.map(|mib| u64::from(mib) << 20);
    let available = [memory::available_bytes(), limit].into_iter().flatten().min();
    let by_memory =
        available.map_or(MIN_CLIENTS, |bytes| bytes / CLIENTS_SHARE / CLIENT_BYTES).max(MIN_CLIENTS);
    let options = options.within_descriptors(raise_descriptors()?, servers);
    let clients = options.clients.min(usize::try_from(by_memory).unwrap_or(usize::MAX));
    let waiting_bytes = weft_dataplane::staging_bytes(available);
    Ok(Options { clients, waiting_bytes, give_back: wiping_allocator::give_back, ..options })
}

/// Raises the limit for descriptors as far as is needed, and returns it.
fn raise_descriptors() -> std::io::Result<usize> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let limit = soft.max(hard.min(DESCRIPTORS as rlim_t));
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard)?;
    Ok(usize::try_from(limit).unwrap_or(usize::MAX))
}

fn start_error(error: StartError) -> Error {
    let code = match &error {
        StartError::Nothing | StartError::OpenToAnyone { .. } => Code::Usage,
        StartError::Listen { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Code::Permission
        }
        StartError::Listen { .. } => Code::Failure,
    };
    Error::new(code, error)
}

fn users_error(error: UsersError) -> Error {
    let is_denied = matches!(&error, UsersError::Read { source, .. }
        if source.kind() == std::io::ErrorKind::PermissionDenied);
    Error::new(Code::of_configuration(is_denied), error)
}

/// Others could use the proxy with a password that they can read.
fn warn_of_readers(file: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    if std::fs::metadata(file).is_ok_and(|file| file.permissions().mode() & 0o077 != 0) {
        let file = file.display();
        output::warning(&format!("{file}: other users can read the passwords (chmod 600 {file})"));
    }
}
