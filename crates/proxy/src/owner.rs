//! The users that the sockets of this machine belong to, so that one local user does not send in the name of
//! another one.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use weft_ipc::proc_net::{DIRECTORY, Socket, sockets};

/// Whether a socket is of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Same,
    Other,
    /// There is no such socket any more, or none can be seen.
    Unknown,
}

/// Returns the user of the end `at` of a connection to `to`; `None` if that end is not on this machine, or is
/// not seen.
pub(crate) fn of_connection(at: SocketAddr, to: SocketAddr) -> Option<u32> {
    user_of_connection(Path::new(DIRECTORY), at, to)
}

/// Reports whether the socket that datagrams from `at` come from is one of this user.
pub(crate) fn of_datagrams(at: SocketAddr, user: u32) -> Owner {
    owner_of_datagrams(Path::new(DIRECTORY), at, user)
}

/// The UDP sockets of this machine, as they were a moment ago: many associations need them again and again.
#[derive(Default)]
pub(crate) struct Senders(Mutex<Option<(Instant, Vec<Socket>)>>);

impl Senders {
    /// How old the list may be.
    pub(crate) const AGE: Duration = Duration::from_secs(1);

    /// Reports, as [`of_datagrams`], whose the socket is, from a list that is newer than `after`, and when
    /// that was read.
    pub(crate) fn look(&self, at: SocketAddr, user: u32, after: Instant) -> (Owner, Instant) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read, sockets)) = list.as_ref()
            && *read > after
            && read.elapsed() < Self::AGE
        {
            return (owner_in(sockets, at, user), *read);
        }
        let now = Instant::now();
        let (_, sockets) = list.insert((now, sockets(Path::new(DIRECTORY), "udp").unwrap_or_default()));
        (owner_in(sockets, at, user), now)
    }
}

fn user_of_connection(directory: &Path, at: SocketAddr, to: SocketAddr) -> Option<u32> {
    let ends = [at, to].map(end);
    let is_it = |socket: &Socket| [end(socket.local), end(socket.remote)] == ends;
    Some(sockets(directory, "tcp").ok()?.iter().find(|socket| is_it(socket))?.user)
}

fn owner_of_datagrams(directory: &Path, at: SocketAddr, user: u32) -> Owner {
    sockets(directory, "udp").map_or(Owner::Unknown, |sockets| owner_in(&sockets, at, user))
}

fn owner_in(sockets: &[Socket], at: SocketAddr, user: u32) -> Owner {
    let (address, port) = end(at);
    let sends = |socket: &&Socket| {
        let (local, local_port) = end(socket.local);
        local_port == port && (local == address || local.is_unspecified())
    };
    let users: Vec<u32> = sockets.iter().filter(sends).map(|socket| socket.user).collect();
    // Several sockets may share a port: each of them may have sent it.
    match users[..] {
        [] => Owner::Unknown,
        _ if users.iter().all(|other| *other == user) => Owner::Same,
        _ => Owner::Other,
    }
}

fn end(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:0438 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:9C40 0100007F:0438 01 00000000:00000000 00:00000000 00000000  1001        0 2 1 0 20 0 0 10 -1
   2: 0100007F:0438 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     7        0 3 1 0 20 0 0 10 -1
";
    const TCP6: &str = "\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0000000000000000FFFF00000100007F:9C41 0000000000000000FFFF00000100007F:0438 01 00000000:00000000 00:00000000 00000000  1002        0 4 1 0 20 0 0 10 -1
   1: 00000000000000000000000001000000:9C42 00000000000000000000000001000000:0438 01 00000000:00000000 00:00000000 00000000  1003        0 5 1 0 20 0 0 10 -1
";
    const UDP: &str = "\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  100: 0100007F:1388 00000000:0000 07 00000000:00000000 00:00000000 00000000  1001        0 6 2 0 0
  101: 00000000:1389 00000000:0000 07 00000000:00000000 00:00000000 00000000  1002        0 7 2 0 0
  102: 0100007F:1389 00000000:0000 07 00000000:00000000 00:00000000 00000000  1001        0 8 2 0 0
";
    const UDP6: &str = "\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  103: 00000000000000000000000000000000:138A 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000  1001        0 9 2 0 0
";

    #[test]
    fn the_user_of_a_socket_is_found_in_both_families() {
        let dir = tempfile::tempdir().unwrap();
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let user = |from: &str, to: &str| user_of_connection(dir.path(), at(from), at(to));
        let owner = |from: &str| owner_of_datagrams(dir.path(), at(from), 1001);
        assert_eq!(
            (user("127.0.0.1:40000", "127.0.0.1:1080"), owner("127.0.0.1:5000")),
            (None, Owner::Unknown)
        );
        for (name, text) in [("tcp", TCP), ("tcp6", TCP6), ("udp", UDP), ("udp6", UDP6)] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        assert_eq!(user("127.0.0.1:40000", "127.0.0.1:1080"), Some(1001));
        assert_eq!(user("127.0.0.1:40001", "127.0.0.1:1080"), Some(1002));
        assert_eq!(user("[::1]:40002", "[::1]:1080"), Some(1003));
        assert_eq!(user("192.0.2.1:40000", "127.0.0.1:1080"), None);
        for (from, expected) in [
            ("127.0.0.1:5000", Owner::Same),
            ("127.0.0.2:5000", Owner::Unknown),
            // Another user has a socket on the same port.
            ("127.0.0.1:5001", Owner::Other),
            ("127.0.0.1:5002", Owner::Same),
            ("[::1]:5002", Owner::Same),
            ("127.0.0.1:5003", Owner::Unknown),
        ] {
            assert_eq!(owner(from), expected, "{from}");
        }
    }
}
