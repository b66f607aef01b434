//! The name servers that this machine has without those of an interface, and how they are asked.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::Duration;

/// The port of name servers.
pub(super) const PORT: u16 = 53;

/// How many servers are asked: the C library asks three, systemd-resolved all.
const MAX_SERVERS: usize = 6;

/// What a resolv.conf says (resolv.conf(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// The servers, in the order in which they are asked.
    pub servers: Vec<SocketAddr>,
    /// The domains that a name may be meant in.
    pub search: Vec<String>,
    /// A name with fewer dots is looked up in the search domains first.
    pub ndots: usize,
    /// How long a server has for its answer; `None`: as the caller likes.
    pub timeout: Option<Duration>,
    /// How many times the servers are asked.
    pub attempts: usize,
    /// Whether not always the first server is asked first.
    pub rotate: bool,
    /// Whether the servers are asked over TCP alone.
    pub use_tcp: bool,
    /// Whether queries allow answers of more than 512 bytes.
    pub edns: bool,
}

impl Default for Upstream {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            search: Vec::new(),
            ndots: 1,
            timeout: None,
            attempts: 2,
            rotate: false,
            use_tcp: false,
            edns: false,
        }
    }
}

impl Upstream {
    /// Reads the lines of a resolv.conf. Lines that the C library would ignore are ignored.
    pub fn parse(text: &str) -> Self {
        let mut this = Self::default();
        for line in text.lines() {
            // A keyword is at the beginning of its line.
            let mut words = line.split([' ', '\t']).filter(|word| !word.is_empty());
            match line.split([' ', '\t']).next() {
                Some("nameserver") => this.add(words.nth(1).and_then(server)),
                Some("search" | "domain") => this.search = words.skip(1).map(domain).collect(),
                Some("options") => words.skip(1).for_each(|word| this.set(word)),
                _ => {}
            }
        }
        this.search.retain(|domain| !domain.is_empty());
        this
    }

    fn add(&mut self, server: Option<SocketAddr>) {
        if let Some(server) = server
            && !self.servers.contains(&server)
            && self.servers.len() < MAX_SERVERS
        {
            self.servers.push(server);
        }
    }

    /// Uses servers and search domains from elsewhere.
    pub(super) fn replace(&mut self, servers: Vec<SocketAddr>, search: Vec<String>) {
        self.servers.clear();
        servers.into_iter().for_each(|server| self.add(Some(server)));
        self.search = search;
    }

    fn set(&mut self, option: &str) {
        // The bounds of resolv.conf(5).
        let number = |bounds: std::ops::RangeInclusive<usize>| {
            let (_, number) = option.split_once(':')?;
            Some(number.parse::<usize>().ok()?.clamp(*bounds.start(), *bounds.end()))
        };
        match option.split(':').next().unwrap_or_default() {
            "ndots" => self.ndots = number(0..=15).unwrap_or(self.ndots),
            "attempts" => self.attempts = number(1..=5).unwrap_or(self.attempts),
            "timeout" => {
                let seconds = number(1..=30).and_then(|seconds| u64::try_from(seconds).ok());
                self.timeout = seconds.map(Duration::from_secs).or(self.timeout);
            }
            "rotate" => self.rotate = true,
            "use-vc" => self.use_tcp = true,
            "edns0" => self.edns = true,
            _ => {}
        }
    }
}

fn domain(name: &str) -> String {
    name.trim_matches('.').to_owned()
}

/// Reads the address of a server. One of a link has the name or the number of the link (`fe80::1%eth0`).
fn server(text: &str) -> Option<SocketAddr> {
    let Some((address, scope)) = text.split_once('%') else {
        return Some((text.parse::<IpAddr>().ok()?, PORT).into());
    };
    let scope = scope.parse().ok().or_else(|| nix::net::if_::if_nametoindex(scope).ok())?;
    Some(SocketAddrV6::new(address.parse().ok()?, PORT, 0, scope).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_the_c_library_reads_it() {
        let text = "# nameserver 192.0.2.9\nnameserver 192.0.2.1\n nameserver 192.0.2.8\nnameserver\t2001:db8::1 # x\n\
                    nameserver fe80::1%lo\nnameserver fe80::2%7\nnameserver no.address\nnameserver 192.0.2.1\n\
                    domain old.example\nsearch a.example. b.example\noptions ndots:20 timeout:3 attempts:9 rotate\n\
                    options use-vc edns0 timeout:x inet6\nnameserver fe80::1%none\n";
        let read = Upstream::parse(text);
        let servers: Vec<String> = read.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["192.0.2.1:53", "[2001:db8::1]:53", "[fe80::1%1]:53", "[fe80::2%7]:53"]);
        let wanted = Upstream {
            servers: read.servers.clone(),
            search: vec!["a.example".to_owned(), "b.example".to_owned()],
            ndots: 15,
            timeout: Some(Duration::from_secs(3)),
            attempts: 5,
            rotate: true,
            use_tcp: true,
            edns: true,
        };
        assert_eq!(read, wanted);
        assert_eq!(Upstream::parse(""), Upstream::default());
    }
}
