//! Requests to the proxies, SOCKS5 and HTTP, over their sockets.
//!
//! Whatever a client sends, the proxy answers in whole answers of known kinds, connects nowhere outside the
//! tunnel, closes the connection when the client has closed its side, and goes on serving. What the HTTP
//! proxy forwards is a request of the form that servers expect. The first byte of an input chooses between a
//! proxy that asks for a password and one that does not.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use weft_network::{Connection, Datagrams, Later, Listener, LookUpError, Network, Stats, Stream};
use weft_proxy::{LocalAddress, Options, Reach, Server, Users};

/// Longer requests do not fit the buffer of a socket beside their answers.
const MOST: usize = 8 << 10;
/// The network that the tunnel leads to.
const INSIDE: &str = "192.0.2.0/24";
/// The statuses that the HTTP proxy answers with.
const STATUS: [&str; 13] =
    ["200", "400", "403", "404", "405", "407", "408", "414", "431", "501", "502", "503", "504"];

/// The first line of a request that no server takes, if one was forwarded.
static MALFORMED: Mutex<Option<String>> = Mutex::new(None);

/// A tunnel in which all connections are refused, or lead to a server that reads a request and hangs up.
struct Tunnel {
    has_server: bool,
}

/// Reads the head of a request, and reports one with a malformed first line.
async fn read_request(mut stream: tokio::net::UnixStream) {
    let mut head = Vec::new();
    while !head.windows(2).any(|pair| pair == b"\r\n") {
        if !matches!(stream.read_buf(&mut head).await, Ok(1..)) {
            return;
        }
    }
    let line = String::from_utf8_lossy(&head);
    let line = line.split("\r\n").next().unwrap_or_default();
    let is_well_formed = match line.split(' ').collect::<Vec<_>>()[..] {
        [method, target, "HTTP/1.1"] => {
            let has_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_graphic());
            has_method && (target.starts_with('/') || target == "*") && !target.contains('#')
        }
        _ => false,
    };
    if !is_well_formed {
        *MALFORMED.lock().unwrap() = Some(line.to_owned());
    }
}

impl Network for Tunnel {
    fn connect(&self, to: SocketAddr) -> Later<'_, io::Result<Box<dyn Connection>>> {
        assert!(INSIDE.parse::<ipnet::IpNet>().unwrap().contains(&to.ip()), "{to} is outside");
        Box::pin(async {
            if !self.has_server {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (client, server) = tokio::net::UnixStream::pair()?;
            tokio::spawn(read_request(server));
            let client: Box<dyn Connection> = Box::new(Stream::from(client));
            Ok(client)
        })
    }

    fn listen(&self, _: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Err(io::ErrorKind::AddrInUse.into())
    }

    fn udp(&self, _: SocketAddr) -> io::Result<Arc<dyn Datagrams>> {
        Err(io::ErrorKind::AddrInUse.into())
    }

    fn look_up<'a>(&'a self, name: &'a str) -> Later<'a, Result<Vec<IpAddr>, LookUpError>> {
        Box::pin(async move { Err(LookUpError::NotFound { name: name.to_owned() }) })
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

/// The sockets of a proxy.
struct Sockets {
    socks5: PathBuf,
    http: PathBuf,
}

impl Sockets {
    fn serve(directory: &Path, name: &str, users: Option<&Path>) -> Self {
        let path = |kind: &str| directory.join(format!("{name}-{kind}.sock"));
        let (socks5, http) = (path("socks5"), path("http"));
        let address = |path: &Path| vec![LocalAddress::Unix(path.to_owned())];
        let read = || users.map(|path| Users::read(path).unwrap());
        start(Options { socks5: address(&socks5), users: read(), ..Options::default() }, false);
        start(Options { http: address(&http), users: read(), ..Options::default() }, true);
        Self { socks5, http }
    }
}

/// Starts a proxy that runs until the process ends.
fn start(options: Options, has_server: bool) {
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let tunnel: Arc<dyn Network> = Arc::new(Tunnel { has_server });
        let reach = Reach::new(Arc::clone(&tunnel), vec![vec![INSIDE.parse().unwrap()]], None);
        runtime.block_on(async move {
            let server = Server::bind(options, reach, &tunnel).unwrap();
            ready.send(()).unwrap();
            server.serve().await
        })
    });
    is_ready.recv().unwrap();
}

/// The proxies of all inputs: without a password, and with one.
fn proxies() -> &'static [Sockets; 2] {
    static PROXIES: OnceLock<[Sockets; 2]> = OnceLock::new();
    PROXIES.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("weft-fuzz-proxy-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let passwords = directory.join("passwords");
        std::fs::write(&passwords, "bob:secret\n").unwrap();
        [Sockets::serve(&directory, "open", None), Sockets::serve(&directory, "closed", Some(&passwords))]
    })
}

/// Sends a request, and returns all that is answered.
fn exchange(socket: &Path, request: &[u8]) -> Vec<u8> {
    let mut client = UnixStream::connect(socket).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // The proxy may close while the client still sends.
    let _ = client.write_all(&request[..request.len().min(MOST)]);
    let _ = client.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    if let Err(error) = client.read_to_end(&mut answer) {
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "the proxy hangs");
    }
    answer
}

pub(crate) fn check_socks5(bytes: &[u8]) {
    let Some((choice, request)) = bytes.split_first() else { return };
    let has_password = choice % 2 == 1;
    let answer = exchange(&proxies()[usize::from(has_password)].socks5, request);
    let Some((method, mut rest)) = answer.split_first_chunk::<2>() else {
        return assert!(answer.is_empty(), "{answer:?}");
    };
    let expected = if has_password { 2 } else { 0 };
    assert!(method[0] == 5 && (method[1] == expected || method[1] == 0xff), "{answer:?}");
    if method[1] == 0xff {
        return assert!(rest.is_empty(), "{answer:?}");
    }
    if has_password && let Some((verdict, after)) = rest.split_first_chunk::<2>() {
        assert_eq!(verdict[0], 1, "{answer:?}");
        let is_right = request.windows(11).any(|part| part == b"\x03bob\x06secret");
        assert!(verdict[1] != 0 || is_right, "{answer:?} without the password");
        assert!(verdict[1] == 0 || after.is_empty(), "{answer:?}");
        rest = after;
    }
    // A reply for a request: everything is refused, so the bound address is that of no socket.
    assert!(rest.is_empty() || matches!(rest, [5, 1..=8, 0, 1, 0, 0, 0, 0, 0, 0]), "{answer:?}");
}

pub(crate) fn check_http(bytes: &[u8]) {
    let Some((choice, request)) = bytes.split_first() else { return };
    let has_password = choice % 2 == 1;
    let answer = exchange(&proxies()[usize::from(has_password)].http, request);
    // What follows a CONNECT is no request.
    let is_relayed = request.windows(7).any(|part| part == b"CONNECT");
    let malformed = MALFORMED.lock().unwrap().take().filter(|_| !is_relayed);
    assert!(malformed.is_none(), "forwarded: {malformed:?}");
    if answer.is_empty() {
        return;
    }
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.strip_prefix("HTTP/1.1 ").or_else(|| answer.strip_prefix("HTTP/1.0 "));
    let status = status.and_then(|rest| rest.get(..3)).unwrap_or_default();
    assert!(STATUS.contains(&status), "{answer}");
    // "Ym9iOnNlY3JldA==" is bob:secret.
    let is_right = request.windows(16).any(|part| part == b"Ym9iOnNlY3JldA==");
    assert!(
        !has_password || is_right || ["400", "407", "408", "414", "431", "501"].contains(&status),
        "{answer}"
    );
}
