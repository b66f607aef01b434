//! Client and server together, over a real socket or pipe, with a fake interface.

use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weft_config::{InterfaceName, exit};
use weft_ipc::Connection;
use weft_ipc::runtime_dir::control_socket;
use weft_report::control_socket::{Client, ClientError};
use zeroize::Zeroizing;

#[cfg(unix)]
mod unix;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

/// A fake interface with answers chosen by the test.
#[derive(Default)]
struct Pretended {
    report: StatusReport,
    reloaded: Mutex<Vec<(String, PathBuf, bool)>>,
    stopped: AtomicBool,
    fails: Option<ManageError>,
    /// If set, each answer waits for a message.
    hold: Option<Mutex<mpsc::Receiver<()>>>,
    on_request: Option<Mutex<mpsc::Sender<()>>>,
    on_stop: Option<Mutex<mpsc::Sender<()>>>,
}

impl Pretended {
    fn or_fail<T>(&self, value: T) -> Result<T, ManageError> {
        if let Some(told) = &self.on_request {
            told.lock().unwrap().send(()).unwrap();
        }
        if let Some(hold) = &self.hold {
            let _ = hold.lock().unwrap().recv();
        }
        self.fails.clone().map_or(Ok(value), Err)
    }
}

impl Manage for Pretended {
    fn status(&self) -> Result<StatusReport, ManageError> {
        self.or_fail(self.report.clone())
    }

    fn reload(&self, reload: &Reload) -> Result<ReloadReport, ManageError> {
        let steps = vec![format!("{} bytes", reload.text.len())];
        self.reloaded.lock().unwrap().push((reload.text.to_string(), reload.file.clone(), reload.dry_run));
        self.or_fail(ReloadReport { steps, ..ReloadReport::default() })
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Some(told) = &self.on_stop {
            told.lock().unwrap().send(()).unwrap();
        }
    }
}

struct Socket {
    directory: TempDir,
    name: InterfaceName,
    server: Option<Server>,
}

impl Socket {
    fn of(manage: Arc<Pretended>) -> Self {
        // All pipes are in one place.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let directory = tempfile::tempdir().unwrap();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name: InterfaceName = format!("test{number}").parse().unwrap();
        let server = Server::start(&control_socket(directory.path(), &name), manage).unwrap();
        Self { directory, name, server: Some(server) }
    }

    fn path(&self) -> PathBuf {
        control_socket(self.directory.path(), &self.name)
    }

    fn client(&self) -> Client {
        Client::connect_to(&self.name, self.path()).unwrap()
    }

    fn raw(&self) -> Raw {
        Raw(Connection::connect(&self.path(), deadline()).unwrap())
    }
}

fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// Asserts what holds at once where there are files. A pipe is gone once the system has ended its cancelled
/// calls.
fn at_once_or_soon(holds: impl Fn() -> bool) {
    let end = deadline();
    while !holds() {
        assert!(cfg!(windows) && Instant::now() < end);
        std::thread::yield_now();
    }
}

/// A client that writes what it likes.
struct Raw(Connection);

impl Raw {
    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes, deadline())
    }

    /// Reads until the connection ends.
    fn rest(&self) -> Vec<u8> {
        let (mut all, mut part) = (Vec::new(), [0; 4096]);
        // A server that ends during a write by the client resets the connection.
        while let Ok(count @ 1..) = self.0.read(&mut part, deadline()) {
            all.extend_from_slice(&part[..count]);
        }
        all
    }

    fn line(&self) -> serde_json::Value {
        let mut line = Vec::new();
        let mut byte = [0];
        while self.0.read(&mut byte, deadline()).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        serde_json::from_slice(&line).unwrap()
    }
}

#[test]
fn several_requests_of_one_client_are_answered_in_order() {
    let report = StatusReport { interface: "wg0".to_owned(), mtu: 1420, ..StatusReport::default() };
    let manage = Arc::new(Pretended { report: report.clone(), ..Pretended::default() });
    let socket = Socket::of(Arc::clone(&manage));
    let mut client = socket.client();
    for _ in 0..3 {
        assert_eq!(client.status().unwrap(), report);
    }
    // Longer than one read, with everything that JSON has to escape.
    let text = "# \"\\\u{1}ü\r\n".repeat(50_000);
    let reload = Reload {
        text: Zeroizing::new(text.clone()),
        file: "/etc/x.conf".into(),
        dry_run: true,
        within_command: false,
        is_saved: false,
    };
    assert_eq!(client.reload(&reload).unwrap().steps, [format!("{} bytes", text.len())]);
    assert_eq!(*manage.reloaded.lock().unwrap(), [(text, PathBuf::from("/etc/x.conf"), true)]);
    assert!(!manage.stopped.load(Ordering::SeqCst));
}

