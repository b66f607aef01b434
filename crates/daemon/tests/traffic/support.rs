//! What the tests with real interfaces share: two namespaces, configurations, weft as a process or inside the
//! test's own, and a look at everything that a daemon could leave behind.
//!
//! ```text
//!   end A  eth0 ────────────── veth ────────────── eth0  end B
//!     192.0.2.1/24                            192.0.2.2/24
//!     2001:db8::1/64                        2001:db8::2/64
//!
//!   weft0 ══════════════════ tunnel ══════════════════ weft0
//!     10.77.0.1/24                            10.77.0.2/24
//!     fd77::1/64                                fd77::2/64
//! ```

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::RouteMessage;
use tempfile::TempDir;
use weft::config::{Config, Endpoint, parse};
use weft::lab::emulator::{Emulator, LinkSpec};
use weft::lab::link::{self, LinkOptions};
use weft::lab::{self, Namespace};
use weft::up::{Daemon, Options, UpError};
use weft_tunnel::{PresharedKey, PrivateKey, PublicKey};

/// The interface's name in most tests.
pub(crate) const NAME: &str = "weft0";
/// The UDP port in most tests.
pub(crate) const PORT: u16 = 51820;
/// How long an event is waited for before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(5);

/// Waits until `condition` gives something.
///
/// # Panics
/// When it does not within [`PATIENCE`].
#[track_caller]
pub(crate) fn wait_until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited {} s in vain: {what}", PATIENCE.as_secs());
        std::thread::sleep(TICK);
    }
}

/// Held by a test that loads the machine: two at once on two cores would starve each other.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The inner or outer protocol family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    A,
    B,
}

impl End {
    fn host(self) -> u8 {
        match self {
            Self::A => 1,
            Self::B => 2,
        }
    }

    /// The address of its veth.
    pub(crate) fn outer(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => Ipv4Addr::new(192, 0, 2, self.host()).into(),
            Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, self.host().into()).into(),
        }
    }

    /// The address in the tunnel.
    pub(crate) fn inner(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => Ipv4Addr::new(10, 77, 0, self.host()).into(),
            Family::V6 => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, self.host().into()).into(),
        }
    }
}

/// Two namespaces joined by a veth or by an emulated link.
pub(crate) struct Ends {
    /// It ends before the namespaces that it joins.
    pub(crate) emulator: Option<Emulator>,
    pub(crate) a: Namespace,
    pub(crate) b: Namespace,
}

impl Ends {
    /// Joins two namespaces by a veth; `None` where that is not permitted, which is said for `test`.
    pub(crate) fn new(test: &str, outer_mtu: u32) -> Option<Self> {
        Self::joined(test, outer_mtu, None)
    }

    /// The same by a veth or, if there is one, by an emulated link.
    pub(crate) fn joined(test: &str, outer_mtu: u32, link: Option<&LinkSpec>) -> Option<Self> {
        if !lab::tun_permitted(test) {
            return None;
        }
        let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
        let addresses = |end: End| {
            vec![
                format!("{}/24", end.outer(Family::V4)).parse().unwrap(),
                format!("{}/64", end.outer(Family::V6)).parse().unwrap(),
            ]
        };
        let options = LinkOptions {
            mtu: outer_mtu,
            addresses_a: addresses(End::A),
            addresses_b: addresses(End::B),
            ..LinkOptions::default()
        };
        if let Some(link) = link {
            let emulator = Some(Emulator::between(&a, &b, &options, link).unwrap());
            return Some(Self { emulator, a, b });
        }
        link::join(&a, &b, &options).unwrap();
        for namespace in [&a, &b] {
            if let Err(error) = link::receive_on_one_cpu(namespace, "eth0") {
                eprintln!("{test}: the veth may reorder under load: {error}");
            }
        }
        Some(Self { emulator: None, a, b })
    }

    /// The namespace of an end.
    pub(crate) fn namespace(&self, end: End) -> &Namespace {
        match end {
            End::A => &self.a,
            End::B => &self.b,
        }
    }
}

