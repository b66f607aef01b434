use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError, mpsc};
use std::time::Instant;

use tempfile::TempDir;
use weft_config::InterfaceName;
use weft_config::device::{DeviceChange, DeviceState, PeerChange, PeerState};
use weft_config::settings::InterfaceSettings;
use weft_tunnel::PublicKey;

use super::*;
use crate::ControlError;
use crate::client::request;

#[cfg(target_os = "linux")]
mod wg;

const PATIENCE: Duration = Duration::from_secs(30);

/// An interface that records changes, and returns the state and errors that a test sets.
#[derive(Default)]
struct Fake {
    changes: Mutex<Vec<DeviceChange>>,
    peers: Mutex<Vec<PeerState>>,
    errors: Mutex<VecDeque<ControlError>>,
    reads: AtomicUsize,
    /// Whether changes block, and how many are blocked.
    held: Mutex<(bool, usize)>,
    moved: Condvar,
}

impl Fake {
    fn changes(&self) -> Vec<DeviceChange> {
        self.changes.lock().unwrap().clone()
    }

    fn hold(&self, hold: bool) {
        self.held.lock().unwrap().0 = hold;
        self.moved.notify_all();
    }

    fn wait_until_one_is_held(&self) {
        let held = self.held.lock().unwrap();
        let (held, _) = self.moved.wait_timeout_while(held, PATIENCE, |held| held.1 == 0).unwrap();
        assert_eq!(held.1, 1, "no change is waiting");
    }
}

impl Control for Fake {
    fn get(&self) -> Result<DeviceState, ControlError> {
        self.reads.fetch_add(1, Relaxed);
        let peers = self.peers.lock().unwrap().clone();
        Ok(DeviceState { settings: InterfaceSettings { listen_port: 51820, ..Default::default() }, peers })
    }

    fn set(&self, change: DeviceChange) -> Result<(), ControlError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.1 += 1;
        self.moved.notify_all();
        let mut held = self.moved.wait_while(held, |held| held.0).unwrap_or_else(PoisonError::into_inner);
        held.1 -= 1;
        if let Some(error) = self.errors.lock().unwrap().pop_front() {
            return Err(error);
        }
        self.changes.lock().unwrap().push(change);
        Ok(())
    }
}

/// A server on a socket in a temporary directory.
struct Served {
    directory: TempDir,
    path: PathBuf,
    fake: Arc<Fake>,
    gone: mpsc::Receiver<()>,
    server: Server,
}

fn name() -> InterfaceName {
    "test0".parse().unwrap()
}

impl Served {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = Listener::open_in(directory.path(), &name()).unwrap();
        let fake = Arc::<Fake>::default();
        let (server, gone) = serve(listener, &fake, limits);
        let path = directory.path().join("test0.sock");
        Self { directory, path, fake, gone, server }
    }

    fn connect(&self) -> Connection {
        Connection::to(&self.path)
    }
}

fn serve(listener: Listener, fake: &Arc<Fake>, limits: Limits) -> (Server, mpsc::Receiver<()>) {
    let (sender, gone) = mpsc::channel();
    let control: Arc<dyn Control> = Arc::<Fake>::clone(fake);
    let on_gone = move || {
        let _ = sender.send(());
    };
    (Server::start_with(listener, control, on_gone, limits).unwrap(), gone)
}

struct Connection(BufReader<UnixStream>);

