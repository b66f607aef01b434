//! Streams go on where descriptors, memory, disk space or permissions run out, and what cannot be done is
//! refused whole.

use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Output;

use nix::mount::{MsFlags, mount};
use nix::sys::resource::{Resource, setrlimit};
use tempfile::TempDir;
use weft_lab::memory_group::MemoryGroup;
use weft_lab::mounts::Mounts;
use weft_lab::{Process, Transfer, here, until};

use crate::support::{
    Conf, End, Ends, Family, NAME, PORT, PeerConf, Running, Traces, alone, routes_of, weft_up,
};

/// One packet thread needs about half of them; several are refused with so few.
const DESCRIPTORS: u64 = 64;
const MEMORY: u64 = 64 << 20;

/// Returns a stream from A to B.
fn stream(ends: &Ends) -> Transfer {
    Transfer::endless(&ends.a, &ends.b, End::B.inner(Family::V4)).unwrap()
}

/// Returns `conf` with a peer, and thereby a route, more.
fn with_another_peer(conf: &Conf) -> Conf {
    let mut more = conf.clone();
    let mut peer = PeerConf::new(Conf::new().private_key.public_key());
    peer.allowed_ips.push("10.88.0.0/16".to_owned());
    more.peers.push(peer);
    more
}

fn has_another_route(ends: &Ends) -> bool {
    routes_of(&ends.a).iter().any(|route| route.contains("10.88.0.0/16"))
}

#[test]
fn with_64_descriptors_more_clients_than_it_can_take_cost_it_nothing() {
    let _alone = alone();
    let Some(ends) = Ends::new(1500) else { return };
    let (conf_a, conf_b) = Conf::pair(Family::V4);
    let directory = tempfile::tempdir().unwrap();
    let mut command = weft_up(&ends.a, &conf_a.write(directory.path(), NAME));
    command.args(["--metrics", "127.0.0.1:9586"]).env_remove("WEFT_PACKET_THREADS");
    let limit = || Ok(setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS, DESCRIPTORS)?);
    // SAFETY: between fork and exec the closure only makes a system call.
    unsafe { command.pre_exec(limit) };
    let a = Running::start(&ends.a, command, directory);
    let b = Running::up(&ends.b, &conf_b, &[]);
    let streams = [stream(&ends), Transfer::endless(&ends.b, &ends.a, End::A.inner(Family::V4)).unwrap()];

    let descriptors = || fs::read_dir(format!("/proc/{}/fd", a.pid())).unwrap().count() as u64;
    let (mut clients, mut readers) = (Vec::new(), Vec::new());
    until("no descriptor is left", || {
        clients.extend(UnixStream::connect(a.socket()));
        readers.extend(ends.a.run(|| TcpStream::connect("127.0.0.1:9586")));
        descriptors() >= DESCRIPTORS
    });
    streams.iter().for_each(Transfer::goes_on);
    drop((clients, readers));
    until("it answers again", || a.weft(&["status", NAME]).status.success());
    a.reload(&with_another_peer(&conf_a), &[]);
    assert!(has_another_route(&ends));
    assert_eq!(a.status("0")["tunnel"]["handshakes"], 1);
    streams.into_iter().for_each(Transfer::end);
    a.stop();
    b.stop();
}

