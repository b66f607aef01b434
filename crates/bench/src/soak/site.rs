//! The namespaces, the gateway as a service, and its client.
//!
//! ```text
//!   client  eth0 ─── to-client   gateway   to-attacker ─── eth0  attacker: frames from any source
//!     weft, bulk, pings,         a service       to-peers ─── eth0  peers that come, go and roam
//!     numbered flows
//! ```

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use weft_lab::client::{Client, socket};
use weft_lab::flood::Running;
use weft_lab::link::receive_on_one_cpu;
use weft_lab::service_manager::{Doing, Manager};
use weft_lab::{Namespace, Process, counters::Counters, write_private};
use weft_report::StatusReport;
use weft_report::control_socket::Client as Control;
use weft_tunnel::{PrivateKey, PublicKey};

use super::SoakArgs;
use crate::floods::attack::Attack;
use crate::floods::site::{CLIENT, Networks, target};
use crate::implementation::{Daemon, Implementation, uapi_socket};
use crate::interrupt::Interrupt;
use crate::peers::gateway::inner;
use crate::site::{self, GATEWAY, Interface, Net, OUTER, PORT, Peer, namespace};

const TO_PEERS: &str = "to-peers";
const TO_PEERS_NET: Net = Net(3);
const PEER_ADDRESSES: u8 = 250;
/// Silent peers in every other configuration.
const CHANGING: u8 = 50;
/// Patience with a start, an end, and an answer.
const PATIENCE: Duration = Duration::from_secs(60);
const METRICS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9586);

/// How the daemon ends before it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    /// As `systemctl restart` does it.
    Orderly,
    /// By SIGKILL.
    Crash,
}

pub(super) struct Site {
    // The daemons end before the namespaces.
    gateway: Process,
    manager: Manager,
    pub(super) client: Daemon,
    pub(super) networks: Networks,
    outside: Namespace,
    /// The keys of the peers that come and go.
    pub(super) keys: Vec<PrivateKey>,
    pub(super) interface: Interface,
    public: PublicKey,
    /// The words that start the gateway: the program, `up`, the file, and more.
    words: Vec<String>,
    file: PathBuf,
    variant: u8,
    /// Short, because the path of a socket is.
    runtime: TempDir,
}

impl Site {
    /// Brings everything up; files and logs go to `directory`.
    pub(super) fn start(
        args: &SoakArgs,
        implementation: &Implementation,
        directory: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let Implementation::Weft { path, arguments } = implementation else { bail!("only a weft is loaded") };
        let (networks, outside) = (Networks::new()?, namespace("peers")?);
        TO_PEERS_NET.join_network(&networks.inside, TO_PEERS, &outside, 1 + PEER_ADDRESSES)?;
        let ends = [(&networks.inside, [TO_PEERS, "to-client"]), (&outside, [OUTER, OUTER])];
        for (namespace, name) in ends.iter().flat_map(|(end, names)| names.map(|name| (*end, name))) {
            // Where that is refused, packets are only more likely to be displaced, and the message says so.
            let _ = receive_on_one_cpu(namespace, name)
                .inspect_err(|error| eprintln!("{name} may displace packets: {error}"));
        }
        let (key, client_key, keys) = (site::key()?, site::key()?, site::keys(args.peers as usize)?);
        let peer = |(number, key): (usize, &PrivateKey)| Peer::new(key.public_key(), inner(number), None);
        let peers = keys.iter().enumerate().map(peer);
        let peers = peers.chain([Peer::new(client_key.public_key(), CLIENT, None)]).collect();
        let public = key.public_key();
        let interface = Interface::new(key, Some(PORT), GATEWAY, peers)?;
        let file = directory.join(format!("{}.conf", interface.name));
        write_private(&file, &text(&interface, 0))?;
        let words = [&path.to_string_lossy(), "up", &file.to_string_lossy(), "--metrics"].map(str::to_owned);
        let words: Vec<String> =
            words.into_iter().chain([METRICS.to_string()]).chain(arguments.iter().cloned()).collect();
        let runtime = tempfile::tempdir()?;
        let mut manager = Manager::start(runtime.path())
            .context("the service manager does not start (Debian: apt-get install dbus-daemon)")?;
        let gateway = spawn(&mut manager, &networks.inside, &words)?;
        let client = Interface::of_client(client_key, CLIENT, public, target(false))?;
        let client = implementation
            .start(&networks.client, &client, directory, interrupt)
            .context("the client does not come up")?;
        let variant = 0;
        let site = Self {
            gateway,
            manager,
            client,
            networks,
            outside,
            keys,
            interface,
            public,
            words,
            file,
            variant,
            runtime,
        };
        site.wait_until_ready(interrupt)?;
        Ok(site)
    }

    pub(super) fn processes(&self) -> [u32; 2] {
        [self.gateway.pid().as_raw().cast_unsigned(), self.client.id()]
    }

    pub(super) fn check(&self) -> Result<()> {
        ensure!(self.gateway.is_running(), "the gateway ended:\n{}", self.gateway.log());
        self.client.check()
    }

    /// Writes what the gateway has logged since it was last started into a file.
    pub(super) fn keep_log(&self, path: &Path) -> Result<()> {
        Ok(std::fs::write(path, self.gateway.log())?)
    }

