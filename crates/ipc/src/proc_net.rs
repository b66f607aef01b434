//! The sockets of a network namespace, as Linux lists them in files (proc_pid_net(5)). Other systems have
//! none of these files.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// The network namespace of the calling thread.
pub const DIRECTORY: &str = "/proc/thread-self/net";

/// A TCP socket that listens.
const LISTENS: &str = "0A";

/// A socket. An IPv4 address that is mapped into IPv6 is the IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The address of this end.
    pub local: SocketAddr,
    /// The address of the other end; unspecified without one.
    pub remote: SocketAddr,
    /// Whether it is a TCP socket that waits for connections.
    pub listens: bool,
    /// The user that made it.
    pub user: u32,
    /// Its number, which the links in /proc/ID/fd have too.
    pub inode: u64,
}

/// Reads the sockets of `protocol`, `tcp` or `udp`, of both families. Without IPv6 there is no second file.
///
/// # Errors
/// The file of IPv4 cannot be read.
pub fn sockets(directory: &Path, protocol: &str) -> io::Result<Vec<Socket>> {
    let mut text = std::fs::read_to_string(directory.join(protocol))?;
    let v6 = directory.join(format!("{protocol}6"));
    text.push_str(&std::fs::read_to_string(v6).unwrap_or_default());
    Ok(text.lines().filter_map(socket).collect())
}

fn socket(line: &str) -> Option<Socket> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, local, remote, state, _, _, _, user, _, inode, ..] = fields[..] else { return None };
    Some(Socket {
        local: address(local)?,
        remote: address(remote)?,
        listens: state == LISTENS,
        user: user.parse().ok()?,
        inode: inode.parse().ok()?,
    })
}

/// Reads an address in words of four bytes, each a number in the order of this machine, and a port.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let address: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            Ipv6Addr::from(<[u8; 16]>::try_from(words.as_flattened()).ok()?).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, u16::from_str_radix(port, 16).ok()?))
}
