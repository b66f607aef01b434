//! Three namespaces, and a proxy between them:
//!
//! ```text
//!  host: clients, the proxy          tunnel: its sockets     far: servers
//!  127.0.0.1, 198.51.100.1 (direct)  10.9.0.2 ─────────────── 10.9.0.1   TCP and UDP echo (7), HTTP (80),
//!                                    fd09::2                  fd09::1    DNS (53)
//! ```
//!
//! There is no link between host and tunnel: what arrives at a server came through the proxy.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use weft_lab::link::{self, LinkOptions};
use weft_lab::{Namespace, content::Content};
use weft_network::{Kernel, MakeSocket, Network, Resolver};
use weft_proxy::{Elsewhere, Options, Reach, Server, StartError};

pub(crate) const FAR_V4: &str = "10.9.0.1";
pub(crate) const FAR_V6: &str = "fd09::1";
/// An address of the host that is in no peer's AllowedIPs.
pub(crate) const ELSEWHERE: &str = "198.51.100.1";
pub(crate) const ECHO: u16 = 7;

pub(crate) struct Lab {
    pub(crate) host: Namespace,
    pub(crate) tunnel: Namespace,
    pub(crate) far: Namespace,
}

/// How a proxy of a test differs from the usual one.
#[derive(Default)]
pub(crate) struct Setting {
    pub(crate) options: Options,
    pub(crate) has_dns: bool,
    /// What is outside the tunnel is reached by the host, also what is near it in these networks.
    pub(crate) direct: Option<Vec<ipnet::IpNet>>,
}

/// A proxy that runs until it is dropped.
pub(crate) struct Running {
    pub(crate) addresses: Vec<String>,
    pub(crate) tunnel: Arc<dyn Network>,
    _end: oneshot::Sender<()>,
    _thread: JoinHandle<std::io::Result<()>>,
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

impl Lab {
    /// `None` where namespaces are not permitted, which is reported.
    pub(crate) fn new() -> Option<Self> {
        if !weft_lab::here::namespaces_permitted() {
            return None;
        }
        let [host, tunnel, far] = ["host", "tunnel", "far"].map(|name| Namespace::new(name).unwrap());
        let options = LinkOptions {
            addresses_a: ["10.9.0.2/24", "fd09::2/64"].map(|it| it.parse().unwrap()).to_vec(),
            addresses_b: ["10.9.0.1/24", "fd09::1/64"].map(|it| it.parse().unwrap()).to_vec(),
            ..LinkOptions::default()
        };
        link::join(&tunnel, &far, &options).unwrap();
        link::add_address(&host, "lo", format!("{ELSEWHERE}/32").parse().unwrap()).unwrap();
        let lab = Self { host, tunnel, far };
        lab.serve_echo(&lab.far, &[FAR_V4, FAR_V6]);
        lab.serve_echo(&lab.host, &[ELSEWHERE, "127.0.0.1"]);
        Some(lab)
    }

    /// Runs a client in the host's namespace.
    pub(crate) fn client<T: Send>(&self, work: impl AsyncFnOnce() -> T + Send) -> T {
        self.host.run(|| runtime().block_on(work()))
    }

    /// Starts servers in a namespace, until the test ends.
    pub(crate) fn serve<F>(&self, namespace: &Namespace, work: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()>,
    {
        let (ready, is_ready) = mpsc::channel();
        let run = move || {
            runtime().block_on(async {
                let work = work();
                ready.send(()).unwrap();
                work.await;
            });
        };
        namespace.spawn("server", run).unwrap();
        is_ready.recv().unwrap();
    }

    fn serve_echo(&self, namespace: &Namespace, addresses: &[&str]) {
        for address in addresses {
            let at = SocketAddr::new(address.parse().unwrap(), ECHO);
            let sockets = namespace.run(|| {
                let streams = std::net::TcpListener::bind(at).unwrap();
                socket2::SockRef::from(&streams).listen(1024).unwrap();
                (streams, std::net::UdpSocket::bind(at).unwrap())
            });
            sockets.0.set_nonblocking(true).unwrap();
            sockets.1.set_nonblocking(true).unwrap();
            self.serve(namespace, move || async move {
                let streams = TcpListener::from_std(sockets.0).unwrap();
                let datagrams = UdpSocket::from_std(sockets.1).unwrap();
                tokio::join!(echo_streams(streams), echo_datagrams(datagrams));
            });
        }
    }

    /// Starts a proxy with these options, which has to start.
    pub(crate) fn proxy(&self, options: Options) -> Running {
        self.start(Setting { options, ..Setting::default() }).unwrap()
    }

    /// Starts a proxy in the host's namespace, with sockets in the tunnel's.
    pub(crate) fn start(&self, setting: Setting) -> Result<Running, StartError> {
        let (made, is_made) = mpsc::channel();
        let (end, ending) = oneshot::channel::<()>();
        let tunnel = self.tunnel.clone();
        let run = move || {
            let runtime = runtime();
            let _inside = runtime.enter();
            let Setting { options, has_dns, direct } = setting;
            let far: IpAddr = FAR_V4.parse().unwrap();
            let servers: &[IpAddr] = if has_dns { &[far] } else { &[] };
            let resolver = Resolver::new(servers, &["search.example".parse().unwrap()]);
            let tunnel: Arc<dyn Network> = Arc::new(Kernel::new(maker(&tunnel), resolver));
            let host: Arc<dyn Network> = Arc::new(Kernel::of_this_thread());
            let allowed = [&["10.9.0.0/24", "fd09::/64"][..], &["10.9.0.9/32"]];
            let allowed = allowed.map(|peer| peer.iter().map(|it| it.parse().unwrap()).collect()).to_vec();
            let elsewhere = direct.map(|allowed| Elsewhere::new(Arc::clone(&host), allowed));
            let reach = Reach::new(Arc::clone(&tunnel), allowed, elsewhere);
            match Server::bind(options, reach, &host) {
                Ok(server) => {
                    let addresses = server.addresses().iter().map(|(_, address)| address.clone()).collect();
                    made.send(Ok((addresses, tunnel))).unwrap();
                    runtime.block_on(async {
                        tokio::select! {
                            _ = server.serve() => {}
                            _ = ending => {}
                        }
                    });
                }
                Err(error) => made.send(Err(error)).unwrap(),
            }
        };
        let thread = self.host.spawn("proxy", run).unwrap();
        let (addresses, tunnel) = is_made.recv().unwrap()?;
        Ok(Running { addresses, tunnel, _end: end, _thread: thread })
    }
}

/// Makes sockets in a namespace by asking a thread in it, as the rootless tunnel asks a process.
fn maker(namespace: &Namespace) -> MakeSocket {
    type Asked = (Domain, Type, mpsc::Sender<std::io::Result<Socket>>);
    let (ask, asked) = mpsc::channel::<Asked>();
    let answer = move || {
        while let Ok((domain, kind, answer)) = asked.recv() {
            let _ = answer.send(Socket::new(domain, kind, None));
        }
    };
    namespace.spawn("maker", answer).unwrap();
    let ask = Mutex::new(ask);
    Box::new(move |domain, kind| {
        let (answer, answered) = mpsc::channel();
        ask.lock().unwrap().send((domain, kind, answer)).unwrap();
        answered.recv().unwrap()
    })
}

async fn echo_streams(listener: TcpListener) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let (mut from, mut to) = stream.split();
            let _ = tokio::io::copy(&mut from, &mut to).await;
            let _ = to.shutdown().await;
        });
    }
}

