//! The name servers that programs of this machine ask.

use std::net::IpAddr;
use std::path::Path;

/// The file that the system's resolver reads.
const FILE: &str = "/etc/resolv.conf";
/// The servers that systemd-resolved asks, which is at a loopback address itself.
const OF_RESOLVED: &str = "/run/systemd/resolve/resolv.conf";

/// Returns the name servers of the system, as far as its files name them.
pub(super) fn of_the_system() -> Vec<IpAddr> {
    let servers = read(FILE);
    let is_stub = |server: &IpAddr| matches!(server, IpAddr::V4(server) if matches!(server.octets(), [127, 0, 0, 53 | 54]));
    if !servers.is_empty() && servers.iter().all(is_stub) {
        return read(OF_RESOLVED);
    }
    servers
}

fn read(file: &str) -> Vec<IpAddr> {
    servers_of(&weft_config::read_regular_text(Path::new(file)).unwrap_or_default())
}

fn servers_of(text: &str) -> Vec<IpAddr> {
    let servers = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    servers.filter_map(|server| server.split_whitespace().next()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_as_the_resolver_reads_them() {
        let text = "# nameserver 1.1.1.1\nsearch a\nnameserver 192.168.1.1 # the router\n\tnameserver fd00::53\n\
                    nameserver fe80::1%eth0\nnameserver\n";
        let servers: Vec<String> = servers_of(text).iter().map(IpAddr::to_string).collect();
        assert_eq!(servers, ["192.168.1.1", "fd00::53"]);
    }
}