/// The text of a wg-quick file.
#[derive(Clone)]
pub(crate) struct Conf {
    pub(crate) private_key: PrivateKey,
    pub(crate) listen_port: Option<u16>,
    pub(crate) addresses: Vec<String>,
    pub(crate) mtu: Option<u16>,
    pub(crate) table: Option<String>,
    pub(crate) peers: Vec<PeerConf>,
}

/// A `[Peer]` section.
#[derive(Clone)]
pub(crate) struct PeerConf {
    pub(crate) public_key: PublicKey,
    pub(crate) preshared_key: Option<PresharedKey>,
    pub(crate) endpoint: Option<SocketAddr>,
    pub(crate) allowed_ips: Vec<String>,
    pub(crate) persistent_keepalive: Option<u16>,
}

impl Conf {
    /// An interface with a key of its own and nothing else.
    pub(crate) fn new() -> Self {
        Self {
            private_key: PrivateKey::generate().unwrap(),
            listen_port: None,
            addresses: Vec::new(),
            mtu: None,
            table: None,
            peers: Vec::new(),
        }
    }

    /// The configurations of ends A and B of the drawing above, who know each other's endpoints in the `outer`
    /// family.
    pub(crate) fn pair(outer: Family) -> (Self, Self) {
        let (mut a, mut b) = (Self::new(), Self::new());
        let keys = (a.private_key.public_key(), b.private_key.public_key());
        for (conf, end, other, key) in [(&mut a, End::A, End::B, keys.1), (&mut b, End::B, End::A, keys.0)] {
            conf.listen_port = Some(PORT);
            conf.addresses =
                vec![format!("{}/24", end.inner(Family::V4)), format!("{}/64", end.inner(Family::V6))];
            conf.peers.push(PeerConf {
                endpoint: Some(SocketAddr::new(other.outer(outer), PORT)),
                allowed_ips: vec![
                    format!("{}/32", other.inner(Family::V4)),
                    format!("{}/128", other.inner(Family::V6)),
                ],
                ..PeerConf::new(key)
            });
        }
        (a, b)
    }

    /// The file's text.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("[Interface]\nPrivateKey = {}\n", *self.private_key.to_base64());
        let mut line = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                writeln!(text, "{key} = {value}").unwrap();
            }
        };
        line("ListenPort", self.listen_port.map(|port| port.to_string()));
        for address in &self.addresses {
            line("Address", Some(address.clone()));
        }
        line("MTU", self.mtu.map(|mtu| mtu.to_string()));
        line("Table", self.table.clone());
        for peer in &self.peers {
            text.push_str(&peer.text());
        }
        text
    }

    /// The configuration, as the daemon reads it.
    pub(crate) fn parse(&self, name: &str) -> Config {
        parse(&self.text(), Path::new("test.conf"), name.parse().unwrap()).unwrap().config
    }

    /// Writes the file `NAME.conf`, which only its owner may read.
    pub(crate) fn write(&self, directory: &Path, name: &str) -> PathBuf {
        let path = directory.join(format!("{name}.conf"));
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .unwrap();
        io::Write::write_all(&mut file, self.text().as_bytes()).unwrap();
        path
    }

    /// Starts an interface of this configuration inside the test's own process.
    pub(crate) fn start(&self, namespace: &Namespace, options: &Options) -> Result<Daemon, UpError> {
        let config = self.parse(NAME);
        let endpoints: Vec<Option<SocketAddr>> = config
            .peers
            .iter()
            .map(|peer| match peer.endpoint {
                Some(Endpoint::Address(address)) => Some(address),
                _ => None,
            })
            .collect();
        namespace.run(|| Daemon::start(&config, &endpoints, options, || {}))
    }
}

