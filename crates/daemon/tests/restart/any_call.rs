//! A life of the service in which one system call fails, or is the last: each call in turn that changes
//! something outside of the process.
//!
//! The service has all that weft changes there: addresses, routes, rules, a kill switch, name servers,
//! records, and descriptors that the service manager keeps. Its peer has a name. It gets another
//! configuration by a reload, and again another one by a restart.

use std::process::ExitStatus;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use nix::libc;
use nix::sys::signal::Signal;
use weft_lab::service_manager::Doing;
use weft_lab::{Interception, Verdict, here, until, wait_until_ok};

use crate::world::{NAME, World, file_of, file_of_b};

/// The calls that have their turn, like `0..400`; without it every [`STRIDE`]th one.
const CALLS: &str = "WEFT_CALLS";
const STRIDE: usize = 12;

/// What the service is started, reloaded and restarted with: `[Interface]`, and prefixes of the peer.
const FIRST: (&str, &str) = ("DNS = 10.77.0.53", "10.88.0.0/16");
const SECOND: (&str, &str) = ("Address = 10.79.0.1/24\nMTU = 1380\nDNS = 10.77.0.54", "10.89.0.0/16");
const THIRD: (&str, &str) = ("Address = 10.79.0.1/24, fd77::1/64\nDNS = 10.77.0.55", "10.88.0.0/16, ::/0");

/// The end of the description of a change to the packet filter (NETLINK_NETFILTER).
const PACKET_FILTER: &str = "of netlink 12";

const RESOLV_CONF: &str = "nameserver 192.0.2.53\n";

/// How far the life of the service has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Start,
    Reload,
    Leave,
    TakeOver,
    Stop,
    End,
}

/// What interrupts a life of the service.
#[derive(Debug, Default)]
struct Fault {
    /// The number of the call, from 0, and what happens to it.
    at: Option<(usize, Verdict)>,
    calls: Vec<String>,
}

impl Fault {
    /// What has happened.
    fn verdict(&self) -> Option<Verdict> {
        self.at.filter(|(number, _)| *number < self.calls.len()).map(|(_, verdict)| verdict)
    }

    fn decide(&mut self, call: &str) -> Verdict {
        // The shell that becomes weft, see `World::spawn`.
        if call == format!("execve {}", env!("CARGO_BIN_EXE_weft")) || call.ends_with("/sh") {
            return Verdict::Allow;
        }
        self.calls.push(call.to_owned());
        match self.at {
            Some((number, verdict)) if number + 1 == self.calls.len() => verdict,
            _ => Verdict::Allow,
        }
    }
}

/// Everything that the service changes, without what differs from one device to the next.
#[derive(Debug, PartialEq, Eq)]
struct Surroundings {
    network: Vec<String>,
    filter: String,
    resolv_conf: String,
    /// The names of the files there.
    etc: Vec<String>,
}

/// The service that lives again and again.
struct Life {
    world: World,
    fault: Arc<Mutex<Fault>>,
    before: Surroundings,
    /// What the reload leads to.
    reloaded: Vec<String>,
}

impl Life {
    /// `None` where that is not possible, which is said.
    fn new() -> Option<Self> {
        if !here::installed(&["nft"]) {
            return None;
        }
        let mut world = World::with_empty(&["/etc", "/var/lib"])?;
        world.inside(|| {
            std::fs::write("/etc/hosts", "192.0.2.2 vpn.weft.example\n").unwrap();
            std::fs::write("/etc/resolv.conf", RESOLV_CONF).unwrap();
        });
        world.start_other_end(&file_of_b());
        let before = Surroundings::of(&world);
        Some(Self { world, fault: Arc::default(), before, reloaded: Vec::new() })
    }

    fn configure(&self, (interface, prefixes): (&str, &str)) {
        let peer = format!("AllowedIPs = 0.0.0.0/0, {prefixes}\nEndpoint = vpn.weft.example:51820");
        self.world.write(&file_of(1, &format!("# weft: KillSwitch = on\n{interface}"), &peer));
    }

    /// Starts a process of the service, in which the fault may happen. Returns whether it has become ready.
    fn start(&mut self, watched: &mut Vec<Interception>) -> bool {
        let fault = Arc::clone(&self.fault);
        let decide = move |call: &str| fault.lock().unwrap().decide(call);
        let watch = |command: &mut _| watched.push(Interception::of(command, decide).unwrap());
        self.world.spawn_with(watch);
        // A refusal may keep it from giving its state to the service manager.
        until("the service is up, or has ended", || {
            let is_up = self.world.log().contains(" is up: port ");
            !self.world.is_running() || is_up && (self.world.is_kept() || self.was_refused())
        });
        self.world.is_running()
    }

