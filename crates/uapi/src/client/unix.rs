//! The stream socket of an interface, `/var/run/wireguard/IF.sock`.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weft_ipc::Connection;

pub(super) use crate::SOCKET_DIRECTORY as DIRECTORY;

fn path(interface: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{interface}.sock"))
}

/// Returns the path at which an interface's daemon listens.
pub(super) fn place(interface: &str) -> String {
    path(interface).display().to_string()
}

/// Reports whether the system has a device of this name. Only Linux has a file that shows it.
pub(super) fn has_device(interface: &str) -> bool {
    Path::new("/sys/class/net").join(interface).exists()
}

/// Returns the names that have a socket, whether a daemon listens or not.
pub(super) fn names() -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        // A file that disappears meanwhile does not count.
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".sock"))
            && is_socket
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Reports whether a daemon listens, or may listen, if this user cannot find out.
pub(super) fn is_alive(interface: &str) -> bool {
    let gone =
        |error: io::Error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
    let deadline = Instant::now() + Duration::from_secs(1);
    Connection::connect(&path(interface), deadline).map_or_else(|error| !gone(error), |_| true)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use zeroize::Zeroizing;

    use super::super::{Limits, converse};
    use super::*;

    /// One end of a connection, with the time limit of the first byte.
    struct Client(Connection, Duration);

    impl Client {
        fn exchange(&self, request: &[u8]) -> io::Result<Zeroizing<Vec<u8>>> {
            let limits = Limits { begin: Instant::now(), first: self.1, whole: Duration::from_secs(60) };
            converse(&self.0, request, &limits)
        }
    }

    fn connection(patience: Duration) -> (Client, UnixStream) {
        let (stream, other) = UnixStream::pair().unwrap();
        (Client(stream.into(), patience), other)
    }

    #[test]
    fn an_answer_in_pieces_is_put_together() {
        let (connection, mut daemon) = connection(Duration::from_secs(60));
        let daemon = thread::spawn(move || {
            let mut request = [0; 7];
            daemon.read_exact(&mut request).unwrap();
            for piece in ["listen_", "port=1\n", "errno=0\n", "\n"] {
                daemon.write_all(piece.as_bytes()).unwrap();
            }
            request
        });
        assert_eq!(connection.exchange(b"get=1\n\n").unwrap().as_slice(), b"listen_port=1\nerrno=0\n\n");
        assert_eq!(&daemon.join().unwrap(), b"get=1\n\n");
    }

    #[test]
    fn an_answer_counts_though_the_daemon_read_only_a_part() {
        let (connection, mut daemon) = connection(Duration::from_secs(60));
        let daemon = thread::spawn(move || {
            daemon.read_exact(&mut [0; 6]).unwrap();
            daemon.write_all(b"errno=-22\n\n").unwrap();
            daemon.shutdown(std::net::Shutdown::Both).unwrap();
        });
        let request = vec![b'x'; 4 << 20];
        assert_eq!(connection.exchange(&request).unwrap().as_slice(), b"errno=-22\n\n");
        daemon.join().unwrap();
    }

    #[test]
    fn an_answer_without_an_end_is_bounded() {
        let (connection, mut daemon) = connection(Duration::from_secs(60));
        let daemon = thread::spawn(move || {
            let part = [b'x'; 1 << 16];
            // The last part is beyond the bound.
            (0..=64 << 4).all(|_| daemon.write_all(&part).is_ok()).then(|| daemon.write_all(b"\n\n"))
        });
        let error = connection.exchange(b"get=1\n\n").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        drop(connection);
        let _ = daemon.join().unwrap();
    }

    #[test]
    fn silence_and_a_broken_connection_are_errors() {
        let (silent, _daemon) = connection(Duration::from_millis(20));
        let error = silent.exchange(b"get=1\n\n").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        let (stuffed, _daemon) = connection(Duration::from_millis(20));
        let error = stuffed.exchange(&vec![0; 64 << 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        let (connection, mut daemon) = connection(Duration::from_secs(60));
        daemon.write_all(b"listen_port=1\n").unwrap();
        drop(daemon);
        assert!(connection.exchange(b"get=1\n\n").is_err());
    }
}