    /// Restarts the daemon, and waits until it is ready. The log of the one before goes into a file.
    pub(super) fn restart(&mut self, how: Restart, log: &Path, interrupt: &Interrupt) -> Result<()> {
        if how == Restart::Orderly {
            self.manager.set(Doing::Restart);
        }
        self.gateway.signal(if how == Restart::Orderly { Signal::SIGTERM } else { Signal::SIGKILL });
        let has_ended = || Ok((!self.gateway.is_running()).then_some(()));
        interrupt.wait_for("the end of the daemon", PATIENCE, has_ended)?;
        self.keep_log(log)?;
        let status = self.gateway.wait();
        ensure!(status.success() || how == Restart::Crash, "the daemon ended with {status}");
        // What ExecStopPost= does.
        self.weft(&["down", "--keep-kill-switch"])?;
        self.manager.set(Doing::Nothing);
        self.gateway = spawn(&mut self.manager, &self.networks.inside, &self.words)?;
        self.wait_until_ready(interrupt)?;
        let log = self.gateway.log();
        ensure!(log.contains("continuing with the interface"), "the daemon does not go on:\n{log}");
        Ok(())
    }

    /// Waits until the interface is up and the first state is stored.
    fn wait_until_ready(&self, interrupt: &Interrupt) -> Result<()> {
        let state = format!("state-{}", self.interface.name);
        interrupt.wait_for("the gateway's interface", PATIENCE, || {
            self.check()?;
            let is_up = self.gateway.log().contains(" is up: port ") && self.status().is_ok();
            Ok((is_up && self.manager.shared.names().contains(&state)).then_some(()))
        })
    }

    pub(super) fn status(&self) -> Result<StatusReport> {
        Ok(Control::connect_in(&self.runtime.path().join("run"), &self.interface.name)?.status()?)
    }

    pub(super) fn scrape(&self) -> Result<()> {
        let connect = || TcpStream::connect_timeout(&METRICS.into(), PATIENCE);
        let mut stream = self.networks.inside.run(connect).context("cannot reach the metrics")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).context("the metrics do not arrive")?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "no metrics: {:?}", answer.lines().next());
        Ok(())
    }

    /// Changes the configuration file, and lets the daemon read it again.
    pub(super) fn reload(&mut self) -> Result<()> {
        self.variant += 1;
        write_private(&self.file, &text(&self.interface, self.variant))?;
        self.weft(&["reload"])
    }

    /// Runs a command of weft with the configuration file, beside the service.
    fn weft(&self, words: &[&str]) -> Result<()> {
        let mut command = self.networks.inside.command(&self.words[0]);
        self.manager.environment(&mut command);
        let output = command.args(words).arg(&self.file).stdin(Stdio::null()).output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "weft {}: {}", words.join(" "), error.trim());
        Ok(())
    }

    pub(super) fn flood(&self, attack: Attack, time: Duration) -> Result<Running> {
        self.networks.flood(attack, self.public, time)
    }

    /// Returns the packets that the kernel dropped in all namespaces so far, outside of weft's own counters.
    pub(super) fn kernel_drops(&self) -> Result<u64> {
        let mut drops = 0;
        for namespace in [&self.networks.inside, &self.networks.client, &self.outside] {
            let counters = Counters::read(namespace)?;
            drops += counters.udp_receive_buffer_full() + counters.udp_send_buffer_full();
            drops += counters.interfaces.values().map(|each| each.rx_dropped + each.tx_dropped).sum::<u64>();
        }
        Ok(drops)
    }

    pub(super) fn client(&self, number: usize, place: usize) -> Result<Client> {
        let gateway = TO_PEERS_NET.endpoint(1);
        Ok(Client::over(self.socket(place)?, gateway, inner(number), &self.keys[number], self.public)?)
    }

    pub(super) fn socket(&self, place: usize) -> Result<UdpSocket> {
        let address = TO_PEERS_NET.v4(2 + (place % usize::from(PEER_ADDRESSES)) as u8);
        Ok(self.outside.run(|| socket::bind(address, 0))?)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // The daemon is killed, and leaves it in a directory that all namespaces share.
        let _ = std::fs::remove_file(uapi_socket(&self.interface.name));
    }
}

/// Starts the daemon with the descriptors in the store, as ExecStart= does.
fn spawn(manager: &mut Manager, namespace: &Namespace, words: &[String]) -> Result<Process> {
    manager.begin_run();
    let mut command = namespace.command("sh");
    // Only a shell can put its own process ID into the environment of what it becomes.
    command.args(["-c", "LISTEN_PID=$$ exec \"$@\"", "sh"]).args(words);
    manager.hand_over(&mut command);
    Ok(Process::start(namespace, command)?)
}

/// Returns the file of the gateway. Two that follow each other differ in peers and settings.
fn text(interface: &Interface, variant: u8) -> String {
    let is_odd = variant % 2 == 1;
    let mut interface = interface.clone();
    let changing = (0..if is_odd { CHANGING } else { 0 }).map(|number| {
        let id = u32::from_be_bytes([0x10, 0, variant, number]);
        Peer::silent(id, Ipv4Addr::new(10, 200, variant, number), None)
    });
    let last = interface.peers.len().saturating_sub(1);
    interface.peers.splice(last..last, changing);
    // A setting of the last peer.
    interface.file() + if is_odd { "PersistentKeepalive = 25\n" } else { "" }
}