    /// Whether the fault has happened, and left the process alive.
    fn was_refused(&self) -> bool {
        self.fault.lock().unwrap().verdict().is_some_and(|verdict| verdict != Verdict::Kill)
    }

    /// Changes the service to the second configuration, completely or not at all. Returns whether it still
    /// runs.
    fn reload(&mut self) -> bool {
        let before = self.interface();
        let told = self.world.weft(&["reload", self.world.file.to_str().unwrap()]);
        if self.fault.lock().unwrap().verdict() == Some(Verdict::Kill) {
            return false;
        }
        let is_first = self.fault.lock().unwrap().at.is_none();
        if is_first {
            assert!(told.status.success(), "{told:?}");
            self.reloaded = self.interface();
        }
        // The answer may be what was refused.
        let is_unknown = String::from_utf8_lossy(&told.stderr).contains("the daemon has hung up");
        let expected = if told.status.success() { &self.reloaded } else { &before };
        wait_until_ok(|| {
            let now = self.interface();
            let is_whole = now == *expected || is_unknown && now == self.reloaded;
            is_whole.then_some(()).ok_or_else(|| format!("{told:?}\n{now:#?}\n{expected:#?}"))
        });
        true
    }

    /// The interface and all that belongs to it, without what differs from one device to the next.
    fn interface(&self) -> Vec<String> {
        let mut items = self.world.picture();
        items.retain(|item| !item.contains("fe80"));
        for item in &mut items {
            *item = item.replace(" tentative", "");
            if let Some(rest) =
                item.strip_prefix("address show dev weft0: ").and_then(|item| item.split_once(": "))
            {
                // The limit of the queue changes speed alone, and a start goes on without it.
                *item = rest.1.split(" qlen ").next().unwrap_or_default().to_owned();
            }
        }
        items.push(self.world.filter());
        items.push(self.world.inside(|| std::fs::read_to_string("/etc/resolv.conf").unwrap()));
        items
    }

    /// Ends the process, for a restart or for good. Returns whether it ended well.
    fn end(&mut self, doing: Doing) -> bool {
        self.world.manager.set(doing);
        self.world.signal(Signal::SIGTERM);
        let status = self.world.wait();
        if status.success() {
            self.world.stop_post();
        }
        self.world.manager.set(Doing::Nothing);
        status.success()
    }

    /// Lets the service live: it starts, is restarted and is stopped. Returns the stage in which a process of
    /// it ended by itself, or did not end well.
    fn live(&mut self, at: Option<(usize, Verdict)>) -> Stage {
        *self.fault.lock().unwrap() = Fault { at, calls: Vec::new() };
        let mut watched = Vec::new();
        let stage = self.live_until(&mut watched);
        // What was killed may have started a program that goes on.
        watched.into_iter().for_each(|process| process.wait().unwrap());
        stage
    }

    fn live_until(&mut self, watched: &mut Vec<Interception>) -> Stage {
        self.configure(FIRST);
        if !self.start(watched) {
            self.world.wait();
            return Stage::Start;
        }
        self.configure(SECOND);
        if !self.reload() {
            self.world.wait();
            return Stage::Reload;
        }
        if !self.end(Doing::Restart) {
            return Stage::Leave;
        }
        self.configure(THIRD);
        if !self.start(watched) {
            self.world.wait();
            return Stage::TakeOver;
        }
        if !self.end(Doing::Stop) {
            return Stage::Stop;
        }
        Stage::End
    }

    /// The service is up, and is killed.
    fn crash(&mut self) {
        self.configure(FIRST);
        self.world.start();
        self.world.signal(Signal::SIGKILL);
        self.world.wait();
        assert!(self.has_kill_switch());
    }

    /// Starts a process of the service that does not become ready, and returns how it ends.
    fn end_of_start(&mut self, decide: impl FnMut(&str) -> Verdict + Send + 'static) -> ExitStatus {
        let mut watched = None;
        self.world.spawn_with(|command| watched = Some(Interception::of(command, decide).unwrap()));
        let status = self.world.wait();
        watched.unwrap().wait().unwrap();
        status
    }

    fn has_kill_switch(&self) -> bool {
        self.world.filter().contains("chain output")
    }