#[test]
fn in_64_mib_of_memory_it_survives_packets_for_peers_that_do_not_answer() {
    let _alone = alone();
    let Some(ends) = Ends::new(1500) else { return };
    let group = match MemoryGroup::new(MEMORY) {
        Ok(group) => group,
        Err(error) => return here::not_run(&format!("cannot limit memory: {error}")),
    };
    let (mut conf_a, conf_b) = Conf::pair(Family::V4);
    // Nothing has this address on the link.
    let silent = SocketAddr::from(([192, 0, 2, 77], PORT));
    for number in 0..=u8::MAX {
        conf_a.peers.push(PeerConf {
            endpoint: Some(silent),
            allowed_ips: vec![format!("10.88.{number}.0/24")],
            ..PeerConf::new(Conf::new().private_key.public_key())
        });
    }
    let directory = tempfile::tempdir().unwrap();
    let mut command = weft_up(&ends.a, &conf_a.write(directory.path(), NAME));
    group.apply(&mut command).unwrap();
    let a = Running::start(&ends.a, command, directory);
    let b = Running::up(&ends.b, &conf_b, &[]);
    let streams = [stream(&ends), Transfer::endless(&ends.b, &ends.a, End::A.inner(Family::V4)).unwrap()];

    let sender = ends.a.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    let staging_is_full = || {
        for _ in 0..100 {
            for number in 0..=u8::MAX {
                // What the kernel does not take is no matter of weft.
                let _ = sender.send_to(&[0; 1300], SocketAddr::from(([10, 88, number, 1], 9)));
            }
        }
        a.status("0")["drops"].as_array().unwrap().iter().any(|drop| drop["reason"] == "staging_full")
    };
    until("more waits than there is room for", staging_is_full);
    let report = a.status("0");
    let queues = &report["queues"];
    assert!(queues["staging_budget_bytes"].as_u64() < Some(MEMORY / 4), "{queues}");
    assert!(queues["staged_bytes"].as_u64() <= queues["staging_budget_bytes"].as_u64(), "{queues}");
    streams.into_iter().for_each(Transfer::end);
    assert_eq!(group.killed().unwrap(), 0);
    assert_eq!(group.members().unwrap(), [a.pid()], "it ran in the group");
    a.stop();
    b.stop();
}

#[test]
fn what_may_wait_is_a_share_of_the_limit_on_the_command_line() {
    let Some(ends) = Ends::new(1500) else { return };
    let (conf, _) = Conf::pair(Family::V4);
    let a = Running::up(&ends.a, &conf, &["--memory-limit", "256"]);
    // A sixty-fourth. Each packet thread has a whole number of bytes.
    let budget = a.status("0")["queues"]["staging_budget_bytes"].as_u64().unwrap();
    assert_eq!(budget.next_multiple_of(1 << 20), 4 << 20, "{budget}");
    a.stop();
}

/// The state directory of A, on a file system that others do not see.
struct State {
    mounts: Mounts,
    directory: TempDir,
}

impl State {
    /// `None` where that is not possible, which is said.
    fn new() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        match Mounts::with_empty(&[directory.path().to_str().unwrap(), "/var/run"]) {
            Ok(mounts) => Some(Self { mounts, directory }),
            Err(error) => {
                here::not_run(&format!("cannot mount a state directory: {error}"));
                None
            }
        }
    }

    /// Runs `work` on a thread that sees the state directory.
    fn inside<T: Send>(&self, work: impl FnOnce(&Path) -> T + Send) -> T {
        let run = || {
            self.mounts.enter().unwrap();
            work(self.directory.path())
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    fn remount(&self, flags: MsFlags) {
        let none = None::<&Path>;
        let (flags, size) = (MsFlags::MS_REMOUNT | flags, Some("size=64k"));
        self.inside(|directory| mount(none, directory, none, flags, size).unwrap());
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        self.inside(|directory| {
            let mut file = fs::File::create(directory.join("filling")).unwrap();
            while file.write_all(&[1; 4096]).is_ok() {}
        });
    }

    fn make_room(&self) {
        self.inside(|directory| fs::remove_file(directory.join("filling")).unwrap());
    }

    /// Starts `weft up FILE` at A.
    fn up(&self, ends: &Ends, file: &Path) -> Process {
        let mut command = weft_up(&ends.a, file);
        command.env("WEFT_RUNTIME_DIR", self.directory.path());
        self.mounts.apply(&mut command).unwrap();
        Process::start(&ends.a, command).unwrap()
    }

    /// Runs a command of weft that uses the directory.
    fn weft(&self, ends: &Ends, arguments: &[&str]) -> Output {
        let mut command = ends.a.command(env!("CARGO_BIN_EXE_weft"));
        command.args(arguments).env("WEFT_RUNTIME_DIR", self.directory.path());
        self.mounts.apply(&mut command).unwrap();
        command.output().unwrap()
    }
}

#[test]
fn a_full_state_directory_refuses_a_reload_whole_and_stops_nothing() {
    let _alone = alone();
    let Some(ends) = Ends::new(1500) else { return };
    let Some(state) = State::new() else { return };
    state.remount(MsFlags::empty());
    let (conf_a, conf_b) = Conf::pair(Family::V4);
    let before = Traces::of(&ends.a);
    let files = tempfile::tempdir().unwrap();
    let a = state.up(&ends, &conf_a.write(files.path(), NAME));
    a.wait_for_line(" is up: port ");
    let b = Running::up(&ends.b, &conf_b, &[]);
    let stream = stream(&ends);

    state.fill();
    let more = with_another_peer(&conf_a).write(files.path(), NAME);
    let reload = || state.weft(&ends, &["reload", more.to_str().unwrap()]);
    let refused = reload();
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("record.json") && stderr.contains("make room"), "{stderr}");
    assert!(!has_another_route(&ends), "a part of it was done: {stderr}");
    stream.goes_on();

    state.make_room();
    let done = reload();
    assert!(done.status.success() && has_another_route(&ends), "{done:?}");
    state.fill();
    stream.end();
    assert!(a.stop().contains("interface is down"));
    before.assert_restored(&ends.a);
    b.stop();
}

