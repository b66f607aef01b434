//! The two namespaces, weft as a process in one of them, and everything it may have changed there.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use weft_ipc::runtime_dir::VARIABLE as DIRECTORY_VARIABLE;
use weft_lab::link::{self, LinkOptions};
use weft_lab::mounts::Mounts;
use weft_lab::{self as lab, Namespace, PATIENCE, Process, here, mounts, wait_until, wait_until_ok};
use weft_tunnel::{PrivateKey, PublicKey};

#[path = "../support/ip.rs"]
mod ip;

pub(crate) use ip::ip_json;

pub(crate) const NAME: &str = "weft0";
pub(crate) const PORT: u16 = 51820;

/// Client and server of the drawing.
pub(crate) struct Network {
    pub(crate) client: Namespace,
    pub(crate) server: Namespace,
    /// Records, and configuration files.
    pub(crate) directory: TempDir,
    /// Their sockets for wg(8): another test has an interface of the same name.
    sockets: Mounts,
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl Network {
    /// `None` where that is not permitted, which is said.
    pub(crate) fn new() -> Option<Self> {
        if !here::tun_permitted() || !here::installed(&["ip"]) {
            return None;
        }
        let (client, server) = (Namespace::new("client").unwrap(), Namespace::new("server").unwrap());
        let nets = |host: u8| {
            vec![
                format!("192.0.2.{host}/24").parse().unwrap(),
                format!("2001:db8::{host}/64").parse().unwrap(),
            ]
        };
        let options = LinkOptions { addresses_a: nets(1), addresses_b: nets(2), ..LinkOptions::default() };
        link::join(&client, &server, &options).unwrap();
        for address in ["203.0.113.1/32", "2001:db8:ff::1/128", "198.51.100.1/32", "2001:db8:aa::1/128"] {
            link::add_address(&server, "lo", address.parse().unwrap()).unwrap();
        }
        link::add_route(&client, "0.0.0.0/0".parse().unwrap(), ip("192.0.2.2")).unwrap();
        link::add_route(&client, "::/0".parse().unwrap(), ip("2001:db8::2")).unwrap();
        let sockets = Mounts::with_empty(&["/var/run"]).unwrap();
        Some(Self { client, server, directory: tempfile::tempdir().unwrap(), sockets })
    }

    /// A file that only its owner may read.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        lab::write_private(&path, text).unwrap();
        path
    }

    /// The directory of the client's records.
    pub(crate) fn records(&self) -> PathBuf {
        self.records_of(&self.client)
    }

    fn records_of(&self, namespace: &Namespace) -> PathBuf {
        self.directory.path().join(format!("run-{}", namespace.name()))
    }

    /// A program at the client, with weft's directories.
    pub(crate) fn command(&self, program: &str) -> Command {
        self.command_in(&self.client, program)
    }

    fn command_in(&self, namespace: &Namespace, program: &str) -> Command {
        let mut command = namespace.command(program);
        command.env_remove("RUST_LOG").env_remove("RUNTIME_DIRECTORY");
        command.env(DIRECTORY_VARIABLE, self.records_of(namespace)).stdin(Stdio::null());
        self.sockets.apply(&mut command).unwrap();
        command
    }

    /// A command of weft at the client.
    pub(crate) fn weft(&self, arguments: &[&str]) -> Command {
        self.weft_in(&self.client, arguments)
    }

    fn weft_in(&self, namespace: &Namespace, arguments: &[&str]) -> Command {
        let mut command = self.command_in(namespace, env!("CARGO_BIN_EXE_weft"));
        command.args(arguments);
        command
    }

    /// `weft up` of this file at the client.
    pub(crate) fn weft_up(&self, file: &Path) -> Command {
        self.weft(&["up", file.to_str().unwrap()])
    }