    /// The last process was killed, or ended with an error. Whatever is done then, nothing is left in the
    /// end.
    fn recover(&mut self, turn: usize, stage: Stage, verdict: Verdict) {
        let held = self.has_kill_switch();
        // From the first start until it is stopped.
        assert!(held || matches!(stage, Stage::Start | Stage::Stop | Stage::End), "nothing may leave");
        // A start that fails undoes what it has done.
        if stage == Stage::Start && verdict != Verdict::Kill {
            self.assert_nothing_is_left();
        }
        match turn % 3 {
            // The user gives up, or is done.
            0 => {
                self.world.weft(&["down", NAME]);
            }
            // The service manager starts it again, after what ExecStopPost= says, or without that.
            remainder => {
                if remainder == 1 {
                    self.world.stop_post();
                    assert_eq!(self.has_kill_switch(), held);
                }
                self.world.start();
                assert!(self.has_kill_switch());
                assert!(self.end(Doing::Stop), "{}", self.world.log());
            }
        }
    }

    fn assert_nothing_is_left(&mut self) {
        self.world.empty_the_store();
        wait_until_ok(|| {
            let now = Surroundings::of(&self.world);
            if now == self.before { Ok(()) } else { Err(format!("{now:#?}\nbefore: {:#?}", self.before)) }
        });
        assert_eq!(self.world.records(), [""; 0], "{}", self.world.log());
    }

    /// Lets each call of a life in turn meet this verdict.
    fn live_with(&mut self, verdict: Verdict, first: usize) {
        assert_eq!(self.live(None), Stage::End, "{}", self.world.log());
        self.assert_nothing_is_left();
        for (turn, number) in numbers(first).enumerate() {
            let stage = self.live(Some((number, verdict)));
            let fault = std::mem::take(&mut *self.fault.lock().unwrap());
            let Some(call) = fault.calls.get(number) else {
                assert_eq!(stage, Stage::End, "{}", self.world.log());
                break;
            };
            println!("call {number}, {call}: {verdict:?} in {stage:?}");
            self.recover(turn, stage, verdict);
            self.assert_nothing_is_left();
        }
    }

    /// Takes down what a crash has left, while each call in turn meets this verdict, and again.
    fn take_down_with(&mut self, verdict: Verdict, first: usize) {
        for number in numbers(first) {
            self.crash();
            *self.fault.lock().unwrap() = Fault { at: Some((number, verdict)), calls: Vec::new() };
            let fault = Arc::clone(&self.fault);
            let mut down = self.world.command(env!("CARGO_BIN_EXE_weft"));
            self.world.manager.environment(&mut down);
            down.args(["down", NAME]);
            let decide = move |call: &str| fault.lock().unwrap().decide(call);
            let watched = Interception::of(&mut down, decide).unwrap();
            let said = down.output().unwrap();
            watched.wait().unwrap();
            let fault = std::mem::take(&mut *self.fault.lock().unwrap());
            let Some(call) = fault.calls.get(number) else {
                assert!(said.status.success(), "{said:?}");
                break;
            };
            println!("call {number}, {call}: {verdict:?}, {said:?}");
            self.world.weft(&["down", NAME]);
            self.assert_nothing_is_left();
        }
        self.assert_nothing_is_left();
    }
}

/// The numbers of the calls that have their turn.
fn numbers(first: usize) -> Box<dyn Iterator<Item = usize>> {
    match std::env::var(CALLS) {
        Ok(range) => {
            let (first, end) = range.split_once("..").unwrap();
            Box::new(first.parse().unwrap()..end.parse().unwrap())
        }
        Err(_) => Box::new((first..).step_by(STRIDE)),
    }
}

impl Surroundings {
    fn of(world: &World) -> Self {
        let mut network = world.picture_without_device();
        network.push(world.a.sysctl("net/ipv4/conf/all/src_valid_mark").unwrap());
        let (resolv_conf, mut etc) = world.inside(|| {
            let names = std::fs::read_dir("/etc").unwrap().map(|entry| entry.unwrap().file_name());
            let names = names.map(|name| name.into_string().unwrap()).collect::<Vec<_>>();
            (std::fs::read_to_string("/etc/resolv.conf").unwrap(), names)
        });
        etc.sort();
        Self { network, filter: world.filter(), resolv_conf, etc }
    }
}

#[test]
fn a_service_that_is_killed_before_any_call_leaves_nothing_and_its_kill_switch_holds() {
    let Some(mut life) = Life::new() else { return };
    life.live_with(Verdict::Kill, 3);
}

#[test]
fn a_service_that_is_refused_any_call_leaves_nothing_and_its_kill_switch_holds() {
    let Some(mut life) = Life::new() else { return };
    life.live_with(Verdict::Refuse(libc::EPERM), 11);
}

