//! The implementations that are measured, and how an end of a tunnel is brought up with each.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ipnet::IpNet;
use weft_config::TunThreads;
use weft_lab::{Namespace, link};
use weft_report::StatusReport;
use weft_report::control_socket::Client;
use weft_tunnel::{PrivateKey, PublicKey};

use crate::interrupt::Interrupt;
use crate::process::Process;
use crate::site::{self, PeerSection};
use crate::usage::Usage;

mod named;
mod rootless;

pub(crate) use named::{PeerCommand, WeftCommand};
pub(crate) use rootless::{NearEnd, Rootless, TRANSFER_PORT};

/// Name of weft's interface, at both ends.
const INTERFACE: &str = "weft0";
/// Timeout for a daemon to create its interface.
const START: Duration = Duration::from_secs(20);

/// Returns the path of the weft built together with this program.
pub(crate) fn weft_beside_this() -> std::io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("weft"))
}

/// Returns an error if two names are equal.
pub(crate) fn check_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        ensure!(seen.insert(name), "{name} occurs twice: give each a different name");
    }
    Ok(())
}

/// An implementation under test.
#[derive(Clone, Debug)]
pub(crate) enum Implementation {
    /// A weft: the program, and the arguments of `weft up` beyond the file.
    Weft { path: PathBuf, arguments: Vec<String> },
    /// A program that makes an interface which wg(8) configures.
    Other(PeerCommand),
    /// A near end without root; the far end is the gateway of all of them, a weft.
    Rootless(Rootless),
    /// The bare link, without a tunnel.
    Bare,
}

/// The kind of implementation that figures belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Weft,
    Other,
    Bare,
}

impl Implementation {
    /// Creates a weft from the command line.
    ///
    /// # Errors
    /// When there is no such program.
    pub(crate) fn weft(command: &WeftCommand, tun_threads: TunThreads) -> Result<Self> {
        let path = match &command.path {
            Some(path) => path.clone(),
            None => weft_beside_this()?,
        };
        ensure!(path.is_file(), "there is no weft at {}: build it, or name one with --weft", path.display());
        let mut arguments = command.arguments.clone();
        if !arguments.iter().any(|argument| argument.starts_with("--tun-threads")) {
            arguments.extend(["--tun-threads".to_owned(), tun_threads.to_string()]);
        }
        Ok(Self::Weft { path, arguments })
    }

    /// Returns the kind of this implementation.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Weft { .. } => Kind::Weft,
            Self::Other(_) => Kind::Other,
            Self::Rootless(rootless) => rootless.kind(),
            Self::Bare => Kind::Bare,
        }
    }

    /// Returns the implementation of the far end.
    pub(crate) fn of_far_end(&self) -> Self {
        match self {
            Self::Rootless(Rootless { weft, .. }) => Self::Weft { path: weft.clone(), arguments: Vec::new() },
            same => same.clone(),
        }
    }

    /// Reports whether the near end forwards ports of its loopback interface into the tunnel.
    pub(crate) fn forwards_ports(&self) -> bool {
        matches!(self, Self::Rootless(Rootless { end, .. }) if *end != NearEnd::Exec)
    }

    /// Reports whether one direction of a connection may end before the other, as transfers need it.
    pub(crate) fn passes_half_closes(&self) -> bool {
        !matches!(self, Self::Rootless(Rootless { end: NearEnd::Onetun(_), .. }))
    }

    /// Brings an end up with interface, addresses, key and peer. Returns `None` for the bare link.
    pub(crate) fn start(
        &self,
        namespace: &Namespace,
        end: &End,
        directory: &Path,
        interrupt: &Interrupt,
    ) -> Result<Option<Daemon>> {
        // wg(8) finds a daemon by a socket in a directory that all namespaces share, so the name is unique.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let interface = match self {
            Self::Weft { .. } => INTERFACE.to_owned(),
            Self::Rootless(rootless) => {
                return rootless.start(namespace, end, directory, interrupt).map(Some);
            }
            Self::Other(_) => format!("wb{:x}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)),
            Self::Bare => return Ok(None),
        };
        let setup = Setup {
            interface: &interface,
            addresses: &[format!("{}/24", end.address).parse()?],
            mtu: end.mtu,
            lines: "",
            config: &|lines| end.text(lines),
            limit: START,
        };
        self.bring_up(namespace, &setup, directory, interrupt).map(Some)
    }

    /// Starts the program in the namespace, with its files in `directory`, and waits until its interface is
    /// configured as `setup` says.
    pub(crate) fn bring_up(
        &self,
        namespace: &Namespace,
        setup: &Setup<'_>,
        directory: &Path,
        interrupt: &Interrupt,
    ) -> Result<Daemon> {
        let Setup { interface, addresses, mtu, lines, config, limit } = *setup;
        match self {
            Self::Weft { path, arguments } => {
                let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                let lines = format!("Address = {}\nMTU = {mtu}\n{lines}", addresses.join(", "));
                let file = directory.join(format!("{interface}.conf"));
                write_private(&file, &config(&lines))?;
                let words = [path.as_os_str(), "up".as_ref(), file.as_os_str()];
                let mut words: Vec<String> =
                    words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
                words.extend_from_slice(arguments);
                let mut process = Process::start(namespace, &words, directory.join("weft.log"))?;
                process.wait_until(interrupt, "weft's interface", limit, |process| {
                    process.output().contains("interface is up")
                })?;
                // Both ends of a tunnel have an interface named `INTERFACE`: the socket's path is not unique
                // to this daemon.
                let socket = (interface != INTERFACE).then(|| uapi_socket(interface));
                Ok(Daemon { process, interface: interface.to_owned(), socket, inside: None, tunnel: None })
            }
            Self::Other(command) => {
                let process =
                    Process::start(namespace, &command.words(interface), directory.join("daemon.log"))?;
                let socket = Some(uapi_socket(interface));
                let mut daemon =
                    Daemon { process, interface: interface.to_owned(), socket, inside: None, tunnel: None };
                daemon.wait_until(interrupt, "the daemon's answer to wg", limit, || {
                    wg(&["show", interface, "listen-port"]).is_ok()
                })?;
                let file = directory.join("wg.conf");
                write_private(&file, &config(""))?;
                wg(&["setconf", interface, &file.to_string_lossy()])?;
                link::set_mtu(namespace, interface, mtu.into())?;
                link::set_up(namespace, interface)?;
                for address in addresses {
                    link::add_address(namespace, interface, *address)?;
                }
                Ok(daemon)
            }
            Self::Rootless(_) | Self::Bare => bail!("it makes no interface in this namespace"),
        }
    }
}

