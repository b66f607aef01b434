//! Two running interfaces, and an HTTP client of one of them.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;
use weft_ipc::runtime_dir::control_socket;
use weft_lab::link::{self, LinkOptions};
use weft_lab::mounts::separate_sockets;
use weft_lab::{self as lab, Namespace, PATIENCE, Process, here, inherit, until, wait_until};
use weft_tunnel::{PrivateKey, PublicKey};

pub(crate) const NAME: &str = "weft0";
pub(crate) const PORT: u16 = 51820;
/// Where metrics are served.
pub(crate) const ADDRESS: &str = "127.0.0.1:9586";
/// The first descriptor that a service manager hands over (sd_listen_fds(3)).
const FIRST: RawFd = 3;

/// One end of a tunnel: its namespace, its key, its file.
pub(crate) struct End {
    pub(crate) namespace: Namespace,
    pub(crate) key: PrivateKey,
    host: u8,
    /// Its configuration and its sockets.
    pub(crate) directory: TempDir,
}

/// Two namespaces joined by a veth; `None` where that is not permitted, which is said.
pub(crate) fn two_ends() -> Option<(End, End)> {
    if !here::tun_permitted() {
        return None;
    }
    let end = |host: u8| End {
        namespace: Namespace::new(if host == 1 { "a" } else { "b" }).unwrap(),
        key: PrivateKey::generate().unwrap(),
        host,
        directory: tempfile::tempdir().unwrap(),
    };
    let (a, b) = (end(1), end(2));
    let addresses = |end: &End| vec![format!("{}/24", end.outer()).parse().unwrap()];
    let options =
        LinkOptions { addresses_a: addresses(&a), addresses_b: addresses(&b), ..LinkOptions::default() };
    link::join(&a.namespace, &b.namespace, &options).unwrap();
    Some((a, b))
}

impl End {
    pub(crate) fn outer(&self) -> IpAddr {
        [192, 0, 2, self.host].into()
    }

    pub(crate) fn inner(&self) -> IpAddr {
        [10, 77, 0, self.host].into()
    }

    pub(crate) fn public_key(&self) -> PublicKey {
        self.key.public_key()
    }

    /// The beginning of a configuration file.
    pub(crate) fn conf(&self, settings: &str) -> String {
        format!(
            "[Interface]\nPrivateKey = {}\nListenPort = {PORT}\nAddress = {}/24\n{settings}\n",
            *self.key.to_base64(),
            self.inner()
        )
    }

    /// The section of another end, and what is added to it.
    pub(crate) fn peer(other: &Self, more: &str) -> String {
        format!(
            "[Peer]\nPublicKey = {}\nEndpoint = {}\nAllowedIPs = {}/32\n{more}\n",
            other.public_key(),
            SocketAddr::new(other.outer(), PORT),
            other.inner()
        )
    }

    /// Sections of peers that do nothing.
    pub(crate) fn silent_peers(count: u32) -> String {
        let mut text = String::new();
        for i in 0..count {
            let key = PublicKey::from_bytes(std::array::from_fn(|at| {
                i.to_le_bytes().get(at).copied().unwrap_or(7)
            }));
            let [_, a, b, c] = i.to_be_bytes();
            writeln!(text, "[Peer]\nPublicKey = {key}\nAllowedIPs = 10.{}.{b}.{c}/32", 100 + a).unwrap();
        }
        text
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.directory.path().join(format!("{NAME}.conf"))
    }

    pub(crate) fn write(&self, text: &str) {
        lab::write_private(&self.file(), text).unwrap();
    }

    /// `weft` with these arguments in the namespace.
    pub(crate) fn weft(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_weft"));
        command.args(arguments);
        command
    }

    /// A program in the namespace, with the environment of `weft`.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = self.namespace.command(program);
        command.env_remove("RUST_LOG").env_remove("JOURNAL_STREAM");
        command.env("WEFT_RUNTIME_DIR", self.directory.path());
        command
    }

    /// `weft up` with this configuration, once it is up.
    #[track_caller]
    pub(crate) fn up(&self, conf: &str, arguments: &[&str]) -> Process {
        self.up_with(conf, arguments, &[])
    }

    /// The same with these variables.
    #[track_caller]
    pub(crate) fn up_with(&self, conf: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Process {
        self.write(conf);
        let file = self.file();
        let words: Vec<&str> =
            ["up", file.to_str().unwrap()].into_iter().chain(arguments.iter().copied()).collect();
        let mut weft = self.weft(&words);
        weft.envs(variables.iter().copied());
        self.until_up(weft)
    }

    /// The same with a socket for metrics that the service manager made (sd_listen_fds(3)).
    #[track_caller]
    pub(crate) fn up_with_socket(&self, conf: &str, listener: TcpListener) -> Process {
        self.write(conf);
        // Only a shell can put its own number into the environment of what it becomes.
        let mut shell = self.command("sh");
        shell
            .args(["-c", "LISTEN_PID=$$ exec \"$@\"", "sh", env!("CARGO_BIN_EXE_weft"), "up"])
            .arg(self.file());
        shell.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "metrics");
        inherit(&mut shell, FIRST, vec![listener.into()]);
        self.until_up(shell)
    }

    /// Starts this, which brings the interface up.
    #[track_caller]
    pub(crate) fn until_up(&self, mut command: Command) -> Process {
        separate_sockets(&mut command);
        let process = Process::start(&self.namespace, command).unwrap();
        let socket = control_socket(self.directory.path(), &NAME.parse().unwrap());
        until("the interface is up", || {
            assert!(process.is_running(), "it ended:\n{}", process.log());
            process.log().contains(" is up: port ") && socket.exists()
        });
        process
    }

    /// An answer of the server at [`ADDRESS`]. On a machine that is busy with other things the server may
    /// have to say that the event loop did not come to it in time: it is asked again.
    pub(crate) fn get(&self, path: &str) -> Answer {
        wait_until("the event loop to take a turn", || {
            let answer = self.ask(ADDRESS.parse().unwrap(), &request(path, ADDRESS, ""));
            (answer.status != 503 || !answer.body.contains("did not take a turn")).then_some(answer)
        })
    }

    /// An answer of a server at any address.
    pub(crate) fn ask(&self, address: SocketAddr, request: &str) -> Answer {
        self.namespace.run(|| {
            let stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            exchange(stream, request)
        })
    }

    /// Sends a datagram through the tunnel, and waits until a handshake came through.
    #[track_caller]
    pub(crate) fn reach(&self, other: &Self) {
        let closed_port = SocketAddr::new(other.inner(), 1);
        let refused = self.namespace.run(|| TcpStream::connect_timeout(&closed_port, PATIENCE)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }
}

/// A request that ends its connection.
pub(crate) fn request(path: &str, host: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n")
}

pub(crate) fn exchange(mut stream: impl std::io::Read + std::io::Write, request: &str) -> Answer {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// What a server said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The value of the only sample that begins so.
    #[track_caller]
    pub(crate) fn sample(&self, start: &str) -> f64 {
        let mut lines = self.body.lines().filter(|line| line.starts_with(start));
        let line = lines.next().unwrap_or_else(|| panic!("no {start} in:\n{}", self.body));
        assert_eq!(lines.next(), None, "more than one {start}");
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}
