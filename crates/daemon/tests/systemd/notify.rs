//! What the service manager is told, message by message: by `weft up`, and by `weft NAME` in place of
//! wireguard-go.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;
use weft_lab::mounts::separate_sockets;
use weft_lab::{Namespace, Process, here};
use weft_tunnel::PrivateKey;

const PATIENCE: Duration = Duration::from_secs(45);

/// A daemon and the service manager's end of its socket.
struct Service {
    namespace: Namespace,
    directory: TempDir,
    messages: Receiver<String>,
    daemon: Option<Process>,
}

impl Service {
    /// `None` where that is not permitted, which is said.
    fn new() -> Option<Self> {
        if !here::tun_permitted() {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        let namespace = Namespace::new("service").unwrap();
        Some(Self { namespace, directory, messages: listen(socket), daemon: None })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.namespace.command(env!("CARGO_BIN_EXE_weft"));
        command.args(arguments).stdin(Stdio::null()).env("WEFT_RUNTIME_DIR", self.directory.path());
        separate_sockets(&mut command);
        command
    }

    /// Starts weft, which is to be heard of within `watchdog`.
    fn start(&mut self, arguments: &[&str], watchdog: Duration) {
        let mut command = self.command(arguments);
        command
            .env("NOTIFY_SOCKET", self.directory.path().join("notify"))
            // It keeps no descriptors.
            .env("FDSTORE", "0")
            .env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        self.daemon = Some(Process::start(&self.namespace, command).unwrap());
    }

    fn file(&self, text: &str) -> PathBuf {
        let path = self.directory.path().join("weft0.conf");
        std::fs::write(&path, text).unwrap();
        path
    }

    fn next(&self) -> String {
        self.messages.recv_timeout(PATIENCE).unwrap()
    }

    /// The next message that is not about the watchdog.
    fn next_news(&self) -> String {
        let start = Instant::now();
        loop {
            let message = self.next();
            if message.trim() != "WATCHDOG=1" {
                return message;
            }
            assert!(start.elapsed() < PATIENCE, "nothing but the watchdog");
        }
    }

    fn signal(&self, signal: Signal) {
        self.daemon.as_ref().unwrap().signal(signal);
    }

    fn wait(&mut self) -> Option<i32> {
        self.daemon.as_mut().unwrap().wait().code()
    }
}

/// Takes every message at once, as a service manager does: a queue that is full would hold the daemon up.
/// Those about descriptors to keep are left out; the descriptors are closed.
fn listen(socket: UnixDatagram) -> Receiver<String> {
    let (sender, messages) = channel();
    std::thread::spawn(move || {
        let mut message = [0; 2048];
        while let Ok(length) = socket.recv(&mut message) {
            let message = String::from_utf8(message[..length].to_vec()).unwrap();
            let is_of_the_store = message.starts_with("FDSTORE") || message.starts_with("BARRIER");
            if !is_of_the_store && sender.send(message).is_err() {
                return;
            }
        }
    });
    messages
}

#[test]
fn an_interface_of_a_file_is_ready_reloaded_alive_and_stopping() {
    let Some(mut service) = Service::new() else {
        return;
    };
    let key = PrivateKey::generate().unwrap();
    let text = format!("[Interface]\nPrivateKey = {}\nAddress = 10.0.0.1/24\n", *key.to_base64());
    let file = service.file(&text);
    let target = file.to_str().unwrap();
    service.start(&["up", target], Duration::from_millis(100));
    assert_eq!(service.next_news(), "READY=1\nSTATUS=no peers\n");
    // It is what it says.
    let shown = service.command(&["status", "weft0"]).output().unwrap();
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    for _ in 0..3 {
        assert_eq!(service.next(), "WATCHDOG=1\n");
    }
    let peer = PrivateKey::generate().unwrap().public_key();
    service.file(&format!("{text}[Peer]\nPublicKey = {peer}\nAllowedIPs = 10.0.0.2\n"));
    let reload = |service: &Service| service.command(&["reload", target]).output().unwrap().status.success();
    assert!(reload(&service));
    let reloading = service.next_news();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(service.next_news(), "READY=1\nSTATUS=no handshake yet\n");
    service.signal(Signal::SIGTERM);
    assert_eq!(service.next_news(), "STOPPING=1\n");
    assert_eq!(service.wait(), Some(0));
}

#[test]
fn an_interface_in_place_of_wireguard_go_is_ready_alive_and_stopping() {
    let Some(mut service) = Service::new() else {
        return;
    };
    service.start(&["weft1", "-f"], Duration::from_millis(100));
    let ready = service.next_news();
    assert!(ready.starts_with("READY=1\nSTATUS=no peers; the interface has no private key"), "{ready}");
    for _ in 0..3 {
        assert_eq!(service.next(), "WATCHDOG=1\n");
    }
    service.signal(Signal::SIGINT);
    assert_eq!(service.next_news(), "STOPPING=1\n");
    assert_eq!(service.wait(), Some(0));
}

#[test]
fn a_start_that_waits_for_names_says_so() {
    let Some(mut service) = Service::new() else { return };
    let (key, peer) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap().public_key());
    let file = service.file(&format!(
        "[Interface]\nPrivateKey = {}\n[Peer]\nPublicKey = {peer}\nEndpoint = no-such-host.invalid:1\n",
        *key.to_base64()
    ));
    service.start(&["up", file.to_str().unwrap()], Duration::from_secs(60));
    assert_eq!(service.next(), "STATUS=looking up the peers' endpoints\n");
    service.signal(Signal::SIGTERM);
    assert_eq!(service.wait(), Some(0), "a start that the service manager ends is no failure");
}