    /// Runs a command of weft at the client to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        self.weft(arguments).output().unwrap().into()
    }

    /// `weft down weft0` at the client, which has to go well.
    #[track_caller]
    pub(crate) fn down(&self) {
        let ended = self.run(&["down", NAME]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }

    /// `weft up` of this file at the client, once it is up.
    #[track_caller]
    pub(crate) fn up(&self, file: &Path) -> Process {
        self.start(self.weft_up(file))
    }

    /// The same with a command that was changed.
    #[track_caller]
    pub(crate) fn start(&self, command: Command) -> Process {
        until_up(&self.client, command)
    }

    /// `weft up` of this file in a namespace, once it is up.
    #[track_caller]
    pub(crate) fn up_on(&self, namespace: &Namespace, file: &Path) -> Process {
        until_up(namespace, self.weft_in(namespace, &["up", file.to_str().unwrap()]))
    }

    /// A command of weft in a namespace that has the client's directory of records.
    pub(crate) fn weft_beside(&self, namespace: &Namespace, arguments: &[&str]) -> Command {
        let mut command = self.weft_in(namespace, arguments);
        command.env(DIRECTORY_VARIABLE, self.records());
        command
    }

    /// `weft up` there, once it is up.
    #[track_caller]
    pub(crate) fn up_beside(&self, namespace: &Namespace, file: &Path) -> Process {
        until_up(namespace, self.weft_beside(namespace, &["up", file.to_str().unwrap()]))
    }

    /// The client as it is.
    pub(crate) fn picture(&self) -> Picture {
        Picture::of(&self.client)
    }

    /// Waits until the client is as it was, and checks that nothing is on record.
    #[track_caller]
    pub(crate) fn assert_as(&self, before: &Picture) {
        before.assert_restored(&self.client);
        assert_eq!(self.left(), [""; 0]);
    }

    /// What is left in the directory of the client's records: files as `INTERFACE/FILE`, and empty
    /// directories.
    pub(crate) fn left(&self) -> Vec<String> {
        let names = |directory: PathBuf| -> Vec<String> {
            let entries = std::fs::read_dir(directory).into_iter().flatten();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        let records = self.records();
        let left = names(records.clone()).into_iter().flat_map(|interface| {
            let files = names(records.join(&interface));
            let is_empty = files.is_empty();
            let files: Vec<String> = files.iter().map(|file| format!("{interface}/{file}")).collect();
            if is_empty { vec![interface] } else { files }
        });
        left.collect()
    }
}

#[track_caller]
fn until_up(namespace: &Namespace, command: Command) -> Process {
    let daemon = Process::start(namespace, command).unwrap();
    daemon.wait_for_line(" is up: port ");
    daemon
}

/// How a command ended, and what it said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// An end of the tunnel, for its own file and the other one's.
pub(crate) struct End {
    pub(crate) key: PrivateKey,
    pub(crate) host: u8,
}

impl End {
    pub(crate) fn new(host: u8) -> Self {
        Self { key: PrivateKey::generate().unwrap(), host }
    }

    pub(crate) fn public(&self) -> PublicKey {
        self.key.public_key()
    }

    /// `[Interface]` with its addresses and these lines.
    pub(crate) fn interface(&self, lines: &str) -> String {
        let mut text = format!("[Interface]\nPrivateKey = {}\n", *self.key.to_base64());
        writeln!(text, "Address = 10.77.0.{0}/24, fd77::{0}/64", self.host).unwrap();
        text + lines + "\n"
    }
}

/// A `[Peer]` section with these lines.
pub(crate) fn peer(key: PublicKey, lines: &str) -> String {
    format!("[Peer]\nPublicKey = {key}\n{lines}\n")
}

/// Everything of a namespace that weft may change, one item a line, as ip(8) tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picture(pub(crate) Vec<String>);

impl Picture {
    /// The kernel adds the routes of an IPv6 address a moment after the address: they are waited for.
    pub(crate) fn of(namespace: &Namespace) -> Self {
        wait_until("the routes of IPv6 addresses", || {
            let picture = Self::now(namespace);
            let has_route = |address: &str| {
                let route = format!("\"dst\":\"{address}\"");
                picture.0.iter().any(|item| item.starts_with("-6 route") && item.contains(&route))
            };
            let addresses = ip_json(namespace, &["-6", "address"]);
            let mut addresses = addresses.iter().filter_map(|link| link["addr_info"].as_array()).flatten();
            addresses.all(|address| address["local"].as_str().is_none_or(has_route)).then_some(picture)
        })
    }

    fn now(namespace: &Namespace) -> Self {
        let mut items = Vec::new();
        for arguments in [
            &["address"][..],
            &["-4", "rule"],
            &["-6", "rule"],
            &["-4", "route", "show", "table", "all"],
            &["-6", "route", "show", "table", "all"],
        ] {
            let kind = arguments.join(" ");
            items
                .extend(ip_json(namespace, arguments).iter().map(|item| format!("{kind}: {}", normal(item))));
        }
        let src_valid_mark = namespace.sysctl("net/ipv4/conf/all/src_valid_mark").unwrap();
        items.push(format!("src_valid_mark: {src_valid_mark}"));
        items.push(format!("nft: {}", nft(namespace)));
        items.sort();
        Self(items)
    }

    /// Waits until the namespace is like this again.
    #[track_caller]
    pub(crate) fn assert_restored(&self, namespace: &Namespace) {
        wait_until_ok(|| {
            let now = Self::of(namespace);
            if now == *self {
                return Ok(());
            }
            let missing: Vec<_> = self.0.iter().filter(|item| !now.0.contains(item)).collect();
            let left: Vec<_> = now.0.iter().filter(|item| !self.0.contains(item)).collect();
            Err(format!("left behind: {left:#?}\nmissing: {missing:#?}"))
        });
    }

    pub(crate) fn has(&self, text: &str) -> bool {
        self.0.iter().any(|item| item.contains(text))
    }
}

/// Without what differs from one moment to the next.
fn normal(item: &Value) -> String {
    let mut item = item.clone();
    forget_lifetimes(&mut item);
    item.to_string()
}

fn forget_lifetimes(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for key in ["valid_life_time", "preferred_life_time", "expires", "tentative"] {
                map.remove(key);
            }
            map.values_mut().for_each(forget_lifetimes);
        }
        Value::Array(list) => list.iter_mut().for_each(forget_lifetimes),
        _ => {}
    }
}

