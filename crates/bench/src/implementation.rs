//! The implementations that are measured, and how an end of a tunnel is brought up with each.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use weft::cli::TunThreads;
use weft::control::socket::Client;
use weft::lab::{Namespace, link};
use weft_tunnel::{PrivateKey, PublicKey};

use crate::batches::Batches;
use crate::cli::{MeasureArgs, Offload, PeerCommand, WeftCommand};
use crate::interrupt::Interrupt;
use crate::process::Process;

/// What a weft's interface is called, at both ends.
const INTERFACE: &str = "weft0";
/// How long a daemon may take to make its interface.
const START: Duration = Duration::from_secs(20);

/// What carries the packets.
#[derive(Clone, Debug)]
pub(crate) enum Implementation {
    /// A weft: the program, and what `weft up` is told beyond the file.
    Weft { path: PathBuf, arguments: Vec<String> },
    /// A program that makes an interface which wg(8) configures.
    Other(PeerCommand),
    /// Nothing: the link itself.
    Bare,
}

/// Whose figures they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Weft,
    Other,
    Bare,
}

impl Implementation {
    /// A weft of the command line.
    ///
    /// # Errors
    /// When there is no such program.
    pub(crate) fn weft(command: &WeftCommand, tun_threads: TunThreads, offload: Offload) -> Result<Self> {
        let path = match &command.path {
            Some(path) => path.clone(),
            None => MeasureArgs::weft_beside_this()?,
        };
        ensure!(path.is_file(), "there is no weft at {}: build it, or name one with --weft", path.display());
        let mut arguments = command.arguments.clone();
        if !arguments.iter().any(|argument| argument.starts_with("--tun-threads")) {
            arguments.extend(["--tun-threads".to_owned(), tun_threads.to_string()]);
        }
        if offload == Offload::Off {
            arguments.push("--no-offload".to_owned());
        }
        Ok(Self::Weft { path, arguments })
    }

    /// Whose figures they are.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Weft { .. } => Kind::Weft,
            Self::Other(_) => Kind::Other,
            Self::Bare => Kind::Bare,
        }
    }

    /// Brings an end up: interface, addresses, key and peer. Nothing for the link itself.
    pub(crate) fn start(
        &self,
        namespace: &Namespace,
        end: &End,
        directory: &Path,
        interrupt: &Interrupt,
    ) -> Result<Option<Daemon>> {
        match self {
            Self::Weft { path, arguments } => {
                start_weft(path, arguments, namespace, end, directory, interrupt).map(Some)
            }
            Self::Other(command) => start_other(command, namespace, end, directory, interrupt).map(Some),
            Self::Bare => Ok(None),
        }
    }
}

/// One end of a tunnel.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) private_key: PrivateKey,
    pub(crate) peer_public_key: PublicKey,
    pub(crate) port: u16,
    pub(crate) address: String,
    pub(crate) peer_address: String,
    pub(crate) peer_endpoint: String,
    pub(crate) mtu: u16,
}

impl End {
    /// For `wg setconf`, or with lines of its own in the first section for `weft up`.
    fn text(&self, interface_lines: &str) -> String {
        format!(
            "[Interface]\nPrivateKey = {}\nListenPort = {}\n{interface_lines}\
             [Peer]\nPublicKey = {}\nAllowedIPs = {}/32\nEndpoint = {}\n",
            *self.private_key.to_base64(),
            self.port,
            self.peer_public_key,
            self.peer_address,
            self.peer_endpoint
        )
    }
}

/// A running daemon. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    process: Process,
    /// What a daemon that is killed leaves behind.
    socket: Option<PathBuf>,
}

impl Daemon {
    /// Waits until `condition`; an error when the daemon ends before.
    fn wait_until(
        &mut self,
        interrupt: &Interrupt,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut() -> bool,
    ) -> Result<()> {
        self.process.wait_until(interrupt, what, limit, |_| condition())
    }

    /// An error if it has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// How many messages of each size it has sent; nothing if it is no weft, or one that cannot be asked.
    pub(crate) fn batches(&self) -> Option<Batches> {
        let name = INTERFACE.parse().ok()?;
        let mut client = Client::connect_in(&self.process.runtime_directory(), &name).ok()?;
        Some(Batches(client.status().ok()?.udp.batch_segments))
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
    }
}

fn start_weft(
    path: &Path,
    arguments: &[String],
    namespace: &Namespace,
    end: &End,
    directory: &Path,
    interrupt: &Interrupt,
) -> Result<Daemon> {
    let file = directory.join(format!("{INTERFACE}.conf"));
    write_private(&file, &end.text(&format!("Address = {}/24\nMTU = {}\n", end.address, end.mtu)))?;
    let words = [path.as_os_str(), "up".as_ref(), file.as_os_str()];
    let mut words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    words.extend_from_slice(arguments);
    let mut process = Process::start(namespace, &words, directory.join("weft.log"))?;
    process.wait_until(interrupt, "weft's interface", START, |process| {
        process.output().contains("interface is up")
    })?;
    Ok(Daemon { process, socket: None })
}

fn start_other(
    command: &PeerCommand,
    namespace: &Namespace,
    end: &End,
    directory: &Path,
    interrupt: &Interrupt,
) -> Result<Daemon> {
    // wg(8) finds a daemon by a socket in a directory that all namespaces share.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("wb{:x}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
    let process = Process::start(namespace, &command.words(&name), directory.join("daemon.log"))?;
    let socket = Some(PathBuf::from(format!("/var/run/wireguard/{name}.sock")));
    let mut daemon = Daemon { process, socket };
    daemon.wait_until(interrupt, "the daemon's answer to wg", START, || {
        wg(&["show", &name, "listen-port"]).is_ok()
    })?;
    let file = directory.join("wg.conf");
    write_private(&file, &end.text(""))?;
    wg(&["setconf", &name, &file.to_string_lossy()])?;
    link::set_mtu(namespace, &name, end.mtu.into())?;
    link::set_up(namespace, &name)?;
    link::add_address(namespace, &name, format!("{}/24", end.address).parse()?)?;
    Ok(daemon)
}

/// A file that nobody else can read: it has a key in it.
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
            address: "10.0.0.1".into(),
            peer_address: "10.0.0.2".into(),
            peer_endpoint: "192.0.2.2:2".into(),
            mtu: 1420,
        };
        let peer =
            format!("[Peer]\nPublicKey = {peer_key}\nAllowedIPs = 10.0.0.2/32\nEndpoint = 192.0.2.2:2\n");
        assert_eq!(end.text(""), format!("[Interface]\nPrivateKey = {}\nListenPort = 1\n{peer}", *key));
        assert!(end.text("MTU = 1420\n").contains("ListenPort = 1\nMTU = 1420\n[Peer]"));
    }
}
