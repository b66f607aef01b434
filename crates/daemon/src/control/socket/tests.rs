//! Client and server together, over a real socket, with a fake interface.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tempfile::TempDir;
use weft_config::{InterfaceName, exit};
use weft_ipc::runtime_dir::control_socket;
use weft_report::control_socket::{Client, ClientError, running_in};
use zeroize::Zeroizing;

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
    on_stop: Option<Mutex<mpsc::Sender<()>>>,
}

impl Pretended {
    fn or_fail<T>(&self, value: T) -> Result<T, ManageError> {
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
        let directory = tempfile::tempdir().unwrap();
        let name: InterfaceName = "wg0".parse().unwrap();
        let server = Server::start(&control_socket(directory.path(), &name), manage).unwrap();
        Self { directory, name, server: Some(server) }
    }

    fn path(&self) -> PathBuf {
        control_socket(self.directory.path(), &self.name)
    }

    fn client(&self) -> Client {
        Client::connect_to(&self.name, self.path()).unwrap()
    }

    fn raw(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

/// Reads until the connection ends.
fn all_of(mut stream: &UnixStream) -> String {
    let mut text = String::new();
    // A server that ends during a write by the client resets the connection.
    let _ = stream.read_to_string(&mut text);
    text
}

fn line_of(mut stream: &UnixStream) -> serde_json::Value {
    let mut line = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    serde_json::from_slice(&line).unwrap()
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
    let reload = Reload { text: Zeroizing::new(text.clone()), file: "/etc/x.conf".into(), dry_run: true };
    assert_eq!(client.reload(&reload).unwrap().steps, [format!("{} bytes", text.len())]);
    assert_eq!(*manage.reloaded.lock().unwrap(), [(text, PathBuf::from("/etc/x.conf"), true)]);
    assert!(!manage.stopped.load(Ordering::SeqCst));
}

#[test]
fn requests_may_come_all_at_once_and_byte_by_byte() {
    let socket = Socket::of(Arc::default());
    let mut stream = socket.raw();
    stream
        .write_all(b"{\"version\":1,\"request\":\"status\"}\n{\"version\":1,\"request\":\"status\"}\n")
        .unwrap();
    for byte in b"{\"version\":1,\"request\":\"status\",\"later\":[1]}\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    for _ in 0..3 {
        let answer = line_of(&stream);
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
    let mut stream = socket.raw();
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
        let answer = line_of(&stream);
        assert!(answer["error"]["message"].is_string(), "{line}: {answer}");
        assert!(!answer.to_string().contains("PrivateKey"), "{answer}");
    }
    stream.write_all(b"{\"version\":7,\"request\":\"dance\"}\n").unwrap();
    let answer = line_of(&stream);
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("version 1") && message.contains("not 7"), "{message}");
}

#[test]
fn a_line_without_end_ends_the_connection_and_no_other() {
    let socket = Socket::of(Arc::default());
    let hostile = socket.raw();
    let chunk = vec![b'x'; 1 << 20];
    // More than a request may have: at some point the server closes the connection.
    let refused = (0..64).any(|_| (&hostile).write_all(&chunk).is_err());
    assert!(refused);
    socket.client().status().unwrap();
}