#[test]
fn what_a_clean_up_has_not_done_when_it_is_killed_or_refused_a_call_the_next_one_does() {
    let Some(mut life) = Life::new() else { return };
    life.take_down_with(Verdict::Kill, 4);
    life.take_down_with(Verdict::Refuse(libc::EPERM), 9);
}

#[test]
fn a_start_that_cannot_write_down_that_it_is_up_keeps_the_kill_switch_of_a_crash() {
    let Some(mut life) = Life::new() else { return };
    life.crash();
    let mut has_filter = false;
    let decide = move |call: &str| {
        has_filter |= call.ends_with(PACKET_FILTER);
        let is_record = call.starts_with("openat") && call.ends_with("record.json.new");
        if has_filter && is_record { Verdict::Refuse(libc::ENOSPC) } else { Verdict::Allow }
    };
    assert_eq!(life.end_of_start(decide).code(), Some(1), "{}", life.world.log());
    assert!(life.world.log().contains("record.json: No space left on device"), "{}", life.world.log());
    assert!(life.has_kill_switch(), "{}", life.world.log());
    life.world.weft_ok(&["down", NAME]);
    life.assert_nothing_is_left();
}

#[test]
fn a_kill_switch_of_a_crash_is_on_record_until_a_start_without_one_has_removed_it() {
    let Some(mut life) = Life::new() else { return };
    life.crash();
    life.world.write(&file_of(1, "", "Endpoint = vpn.weft.example:51820"));
    let kill = |call: &str| if call.ends_with("/nft") { Verdict::Kill } else { Verdict::Allow };
    assert!(!life.end_of_start(kill).success());
    assert!(life.has_kill_switch());
    life.world.weft_ok(&["down", NAME]);
    life.assert_nothing_is_left();
}

/// A reload fails where the service is refused the first call that `is_refused` says, and changes nothing.
/// The next one succeeds.
fn reload_is_refused(mut is_refused: impl FnMut(&str) -> bool + Send + 'static) {
    let Some(mut life) = Life::new() else { return };
    life.configure(FIRST);
    let is_armed = Arc::new(AtomicBool::new(false));
    let armed = Arc::clone(&is_armed);
    let decide = move |call: &str| match armed.load(SeqCst) && is_refused(call) {
        true => {
            armed.store(false, SeqCst);
            Verdict::Refuse(libc::ENOBUFS)
        }
        false => Verdict::Allow,
    };
    let mut watched = None;
    life.world.spawn_with(|command| watched = Some(Interception::of(command, decide).unwrap()));
    until("the service is up", || life.world.is_kept());
    let before = life.interface();
    life.configure(SECOND);
    is_armed.store(true, SeqCst);
    let file = life.world.file.to_str().unwrap().to_owned();
    let failed = life.world.weft(&["reload", &file]);
    assert!(!failed.status.success() && !is_armed.load(SeqCst), "{failed:?}");
    assert_eq!(life.interface(), before, "{}", life.world.log());
    life.world.weft_ok(&["reload", &file]);
    assert!(life.interface().iter().any(|item| item.contains("10.89.0.0/16 dev weft0")));
    assert!(life.end(Doing::Stop), "{}", life.world.log());
    watched.unwrap().wait().unwrap();
    life.assert_nothing_is_left();
}

#[test]
fn a_rule_that_could_not_be_removed_at_once_keeps_no_sysctl() {
    let Some(mut life) = Life::new() else { return };
    life.configure(FIRST);
    let mut is_first = true;
    // RTM_DELRULE.
    let decide = move |call: &str| match call == "message 33 of netlink 0" && std::mem::take(&mut is_first) {
        true => Verdict::Refuse(libc::ENOBUFS),
        false => Verdict::Allow,
    };
    let mut watched = None;
    life.world.spawn_with(|command| watched = Some(Interception::of(command, decide).unwrap()));
    until("the service is up", || life.world.is_kept());
    assert!(life.end(Doing::Stop), "{}", life.world.log());
    watched.unwrap().wait().unwrap();
    life.assert_nothing_is_left();
}

#[test]
fn a_message_that_the_kernel_does_not_take_costs_the_change_alone() {
    // RTM_NEWROUTE.
    reload_is_refused(|call| call == "message 24 of netlink 0");
}

#[test]
fn a_reload_that_cannot_be_written_down_changes_nothing() {
    let mut has_filter = false;
    reload_is_refused(move |call| {
        has_filter |= call.ends_with(PACKET_FILTER);
        has_filter && call.starts_with("openat") && call.ends_with("record.json.new")
    });
}
