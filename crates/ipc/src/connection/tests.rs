//! Both ends of a connection.

use std::io;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use super::Connection;
use crate::Stream;

/// Longer than a test may take.
const LONG: Duration = Duration::from_secs(60);

/// A place to listen at, with the folder that holds it on Unix.
#[cfg(unix)]
type Place = (PathBuf, tempfile::TempDir);
#[cfg(windows)]
type Place = (PathBuf, ());

#[cfg(unix)]
fn place(name: &str) -> Place {
    let folder = tempfile::tempdir().unwrap();
    (folder.path().join(name), folder)
}

#[cfg(windows)]
fn place(name: &str) -> Place {
    let name = format!(r"\\.\pipe\ProtectedPrefix\Administrators\weft-test\{name}-{}", std::process::id());
    (PathBuf::from(name), ())
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Serves one client in a thread, and connects to it.
fn serve<F, T: Send + 'static>(
    name: &str,
    serve: impl FnOnce(Box<dyn Stream>) -> F + Send + 'static,
) -> (Connection, JoinHandle<T>)
where
    F: Future<Output = T>,
{
    let (path, _folder) = place(name);
    #[cfg(unix)]
    let (listener, _file) = crate::listener::listen(&path, 0o700).unwrap();
    #[cfg(windows)]
    let listener = crate::pipe::Pipe::open(&path).unwrap();
    let connection = Connection::connect(&path, Instant::now() + LONG).unwrap();
    let thread = std::thread::spawn(move || {
        runtime().block_on(async move {
            #[cfg(unix)]
            let stream = crate::listener::accept(&tokio::net::UnixListener::from_std(listener).unwrap())
                .await
                .unwrap()
                .0;
            #[cfg(windows)]
            let stream = listener.accept().unwrap().next().await.unwrap().0;
            serve(Box::new(stream)).await
        })
    });
    (connection, thread)
}

fn read(connection: &Connection, length: usize) -> Vec<u8> {
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    while all.len() < length {
        let count = connection.read(&mut part, Instant::now() + LONG).unwrap();
        assert!(count > 0, "the end after {} bytes", all.len());
        all.extend_from_slice(&part[..count]);
    }
    all
}

#[test]
fn more_than_the_system_buffers_arrives_in_both_directions() {
    let content: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let length = content.len();
    let (connection, daemon) = serve("large", move |mut stream| async move {
        let mut received = vec![0; length];
        stream.read_exact(&mut received).await.unwrap();
        stream.write_all(&received).await.unwrap();
        // Until the client has read everything.
        stream.read(&mut [0]).await.unwrap_or(0)
    });
    connection.write_all(&content, Instant::now() + LONG).unwrap();
    assert!(read(&connection, length) == content);
    drop(connection);
    assert_eq!(daemon.join().unwrap(), 0);
}

#[test]
fn a_deadline_ends_a_call_and_the_next_one_goes_on() {
    let (done, is_done) = oneshot::channel::<()>();
    let (connection, daemon) = serve("deadline", |mut stream| async move {
        // Not before the client has given up once.
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 1);
        stream.write_all(b"late").await.unwrap();
        is_done.await
    });
    let soon = || Instant::now() + Duration::from_millis(20);
    assert_eq!(connection.read(&mut [0; 8], soon()).unwrap_err().kind(), io::ErrorKind::TimedOut);
    connection.write_all(b"?", Instant::now() + LONG).unwrap();
    assert_eq!(read(&connection, 4), b"late");
    // The daemon reads no more.
    let stuffed = connection.write_all(&vec![0; 64 << 20], soon()).unwrap_err();
    assert_eq!(stuffed.kind(), io::ErrorKind::TimedOut, "{stuffed}");
    drop(done);
    daemon.join().unwrap().unwrap_err();
}

#[test]
fn a_thread_writes_while_another_one_reads() {
    let (connection, daemon) = serve("threads", |mut stream| async move {
        let mut request = [0; 4];
        stream.read_exact(&mut request).await.unwrap();
        stream.write_all(&request).await.unwrap();
        stream.read(&mut [0]).await.unwrap_or(0)
    });
    let other = connection.try_clone().unwrap();
    let reader = std::thread::spawn(move || read(&connection, 4));
    other.write_all(b"stop", Instant::now() + LONG).unwrap();
    assert_eq!(reader.join().unwrap(), b"stop");
    drop(other);
    daemon.join().unwrap();
}

#[test]
fn the_end_of_a_connection_comes_after_what_was_sent() {
    let (connection, daemon) = serve("end", |mut stream| async move {
        stream.write_all(b"last").await.unwrap();
    });
    daemon.join().unwrap();
    assert_eq!(read(&connection, 4), b"last");
    assert_eq!(connection.read(&mut [0; 8], Instant::now() + LONG).unwrap(), 0);
    let refused = connection.write_all(b"x", Instant::now() + LONG).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::BrokenPipe, "{refused}");
}

#[test]
fn there_is_no_daemon() {
    let (path, _folder) = place("missing");
    let missing = Connection::connect(&path, Instant::now() + LONG).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound, "{missing}");
}

#[test]
#[cfg(windows)]
fn a_daemon_of_another_user_gets_nothing() {
    let (path, ()) = place("stranger");
    let runtime = runtime();
    let _context = runtime.enter();
    // Without a description of its security the pipe belongs to the user.
    let _pipe = tokio::net::windows::named_pipe::ServerOptions::new().create(&path).unwrap();
    let refused = Connection::connect(&path, Instant::now() + LONG).unwrap_err();
    assert!(refused.to_string().contains("nothing was sent"), "{refused}");
}