#[test]
fn silent_and_slow_clients_keep_no_other_out() {
    let socket = Socket::of(Arc::default());
    let request = b"{\"version\":1,\"request\":\"status\"}\n";
    let slow: Vec<UnixStream> = (0..100)
        .map(|number| {
            let mut stream = socket.raw();
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
    let more: Vec<UnixStream> = (0..100).map(|_| socket.raw()).collect();
    client.status().unwrap();
    drop((slow, more));
}

#[test]
fn a_client_beyond_the_limit_waits_for_those_that_are_served() {
    let (release, hold) = mpsc::channel();
    let socket = Socket::of(Arc::new(Pretended { hold: Some(Mutex::new(hold)), ..Pretended::default() }));
    let request = b"{\"version\":1,\"request\":\"status\"}\n";
    let mut clients: Vec<UnixStream> = (0..9).map(|_| socket.raw()).collect();
    for stream in &mut clients {
        stream.write_all(request).unwrap();
    }
    for _ in &clients {
        release.send(()).unwrap();
    }
    for stream in &clients {
        assert_eq!(line_of(stream)["version"], 1);
    }
}

#[test]
fn the_answer_to_a_stop_comes_first_and_the_end_when_everything_is_undone() {
    let (on_stop, stopped) = mpsc::channel();
    let manage = Arc::new(Pretended { on_stop: Some(Mutex::new(on_stop)), ..Pretended::default() });
    let mut socket = Socket::of(Arc::clone(&manage));
    let client = socket.client();
    let (done, ended) = mpsc::channel();
    let waiting = std::thread::spawn(move || done.send(client.stop(PATIENCE)).unwrap());
    stopped.recv_timeout(PATIENCE).unwrap();
    // Cleaning up is not complete yet.
    assert!(ended.recv_timeout(Duration::from_millis(50)).is_err());
    drop(socket.server.take());
    ended.recv_timeout(PATIENCE).unwrap().unwrap();
    waiting.join().unwrap();
    assert!(!socket.path().exists());
}

#[test]
fn the_server_ends_while_a_request_waits_for_the_thread_that_ends_it() {
    let (release, hold) = mpsc::channel();
    let mut socket = Socket::of(Arc::new(Pretended { hold: Some(Mutex::new(hold)), ..Pretended::default() }));
    let stream = socket.raw();
    (&stream).write_all(b"{\"version\":1,\"request\":\"status\"}\n").unwrap();
    drop(socket.server.take());
    assert_eq!(all_of(&stream), "");
    drop(release);
}

#[test]
fn an_interface_that_does_not_run_is_told_from_one_that_may_not_be_asked() {
    let directory = tempfile::tempdir().unwrap();
    let name: InterfaceName = "wg0".parse().unwrap();
    let path = control_socket(directory.path(), &name);
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    let none = Client::connect_to(&name, path.clone()).unwrap_err();
    assert!(matches!(none, ClientError::NotRunning { .. }), "{none}");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    // A shutdown closes it for certain: a child just forked by another test may hold the descriptor for a
    // moment.
    socket2::Socket::from(listener).shutdown(std::net::Shutdown::Both).unwrap();
    let dead = Client::connect_to(&name, path).unwrap_err();
    assert!(matches!(dead, ClientError::NotRunning { .. }), "{dead}");
}

#[test]
fn the_sockets_in_the_directory_are_the_interfaces_that_run() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["wg1", "wg0", "stopped", "not a name"] {
        std::fs::create_dir(directory.path().join(name)).unwrap();
    }
    for file in
        ["wg1/control.sock", "wg0/control.sock", "stopped/record.json", "not a name/control.sock", "wg2"]
    {
        std::fs::write(directory.path().join(file), "").unwrap();
    }
    let names: Vec<String> = running_in(directory.path()).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["wg0", "wg1"]);
    assert!(running_in(&directory.path().join("missing")).unwrap().is_empty());
}

/// Returns the first bytes of all clients until the listener is shut down; the clients get no answer.
#[cfg(target_os = "linux")]
fn hear(listener: &socket2::Socket) -> Vec<u8> {
    let mut heard = Vec::new();
    while let Ok((client, _)) = listener.accept() {
        let _ = std::io::BufRead::read_until(&mut std::io::BufReader::new(client), b'\n', &mut heard);
    }
    heard
}

#[test]
#[cfg(target_os = "linux")]
fn another_user_that_listens_gets_nothing_unless_the_interface_is_that_users() {
    use std::os::unix::fs::chown;

    const ANOTHER: u32 = 65_534;
    let test = "another_user_that_listens_gets_nothing_unless_the_interface_is_that_users";
    let directory = tempfile::tempdir().unwrap();
    let name: InterfaceName = "wg0".parse().unwrap();
    let path = control_socket(directory.path(), &name);
    weft_ipc::runtime_dir::make(path.parent().unwrap()).unwrap();
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    socket.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    // The client trusts the listening user as the kernel reports it, and not the owner of the file.
    if !weft_lab::run_as(ANOTHER, || socket.listen(8)).is_ok_and(|listens| listens.is_ok()) {
        return weft_lab::not_run(test, "needs root");
    }
    let reload = || Reload {
        text: Zeroizing::new("PrivateKey = secret".to_owned()),
        file: "/etc/wireguard/wg0.conf".into(),
        dry_run: false,
    };
    std::thread::scope(|scope| {
        let heard = scope.spawn(|| hear(&socket));
        let refused = Client::connect_to(&name, path.clone()).and_then(|mut client| client.reload(&reload()));
        socket.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(heard.join().unwrap(), b"");
        let error = refused.unwrap_err();
        assert!(matches!(error, ClientError::Stranger { user: ANOTHER, .. }), "{error}");
        let told = error.to_string();
        let begin = format!("user 65534 listens on {}, and not root: nothing was sent; ", path.display());
        assert!(told.starts_with(&begin) && told.contains("ss -xlp"), "{told}");
        assert_eq!(error.exit_code(), exit::Code::Permission);
    });
    // root gave the directory to this user, as for a service that runs as that user.
    chown(path.parent().unwrap(), Some(ANOTHER), None).unwrap();
    std::fs::remove_file(&path).unwrap();
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    socket.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    weft_lab::run_as(ANOTHER, || socket.listen(8)).unwrap().unwrap();
    Client::connect_to(&name, path.clone()).unwrap();
    // A directory that the user could have created itself proves nothing.
    chown(directory.path(), Some(ANOTHER), None).unwrap();
    let error = Client::connect_to(&name, path).unwrap_err();
    assert!(matches!(error, ClientError::Untrusted(_)), "{error}");
}