/// An interface to create.
#[derive(Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) interface: &'a str,
    pub(crate) addresses: &'a [IpNet],
    pub(crate) mtu: u16,
    /// Lines for the first section of a file for `weft up`, beyond addresses and MTU.
    pub(crate) lines: &'a str,
    /// Returns the configuration file, with the given lines in its first section.
    pub(crate) config: &'a dyn Fn(&str) -> String,
    /// Timeout for the start.
    pub(crate) limit: Duration,
}

/// One end of a tunnel.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) private_key: PrivateKey,
    pub(crate) peer_public_key: PublicKey,
    pub(crate) port: u16,
    pub(crate) address: Ipv4Addr,
    pub(crate) peer_address: Ipv4Addr,
    pub(crate) peer_endpoint: SocketAddr,
    pub(crate) mtu: u16,
}

impl End {
    /// Returns the configuration for `wg setconf`, or for `weft up` with more lines in the first section.
    fn text(&self, interface_lines: &str) -> String {
        let peer = PeerSection::new(self.peer_public_key, self.peer_address, Some(self.peer_endpoint));
        site::config(&self.private_key, Some(self.port), interface_lines, [peer])
    }
}

/// A running daemon. Dropping it ends the daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    process: Process,
    interface: String,
    /// The UAPI socket, which a killed daemon leaves behind.
    socket: Option<PathBuf>,
    /// A process in the namespace that the daemon made.
    inside: Option<u32>,
    /// The process that moves the packets, if it is another one.
    tunnel: Option<u32>,
}

impl Daemon {
    /// Waits until `condition` holds; an error when the daemon ends before.
    fn wait_until(
        &mut self,
        interrupt: &Interrupt,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut() -> bool,
    ) -> Result<()> {
        self.process.wait_until(interrupt, what, limit, |_| condition())
    }

    /// Returns an error if the daemon has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// Returns weft's status report; `None` if it is no weft, or does not answer.
    pub(crate) fn status(&self) -> Option<StatusReport> {
        let name = self.interface.parse().ok()?;
        Client::connect_in(&self.process.runtime_directory(), &name).ok()?.status().ok()
    }

    /// Returns the name of its interface.
    pub(crate) fn interface(&self) -> &str {
        &self.interface
    }

    /// Returns its process ID.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Reads the usage of all its processes.
    pub(crate) fn usage(&self) -> Result<Usage> {
        let usage = Usage::of(self.id())?;
        self.tunnel.map_or(Ok(usage), |process| Ok(usage.and(Usage::of(process)?)))
    }

    /// Returns a process in the namespace that the daemon made; `None` if it made none.
    pub(crate) fn process_inside(&self) -> Option<u32> {
        self.inside
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
    }
}

/// Returns the path of the socket where a daemon listens for wg(8). All namespaces share it.
pub(crate) fn uapi_socket(interface: &str) -> PathBuf {
    PathBuf::from(format!("/var/run/wireguard/{interface}.sock"))
}

/// Creates a file with mode 0600, since it contains a key. Fails if it exists.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}

pub(crate) fn wg(arguments: &[&str]) -> Result<()> {
    let output = Command::new("wg").args(arguments).output().context("cannot start wg")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "wg {} failed: {}", arguments.join(" "), error.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_written_for_wg_and_for_weft() {
        let (private_key, other) = (PrivateKey::from_bytes([1; 32]), PrivateKey::from_bytes([2; 32]));
        let (key, peer_key) = (private_key.to_base64(), other.public_key());
        let end = End {
            private_key,
            peer_public_key: peer_key,
            port: 1,
            address: Ipv4Addr::new(10, 0, 0, 1),
            peer_address: Ipv4Addr::new(10, 0, 0, 2),
            peer_endpoint: "192.0.2.2:2".parse().unwrap(),
            mtu: 1420,
        };
        let peer =
            format!("[Peer]\nPublicKey = {peer_key}\nAllowedIPs = 10.0.0.2/32\nEndpoint = 192.0.2.2:2\n");
        assert_eq!(end.text(""), format!("[Interface]\nPrivateKey = {}\nListenPort = 1\n{peer}", *key));
        assert!(end.text("MTU = 1420\n").contains("ListenPort = 1\nMTU = 1420\n[Peer]"));
    }
}