impl Connection {
    fn to(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// Reads an answer, and returns it without the empty line at its end.
    fn answer(&mut self) -> String {
        let mut answer = String::new();
        while !answer.ends_with("\n\n") {
            assert_ne!(self.0.read_line(&mut answer).unwrap(), 0, "closed after {answer:?}");
        }
        answer.trim_end().to_owned()
    }

    fn ask(&mut self, request: &str) -> String {
        self.send(request);
        self.answer()
    }

    /// Reports whether the other end closes without sending more.
    fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => rest.is_empty(),
            // The other end had not read everything.
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

const GET: &str = "get=1\n\n";
const GOT: &str = "listen_port=51820\nerrno=0";

fn peer_number(number: u32) -> PublicKey {
    let mut bytes = [7; 32];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    PublicKey::from_bytes(bytes)
}

fn state_of(number: u32) -> PeerState {
    PeerState::new(peer_number(number))
}

#[test]
fn a_connection_takes_several_commands() {
    let served = Served::new();
    let mut connection = served.connect();
    assert_eq!(connection.ask(GET), GOT);
    assert_eq!(connection.ask("set=1\nlisten_port=7\n\n"), "errno=0");
    assert_eq!(connection.ask("set=1\n\n"), "errno=0");
    assert_eq!(connection.ask(GET), GOT);
    // Also when requests arrive together, or in small pieces.
    connection.send("get=1\n\nset=1\nfwmark=1\n\n");
    assert_eq!((connection.answer().as_str(), connection.answer().as_str()), (GOT, "errno=0"));
    for letter in ["g", "e", "t=", "1\n"] {
        connection.send(letter);
    }
    assert_eq!(connection.ask("\n"), GOT);
    let changes = served.fake.changes();
    assert_eq!(
        changes.iter().map(|change| change.settings.listen_port).collect::<Vec<_>>(),
        [Some(7), None, None]
    );
}

#[test]
fn a_refused_request_changes_nothing_and_the_next_one_is_served() {
    let served = Served::new();
    let mut connection = served.connect();
    assert_eq!(connection.ask("set=1\nlisten_port=7\nnonsense\n\n"), format!("errno={}", -libc::EPROTO));
    assert_eq!(connection.ask("set=1\nlisten_port=7\ncolour=red\n\n"), format!("errno={}", -libc::EINVAL));
    let long = "x".repeat(200_000);
    assert_eq!(connection.ask(&format!("set=1\nkey={long}\n\n")), format!("errno={}", -libc::EIO));
    assert!(served.fake.changes().is_empty());
    served.fake.errors.lock().unwrap().extend([
        ControlError::PortInUse("port 7 is taken".into()),
        ControlError::Refused("no".into()),
        ControlError::Ended,
    ]);
    for errno in [libc::EADDRINUSE, libc::EIO, libc::EIO] {
        assert_eq!(connection.ask("set=1\nlisten_port=7\n\n"), format!("errno={}", -errno));
    }
    assert_eq!(connection.ask(GET), GOT);
}

#[test]
fn a_request_without_its_empty_line_is_not_applied() {
    let served = Served::new();
    let mut connection = served.connect();
    connection.send("set=1\nlisten_port=7\n");
    connection.0.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(connection.answer(), format!("errno={}", -libc::EIO));
    assert!(connection.is_closed());
    assert!(served.fake.changes().is_empty());
}

#[test]
fn another_protocol_is_hung_up_on() {
    let served = Served::new();
    for text in ["GET / HTTP/1.1\r\n\r\n", "\n", "get=2\n\n", &"x".repeat(1 << 20)] {
        let mut connection = served.connect();
        // The other end may hang up in the middle.
        let _ = connection.0.get_mut().write_all(text.as_bytes());
        assert!(connection.is_closed(), "{text:.20}");
    }
    let mut connection = served.connect();
    assert_eq!(connection.ask("get=1\nlisten_port=7\n\n"), format!("errno={}", -libc::EINVAL));
    assert!(connection.is_closed());
    assert_eq!(served.connect().ask(GET), GOT);
}

#[test]
fn a_client_that_stops_in_the_middle_is_hung_up_on() {
    let served = Served::with(Limits { read: Duration::from_millis(50), ..Limits::default() });
    for text in ["g", "get=1\n", "set=1\nlisten_port=7\n", "set=1\nlisten_po"] {
        let mut connection = served.connect();
        connection.send(text);
        assert!(connection.is_closed(), "{text:?}");
    }
    // A client without a request may stay.
    let mut idle = served.connect();
    assert_eq!(idle.ask(GET), GOT);
    let mut slow = served.connect();
    slow.send("set=1\n");
    assert!(slow.is_closed());
    assert_eq!(idle.ask(GET), GOT);
    assert!(served.fake.changes().is_empty());
}

#[test]
fn a_client_that_goes_on_in_pieces_is_hung_up_on() {
    let served = Served::with(Limits { request: Duration::from_millis(50), ..Limits::default() });
    let mut slow = served.connect();
    slow.send("set=1\n");
    let goes_on = |slow: &mut Connection| slow.0.get_mut().write_all(b"listen_port=7\n");
    wait_until("the slow client is hung up on", || goes_on(&mut slow).is_err().then_some(()));
    assert!(served.fake.changes().is_empty());
}

#[test]
fn clients_that_ask_at_once_share_a_read_and_hold_up_no_change() {
    const CLIENTS: usize = 20;
    let served = Served::new();
    let read = || served.fake.reads.load(Relaxed);
    let held = served.fake.peers.lock().unwrap();
    let mut asking: Vec<Connection> = Vec::new();
    for _ in 0..CLIENTS {
        let mut connection = served.connect();
        connection.send(GET);
        asking.push(connection);
        wait_until("the first one is being served", || (read() > 0).then_some(()));
    }
    assert_eq!(served.connect().ask("set=1\n\n"), "errno=0");
    drop(held);
    for connection in &mut asking {
        assert_eq!(connection.answer(), GOT);
    }
    assert!(read() < CLIENTS / 2, "{} reads", read());
    // Another client that has an older state, and does not read it, gives it to none that asks later.
    *served.fake.peers.lock().unwrap() = (0..20_000).map(state_of).collect();
    let (mut deaf, before) = (served.connect(), read());
    deaf.send(GET);
    wait_until("it is being served", || (read() > before).then_some(()));
    *served.fake.peers.lock().unwrap() = vec![state_of(1)];
    assert_eq!(served.connect().ask(GET).matches("public_key=").count(), 1);
}

#[test]
fn a_client_that_does_not_read_delays_no_other() {
    let served = Served::with(Limits { write: Duration::from_millis(200), ..Limits::default() });
    *served.fake.peers.lock().unwrap() = (0..20_000).map(state_of).collect();
    let mut deaf: Vec<Connection> = (0..4).map(|_| served.connect()).collect();
    for connection in &mut deaf {
        connection.send(GET);
    }
    let answer = served.connect().ask(GET);
    assert_eq!(answer.matches("public_key=").count(), 20_000);
    assert!(answer.ends_with("\nerrno=0"));
    // The server disconnects them before the answer is complete.
    for connection in &mut deaf {
        wait_until("the deaf client is hung up on", || {
            connection.0.get_mut().write_all(b"get=1\n\n").is_err().then_some(())
        });
    }
}

fn wait_until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_long_change_holds_up_no_other_client() {
    let served = Served::new();
    served.fake.hold(true);
    let mut changing = served.connect();
    changing.send("set=1\nlisten_port=7\n\n");
    served.fake.wait_until_one_is_held();
    assert_eq!(served.connect().ask(GET), GOT);
    served.fake.hold(false);
    assert_eq!(changing.answer(), "errno=0");
}

#[test]
fn the_client_that_was_idle_for_longest_gives_way() {
    let served = Served::with(Limits { clients: 3, ..Limits::default() });
    let mut connections: Vec<Connection> = Vec::new();
    for _ in 0..3 {
        let mut connection = served.connect();
        assert_eq!(connection.ask(GET), GOT);
        connections.push(connection);
    }
    assert_eq!(connections[0].ask(GET), GOT);
    for _ in 0..50 {
        assert_eq!(served.connect().ask(GET), GOT);
    }
    assert!(connections[1].is_closed());
    // While every place is busy, the next client waits, and is served in the end.
    served.fake.hold(true);
    let mut busy: Vec<Connection> = (0..3).map(|_| served.connect()).collect();
    for connection in &mut busy {
        connection.send("set=1\n\n");
    }
    let mut waiting = served.connect();
    waiting.send(GET);
    served.fake.hold(false);
    for connection in &mut busy {
        assert_eq!(connection.answer(), "errno=0");
    }
    assert_eq!(waiting.answer(), GOT);
}

#[test]
fn a_client_that_has_begun_a_request_gives_way_as_well() {
    let served = Served::with(Limits { clients: 3, ..Limits::default() });
    let mut slow: Vec<Connection> = (0..9).map(|_| served.connect()).collect();
    for connection in &mut slow {
        // It may have lost its place already.
        let _ = connection.0.get_mut().write_all(b"set=1\nlisten_port=7\n");
    }
    assert_eq!(served.connect().ask(GET), GOT);
    assert!(slow[0].is_closed());
    assert!(served.fake.changes().is_empty());
}

#[test]
fn clients_that_never_stop_asking_keep_no_other_out() {
    const REQUESTS: usize = 5000;
    let served = Served::with(Limits { clients: 3, ..Limits::default() });
    let mut busy: Vec<Connection> = (0..3).map(|_| served.connect()).collect();
    for connection in &mut busy {
        connection.send(&GET.repeat(REQUESTS));
        connection.0.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(connection.answer(), GOT);
    }
    let answers: usize = std::thread::scope(|scope| {
        let count = |connection: &mut Connection| {
            let mut text = Vec::new();
            // The other end hangs up on one of them in the middle.
            let _ = connection.0.read_to_end(&mut text);
            String::from_utf8(text).unwrap().matches("errno=0").count()
        };
        let counts: Vec<_> =
            busy.iter_mut().map(|connection| scope.spawn(move || count(connection))).collect();
        assert_eq!(served.connect().ask(GET), GOT);
        counts.into_iter().map(|count| count.join().unwrap()).sum()
    });
    assert!(answers < 3 * (REQUESTS - 1), "no client gave way");
}

fn many_peers(count: u32) -> String {
    let peers = (0..count).map(|number| {
        let mut peer = PeerChange::new(peer_number(number));
        peer.allowed_ips = (0..4u32)
            .map(|net| {
                let address = std::net::Ipv4Addr::from((number << 2 | net) << 8);
                weft_config::device::AllowedIpChange::Add(ipnet::Ipv4Net::new_assert(address, 24).into())
            })
            .collect();
        peer
    });
    let change = DeviceChange { peers: peers.collect(), ..DeviceChange::default() };
    String::from_utf8(request::set(&change).to_vec()).unwrap()
}

#[test]
fn large_requests_are_taken_one_at_a_time_and_others_beside_them() {
    let served = Served::with(Limits { large: 4096, ..Limits::default() });
    let request = many_peers(30_000);
    let (first, second) = request.split_at(request.len() / 2);
    let mut slow = served.connect();
    slow.send(first);
    let mut small = served.connect();
    let mut other = served.connect();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| other.ask(&request));
        assert_eq!(small.ask(GET), GOT);
        assert_eq!(small.ask("set=1\nlisten_port=7\n\n"), "errno=0");
        assert_eq!(slow.ask(second), "errno=0");
        assert_eq!(other.join().unwrap(), "errno=0");
    });
    let mut changes = served.fake.changes();
    changes.sort_by_key(|change| change.peers.len());
    assert_eq!(changes.iter().map(|change| change.peers.len()).collect::<Vec<_>>(), [0, 30_000, 30_000]);
    let last = &changes[2].peers[29_999];
    assert_eq!((last.public_key, last.allowed_ips.len()), (peer_number(29_999), 4));
}