#[test]
fn requests_may_come_all_at_once_and_byte_by_byte() {
    let socket = Socket::of(Arc::default());
    let stream = socket.raw();
    stream
        .write_all(b"{\"version\":1,\"request\":\"status\"}\n{\"version\":1,\"request\":\"status\"}\n")
        .unwrap();
    for byte in b"{\"version\":1,\"request\":\"status\",\"later\":[1]}\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    for _ in 0..3 {
        let answer = stream.line();
        assert_eq!(answer["version"], 1);
        assert_eq!(answer["ok"]["listen_port"], 0);
    }
}

#[test]
fn what_the_daemon_refuses_reaches_the_client_with_its_exit_code() {
    let cases = [
        (ManageError::Configuration("wg0.conf:3: MTU: too small".to_owned()), exit::Code::Configuration),
        (ManageError::Permission("needs CAP_NET_ADMIN".to_owned()), exit::Code::Permission),
        (ManageError::Failed("no".to_owned()), exit::Code::Failure),
        (ManageError::Ended, exit::Code::Failure),
    ];
    for (error, code) in cases {
        let socket = Socket::of(Arc::new(Pretended { fails: Some(error.clone()), ..Pretended::default() }));
        let mut client = socket.client();
        let refused = client.status().unwrap_err();
        assert_eq!((refused.to_string(), refused.exit_code()), (error.to_string(), code));
        // The connection stays open.
        assert!(matches!(client.status().unwrap_err(), ClientError::Refused(again) if again == error));
    }
}

#[test]
fn what_is_no_request_is_answered_without_being_repeated() {
    let socket = Socket::of(Arc::default());
    let stream = socket.raw();
    for line in [
        "",
        "PrivateKey",
        "{\"version\":1}",
        "{\"version\":1,\"request\":\"explode\"}",
        "{\"version\":1,\"request\":\"reload\",\"config_base64\":\"%PrivateKey\"}",
        "{\"version\":1,\"request\":\"reload\"}",
        "{\"version\":1,\"request\":\"reload\",\"config_base64\":\"/w==\"}",
        "[\"PrivateKey\"]",
        "\u{0}\u{1b}",
    ] {
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        let answer = stream.line();
        assert!(answer["error"]["message"].is_string(), "{line}: {answer}");
        assert!(!answer.to_string().contains("PrivateKey"), "{answer}");
    }
    stream.write_all(b"{\"version\":7,\"request\":\"dance\"}\n").unwrap();
    let answer = stream.line();
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("version 1") && message.contains("not 7"), "{message}");
}

#[test]
fn a_line_without_end_ends_the_connection_and_no_other() {
    let socket = Socket::of(Arc::default());
    let hostile = socket.raw();
    let chunk = vec![b'x'; 1 << 20];
    // More than a request may have: at some point the server closes the connection.
    let refused = (0..64).any(|_| hostile.write_all(&chunk).is_err());
    assert!(refused);
    socket.client().status().unwrap();
}

#[test]
fn silent_and_slow_clients_keep_no_other_out() {
    let socket = Socket::of(Arc::default());
    let request = b"{\"version\":1,\"request\":\"status\"}\n";
    let slow: Vec<Raw> = (0..100)
        .map(|number| {
            let stream = socket.raw();
            // Fails for clients that lost their places already.
            let _ = match number % 5 {
                0 => stream.write_all(&request[..20]),
                1 => stream.write_all(request),
                _ => Ok(()),
            };
            stream
        })
        .collect();
    let mut client = socket.client();
    client.status().unwrap();
    // If the daemon closed the connection since then, the client connects again.
    let more: Vec<Raw> = (0..100).map(|_| socket.raw()).collect();
    client.status().unwrap();
    drop((slow, more));
}

#[test]
fn a_command_that_lost_its_place_between_two_requests_is_answered() {
    let socket = Socket::of(Arc::default());
    let mut client = socket.client();
    client.status().unwrap();
    let others: Vec<Raw> = (0..100).map(|_| socket.raw()).collect();
    // All of them were accepted when the last one is answered.
    others[99].write_all(b"{\"version\":1,\"request\":\"status\"}\n").unwrap();
    others[99].line();
    let text = Zeroizing::new(String::new());
    let reload = Reload { text, file: "x".into(), dry_run: false, within_command: false, is_saved: false };
    client.reload(&reload).unwrap();
    drop(others);
}

