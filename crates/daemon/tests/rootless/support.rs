//! The two namespaces, the gateway, and weft as an ordinary user.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::unistd::Pid;
use tempfile::TempDir;
use weft_ipc::runtime_dir::VARIABLE as DIRECTORY_VARIABLE;
use weft_lab::counters::Counters;
use weft_lab::emulator::Emulator;
use weft_lab::link::{self, LinkOptions};
use weft_lab::mounts::{Mounts, separate_sockets};
use weft_lab::{self as lab, Namespace, Process, here};
use weft_tunnel::PrivateKey;

pub(crate) const PORT: u16 = 51820;
/// The interface between the namespaces.
pub(crate) const WAN: &str = "wan";
/// Addresses of the gateway that the tunnel alone leads to.
pub(crate) const BEHIND: [&str; 2] = ["203.0.113.1", "2001:db8:ff::1"];
/// Bytes of the page that the gateway serves.
pub(crate) const PAGE: usize = 3 << 20;

/// A separate user for each test: what it left is told from what others run.
static NEXT_USER: AtomicU32 = AtomicU32::new(54_321);

pub(crate) struct World {
    pub(crate) client: Namespace,
    pub(crate) gateway: Namespace,
    pub(crate) user: u32,
    keys: [PrivateKey; 2],
    /// All may read it; weft is in it, for the user to execute.
    pub(crate) directory: TempDir,
    /// The TCP/IP stack that `weft proxy` uses.
    pub(crate) stack: &'static str,
    _daemon: Process,
    _link: Option<Emulator>,
}

/// What the far end of the tunnel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gateway {
    /// `weft up`.
    Weft,
    /// wireguard-go, with wg(8).
    WireguardGo,
}

impl World {
    /// `None` where that is not permitted, which is said.
    pub(crate) fn new() -> Option<Self> {
        Self::with(&[])
    }

    /// The same for a test of `weft proxy` with this stack.
    pub(crate) fn on(stack: &'static str) -> Option<Self> {
        Some(Self { stack, ..Self::new()? })
    }

    /// The same for a test that needs further programs.
    pub(crate) fn with(programs: &[&str]) -> Option<Self> {
        Self::beyond(Gateway::Weft, None, programs)
    }