impl PeerConf {
    /// A peer that nothing is known of but its key.
    pub(crate) fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            preshared_key: None,
            endpoint: None,
            allowed_ips: Vec::new(),
            persistent_keepalive: None,
        }
    }

    fn text(&self) -> String {
        let mut text = format!("[Peer]\nPublicKey = {}\n", self.public_key);
        if let Some(key) = &self.preshared_key {
            writeln!(text, "PresharedKey = {}", *key.to_base64()).unwrap();
        }
        if let Some(endpoint) = self.endpoint {
            writeln!(text, "Endpoint = {endpoint}").unwrap();
        }
        if !self.allowed_ips.is_empty() {
            writeln!(text, "AllowedIPs = {}", self.allowed_ips.join(", ")).unwrap();
        }
        if let Some(seconds) = self.persistent_keepalive {
            writeln!(text, "PersistentKeepalive = {seconds}").unwrap();
        }
        text
    }
}

/// How a process ended, and what it had said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
}

/// `weft up` as a process of its own. Dropping it kills it.
pub(crate) struct WeftProcess {
    child: Child,
    log: Arc<Log>,
    reader: Option<JoinHandle<()>>,
    _directory: Option<TempDir>,
}

#[derive(Default)]
struct Log {
    state: Mutex<LogState>,
    changed: Condvar,
}

#[derive(Default)]
struct LogState {
    lines: Vec<String>,
    is_closed: bool,
}

impl WeftProcess {
    /// Starts `weft up` with this configuration and these arguments in a namespace, and waits until it is up.
    #[track_caller]
    pub(crate) fn up(namespace: &Namespace, conf: &Conf, arguments: &[&str]) -> Self {
        let process = Self::start(namespace, conf, arguments);
        process.wait_until_up();
        process
    }

    /// The same without waiting.
    #[track_caller]
    pub(crate) fn start(namespace: &Namespace, conf: &Conf, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = conf.write(directory.path(), NAME);
        let mut command = Self::command(namespace, &file);
        command.args(arguments);
        let mut process = Self::spawn(namespace, command).unwrap();
        process._directory = Some(directory);
        process
    }

    /// The command `weft up FILE`, to be changed and given to [`Self::spawn`].
    pub(crate) fn command(namespace: &Namespace, file: &Path) -> Command {
        let mut command = namespace.command(env!("CARGO_BIN_EXE_weft"));
        command.env_remove("RUST_LOG").arg("up").arg(file);
        command
    }

