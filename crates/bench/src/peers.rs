//! The implementations that are compared, and how an end of a tunnel is brought up with each.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft::cli::TunThreads;
use weft::lab::{Namespace, link};

use crate::cli::{CompareArgs, PeerCommand};
use crate::interrupt::Interrupt;
use crate::process::Process;

/// How long a daemon may take to make its interface.
const START: Duration = Duration::from_secs(20);
/// The MTU of every tunnel.
pub(crate) const MTU: u16 = 1420;

/// An implementation of WireGuard.
#[derive(Clone, Debug)]
pub(crate) enum Implementation {
    /// The weft at this path.
    Weft { path: PathBuf, tun_threads: TunThreads },
    /// A program that makes an interface which wg(8) configures.
    Other(PeerCommand),
}

impl Implementation {
    /// weft first, then those of the command line.
    pub(crate) fn all(args: &CompareArgs, weft: &Path) -> Vec<Self> {
        let weft = Self::Weft { path: weft.to_owned(), tun_threads: args.tun_threads };
        std::iter::once(weft).chain(args.peers.iter().cloned().map(Self::Other)).collect()
    }

    /// How tables call it.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Weft { .. } => "weft",
            Self::Other(command) => &command.name,
        }
    }

    /// Brings an end up: interface, addresses, key and peer.
    pub(crate) fn start(
        &self,
        namespace: &Namespace,
        end: &End,
        directory: &Path,
        interrupt: &Interrupt,
    ) -> Result<Daemon> {
        match self {
            Self::Weft { path, tun_threads } => {
                start_weft(path, *tun_threads, namespace, end, directory, interrupt)
            }
            Self::Other(command) => start_other(command, namespace, end, directory, interrupt),
        }
        .with_context(|| format!("cannot bring up {}", self.name()))
    }
}

/// The weft to measure.
pub(crate) fn weft_path(args: &CompareArgs) -> Result<PathBuf> {
    let path = match &args.weft {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("weft"),
    };
    ensure!(path.is_file(), "there is no weft at {}: build it, or name one with --weft", path.display());
    Ok(path)
}

/// One end of a tunnel.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) private_key: String,
    pub(crate) peer_public_key: String,
    pub(crate) port: u16,
    pub(crate) address: String,
    pub(crate) peer_address: String,
    pub(crate) peer_endpoint: String,
}

impl End {
    /// For `wg setconf`, or with lines of its own in the first section for `weft up`.
    fn text(&self, interface_lines: &str) -> String {
        format!(
            "[Interface]\nPrivateKey = {}\nListenPort = {}\n{interface_lines}\
             [Peer]\nPublicKey = {}\nAllowedIPs = {}/32\nEndpoint = {}\n",
            self.private_key, self.port, self.peer_public_key, self.peer_address, self.peer_endpoint
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
    pub(crate) fn wait_until(
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
    tun_threads: TunThreads,
    namespace: &Namespace,
    end: &End,
    directory: &Path,
    interrupt: &Interrupt,
) -> Result<Daemon> {
    let file = directory.join("weft0.conf");
    write_private(&file, &end.text(&format!("Address = {}/24\nMTU = {MTU}\n", end.address)))?;
    let words = [path.as_os_str(), "up".as_ref(), file.as_os_str(), "--tun-threads".as_ref()];
    let mut words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    words.push(tun_threads.to_string());
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
    link::set_mtu(namespace, &name, MTU.into())?;
    link::set_up(namespace, &name)?;
    link::add_address(namespace, &name, format!("{}/24", end.address).parse()?)?;
    Ok(daemon)
}

/// A file that nobody else can read: it has a key in it.
fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}

fn wg(arguments: &[&str]) -> Result<()> {
    let output = Command::new("wg").args(arguments).output().context("cannot start wg: is it installed?")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "wg {} failed: {}", arguments.join(" "), error.trim());
    Ok(())
}

/// A new private key and its public key, from the weft that is measured.
pub(crate) fn new_keys(weft: &Path) -> Result<(String, String)> {
    let private_key = run(Command::new(weft).arg("genkey"), "")?;
    let public_key = run(Command::new(weft).arg("pubkey"), &private_key)?;
    Ok((private_key, public_key))
}

fn run(command: &mut Command, input: &str) -> Result<String> {
    use std::io::Write as _;
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start weft")?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that reads nothing may have ended already.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "weft could not make a key");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_written_for_wg_and_for_weft() {
        let end = End {
            private_key: "A".into(),
            peer_public_key: "B".into(),
            port: 1,
            address: "10.0.0.1".into(),
            peer_address: "10.0.0.2".into(),
            peer_endpoint: "192.0.2.2:2".into(),
        };
        let peer = "[Peer]\nPublicKey = B\nAllowedIPs = 10.0.0.2/32\nEndpoint = 192.0.2.2:2\n";
        assert_eq!(end.text(""), format!("[Interface]\nPrivateKey = A\nListenPort = 1\n{peer}"));
        assert!(end.text("MTU = 1420\n").contains("ListenPort = 1\nMTU = 1420\n[Peer]"));
    }
}