    /// The same with this gateway, over an emulated link if one is given.
    pub(crate) fn beyond(gateway_is: Gateway, spec: Option<&str>, programs: &[&str]) -> Option<Self> {
        let programs = [&["ip", "setpriv", "unshare", "curl"], programs].concat();
        if !here::tun_permitted() || !here::installed(&programs) {
            return None;
        }
        let user = NEXT_USER.fetch_add(1, Ordering::Relaxed) + std::process::id() % 1000 * 100;
        let may = as_user(Command::new("setpriv"), user, "unshare")
            .args(["--user", "--net", "--mount", "true"])
            .output();
        let may = may.unwrap();
        if !may.status.success() {
            here::not_run(&format!(
                "an ordinary user has no namespaces: {}",
                String::from_utf8_lossy(&may.stderr)
            ));
            return None;
        }
        let (client, gateway) = (Namespace::new("client").unwrap(), Namespace::new("gateway").unwrap());
        let nets = |host: u8| vec![format!("192.0.2.{host}/24").parse().unwrap()];
        let options = LinkOptions {
            name_a: WAN.to_owned(),
            name_b: WAN.to_owned(),
            addresses_a: nets(1),
            addresses_b: nets(2),
            ..LinkOptions::default()
        };
        let emulator =
            spec.map(|spec| Emulator::between(&client, &gateway, &options, &spec.parse().unwrap()));
        let emulator = emulator.map(Result::unwrap);
        if emulator.is_none() {
            link::join(&client, &gateway, &options).unwrap();
        }
        // A way out beside the tunnel, which nothing may take.
        link::add_route(&client, "0.0.0.0/0".parse().unwrap(), "192.0.2.2".parse().unwrap()).unwrap();
        for address in BEHIND {
            link::add_address(&gateway, "lo", address.parse::<IpAddr>().unwrap().into()).unwrap();
        }
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        // By another process: what this one has open for writing, a child forked meanwhile has too, and such
        // a program cannot be executed.
        let copied =
            Command::new("cp").arg(env!("CARGO_BIN_EXE_weft")).arg(directory.path().join("weft")).status();
        assert!(copied.unwrap().success());
        let keys = [PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap()];
        let file = directory.path().join("gateway.conf");
        let addresses = if gateway_is == Gateway::Weft { "Address = 10.77.0.1/24, fd77::1/64\n" } else { "" };
        let text = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = {PORT}\n{addresses}\
             [Peer]\nPublicKey = {}\nAllowedIPs = 10.77.0.2/32, fd77::2/128\n",
            *keys[1].to_base64(),
            keys[0].public_key()
        );
        lab::write_private(&file, &text).unwrap();
        let daemon = match gateway_is {
            Gateway::Weft => {
                let mut command = gateway.command(env!("CARGO_BIN_EXE_weft"));
                command.args(["up".as_ref(), file.as_os_str()]).env_remove("RUST_LOG");
                command.env(DIRECTORY_VARIABLE, directory.path().join("gateway"));
                separate_sockets(&mut command);
                let daemon = Process::start(&gateway, command).unwrap();
                daemon.wait_for_line(" is up: port ");
                daemon
            }
            Gateway::WireguardGo => start_wireguard_go(&gateway, &file),
        };
        let stack = "kernel";
        Some(Self { client, gateway, user, keys, directory, stack, _daemon: daemon, _link: emulator })
    }

    /// The user's file of a full tunnel, with more lines in `[Interface]`.
    pub(crate) fn file(&self, lines: &str) -> PathBuf {
        let mut text = format!("[Interface]\nPrivateKey = {}\n", *self.keys[0].to_base64());
        writeln!(text, "Address = 10.77.0.2/24, fd77::2/64\n{lines}").unwrap();
        writeln!(text, "[Peer]\nPublicKey = {}\nEndpoint = 192.0.2.2:{PORT}", self.keys[1].public_key())
            .unwrap();
        self.write("office.conf", &(text + "AllowedIPs = 0.0.0.0/0, ::/0\n"))
    }

    /// The public key of the user's peer.
    pub(crate) fn gateway_key(&self) -> String {
        self.keys[1].public_key().to_string()
    }

    /// A file that only the user may read.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        lab::write_private(&path, text).unwrap();
        std::os::unix::fs::chown(&path, Some(self.user), Some(self.user)).unwrap();
        path
    }

    /// weft with these arguments at the client, as the user, in the directory of the file.
    pub(crate) fn weft(&self, arguments: &[&str]) -> Command {
        self.as_user(self.directory.path().join("weft").to_str().unwrap(), arguments)
    }

    /// A program at the client, as the user, in the directory of the file.
    pub(crate) fn as_user(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = as_user(self.client.command("setpriv"), self.user, program);
        command.args(arguments).current_dir(self.directory.path());
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C");
        command
    }

    /// Runs curl on the host, as the user.
    pub(crate) fn curl(&self, arguments: &[&str]) -> Ended {
        let common = ["--silent", "--show-error", "--max-time", "100", "--noproxy", "", "--globoff"];
        self.as_user("curl", &[&common, arguments].concat()).output().unwrap().into()
    }

    /// `weft exec FILE OPTIONS -- COMMAND`.
    pub(crate) fn exec(&self, file: &Path, options: &[&str], command: &[&str]) -> Command {
        let arguments = [&["exec", file.to_str().unwrap()], options, &["--"], command].concat();
        self.weft(&arguments)
    }

    /// The command with a runtime directory, as the user's session has one: commands of one file share a
    /// tunnel.
    pub(crate) fn in_session(&self, mut command: Command) -> Command {
        let session = self.directory.path().join("session");
        if !session.exists() {
            std::fs::create_dir(&session).unwrap();
            std::os::unix::fs::chown(&session, Some(self.user), Some(self.user)).unwrap();
        }
        command.env("XDG_RUNTIME_DIR", session);
        command
    }

    /// The runtime directory of a user without a session.
    pub(crate) fn temporary_directory(&self) -> PathBuf {
        PathBuf::from(format!("/tmp/weft-{}", self.user))
    }

    /// Runs weft in the session to its end.
    pub(crate) fn weft_in_session(&self, arguments: &[&str]) -> Ended {
        self.in_session(self.weft(arguments)).output().unwrap().into()
    }

    /// Names in the runtime directory of the session.
    pub(crate) fn left_in_session(&self) -> Vec<String> {
        let left = std::fs::read_dir(self.directory.path().join("session/weft")).unwrap();
        left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Runs a command in the tunnel of [`Self::file`] to its end.
    pub(crate) fn run(&self, command: &[&str]) -> Ended {
        self.exec(&self.file("DNS = 10.77.0.1"), &[], command).output().unwrap().into()
    }

    /// Serves a page at each address of the gateway, for as long as the process lives: its first line is the
    /// address that the client has for the gateway.
    pub(crate) fn serve_page(&self, port: u16) {
        for address in BEHIND.into_iter().chain(["10.77.0.1", "fd77::1"]) {
            let at = SocketAddr::new(address.parse().unwrap(), port);
            let listener = self.gateway.run(|| TcpListener::bind(at)).unwrap();
            std::thread::spawn(move || {
                while let Ok((mut client, from)) = listener.accept() {
                    let _ = client.read(&mut [0; 4096]);
                    let page = page(&from.ip().to_string());
                    let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", page.len());
                    let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(&page));
                }
            });
        }
    }

    /// Limits the rate from the client to the gateway. What waits for the link is counted for its socket.
    pub(crate) fn limit_rate(&self, bytes_per_second: u32) {
        let rate = format!("{bytes_per_second}bps");
        let tbf = ["root", "tbf", "rate", &rate, "burst", "64kb", "limit", "64mb"];
        let mut tc = self.client.command("tc");
        let output = tc.args(["qdisc", "replace", "dev", WAN]).args(tbf).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// The most datagrams that the kernel lost between the two wefts and at sockets of the gateway, where
    /// what it counts once has up to 64, and those that the gateway dropped.
    pub(crate) fn lost_outside(&self) -> u64 {
        let lost = |namespace| {
            let counters = Counters::read(namespace).unwrap();
            let wan = counters.interface(WAN);
            let tun = counters.interface("gateway");
            let dropped = wan.tx_dropped + wan.rx_dropped + tun.tx_dropped;
            64 * (dropped + counters.udp_receive_buffer_full())
        };
        lost(&self.client) + lost(&self.gateway) + self.dropped_by_gateway()
    }

    fn dropped_by_gateway(&self) -> u64 {
        let mut weft = self.gateway.command(env!("CARGO_BIN_EXE_weft"));
        weft.args(["status", "gateway", "--json", "--sample", "0"]);
        weft.env(DIRECTORY_VARIABLE, self.directory.path().join("gateway"));
        let output = weft.output().unwrap();
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let drops = status["interfaces"][0]["drops"].as_array().unwrap();
        drops.iter().map(|drop| drop["packets"].as_u64().unwrap()).sum()
    }

    /// The names of the user's processes.
    pub(crate) fn processes(&self) -> Vec<String> {
        self.named_processes().into_iter().map(|(name, _)| name).collect()
    }

    /// The process that runs the user's tunnel.
    pub(crate) fn tunnel(&self) -> Pid {
        let all = self.named_processes();
        let tunnels: Vec<Pid> =
            all.iter().filter(|(name, _)| name == "weft-tunnel").map(|(_, pid)| *pid).collect();
        assert_eq!(tunnels.len(), 1, "{all:?}");
        tunnels[0]
    }

    /// The network of the user's tunnel.
    pub(crate) fn inside(&self) -> Namespace {
        let all = self.named_processes();
        let (_, pid) = all.iter().find(|(name, _)| name == "weft-namespace").unwrap();
        Namespace::of_process("inside", pid.as_raw().cast_unsigned()).unwrap()
    }

    fn named_processes(&self) -> Vec<(String, Pid)> {
        let wanted = format!("Uid:\t{}\t", self.user);
        let own = |entry: std::fs::DirEntry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
            let name = status.lines().next()?.strip_prefix("Name:\t")?.to_owned();
            status.lines().any(|line| line.starts_with(&wanted)).then(|| (name, Pid::from_raw(pid)))
        };
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(own).collect()
    }
}

