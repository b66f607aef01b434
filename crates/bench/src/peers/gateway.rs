//! The gateway: a real process with all its peers, in a namespace that is linked to the clients' namespace.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ipnet::{IpNet, Ipv4Net};
use tempfile::TempDir;
use weft_lab::link::{self, LinkOptions};
use weft_lab::{Namespace, counters::Counters};
use weft_tunnel::PublicKey;

use super::client::MTU;
use super::roster::{self, GATEWAY_LINK, LINK_PREFIX, Roster, SOURCES};
use crate::implementation::{Daemon, Implementation, Setup, uapi_socket};
use crate::interrupt::Interrupt;
use crate::site::{GATEWAY, INNER_PREFIX};
use crate::topology;
use crate::usage::{Usage, peak_rss, rss};

/// Timeout for a daemon to be configured with all its peers.
const START: Duration = Duration::from_secs(120);

/// A running gateway, with its and the clients' namespaces.
pub(super) struct Gateway {
    daemon: Daemon,
    pub(super) inside: Namespace,
    pub(super) clients: Namespace,
    /// Time from its start until it was configured with all peers.
    pub(super) configured_in: Duration,
    _files: TempDir,
}

impl Gateway {
    /// Brings the gateway up with all peers of the roster.
    pub(super) fn start(
        implementation: &Implementation,
        roster: &Roster,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (inside, clients) = (topology::namespace("gateway")?, topology::namespace("clients")?);
        let net = |address| Ipv4Net::new(address, LINK_PREFIX).map(IpNet::from);
        let sources = (0..SOURCES as usize).map(|number| net(roster::source(number)));
        let options = LinkOptions {
            addresses_a: vec![net(*GATEWAY_LINK.ip())?],
            addresses_b: sources.collect::<Result<_, _>>()?,
            ..LinkOptions::default()
        };
        link::join(&inside, &clients, &options)?;
        let files = tempfile::tempdir()?;
        let interface = format!("wp{:x}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let start = Instant::now();
        let setup = Setup {
            interface: &interface,
            addresses: &[Ipv4Net::new(GATEWAY, INNER_PREFIX)?.into()],
            mtu: MTU,
            lines: "Table = off\n",
            config: &|lines| roster.config(lines),
            limit: START,
        };
        let daemon = implementation.bring_up(&inside, &setup, files.path(), interrupt)?;
        let configured_in = start.elapsed();
        Ok(Self { daemon, inside, clients, configured_in, _files: files })
    }

    /// Returns an error if the daemon has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.daemon.check()
    }

    /// Returns the daemon's CPU time and context switches so far.
    pub(super) fn usage(&self) -> Result<Usage> {
        Usage::of(self.daemon.id())
    }

    /// Returns its resident memory and the peak of it, in bytes.
    pub(super) fn memory(&self) -> Result<(u64, u64)> {
        Ok((rss(self.daemon.id())?, peak_rss(self.daemon.id())?))
    }

    /// Reads the kernel's counters in its namespace.
    pub(super) fn counters(&self) -> Result<Counters> {
        Ok(Counters::read(&self.inside)?)
    }

    /// Returns the name of its interface.
    pub(super) fn interface(&self) -> &str {
        self.daemon.interface()
    }

    /// Requests the data of `wg show` over UAPI, and returns the number of peers.
    pub(super) fn dump(&self) -> Result<usize> {
        Ok(self.ask()?.lines().filter(|line| line.starts_with("public_key=")).count())
    }

    /// Returns the bytes received from a peer and sent to it so far.
    pub(super) fn carried(&self, peer: &PublicKey) -> Result<Carried> {
        Carried::parse(&self.ask()?, peer).context("the daemon does not report what it carried of a peer")
    }

    fn ask(&self) -> Result<String> {
        let mut stream = UnixStream::connect(uapi_socket(self.interface()))
            .context("cannot reach the daemon over UAPI")?;
        stream.set_read_timeout(Some(START))?;
        stream.write_all(b"get=1\n\n")?;
        let (mut answer, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
        while !answer.ends_with(b"\n\n") {
            let len = stream.read(&mut chunk)?;
            ensure!(len > 0, "the daemon's answer ends in the middle");
            answer.extend_from_slice(&chunk[..len]);
        }
        Ok(String::from_utf8(answer)?)
    }
}

/// Bytes of WireGuard messages exchanged with one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Carried {
    pub(super) received: u64,
    pub(super) sent: u64,
}

impl Carried {
    /// Parses a UAPI answer, in which a peer's lines follow its key.
    fn parse(answer: &str, peer: &PublicKey) -> Option<Self> {
        let key: String = peer.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let (_, behind) = answer.split_once(&format!("public_key={key}\n"))?;
        let own = behind.split("public_key=").next()?;
        let figure = |name: &str| own.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        Some(Self { received: figure("rx_bytes=")?, sent: figure("tx_bytes=")? })
    }
}

/// Raises the limit of file descriptors to `count` sockets and some more.
pub(super) fn allow_sockets(count: usize) -> Result<()> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let wanted = count as u64 + 512;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < wanted {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted))
            .map_err(|error| topology::Missing(error.into()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_carried_of_a_peer_stands_behind_its_key() {
        let [first, second, third] = [1, 2, 3].map(|byte| PublicKey::from_bytes([byte; 32]));
        let answer = format!(
            "private_key=00\npublic_key={}\ntx_bytes=1\nrx_bytes=2\npublic_key={}\nrx_bytes=30\ntx_bytes=40\nerrno=0\n\n",
            "01".repeat(32),
            "02".repeat(32)
        );
        let carried = |received, sent| Some(Carried { received, sent });
        assert_eq!(Carried::parse(&answer, &first), carried(2, 1));
        assert_eq!(Carried::parse(&answer, &second), carried(30, 40));
        assert_eq!(Carried::parse(&answer, &third), None);
    }
}
