//! The two ends, the service at one of them, and streams in between.

use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use weft::up::{Daemon, Options};
use weft_lab::link::{self, LinkOptions};
use weft_lab::mounts::Mounts;
use weft_lab::service_manager::{Doing, Manager};
use weft_lab::{self as lab, Namespace, Process, Transfer, here, until};
use weft_tunnel::{PrivateKey, PublicKey};

use crate::watch::Initiations;

pub(crate) const NAME: &str = "weft0";
pub(crate) const PORT: u16 = 51820;
/// The packet threads of a daemon whose command line does not say.
const PACKET_THREADS: &str = "WEFT_PACKET_THREADS";

pub(crate) fn key(end: u8) -> PrivateKey {
    PrivateKey::from_bytes([end; 32])
}

pub(crate) fn public(end: u8) -> PublicKey {
    key(end).public_key()
}

pub(crate) fn inner(end: u8) -> IpAddr {
    IpAddr::from([10, 77, 0, end])
}

/// `[Interface]` of an end, with these lines, and a `[Peer]` for the other one.
pub(crate) fn file_of(end: u8, interface: &str, peer: &str) -> String {
    let other = 3 - end;
    format!(
        "[Interface]\nPrivateKey = {}\nAddress = {}/24\nListenPort = {PORT}\n{interface}\n\
         [Peer]\nPublicKey = {}\nAllowedIPs = {}/32\n{peer}\n",
        *key(end).to_base64(),
        inner(end),
        public(other),
        inner(other)
    )
}

/// The file of A in most tests.
pub(crate) fn file_of_a() -> String {
    file_of(1, "", "Endpoint = 192.0.2.2:51820")
}

pub(crate) fn file_of_b() -> String {
    file_of(2, "", "Endpoint = 192.0.2.1:51820")
}

/// Two machines with a cable, and a service manager on the first.
pub(crate) struct World {
    pub(crate) manager: Manager,
    pub(crate) directory: TempDir,
    pub(crate) a: Namespace,
    pub(crate) b: Namespace,
    /// The mounts of A, which has a private /run.
    mounts: Mounts,
    pub(crate) other_end: Option<Daemon>,
    /// The process of the service.
    service: Option<Process>,
    pub(crate) file: PathBuf,
    threads: String,
    /// What the test chose.
    packet_threads: Option<u16>,
}

impl World {
    /// `None` where that is not possible, which is said.
    pub(crate) fn new() -> Option<Self> {
        Self::with_empty(&[])
    }

    /// The same where these directories of A are empty.
    pub(crate) fn with_empty(directories: &[&str]) -> Option<Self> {
        if !here::tun_permitted() {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let started = Manager::start(directory.path());
        let manager = started.map_err(|error| here::not_run(&error.to_string())).ok()?;
        let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
        let options = LinkOptions {
            addresses_a: vec!["192.0.2.1/24".parse().unwrap()],
            addresses_b: vec!["192.0.2.2/24".parse().unwrap()],
            ..LinkOptions::default()
        };
        link::join(&a, &b, &options).unwrap();
        let mounts = match Mounts::with_empty(&[&["/var/run"], directories].concat()) {
            Ok(mounts) => mounts,
            Err(error) => {
                here::not_run(&format!("cannot mount private directories: {error}"));
                return None;
            }
        };
        let file = directory.path().join(format!("{NAME}.conf"));
        let (other_end, service) = (None, None);
        let (threads, packet_threads) = ("0".to_owned(), None);
        Some(Self { manager, directory, a, b, mounts, other_end, service, file, threads, packet_threads })
    }

    /// The same with weft at B, and the service at A with this file.
    pub(crate) fn up(file_a: &str, file_b: &str) -> Option<Self> {
        let mut world = Self::new()?;
        world.start_both(file_a, file_b);
        Some(world)
    }

    /// Starts weft at B, and the service at A with this file.
    pub(crate) fn start_both(&mut self, file_a: &str, file_b: &str) {
        self.start_other_end(file_b);
        self.write(file_a);
        self.start();
    }

    /// Starts weft at B.
    pub(crate) fn start_other_end(&mut self, file_b: &str) {
        let config = weft_config::parse(file_b, Path::new("b.conf"), NAME.parse().unwrap()).unwrap().config;
        let endpoints = config.endpoint_addresses();
        let daemon = self.b.run(|| Daemon::start(&config, &endpoints, &Options::default(), || {})).unwrap();
        self.other_end = Some(daemon);
    }

    /// Writes the file of A, for its owner only.
    pub(crate) fn write(&self, text: &str) {
        lab::write_private(&self.file, text).unwrap();
    }

    /// The queues with threads of the next run; with 0 it has eight without.
    pub(crate) fn set_tun_threads(&mut self, threads: u8) {
        self.threads = threads.to_string();
    }

    /// The packet threads of the next run.
    pub(crate) fn set_packet_threads(&mut self, count: u16) {
        self.packet_threads = Some(count);
    }

    /// The packet threads of the next run: unless the test chose, as many as the environment says, or one.
    pub(crate) fn packet_threads(&self) -> usize {
        let of_environment = || std::env::var(PACKET_THREADS).ok()?.parse().ok();
        usize::from(self.packet_threads.or_else(of_environment).unwrap_or(1)).min(weft_udp::MAX_SHARDS)
    }

    /// The names of the queues and sockets that the next run keeps, in order. Without threads of the TUN.
    pub(crate) fn kept_names(&self) -> Vec<String> {
        let packet_threads = self.packet_threads();
        let queues = 8.max(2 * packet_threads).next_multiple_of(packet_threads);
        // Each family has one of which nothing is received.
        let sockets = weft_udp::receiving_sockets(packet_threads) / 2 + 1;
        let of_family = |first: &'static str| {
            let others = (1..sockets).map(move |number| format!("{first}-{number}"));
            std::iter::once(first.to_owned()).chain(others)
        };
        let queues = (0..queues).map(|number| format!("tun-{NAME}-{number}"));
        let mut names: Vec<_> =
            queues.chain(["udp4-weft0", "udp6-weft0"].into_iter().flat_map(of_family)).collect();
        names.sort();
        names
    }

