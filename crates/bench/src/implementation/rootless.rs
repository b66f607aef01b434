//! Near ends of an ordinary user, who may not make interfaces.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use weft_lab::{Namespace, run_as, write_private};
use weft_report::control_socket::Client;

use super::{Daemon, Kind, START};
use crate::interrupt::Interrupt;
use crate::site::{Interface, MTU};

/// The user without root.
const USER: u32 = 54_320;
/// The port of the far end for transfers.
pub(crate) const TRANSFER_PORT: u16 = 5202;
/// The ports that are forwarded: iperf3's, and that of transfers.
const PORTS: [u16; 2] = [5201, TRANSFER_PORT];
/// The name of the configuration file.
const FILE: &str = "weft0.conf";
/// The name of the interface, after the file.
const NAME: &str = "weft0";
/// What the command of `weft exec` prints before its process ID.
const INSIDE: &str = "inside: ";

/// A near end without root.
#[derive(Clone, Debug)]
pub(crate) struct Rootless {
    pub(crate) end: NearEnd,
    /// The weft of the far end, which also the user may execute.
    pub(crate) weft: PathBuf,
}

/// A way into a tunnel without root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NearEnd {
    /// `weft exec`: clients run in its namespace.
    Exec,
    /// `weft proxy --forward`.
    Proxy,
    /// The forwarder over wireguard-go's tun/netstack.
    Netstack(PathBuf),
}

impl Rootless {
    pub(super) fn kind(&self) -> Kind {
        match self.end {
            NearEnd::Exec | NearEnd::Proxy => Kind::Weft,
            NearEnd::Netstack(_) => Kind::Other,
        }
    }

    /// Returns `weft exec` with a script, as the user, where [`Self::start`] began before, with this runtime
    /// directory.
    pub(crate) fn command_of_exec(
        &self,
        namespace: &Namespace,
        directory: &Path,
        runtime: &Path,
        script: &str,
    ) -> Command {
        let words = as_user(self.exec(&directory.join(FILE), script));
        let mut command = namespace.command(&words[0]);
        command.args(&words[1..]).env(weft_ipc::runtime_dir::VARIABLE, runtime);
        command
    }

    /// Waits until no process runs the tunnel of this runtime directory.
    pub(crate) fn wait_for_end(runtime: &Path, interrupt: &Interrupt) -> Result<()> {
        let name = NAME.parse()?;
        interrupt.wait_for("the end of the tunnel", START, || {
            Ok(run_as(USER, || Client::connect_in(runtime, &name).is_err())?.then_some(()))
        })
    }

    /// Starts the program as the user, and waits until it serves.
    pub(super) fn start(
        &self,
        namespace: &Namespace,
        interface: &Interface,
        directory: &Path,
        interrupt: &Interrupt,
    ) -> Result<Daemon> {
        let peer = interface.peers.first().context("a tunnel without a peer")?;
        let (far, endpoint) = (peer.allowed.addr(), peer.endpoint.context("a peer without an endpoint")?);
        let (address, mtu) = (interface.address.addr().to_string(), MTU.to_string());
        let file = directory.join(FILE);
        let path_of_file = file.to_string_lossy();
        let (words, serves) = match &self.end {
            NearEnd::Exec => (self.exec(&file, &format!("echo {INSIDE}$$; exec sleep infinity")), INSIDE),
            NearEnd::Proxy => {
                let forwards = PORTS.map(|port| format!("--forward=127.0.0.1:{port}={far}:{port}"));
                (words(&self.weft, &["proxy", &path_of_file], &forwards), "serving")
            }
            NearEnd::Netstack(path) => {
                let forwards = PORTS.map(|port| format!("127.0.0.1:{port}={far}:{port}"));
                (words(path, &[&path_of_file, &address, &mtu], &forwards), "serving")
            }
        };
        let text = match self.end {
            // The format of the UAPI's `set`.
            NearEnd::Netstack(_) => format!(
                "private_key={}\npublic_key={}\nendpoint={endpoint}\nallowed_ip={far}/32\n",
                hex(interface.key.as_bytes()),
                hex(peer.key.as_bytes()),
            ),
            _ => interface.file(),
        };
        write_private(&file, &text)?;
        std::fs::set_permissions(directory, Permissions::from_mode(0o700))?;
        for path in [directory, &file] {
            chown(path, Some(USER), Some(USER))?;
        }
        let mut daemon = Daemon::start(namespace, &as_user(words), directory, &NAME.parse()?)?;
        daemon.wait_until(interrupt, "the tunnel of a user", || daemon.says(serves))?;
        let log = daemon.process.log();
        daemon.inside = log.lines().find_map(|line| line.strip_prefix(INSIDE)?.parse().ok());
        // weft's commands leave the packets to another process.
        let report = run_as(USER, || daemon.status())?;
        daemon.tunnel = report.map(|report| report.pid).filter(|process| *process != daemon.id());
        let is_whole = daemon.tunnel.is_some() || self.kind() == Kind::Other;
        ensure!(is_whole, "the tunnel's process does not answer");
        Ok(daemon)
    }

    /// Returns the words of `weft exec` with a script.
    fn exec(&self, file: &Path, script: &str) -> Vec<String> {
        let file = file.to_string_lossy();
        words(&self.weft, &["exec", &file, "--", "sh", "-c", script], &[])
    }
}

fn words(program: &Path, arguments: &[&str], more: &[String]) -> Vec<String> {
    let program = program.to_string_lossy().into_owned();
    let arguments = arguments.iter().map(|argument| (*argument).to_owned());
    [program].into_iter().chain(arguments).chain(more.iter().cloned()).collect()
}

/// Returns the words that run a program as the user, until this process ends.
fn as_user(program: Vec<String>) -> Vec<String> {
    let user = USER.to_string();
    let setpriv = ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups", "--pdeathsig", "keep"]
        .map(str::to_owned);
    setpriv.into_iter().chain(program).collect()
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