#[test]
fn a_client_beyond_the_limit_waits_for_those_that_are_served() {
    let (release, hold) = mpsc::channel();
    let (on_request, served) = mpsc::channel();
    let (hold, on_request) = (Some(Mutex::new(hold)), Some(Mutex::new(on_request)));
    let socket = Socket::of(Arc::new(Pretended { hold, on_request, ..Pretended::default() }));
    let ask = || {
        let stream = socket.raw();
        stream.write_all(b"{\"version\":1,\"request\":\"status\"}\n").unwrap();
        stream
    };
    let mut clients: Vec<Raw> = (0..8).map(|_| ask()).collect();
    for _ in &clients {
        served.recv_timeout(PATIENCE).unwrap();
    }
    clients.push(ask());
    for _ in &clients {
        release.send(()).unwrap();
    }
    for stream in &clients {
        assert_eq!(stream.line()["version"], 1);
    }
}

#[test]
fn the_answer_to_a_stop_comes_first_and_the_end_when_everything_is_undone() {
    let (on_stop, stopped) = mpsc::channel();
    let manage = Arc::new(Pretended { on_stop: Some(Mutex::new(on_stop)), ..Pretended::default() });
    let mut socket = Socket::of(Arc::clone(&manage));
    let client = socket.client();
    let (done, ended) = mpsc::channel();
    let waiting =
        std::thread::spawn(move || done.send(client.stop(false, |passed| passed < PATIENCE)).unwrap());
    stopped.recv_timeout(PATIENCE).unwrap();
    // Cleaning up is not complete yet.
    assert!(ended.recv_timeout(Duration::from_millis(50)).is_err());
    drop(socket.server.take());
    ended.recv_timeout(PATIENCE).unwrap().unwrap();
    waiting.join().unwrap();
    at_once_or_soon(|| !socket.path().exists());
    let gone = Client::connect_to(&socket.name, socket.path()).unwrap_err();
    assert!(matches!(gone, ClientError::NotRunning { .. }), "{gone}");
}

#[test]
fn every_client_that_asked_for_the_end_is_told_what_failed_at_it() {
    let (on_stop, stopped) = mpsc::channel();
    let manage = Arc::new(Pretended { on_stop: Some(Mutex::new(on_stop)), ..Pretended::default() });
    let mut socket = Socket::of(Arc::clone(&manage));
    // More than the server serves at a time.
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let client = socket.client();
            let waiting = std::thread::spawn(move || client.stop(false, |passed| passed < PATIENCE).unwrap());
            stopped.recv_timeout(PATIENCE).unwrap();
            waiting
        })
        .collect();
    // One that has gone, and one that only waits.
    drop(socket.raw());
    let other = socket.client();
    let failures: Vec<String> = (0..1000).map(|number| format!("the command `{number}` failed")).collect();
    socket.server.take().unwrap().end(failures.clone());
    assert!(!socket.path().exists(), "who is told finds no socket");
    for client in waiting {
        assert_eq!(client.join().unwrap(), failures);
    }
    drop(other);
}

#[test]
fn a_second_daemon_of_the_name_is_refused_and_disturbs_nothing() {
    let mut socket = Socket::of(Arc::default());
    let refused = Server::start(&socket.path(), Arc::<Pretended>::default()).unwrap_err();
    assert!(matches!(refused, ListenError::Served { .. }), "{refused}");
    assert!(refused.to_string().contains(&format!("another daemon serves interface {} on ", socket.name)));
    socket.client().status().unwrap();
    drop(socket.server.take());
    // The name is free again.
    at_once_or_soon(|| Server::start(&socket.path(), Arc::<Pretended>::default()).is_ok());
}

#[test]
fn the_server_ends_while_a_request_waits_for_the_thread_that_ends_it() {
    let (release, hold) = mpsc::channel();
    let mut socket = Socket::of(Arc::new(Pretended { hold: Some(Mutex::new(hold)), ..Pretended::default() }));
    let stream = socket.raw();
    stream.write_all(b"{\"version\":1,\"request\":\"status\"}\n").unwrap();
    drop(socket.server.take());
    assert_eq!(stream.rest(), b"");
    drop(release);
}
