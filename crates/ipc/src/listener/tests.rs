use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn only_the_owner_may_connect_and_the_file_goes_at_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/deeper/wg0.sock");
    let (listener, file) = listen(&path, 0o700).unwrap();
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    UnixStream::connect(&path).unwrap();
    assert!(file.is_own());
    drop((listener, file));
    assert!(!path.exists());
    let shared = directory.path().join("shared/wg0.sock");
    let _listener = listen(&shared, 0o755).unwrap();
    // The umask of this process may clear bits for other users.
    assert_eq!(mode(shared.parent().unwrap()) | 0o055, 0o755);
}

#[test]
fn what_others_do_in_a_directory_that_they_share_stops_no_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wg0.sock");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    // A file that is not removed, as another user's in /tmp is not.
    fs::create_dir_all(directory.path().join("wg0.sock.new/kept")).unwrap();
    let held = File::open(directory.path()).unwrap();
    held.lock().unwrap();
    let (_listener, file) = listen(&path, 0o700).unwrap();
    UnixStream::connect(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
    // No temporary name is left, and the process that serves is still found.
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    #[cfg(target_os = "linux")]
    assert!(
        matches!(Holder::of(Held::Socket(&path)), Holder::Process { id, .. } if id == std::process::id())
    );
    drop(file);
    assert!(!path.exists());
}

#[test]
#[cfg(target_os = "linux")]
fn the_file_of_a_socket_is_private_from_its_first_moment_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wg0.sock");
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    protect(&socket);
    socket.bind(&SockAddr::unix(&path).unwrap()).unwrap();
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn directories_above_that_of_the_socket_are_for_others_to_pass_through() {
    let directory = tempfile::tempdir().unwrap();
    let _listener = listen(&directory.path().join("weft/wg0/metrics.sock"), 0o700).unwrap();
    assert_eq!(mode(&directory.path().join("weft/wg0")), 0o700);
    assert_eq!(mode(&directory.path().join("weft")) & 0o500, 0o500);
    assert_ne!(mode(&directory.path().join("weft")), 0o700);
}

/// Shuts a listener down instead of closing it: a child that another test has just forked may still hold its
/// descriptor.
fn end(listener: UnixListener) {
    Socket::from(listener).shutdown(std::net::Shutdown::Both).unwrap();
}

#[test]
fn a_dead_daemons_socket_is_replaced_and_a_living_ones_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wg0.sock");
    end(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let _first = listen(&path, 0o700).unwrap();
    let second = listen(&path, 0o700).unwrap_err();
    assert!(matches!(second, ListenError::Served { .. }), "{second}");
    assert!(second.to_string().starts_with("another daemon serves interface wg0 on /"), "{second}");
    UnixStream::connect(&path).unwrap();
}

/// Returns a listening socket that accepts no client, and the clients that fill its backlog.
fn busy(path: &Path) -> (Socket, Vec<Socket>) {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    socket.bind(&SockAddr::unix(path).unwrap()).unwrap();
    socket.listen(0).unwrap();
    let waiting = std::iter::from_fn(|| {
        let client = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        client.set_nonblocking(true).unwrap();
        client.connect(&SockAddr::unix(path).unwrap()).ok().map(|()| client)
    });
    let waiting = waiting.take(16).collect();
    (socket, waiting)
}

#[test]
fn a_daemon_that_is_too_busy_to_answer_is_there_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wg0.sock");
    let _busy = busy(&path);
    let error = listen(&path, 0o700).unwrap_err();
    assert!(matches!(error, ListenError::Served { .. }), "{error}");
    let error = remove_dead(&path).unwrap_err();
    assert!(matches!(error, ListenError::Served { .. }), "{error}");
    assert!(path.exists());
}

#[test]
fn only_a_dead_daemons_socket_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wg0.sock");
    assert!(!remove_dead(&path).unwrap());
    assert!(!remove_dead(&directory.path().join("missing/wg0.sock")).unwrap());
    let alive = UnixListener::bind(&path).unwrap();
    assert!(matches!(remove_dead(&path).unwrap_err(), ListenError::Served { .. }));
    assert!(path.exists());
    end(alive);
    assert!(remove_dead(&path).unwrap());
    assert!(!path.exists());
}

#[test]
fn a_file_that_is_no_socket_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wg0.sock");
    fs::write(&path, "precious").unwrap();
    for error in [listen(&path, 0o700).map(drop).unwrap_err(), remove_dead(&path).map(drop).unwrap_err()] {
        assert!(matches!(error, ListenError::InTheWay { .. }), "{error}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn another_daemons_socket_at_the_same_place_survives() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wg0.sock");
    let (_listener, first) = listen(&path, 0o700).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!first.is_own());
    let (_listener, second) = listen(&path, 0o700).unwrap();
    drop(first);
    assert!(second.is_own());
}

#[test]
fn two_that_start_at_once_do_not_take_each_others_socket() {
    let directory = tempfile::tempdir().unwrap();
    // Of a directory that others can open, which the umask allows, the lock is not waited for.
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let path = directory.path().join("wg0.sock");
    for _ in 0..20 {
        end(UnixListener::bind(&path).unwrap());
        let opened: Vec<_> = std::thread::scope(|scope| {
            let open = || scope.spawn(|| listen(&path, 0o700));
            let threads = [open(), open(), open()];
            threads.map(|thread| thread.join().unwrap()).into_iter().filter_map(Result::ok).collect()
        });
        assert_eq!(opened.len(), 1);
        UnixStream::connect(&path).unwrap();
        drop(opened);
        assert!(!path.exists());
    }
}

/// Removes a socket that refuses a connection, as wg(8) does.
fn ask_like_wg(path: &Path) {
    if UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        let _ = fs::remove_file(path);
    }
}

#[test]
fn a_client_that_asks_too_early_does_not_remove_the_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wg0.sock");
    let done = AtomicBool::new(false);
    let own = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                ask_like_wg(&path);
            }
        });
        // One that was closed would refuse a client that has just found its file, and this client removes the
        // next one.
        let mut listeners = Vec::new();
        let mut is_own = || {
            let (listener, file) = listen(&path, 0o700).ok()?;
            listeners.push(listener);
            Some(file.is_own())
        };
        let own = (0..500).filter(|_| is_own() == Some(true)).count();
        done.store(true, Relaxed);
        own
    });
    assert_eq!(own, 500);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_path_that_is_too_long_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let error = listen(&directory.path().join("x".repeat(200)), 0o700).unwrap_err().to_string();
    assert!(error.contains("xxxx") && error.contains("socket"), "{error}");
}