/// Starts wireguard-go with the gateway's addresses, and this configuration of wg(8).
fn start_wireguard_go(gateway: &Namespace, file: &Path) -> Process {
    let sockets = Mounts::with_empty(&["/var/run"]).unwrap();
    let mut command = gateway.command("wireguard-go");
    command.args(["-f", "gateway"]).env("LOG_LEVEL", "verbose");
    sockets.apply(&mut command).unwrap();
    let daemon = Process::start(gateway, command).unwrap();
    daemon.wait_for_line("UAPI listener started");
    let mut wg = gateway.command("wg");
    wg.args(["setconf".as_ref(), "gateway".as_ref(), file.as_os_str()]);
    sockets.apply(&mut wg).unwrap();
    assert!(wg.status().unwrap().success());
    for address in ["10.77.0.1/24", "fd77::1/64"] {
        link::add_address(gateway, "gateway", address.parse().unwrap()).unwrap();
    }
    link::set_up(gateway, "gateway").unwrap();
    daemon
}

/// The URL of the page at an address.
pub(crate) fn url(host: &str) -> String {
    if host.contains(':') { format!("http://[{host}]/") } else { format!("http://{host}/") }
}

/// The page for a client with this address.
pub(crate) fn page(client: &str) -> Vec<u8> {
    let mut page = format!("{client}\n").into_bytes();
    let mut state = 1_u32;
    page.resize_with(PAGE, || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    page
}

fn as_user(mut setpriv: Command, user: u32, program: &str) -> Command {
    let user = user.to_string();
    setpriv.args(["--reuid", &user, "--regid", &user, "--clear-groups", program]);
    setpriv
}

/// How a command ended, and what it said.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl std::fmt::Debug for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}\n{}\n{}", self.code, self.text(), self.stderr)
    }
}

impl Ended {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let stderr = String::from_utf8(output.stderr).unwrap();
        Self { code: output.status.code(), stdout: output.stdout, stderr }
    }
}