#[test]
fn a_start_with_a_full_or_read_only_state_directory_only_says_so() {
    let Some(ends) = Ends::new(1500) else { return };
    let Some(state) = State::new() else { return };
    let (conf_a, conf_b) = Conf::pair(Family::V4);
    let files = tempfile::tempdir().unwrap();
    let file = conf_a.write(files.path(), NAME);
    let b = Running::up(&ends.b, &conf_b, &[]);
    state.remount(MsFlags::empty());
    state.fill();
    for (says, advice, flags) in [
        ("No space left on device", "make room", MsFlags::empty()),
        ("Read-only file system", "can be written", MsFlags::MS_RDONLY),
    ] {
        state.remount(flags);
        let before = Traces::of(&ends.a);
        let a = state.up(&ends, &file);
        let warning = a.wait_for_line("`weft down` will not find this interface");
        let directory = state.directory.path().to_str().unwrap();
        for text in [says, advice, directory] {
            assert!(warning.contains(text), "{text}: {warning}");
        }
        a.wait_for_line(" is up: port ");
        stream(&ends).end();
        a.stop();
        before.assert_restored(&ends.a);
    }
    b.stop();
}

#[test]
fn a_firewall_that_refuses_what_is_sent_costs_what_it_refused() {
    let _alone = alone();
    let Some(ends) = Ends::new(1500) else { return };
    if !here::installed(&["nft"]) {
        return;
    }
    let (conf_a, conf_b) = Conf::pair(Family::V4);
    let (a, b) = (Running::up(&ends.a, &conf_a, &[]), Running::up(&ends.b, &conf_b, &[]));
    let streams = [stream(&ends), Transfer::endless(&ends.b, &ends.a, End::A.inner(Family::V4)).unwrap()];
    let nft = |rules: &str| {
        let output = ends.a.command("nft").arg(rules).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let refused = || {
        let report = a.status("0");
        let drops = report["drops"].as_array().unwrap().iter();
        let of_sends = drops.filter(|drop| drop["reason"] == "udp_send_failed");
        (of_sends.map(|drop| drop["packets"].as_u64().unwrap()).sum::<u64>(), report)
    };
    for _ in 0..3 {
        let before = refused().0;
        // A packet that the output chain drops is an error of the send: EPERM.
        nft(&format!(
            "table inet refuse {{\nchain out {{\ntype filter hook output priority 0;\nudp sport {PORT} drop;\n}}\n}}"
        ));
        until("what was refused is counted", || refused().0 > before);
        let report = refused().1;
        let error = report["send_failure"]["error"].as_str().unwrap();
        assert!(error.contains("not permitted"), "{report:#}");
        nft("delete table inet refuse");
        streams.iter().for_each(Transfer::goes_on);
    }
    assert_eq!(a.status("0")["tunnel"]["handshakes"], 1);
    streams.into_iter().for_each(Transfer::end);
    a.stop();
    b.stop();
}