    /// Starts a command, and collects what it says on standard error.
    pub(crate) fn spawn(namespace: &Namespace, mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = namespace.start(command)?;
        let log = Arc::<Log>::default();
        let stderr = child.stderr.take().unwrap();
        let shared = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                shared.lock().lines.push(line);
                shared.changed.notify_all();
            }
            shared.lock().is_closed = true;
            shared.changed.notify_all();
        });
        Ok(Self { child, log, reader: Some(reader), _directory: None })
    }

    /// Waits for the line that says that everything is in place.
    #[track_caller]
    pub(crate) fn wait_until_up(&self) {
        self.wait_for_line("interface is up");
    }

    /// Waits for a line on standard error that contains `text`, and gives it.
    #[track_caller]
    pub(crate) fn wait_for_line(&self, text: &str) -> String {
        let start = Instant::now();
        let mut state = self.log.lock();
        loop {
            if let Some(line) = state.lines.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            let left = PATIENCE.saturating_sub(start.elapsed());
            assert!(
                !state.is_closed && !left.is_zero(),
                "weft did not say {text:?}, but:\n{}",
                state.lines.join("\n")
            );
            state = self.log.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What it has said so far.
    pub(crate) fn stderr(&self) -> String {
        self.log.lock().lines.join("\n")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Waits until it ends.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Ended {
        let status = wait_for_exit(&mut self.child);
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        Ended { code: status.code(), stderr: self.stderr() }
    }

    /// Ends it with SIGTERM, and asserts that it ends well.
    #[track_caller]
    pub(crate) fn stop(self) -> Ended {
        self.signal(Signal::SIGTERM);
        let ended = self.wait();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended
    }
}

impl Drop for WeftProcess {
    fn drop(&mut self) {
        // It has been waited for already if these fail.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[track_caller]
fn wait_for_exit(child: &mut Child) -> ExitStatus {
    wait_until("the process to end", || child.try_wait().unwrap())
}

/// Everything of a namespace that a daemon could leave behind: links, addresses, routes of all tables, and UDP
/// ports in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traces(pub(crate) BTreeSet<String>);

impl Traces {
    pub(crate) fn of(namespace: &Namespace) -> Self {
        namespace.run(|| {
            let mut traces: BTreeSet<String> =
                udp_ports().iter().map(|port| format!("udp port {port}")).collect();
            traces.extend(links().into_iter().map(|link| format!("link {link:?}")));
            traces.extend(addresses().into_iter().map(|address| format!("address {address}")));
            traces.extend(all_routes().iter().map(|route| format!("route {route}")));
            Self(traces)
        })
    }

    /// Waits until the namespace looks as it did then.
    #[track_caller]
    pub(crate) fn assert_restored(&self, namespace: &Namespace) {
        let start = Instant::now();
        loop {
            let now = Self::of(namespace);
            if now == *self {
                return;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "left behind: {:?}\nmissing: {:?}",
                now.0.difference(&self.0).collect::<Vec<_>>(),
                self.0.difference(&now.0).collect::<Vec<_>>()
            );
            std::thread::sleep(TICK);
        }
    }
}

/// Name, MTU and whether it is up, of every link in a namespace.
pub(crate) fn links_of(namespace: &Namespace) -> Vec<(String, u32, bool)> {
    namespace.run(links)
}

/// `table TABLE: PREFIX dev INTERFACE` for every route of a namespace.
pub(crate) fn routes_of(namespace: &Namespace) -> Vec<String> {
    namespace.run(all_routes)
}

/// `ADDRESS/PREFIX dev INTERFACE` for every address of a namespace.
pub(crate) fn addresses_of(namespace: &Namespace) -> Vec<String> {
    namespace.run(addresses)
}

/// UDP ports in use in a namespace, of both families.
pub(crate) fn udp_ports_of(namespace: &Namespace) -> BTreeSet<u16> {
    namespace.run(udp_ports)
}

fn netlink<T>(request: impl AsyncFnOnce(rtnetlink::Handle) -> Result<T, rtnetlink::Error>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection().unwrap();
        let connection = tokio::spawn(connection);
        let result = request(handle).await.unwrap();
        connection.abort();
        result
    })
}

/// Lets only so much leave the interface, with room for 64 MiB before it (the kernel's queueing discipline "tbf").
pub(crate) fn set_rate(namespace: &Namespace, name: &str, bytes_per_second: u32) -> io::Result<()> {
    use rtnetlink::packet_core::{
        DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
        Nla as _,
    };
    use rtnetlink::packet_route::RouteNetlinkMessage;
    use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage};
    // linux/pkt_sched.h: attributes of tbf, and struct tc_tbf_qopt: two struct tc_ratespec, limit, buffer, mtu.
    const TCA_OPTIONS: u16 = 2;
    const TCA_TBF_PARMS: u16 = 1;
    const TCA_TBF_BURST: u16 = 6;
    const TC_LINKLAYER_ETHERNET: u8 = 1;
    const LIMIT: u32 = 64 << 20;
    const BURST: u32 = 64 << 10;
    let mut parameters = vec![0, TC_LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0];
    parameters.extend(bytes_per_second.to_ne_bytes());
    parameters.extend([0; 12]);
    parameters.extend([LIMIT, 0, 0].into_iter().flat_map(u32::to_ne_bytes));
    let mut options = Vec::new();
    for (kind, value) in [(TCA_TBF_PARMS, parameters), (TCA_TBF_BURST, BURST.to_ne_bytes().to_vec())] {
        let attribute = DefaultNla::new(kind, value);
        let mut bytes = vec![0; 4 + attribute.value_len()];
        rtnetlink::packet_core::Emitable::emit(&attribute, &mut bytes);
        options.extend(bytes);
    }
    namespace.run(|| {
        netlink(async |mut handle| {
            let index = nix::net::if_::if_nametoindex(name).unwrap();
            let mut qdisc = TcMessage::with_index(i32::try_from(index).unwrap());
            qdisc.header.parent = TcHandle::ROOT;
            qdisc.attributes.push(TcAttribute::Kind("tbf".to_owned()));
            qdisc.attributes.push(TcAttribute::Other(DefaultNla::new(TCA_OPTIONS, options)));
            let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewQueueDiscipline(qdisc));
            request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
            let mut answers = handle.request(request)?;
            while let Some(answer) = answers.next().await {
                if let NetlinkPayload::Error(error) = answer.payload
                    && error.code.is_some()
                {
                    return Ok(Err(error.to_io()));
                }
            }
            Ok(Ok(()))
        })
    })
}