    /// A command on A.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = self.a.command(program);
        self.mounts.apply(&mut command).unwrap();
        command.stdin(Stdio::null());
        command
    }

    /// Runs `work` on a thread that sees A's files.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.a.run(|| {
            self.mounts.enter().unwrap();
            work()
        })
    }

    /// A command of weft on A, that is not the service.
    pub(crate) fn weft(&self, words: &[&str]) -> Output {
        let mut command = self.command(env!("CARGO_BIN_EXE_weft"));
        self.manager.environment(&mut command);
        command.args(words).output().unwrap()
    }

    /// The same, which has to go well; gives what it prints.
    #[track_caller]
    pub(crate) fn weft_ok(&self, words: &[&str]) -> String {
        let output = self.weft(words);
        assert!(output.status.success(), "weft {words:?}: {output:?}\n{}", self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts the service: what ExecStart= says, with what is in the store.
    pub(crate) fn spawn(&mut self) {
        self.spawn_with(|_| {});
    }

    /// The same with a command that was changed.
    pub(crate) fn spawn_with(&mut self, change: impl FnOnce(&mut Command)) {
        self.manager.begin_run();
        let mut command = self.command("sh");
        // Only a shell can put its own number into the environment of what it becomes.
        command.args(["-c", "LISTEN_PID=$$ exec \"$@\"", "sh", env!("CARGO_BIN_EXE_weft"), "up"]);
        command.args([self.file.to_str().unwrap(), "--tun-threads", &self.threads, "--log", "debug"]);
        if let Some(count) = self.packet_threads {
            command.args(["--packet-threads", &count.to_string()]).env_remove(PACKET_THREADS);
        }
        self.manager.hand_over(&mut command);
        change(&mut command);
        self.service = Some(Process::start(&self.a, command).unwrap());
    }

    /// The same, until it is ready.
    #[track_caller]
    pub(crate) fn start(&mut self) {
        self.spawn();
        until("the service is ready", || {
            assert!(self.service().is_running(), "it ended:\n{}", self.log());
            let ready = self.log().contains(" is up: port ");
            ready && self.weft(&["status", NAME, "--sample", "0"]).status.success()
        });
        // The first state is written a moment later.
        until("all is kept", || self.is_kept());
    }

    /// Whether the service manager has the state of the service.
    pub(crate) fn is_kept(&self) -> bool {
        self.manager.shared.names().contains(&self.state_name())
    }

    pub(crate) fn is_running(&self) -> bool {
        self.service().is_running()
    }

    pub(crate) fn state_name(&self) -> String {
        format!("state-{NAME}")
    }

    fn service(&self) -> &Process {
        self.service.as_ref().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        self.service.as_ref().map(Process::log).unwrap_or_default()
    }

    /// The most memory that the process of the service has had, in KiB.
    pub(crate) fn peak_memory_kib(&self) -> u64 {
        self.service().peak_memory_kib().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.service().signal(signal);
    }

    /// Waits until the process has ended, however it does.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.service.as_mut().unwrap().wait()
    }

    /// What ExecStopPost= says.
    #[track_caller]
    pub(crate) fn stop_post(&self) {
        self.weft_ok(&["down", "--keep-kill-switch", self.file.to_str().unwrap()]);
    }

    /// `systemctl stop`, without what the service manager does at the very end.
    #[track_caller]
    pub(crate) fn stop(&mut self) {
        self.manager.set(Doing::Stop);
        self.signal(Signal::SIGTERM);
        let status = self.wait();
        assert!(status.success(), "{status}\n{}", self.log());
        self.stop_post();
        self.manager.set(Doing::Nothing);
    }

    /// The first half of `systemctl restart`.
    #[track_caller]
    pub(crate) fn stop_for_restart(&mut self) {
        self.manager.set(Doing::Restart);
        self.signal(Signal::SIGTERM);
        let status = self.wait();
        assert!(status.success(), "{status}\n{}", self.log());
        assert!(self.log().contains("left as it is"), "{}", self.log());
        self.stop_post();
        self.manager.set(Doing::Nothing);
    }

    /// `systemctl restart`.
    #[track_caller]
    pub(crate) fn restart(&mut self) {
        self.stop_for_restart();
        self.start();
        assert!(self.log().contains("continuing with the interface"), "{}", self.log());
    }

    /// `weft status` of the service.
    pub(crate) fn status(&self) -> Value {
        let text = self.weft_ok(&["status", NAME, "--json", "--sample", "0"]);
        let mut json: Value = serde_json::from_str(&text).unwrap();
        json["interfaces"][0].take()
    }

    /// What ip(8) tells about the device with its addresses and routes, without what counts and expires.
    #[track_caller]
    pub(crate) fn picture(&self) -> Vec<String> {
        let mut items = Vec::new();
        for words in [
            "address show dev weft0",
            "-4 route show table all",
            "-6 route show table all",
            "-4 rule",
            "-6 rule",
        ] {
            let output = self.ip(words);
            items.extend(output.lines().map(|line| format!("{words}: {}", line.trim())));
        }
        items.retain(|item| !item.contains("valid_lft") && !item.contains("dev eth0"));
        items
    }

    /// The rest of it where there is no device.
    #[track_caller]
    pub(crate) fn picture_without_device(&self) -> Vec<String> {
        let all = ["-4 route show table all", "-6 route show table all", "-4 rule", "-6 rule"];
        // The kernel gives the cable link-local addresses a moment after it was plugged in.
        let lines =
            all.iter().flat_map(|words| self.ip(words).lines().map(str::to_owned).collect::<Vec<_>>());
        let mut items: Vec<String> = lines.filter(|line| !line.contains("eth0")).collect();
        items.push(self.filter());
        items
    }

    /// The tables of the packet filter.
    pub(crate) fn filter(&self) -> String {
        let output = self.command("nft").args(["-s", "list", "ruleset"]).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
    }

    /// Waits until the service has said this.
    #[track_caller]
    pub(crate) fn wait_for_log(&self, text: &str) {
        until(text, || self.log().contains(text));
    }

    fn instance(&self) -> PathBuf {
        weft_ipc::runtime_dir::instance(&self.directory.path().join("run"), &NAME.parse().unwrap())
    }

    /// Changes the record of what was done on A.
    pub(crate) fn edit_record(&self, edit: impl FnOnce(&mut serde_json::Map<String, Value>)) {
        let file = self.instance().join("record.json");
        let mut record: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        edit(record.as_object_mut().unwrap());
        std::fs::write(&file, record.to_string()).unwrap();
    }

    /// What is on record on A. What a process that is killed leaves beside it holds nothing up: a lock
    /// without an owner, and files that were to get another name.
    pub(crate) fn records(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.instance()).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "lock" && !name.ends_with(".new")).collect()
    }

    /// The state that the service manager keeps; nothing while it is being replaced.
    pub(crate) fn left(&self) -> String {
        use std::os::unix::fs::FileExt as _;
        let Some(descriptor) = self.manager.get(&self.state_name()) else { return String::new() };
        let file = File::from(descriptor);
        let mut text = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut text, 0).unwrap();
        String::from_utf8(text).unwrap()
    }

    /// What ip(8) prints on A for these words.
    #[track_caller]
    pub(crate) fn ip(&self, words: &str) -> String {
        let output = self.command("ip").args(words.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {words}: {output:?}\n{}", self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Whether the device of A is there.
    pub(crate) fn has_device(&self) -> bool {
        self.command("ip").args(["link", "show", NAME]).output().unwrap().status.success()
    }

    /// The service manager closes what it kept, and with that the device goes: at once, or when a child that
    /// another test has just forked has executed its program, which closes what it had of this process.
    #[track_caller]
    pub(crate) fn empty_the_store(&self) {
        self.manager.empty();
        until("the device goes with its last descriptor", || !self.has_device());
    }

    /// How many queues the device of A has.
    #[track_caller]
    pub(crate) fn queues(&self) -> u64 {
        let text = self.ip("-j -d link show weft0");
        let json: Value = serde_json::from_str(&text).unwrap();
        json[0]["linkinfo"]["info_data"]["numqueues"].as_u64().unwrap()
    }

    /// Begins to count handshakes on the cable.
    pub(crate) fn initiations(&self) -> Initiations {
        Initiations::count(&self.b)
    }

    /// A stream from an end to the other one.
    #[track_caller]
    pub(crate) fn stream(&self, from: u8) -> Transfer {
        let (from, to, address) =
            if from == 1 { (&self.a, &self.b, inner(2)) } else { (&self.b, &self.a, inner(1)) };
        Transfer::endless(from, to, address).unwrap()
    }
}