async fn echo_datagrams(socket: UdpSocket) {
    let mut buffer = vec![0; 65_536];
    loop {
        let (len, from) = socket.recv_from(&mut buffer).await.unwrap();
        let _ = socket.send_to(&buffer[..len], from).await;
    }
}

/// Reports whether this process is of one test alone: what others take does not count. If it is not, that
/// test, with its whole name, is run in such a process, and has to pass.
pub(crate) fn is_alone(test: &str) -> bool {
    const ALONE: &str = "WEFT_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    let output = again.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

/// Sends content of `seed` to an echo server, and checks all that comes back, its end included.
pub(crate) async fn check_echo<S>(mut stream: S, seed: u64, bytes: u64)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let content = Content::new(seed);
    let (mut from, mut to) = tokio::io::split(&mut stream);
    let send = async {
        let mut sent = 0;
        while sent < bytes {
            let chunk = content.at(sent);
            let chunk = &chunk[..chunk.len().min((bytes - sent) as usize)];
            to.write_all(chunk).await.unwrap();
            sent += chunk.len() as u64;
        }
        to.shutdown().await.unwrap();
    };
    let receive = async {
        let mut received = 0;
        let mut buffer = vec![0; 65_536];
        loop {
            let count = from.read(&mut buffer).await.unwrap();
            if count == 0 {
                break received;
            }
            assert_eq!(content.first_mismatch(received, &buffer[..count]), None, "flow {seed}");
            received += count as u64;
        }
    };
    let ((), received) = tokio::join!(send, receive);
    assert_eq!(received, bytes, "flow {seed}");
}

/// A host in the form of SOCKS5: an address, or else a name.
pub(crate) fn socks5_address(host: &str, port: u16) -> Vec<u8> {
    let mut bytes = match host.parse() {
        Ok(IpAddr::V4(address)) => [&[1], &address.octets()[..]].concat(),
        Ok(IpAddr::V6(address)) => [&[4], &address.octets()[..]].concat(),
        Err(_) => [&[3, host.len() as u8], host.as_bytes()].concat(),
    };
    bytes.extend(port.to_be_bytes());
    bytes
}

/// Asks a SOCKS5 proxy for a command. Returns its code, and the address in its reply.
pub(crate) async fn socks5_request(
    stream: &mut TcpStream,
    command: u8,
    host: &str,
    port: u16,
) -> (u8, SocketAddr) {
    stream.write_all(&[5, 1, 0]).await.unwrap();
    let mut method = [0; 2];
    stream.read_exact(&mut method).await.unwrap();
    assert_eq!(method, [5, 0]);
    let request = [&[5, command, 0], &socks5_address(host, port)[..]].concat();
    stream.write_all(&request).await.unwrap();
    let mut head = [0; 4];
    stream.read_exact(&mut head).await.unwrap();
    let ip = match head[3] {
        1 => {
            let mut address = [0; 4];
            stream.read_exact(&mut address).await.unwrap();
            IpAddr::from(address)
        }
        4 => {
            let mut address = [0; 16];
            stream.read_exact(&mut address).await.unwrap();
            IpAddr::from(address)
        }
        other => panic!("address type {other}"),
    };
    let port = stream.read_u16().await.unwrap();
    (head[1], SocketAddr::new(ip, port))
}

/// Opens a connection through a SOCKS5 proxy, or returns the code of its refusal.
pub(crate) async fn socks5_connect(proxy: &str, host: &str, port: u16) -> Result<TcpStream, u8> {
    let mut stream = TcpStream::connect(proxy).await.unwrap();
    match socks5_request(&mut stream, 1, host, port).await {
        (0, _) => Ok(stream),
        (code, _) => Err(code),
    }
}