fn links() -> Vec<(String, u32, bool)> {
    use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags};
    let messages = netlink(async |handle| handle.link().get().execute().try_collect::<Vec<_>>().await);
    messages
        .iter()
        .map(|message| {
            let (mut name, mut mtu) = (String::new(), 0);
            for attribute in &message.attributes {
                match attribute {
                    LinkAttribute::IfName(is) => name.clone_from(is),
                    LinkAttribute::Mtu(is) => mtu = *is,
                    _ => {}
                }
            }
            (name, mtu, message.header.flags.contains(LinkFlags::Up))
        })
        .collect()
}

fn interface_name(index: u32) -> String {
    nix::net::if_::if_indextoname(index)
        .map_or_else(|_| index.to_string(), |name| name.to_string_lossy().into_owned())
}

fn addresses() -> Vec<String> {
    use rtnetlink::packet_route::address::AddressAttribute;
    let messages = netlink(async |handle| handle.address().get().execute().try_collect::<Vec<_>>().await);
    messages
        .iter()
        .flat_map(|message| {
            message.attributes.iter().filter_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(format!(
                    "{address}/{} dev {}",
                    message.header.prefix_len,
                    interface_name(message.header.index)
                )),
                _ => None,
            })
        })
        .collect()
}

fn all_routes() -> Vec<String> {
    [AddressFamily::Inet, AddressFamily::Inet6].into_iter().flat_map(routes).collect()
}

fn routes(family: AddressFamily) -> Vec<String> {
    use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute};
    let mut query = RouteMessage::default();
    query.header.address_family = family;
    let messages = netlink(async |handle| handle.route().get(query).execute().try_collect::<Vec<_>>().await);
    messages
        .iter()
        .map(|message| {
            let (mut destination, mut device, mut table) =
                ("default".to_owned(), String::new(), u32::from(message.header.table));
            for attribute in &message.attributes {
                match attribute {
                    RouteAttribute::Destination(RouteAddress::Inet(address)) => {
                        destination = format!("{address}/{}", message.header.destination_prefix_length);
                    }
                    RouteAttribute::Destination(RouteAddress::Inet6(address)) => {
                        destination = format!("{address}/{}", message.header.destination_prefix_length);
                    }
                    RouteAttribute::Oif(index) => device = interface_name(*index),
                    RouteAttribute::Table(is) => table = *is,
                    _ => {}
                }
            }
            format!("table {table}: {destination} dev {device}")
        })
        .collect()
}

fn udp_ports() -> BTreeSet<u16> {
    // Columns: number, local address as HEX:PORT, …
    ["udp", "udp6"]
        .iter()
        .flat_map(|table| {
            let text = std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
            let port = |line: &str| {
                let local = line.split_whitespace().nth(1)?;
                u16::from_str_radix(local.rsplit(':').next()?, 16).ok()
            };
            text.lines().skip(1).filter_map(port).collect::<Vec<_>>()
        })
        .collect()
}

/// Whether a TCP connection from a namespace to a port with nobody behind it is answered at all: the refusal has
/// to come through the tunnel and back.
pub(crate) fn answers(namespace: &Namespace, address: IpAddr) -> bool {
    let closed_port = SocketAddr::new(address, 1);
    namespace.run(|| match TcpStream::connect_timeout(&closed_port, PATIENCE) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    })
}