#[test]
fn a_socket_that_is_served_is_not_taken_over() {
    let Served { directory, path, server: _server, .. } = Served::new();
    let error = Listener::open_in(directory.path(), &name()).unwrap_err();
    assert!(error.to_string().contains("another daemon serves interface test0"), "{error}");
    assert_eq!(error.exit_code(), weft_config::exit::Code::Failure);
    // The refused listener did not remove the first one's socket.
    assert_eq!(Connection::to(&path).ask(GET), GOT);
}

#[test]
fn the_end_of_the_file_is_noticed() {
    for end in ["removed", "renamed", "replaced"] {
        let served = Served::new();
        let mut connected = served.connect();
        assert!(served.gone.try_recv().is_err());
        let other = served.directory.path().join("other");
        match end {
            "removed" => std::fs::remove_file(&served.path).unwrap(),
            "renamed" => std::fs::rename(&served.path, &other).unwrap(),
            _ => {
                std::fs::write(&other, "").unwrap();
                std::fs::rename(&other, &served.path).unwrap();
            }
        }
        served.gone.recv_timeout(PATIENCE).unwrap();
        // Connected clients are still served, and a file that replaced the socket stays.
        assert_eq!(connected.ask(GET), GOT);
        served.server.stop();
        assert_eq!(served.path.exists(), end == "replaced");
        assert!(connected.is_closed());
    }
}