/// The rules of the packet filter, without what they count; nothing where there is no nft(8).
fn nft(namespace: &Namespace) -> String {
    let output = namespace.command("nft").args(["-s", "list", "ruleset"]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// Connects from the client to `to` at the server, and returns the source that the server saw.
#[track_caller]
pub(crate) fn seen_from(network: &Network, to: IpAddr) -> IpAddr {
    let listener = network.server.run(|| TcpListener::bind((to, 0))).unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let accepted = std::thread::spawn(move || listener.accept().unwrap().1.ip());
    network.client.run(|| TcpStream::connect_timeout(&address, PATIENCE)).unwrap();
    accepted.join().unwrap()
}

/// Runs the command where what it mounts is its own.
pub(crate) fn separate_mounts(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;
    // SAFETY: between fork and exec the closure only makes system calls.
    unsafe { command.pre_exec(mounts::separate) };
}

/// Runs the command with a /dev/net/tun that belongs to another user, and is closed to others.
pub(crate) fn close_tun_device(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;

    use nix::mount::{MsFlags, mount};
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    let close = || {
        mounts::separate()?;
        mount(Some("tmpfs"), "/dev/net", Some("tmpfs"), MsFlags::empty(), None::<&Path>)?;
        mknod("/dev/net/tun", SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, makedev(10, 200))?;
        Ok(nix::unistd::chown("/dev/net/tun", Some(65_534.into()), None)?)
    };
    // SAFETY: between fork and exec the closure only makes system calls; short paths are put on the stack.
    unsafe { command.pre_exec(close) };
}

/// Runs the command where /proc/sys can be read only, as in most containers.
pub(crate) fn make_proc_sys_read_only(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;

    use nix::mount::{MsFlags, mount};
    let prepare = || {
        mounts::separate()?;
        let none = None::<&Path>;
        mount(Some("/proc/sys"), "/proc/sys", none, MsFlags::MS_BIND, none)?;
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        Ok(mount(none, "/proc/sys", none, flags, none)?)
    };
    // SAFETY: between fork and exec the closure only makes system calls; short paths are put on the stack.
    unsafe { command.pre_exec(prepare) };
}
