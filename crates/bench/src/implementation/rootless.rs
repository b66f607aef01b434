//! Near ends of an ordinary user, who may not make interfaces.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use weft_lab::{Namespace, run_as, write_private};

use super::Daemon;
use crate::interrupt::Interrupt;
use crate::site::Interface;

const USER: u32 = 54_320;
/// The port of the far end for transfers.
pub(crate) const TRANSFER_PORT: u16 = 5202;
/// The ports that are forwarded: iperf3's, and that of transfers.
const PORTS: [u16; 2] = [5201, TRANSFER_PORT];
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NearEnd {
    /// `weft exec`: clients run in its namespace.
    Exec,
    /// `weft proxy --forward`.
    Proxy,
    /// The same with `--stack own`.
    Own,
}

impl Rootless {
    /// Starts the program as the user, and waits until it serves.
    pub(super) fn start(
        &self,
        namespace: &Namespace,
        interface: &Interface,
        directory: &Path,
        interrupt: &Interrupt,
    ) -> Result<Daemon> {
        let peer = interface.peers.first().context("a tunnel without a peer")?;
        let far = peer.allowed.addr();
        let file = directory.join(FILE);
        let setpriv = format!("setpriv --reuid {USER} --regid {USER} --clear-groups --pdeathsig keep");
        let mut words: Vec<String> = setpriv.split(' ').map(str::to_owned).collect();
        let weft = |command: &str| {
            [&self.weft.to_string_lossy(), command, &file.to_string_lossy()].map(str::to_owned)
        };
        let serves = match self.end {
            NearEnd::Exec => {
                words.extend(weft("exec"));
                words.extend(["--", "sh", "-c"].map(str::to_owned));
                words.push(format!("echo {INSIDE}$$; exec sleep infinity"));
                INSIDE
            }
            NearEnd::Proxy | NearEnd::Own => {
                words.extend(weft("proxy"));
                words.extend((self.end == NearEnd::Own).then(|| "--stack=own".to_owned()));
                words.extend(PORTS.map(|port| format!("--forward=127.0.0.1:{port}={far}:{port}")));
                "serving"
            }
        };
        write_private(&file, &interface.file())?;
        std::fs::set_permissions(directory, Permissions::from_mode(0o700))?;
        for path in [directory, &file] {
            chown(path, Some(USER), Some(USER))?;
        }
        let mut daemon = Daemon::start(namespace, &words, directory, &NAME.parse()?)?;
        daemon.wait_until(interrupt, "the tunnel of a user", || daemon.says(serves))?;
        let log = daemon.process.log();
        daemon.inside = log.lines().find_map(|line| line.strip_prefix(INSIDE)?.parse().ok());
        // weft's commands leave the packets to another process, except `--stack own`.
        let report = run_as(USER, || daemon.status())?;
        daemon.tunnel = report.map(|report| report.pid).filter(|process| *process != daemon.id());
        ensure!(daemon.tunnel.is_some() || self.end == NearEnd::Own, "the tunnel's process does not answer");
        Ok(daemon)
    }
}