#[test]
fn its_own_file_goes_with_it_without_a_report() {
    let Served { directory, path, gone, server, .. } = Served::new();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o770)).unwrap();
    Connection::to(&path).ask(GET);
    server.stop();
    assert!(!path.exists());
    assert!(gone.recv().is_err());
    drop(directory);
}

#[test]
fn it_ends_while_a_change_is_being_made() {
    let Served { directory: _directory, path, fake, server, .. } = Served::new();
    fake.hold(true);
    let mut connection = Connection::to(&path);
    connection.send("set=1\nlisten_port=7\n\n");
    fake.wait_until_one_is_held();
    server.stop();
    assert!(connection.is_closed());
    fake.hold(false);
    wait_until("the change was made to its end", || (fake.changes().len() == 1).then_some(()));
}

#[test]
fn a_socket_that_was_handed_in_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("given.sock");
    let given = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let (server, gone) = serve(Listener::adopt(given.into()).unwrap(), &Arc::default(), Limits::default());
    assert_eq!(Connection::to(&path).ask(GET), GOT);
    server.stop();
    assert!(!path.exists());
    drop(gone);
    let (one, other) = UnixStream::pair().unwrap();
    for descriptor in [one.into(), OwnedFd::from(std::fs::File::open("/dev/null").unwrap())] {
        let error = Listener::adopt(descriptor).unwrap_err();
        assert!(matches!(error, SocketError::Descriptor(_)), "{error}");
    }
    drop(other);
}
