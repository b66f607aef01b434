//! wireguard-go as a child process, and wg(8) to configure and question it.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tempfile::TempDir;
use weft_lab::{Namespace, PATIENCE, here, link, until};
use weft_tunnel::{PrivateKey, PublicKey};

use crate::end::{End, Peer};

/// Where wireguard-go and wg(8) meet.
const SOCKETS: &str = "/var/run/wireguard";
/// The environment variable with a program, and its first arguments, that runs in the place of wireguard-go:
/// a weft for another processor in an emulator, or one that makes an interface of the kernel's WireGuard.
const SUBSTITUTE: &str = "WEFT_TEST_PEER";
/// What wireguard-go logs when wg(8) can be used, and weft.
const READY: [&str; 2] = ["UAPI listener started", "wg(8) can configure the interface"];

/// Whether wireguard-go can be run here; where it cannot, says why.
pub(crate) fn can_run() -> bool {
    let peer = program();
    let program = peer.split_whitespace().next().unwrap();
    if !here::tun_permitted() || !here::installed(&[program, "wg"]) {
        return false;
    }
    if let Err(error) = std::fs::create_dir_all(SOCKETS).and_then(|()| tempfile::tempfile_in(SOCKETS)) {
        here::not_run(&format!("wireguard-go needs {SOCKETS}: {error}"));
        return false;
    }
    true
}

/// wireguard-go, or its substitute with the first arguments.
pub(crate) fn program() -> String {
    std::env::var(SUBSTITUTE).unwrap_or_else(|_| "wireguard-go".to_owned())
}

/// A running wireguard-go. It is killed when it is dropped.
pub(crate) struct WireguardGo {
    namespace: Namespace,
    name: String,
    child: Child,
    files: TempDir,
}

/// A peer as `wg show` describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerView {
    pub(crate) endpoint: Option<SocketAddr>,
    /// In Unix time, 0 if there was none.
    pub(crate) latest_handshake: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_bytes: u64,
}

impl WireguardGo {
    /// Comes up in a namespace with addresses, keys and peers.
    pub(crate) fn start(namespace: &Namespace, end: &End) -> Self {
        let this = Self::start_empty(namespace, end);
        this.configure(end);
        this
    }

    /// Comes up with the end's addresses only.
    pub(crate) fn start_empty(namespace: &Namespace, end: &End) -> Self {
        let this = Self::start_program(&program(), namespace);
        for address in &end.addresses {
            link::add_address(namespace, &this.name, *address).unwrap();
        }
        this
    }

    /// Starts a program, with its first arguments, that takes the arguments of wireguard-go.
    pub(crate) fn start_program(program: &str, namespace: &Namespace) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("wgo{:x}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let files = tempfile::tempdir().unwrap();
        let log = File::create(files.path().join("log")).unwrap();
        let mut words = program.split_whitespace();
        let mut command = namespace.command(words.next().unwrap());
        command.args(words);
        command.args(["-f", &name]).env("LOG_LEVEL", "verbose").stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let child = namespace.start(command).unwrap();
        let mut this = Self { namespace: namespace.clone(), name, child, files };
        until("wireguard-go answers", || {
            assert!(this.child.try_wait().unwrap().is_none(), "wireguard-go ended:\n{}", this.log());
            // A wg(8) that asks earlier is refused, and removes the socket for that.
            let log = this.log();
            if !READY.iter().any(|line| log.contains(line)) {
                return false;
            }
            this.wg_command("show", &["listen-port"]).output().unwrap().status.success()
        });
        link::set_up(namespace, &this.name).unwrap();
        this
    }

    /// Its interface.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Takes over keys, port and peers.
    pub(crate) fn configure(&self, end: &End) {
        let file = self.files.path().join("wg.conf");
        std::fs::write(&file, end.wg_text()).unwrap();
        self.wg("setconf", &[file.to_str().unwrap()]);
    }

    /// `wg set INTERFACE …`
    pub(crate) fn set(&self, arguments: &[&str]) {
        self.wg("set", arguments);
    }

    pub(crate) fn set_private_key(&self, key: &PrivateKey) {
        let file = self.files.path().join("key");
        std::fs::write(&file, key.to_base64().as_str()).unwrap();
        self.set(&["private-key", file.to_str().unwrap()]);
    }

    pub(crate) fn remove_peer(&self, key: &PublicKey) {
        self.set(&["peer", &key.to_string(), "remove"]);
    }

    /// Adds a peer that it does not have.
    pub(crate) fn add_peer(&self, peer: &Peer) {
        let allowed_ips: Vec<_> = peer.allowed_ips.iter().map(ToString::to_string).collect();
        let (key, allowed_ips) = (peer.key.to_string(), allowed_ips.join(","));
        let endpoint = peer.endpoint.map(|endpoint| endpoint.to_string());
        let mut arguments = vec!["peer", &key, "allowed-ips", &allowed_ips];
        arguments.extend(endpoint.iter().flat_map(|endpoint| ["endpoint", endpoint]));
        self.set(&arguments);
    }

    /// What `wg show` says of a peer.
    pub(crate) fn peer(&self, key: &PublicKey) -> PeerView {
        let dump = self.wg("show", &["dump"]);
        let key = key.to_string();
        let fields = |line: &str| line.split('\t').map(str::to_owned).collect::<Vec<_>>();
        let peer = dump.lines().skip(1).map(fields).find(|fields| fields[0] == key);
        let peer = peer.unwrap_or_else(|| panic!("wg show has no peer {key}:\n{dump}"));
        PeerView {
            endpoint: peer[2].parse().ok(),
            latest_handshake: peer[4].parse().unwrap(),
            rx_bytes: peer[5].parse().unwrap(),
            tx_bytes: peer[6].parse().unwrap(),
        }
    }

    /// Sends a request in pieces of these sizes over a new connection, and returns what is answered. It may
    /// hang up in the middle.
    pub(crate) fn uapi(&self, request: &[u8], pieces: &[usize]) -> String {
        let mut stream = UnixStream::connect(format!("{SOCKETS}/{}.sock", self.name)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = request;
        for size in pieces.iter().chain([&request.len()]) {
            let (piece, after) = rest.split_at(rest.len().min(*size));
            let _ = stream.write_all(piece);
            rest = after;
        }
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let end = stream.read_to_end(&mut answer).map_err(|error| error.kind());
        assert!(matches!(end, Ok(_) | Err(ErrorKind::ConnectionReset)), "{end:?}\n{}", self.log());
        String::from_utf8(answer).unwrap()
    }

    fn wg(&self, command: &str, arguments: &[&str]) -> String {
        let output = self.wg_command(command, arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "wg {command} {arguments:?}: {error}\n{}", self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    /// In the namespace: wg(8) finds the kernel's WireGuard there, and wireguard-go everywhere.
    fn wg_command(&self, command: &str, arguments: &[&str]) -> Command {
        let mut wg = self.namespace.command("wg");
        wg.args([command, &self.name]).args(arguments);
        wg
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.files.path().join("log")).unwrap_or_default()
    }
}

impl Drop for WireguardGo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // That of the kernel stays; the device of wireguard-go has gone with it.
        let _ = link::remove(&self.namespace, &self.name);
        // Killed, it leaves its socket behind.
        let _ = std::fs::remove_file(format!("{SOCKETS}/{}.sock", self.name));
        if std::thread::panicking() {
            eprintln!("--- wireguard-go {}\n{}", self.name, self.log());
        }
    }
}
