//! A bus of the test's own with a systemd-resolved on it that writes down how it is called.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::{Arc, Mutex};

use weft_config::exit;
use weft_host::dns::{Choice, Method, Seen};
use weft_lab::bus::{self, Bus};
use weft_lab::{Namespace, here};
use zbus::{Connection, Message, Variant};

use crate::support::{Machine, link, settings};

/// A bus of this machine; `None`: dbus-daemon is not installed here, which was said.
fn start_bus(machine: &Machine) -> Option<Bus> {
    let address = machine.places().bus.unwrap();
    Bus::start(&machine.path("run"), &address).map_err(|error| here::not_run(&error.to_string())).ok()
}

#[derive(Default)]
struct Heard {
    calls: Vec<String>,
    /// Methods that fail, with which error, and how often.
    errors: HashMap<&'static str, (&'static str, u32)>,
    /// The servers of every interface, as the property `DNS` has them.
    servers: Vec<(i32, Vec<u8>)>,
    /// The domains of every interface, and the links that have any.
    domains: Vec<(String, bool)>,
    routed: Option<Vec<(i32, String, bool)>>,
}

impl Heard {
    /// Writes a call down; gives the error that it is answered with, if any.
    fn hear(&mut self, method: &str, call: String) -> Option<&'static str> {
        self.calls.push(call);
        let (error, times) = self.errors.get_mut(method).filter(|(_, times)| *times > 0)?;
        *times -= 1;
        Some(error)
    }
}

/// Answers as systemd-resolved until it is dropped.
struct Resolved {
    heard: Arc<Mutex<Heard>>,
    _service: bus::Service,
}

impl Resolved {
    fn start(machine: &Machine) -> Self {
        let heard = Arc::new(Mutex::new(Heard::default()));
        let shared = heard.clone();
        let answer = async move |connection: &Connection, message: &Message| {
            let header = message.header();
            let method = header.member().unwrap().to_string();
            if method == "Get" {
                let (interface, name): (String, String) = message.body().deserialize().unwrap();
                let value = {
                    let heard = shared.lock().unwrap();
                    match (interface.ends_with("Link"), name.as_str(), &heard.routed) {
                        (true, "DNS", _) => Variant::from(heard.servers.clone()),
                        (true, ..) => Variant::from(heard.domains.clone()),
                        (false, "Domains", Some(routed)) => Variant::from(routed.clone()),
                        _ => property(&name),
                    }
                };
                return connection.reply(&header, &value).await.unwrap();
            }
            let error = shared.lock().unwrap().hear(&method, describe(&method, message));
            match error {
                Some(error) => connection.reply_error(&header, error, &"not you").await.unwrap(),
                None => connection.reply(&header, &()).await.unwrap(),
            }
        };
        let address = machine.places().bus.unwrap();
        Self { heard, _service: bus::Service::start(address, "org.freedesktop.resolve1", answer).unwrap() }
    }

    fn fail(&self, method: &'static str, error: &'static str) {
        self.fail_times(method, error, u32::MAX);
    }

    fn fail_times(&self, method: &'static str, error: &'static str, times: u32) {
        self.heard.lock().unwrap().errors.insert(method, (error, times));
    }

    /// What was called since this was last asked.
    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.heard.lock().unwrap().calls)
    }
}

/// What the links 2 and 7 and the global configuration have.
fn property(name: &str) -> Variant<'static> {
    match name {
        "DNS" => {
            let servers = [(7, [10_u8, 0, 0, 1]), (2, [192, 0, 2, 2]), (0, [192, 0, 2, 1])];
            Variant::from(servers.map(|(link, bytes)| (link, libc::AF_INET, bytes.to_vec())).to_vec())
        }
        "Domains" => Variant::from(vec![(7, ".".to_owned(), true), (2, "home.example".to_owned(), false)]),
        _ => Variant::from(Vec::<(i32, i32, Vec<u8>)>::new()),
    }
}

fn describe(method: &str, message: &Message) -> String {
    let header = message.header();
    assert_eq!(header.path().unwrap().as_str(), "/org/freedesktop/resolve1");
    assert_eq!(header.interface().unwrap().as_str(), "org.freedesktop.resolve1.Manager");
    let body = message.body();
    let arguments = match method {
        "SetLinkDNS" => format!("{:?}", body.deserialize::<(i32, Vec<(i32, Vec<u8>)>)>().unwrap()),
        "SetLinkDomains" => format!("{:?}", body.deserialize::<(i32, Vec<(String, bool)>)>().unwrap()),
        "SetLinkDefaultRoute" => format!("{:?}", body.deserialize::<(i32, bool)>().unwrap()),
        "RevertLink" => format!("({})", body.deserialize::<i32>().unwrap()),
        _ => String::new(),
    };
    format!("{method}{arguments}")
}

/// A machine with a C library that asks systemd-resolved.
fn machine() -> Machine {
    let machine = Machine::new();
    symlink("../run/systemd/resolve/stub-resolv.conf", machine.resolv_conf()).unwrap();
    machine
}

#[test]
fn servers_for_every_name_are_set_with_the_root_as_a_routing_domain() {
    let machine = machine();
    let Some(_bus) = start_bus(&machine) else { return };
    let resolved = Resolved::start(&machine);
    let system = machine.system();
    assert_eq!(system.method(Choice::Auto).unwrap(), Method::Resolved);
    // An interface that is there: what it is told is reverted for no other.
    let lo = link("lo", 1);
    let wanted = settings(&["10.0.0.1", "fd00::1"], &["a.example"], &[]);
    let mut applied = system.apply(Method::Resolved, &lo, &wanted).unwrap();
    assert_eq!(
        resolved.calls(),
        [
            "SetLinkDNS(1, [(2, [10, 0, 0, 1]), (10, [253, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])])",
            "SetLinkDomains(1, [(\"a.example\", false), (\".\", true)])",
            "SetLinkDefaultRoute(1, true)",
            "FlushCaches",
        ]
    );
    applied.undo().unwrap();
    assert_eq!(resolved.calls(), ["RevertLink(1)", "FlushCaches"]);
    applied.undo().unwrap();
    assert_eq!(resolved.calls(), [""; 0]);
}

#[test]
fn servers_that_it_has_forgotten_are_seen_and_so_is_another_resolver() {
    let machine = machine();
    let Some(_bus) = start_bus(&machine) else { return };
    let resolved = Resolved::start(&machine);
    let system = machine.system();
    let wanted = settings(&["10.0.0.1"], &[], &[]);
    let applied = system.apply(Method::Resolved, &link("wg0", 12), &wanted).unwrap();
    let look = || system.look(&"wg0".parse().unwrap(), applied.record().unwrap()).unwrap();
    let ours = vec![(2, vec![10, 0, 0, 1])];
    let by = |what: &str| Seen::Replaced(what.to_owned());
    let root = |link: i32| (link, ".".to_owned(), true);
    let set = |servers, domains: &[(&str, bool)], routed: Vec<_>| {
        let mut heard = resolved.heard.lock().unwrap();
        heard.servers = servers;
        heard.domains = domains.iter().map(|(name, is_routing)| ((*name).to_owned(), *is_routing)).collect();
        heard.routed = Some(routed);
    };
    for (servers, domains, seen) in [
        (ours.clone(), &[(".", true)][..], Seen::InForce),
        (vec![], &[(".", true)], by("no servers in systemd-resolved")),
        (vec![(2, vec![192, 0, 2, 1])], &[(".", true)], by("other servers in systemd-resolved")),
        (ours.clone(), &[], by("other domains in systemd-resolved")),
        (ours.clone(), &[(".", false)], by("other domains in systemd-resolved")),
    ] {
        set(servers, domains, vec![root(12)]);
        assert_eq!(look(), seen);
    }
    // The servers of others are asked too.
    for (other, part) in [(2, "asks the servers of "), (0, "its configuration too, which has Domains=~.")] {
        set(ours.clone(), &[(".", true)], vec![root(12), root(other)]);
        let Seen::Overruled(overruled) = look() else { panic!("{:?}", look()) };
        assert!(overruled.by.contains(part), "{overruled:?}");
        let foreseen = system.foresee(&"wg0".parse().unwrap(), &wanted).unwrap();
        assert!(foreseen.is_some(), "before the start");
    }
    set(ours, &[(".", true)], vec![root(12)]);
    // It has them, and programs ask others: the resolvconf of its package changes nothing in that.
    machine.program("resolvectl", "#!/bin/sh\n");
    symlink("resolvectl", machine.path("bin/resolvconf")).unwrap();
    for (target, method) in [
        (Some("../run/systemd/resolve/resolv.conf"), Method::File),
        (Some("../run/systemd/resolve/stub-resolv.conf"), Method::Resolved),
        (None, Method::File),
    ] {
        fs::remove_file(machine.resolv_conf()).unwrap();
        match target {
            Some(target) => symlink(target, machine.resolv_conf()).unwrap(),
            None => fs::write(machine.resolv_conf(), "nameserver 192.0.2.1\n").unwrap(),
        }
        assert_eq!(look() == Seen::InForce, method == Method::Resolved, "{target:?}");
        assert_eq!(system.method(Choice::Auto).unwrap(), method, "{target:?}");
        assert_eq!(system.present_method(), method, "{target:?}");
    }
    // While it does not run, names are not looked up in the tunnel. It is not started.
    fs::remove_file(machine.resolv_conf()).unwrap();
    symlink("../run/systemd/resolve/stub-resolv.conf", machine.resolv_conf()).unwrap();
    drop(resolved);
    let Seen::Overruled(overruled) = look() else { panic!("{:?}", look()) };
    assert!(overruled.by.contains("does not run"), "{overruled:?}");
}

#[test]
fn servers_of_other_links_are_asked_past_the_tunnel() {
    let machine = machine();
    let Some(_bus) = start_bus(&machine) else { return };
    let resolved = Resolved::start(&machine);
    let asked = |index, name: &str| {
        let upstream = machine.system().upstream("wg0", index, name);
        upstream.servers.iter().map(|server| server.ip().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(asked(Some(7), "vpn.example"), ["192.0.2.2", "192.0.2.1"]);
    // Without an interface, the one for every name comes first.
    assert_eq!(asked(None, "vpn.example"), ["10.0.0.1", "192.0.2.2", "192.0.2.1"]);
    assert_eq!(machine.system().upstream("wg0", Some(7), "vpn").search, ["home.example"]);
    drop(resolved);
    assert_eq!(asked(Some(7), "vpn.example"), [] as [&str; 0]);
}

#[test]
fn servers_for_some_domains_are_no_default_route() {
    let machine = machine();
    let Some(_bus) = start_bus(&machine) else { return };
    let resolved = Resolved::start(&machine);
    let wanted = settings(&["10.0.0.1"], &["a.example"], &["corp.example"]);
    machine.system().apply(Method::Resolved, &link("wg0", 7), &wanted).unwrap();
    assert_eq!(
        resolved.calls()[1..],
        [
            "SetLinkDomains(7, [(\"a.example\", false), (\"corp.example\", true)])",
            "SetLinkDefaultRoute(7, false)",
            "FlushCaches",
        ]
    );
}

#[test]
fn what_was_recorded_is_reverted_only_while_the_interface_is_the_same() {
    let machine = machine();
    let Some(_bus) = start_bus(&machine) else { return };
    let resolved = Resolved::start(&machine);
    let system = machine.system();
    let wanted = settings(&["10.0.0.1"], &[], &[]);
    let ours = system.apply(Method::Resolved, &link("lo", 1), &wanted).unwrap();
    let gone = system.apply(Method::Resolved, &link("wg0", 1), &wanted).unwrap();
    resolved.calls();
    // Number 1 is another interface's.
    system.undo_recorded(&"wg0".parse().unwrap(), gone.record().unwrap()).unwrap();
    assert_eq!(resolved.calls(), [""; 0]);
    // It does not know the interface, or systemd-networkd has taken it over, with its own settings.
    for error in ["org.freedesktop.resolve1.NoSuchLink", "org.freedesktop.resolve1.LinkBusy"] {
        resolved.fail_times("RevertLink", error, 1);
        system.undo_recorded(&"lo".parse().unwrap(), ours.record().unwrap()).unwrap();
        assert_eq!(resolved.calls()[0], "RevertLink(1)");
    }
    // It has been stopped for good.
    drop(resolved);
    system.undo_recorded(&"lo".parse().unwrap(), ours.record().unwrap()).unwrap();
}

#[test]
fn a_refusal_says_what_to_do_and_takes_back_what_was_set() {
    let machine = machine();
    let Some(_bus) = start_bus(&machine) else { return };
    let wanted = settings(&["10.0.0.1"], &[], &[]);
    for (error, code, says) in [
        ("org.freedesktop.DBus.Error.AccessDenied", exit::Code::Permission, "polkit"),
        (
            "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
            exit::Code::Permission,
            "run weft as root",
        ),
        ("org.freedesktop.resolve1.LinkBusy", exit::Code::Failure, "systemd-networkd"),
        ("org.freedesktop.resolve1.NoSuchLink", exit::Code::Failure, "no such interface"),
    ] {
        let resolved = Resolved::start(&machine);
        resolved.fail("SetLinkDomains", error);
        let refused = machine.system().apply(Method::Resolved, &link("wg0", 7), &wanted).unwrap_err();
        assert!(refused.to_string().contains(says), "{refused}");
        assert_eq!(refused.exit_code(), code, "{refused}");
        assert_eq!(resolved.calls().last().unwrap(), "RevertLink(7)");
    }
}

#[test]
fn an_interface_that_the_kernel_has_yet_to_tell_of_is_waited_for() {
    let machine = machine();
    let Some(_bus) = start_bus(&machine) else { return };
    let resolved = Resolved::start(&machine);
    resolved.fail_times("SetLinkDNS", "org.freedesktop.resolve1.NoSuchLink", 2);
    let wanted = settings(&["10.0.0.1"], &[], &[]);
    machine.system().apply(Method::Resolved, &link("wg0", 7), &wanted).unwrap();
    let calls = resolved.calls();
    assert_eq!(calls.iter().filter(|call| call.starts_with("SetLinkDNS")).count(), 3, "{calls:?}");
    assert_eq!(calls.last().unwrap(), "FlushCaches");
}

#[test]
fn an_old_systemd_without_default_routes_will_do() {
    let machine = machine();
    let Some(_bus) = start_bus(&machine) else { return };
    let resolved = Resolved::start(&machine);
    resolved.fail("SetLinkDefaultRoute", "org.freedesktop.DBus.Error.UnknownMethod");
    let wanted = settings(&["10.0.0.1"], &[], &[]);
    machine.system().apply(Method::Resolved, &link("wg0", 7), &wanted).unwrap();
    assert_eq!(resolved.calls().last().unwrap(), "FlushCaches");
}

#[test]
fn it_is_chosen_where_names_are_looked_up_through_it() {
    let machine = Machine::with_file();
    let Some(_bus) = start_bus(&machine) else { return };
    let choose = || machine.system().method(Choice::Auto).unwrap();
    let resolved = Resolved::start(&machine);
    assert_eq!(choose(), Method::File, "it runs, and is not used");
    machine.program("resolvconf", "#!/bin/sh\n");
    assert_eq!(choose(), Method::Resolvconf);

    fs::write(machine.path("etc/nsswitch.conf"), "hosts: files resolve [!UNAVAIL=return] dns\n").unwrap();
    assert_eq!(choose(), Method::Resolved);
    fs::remove_file(machine.path("etc/nsswitch.conf")).unwrap();
    fs::write(machine.resolv_conf(), "nameserver 127.0.0.53\n").unwrap();
    assert_eq!(choose(), Method::Resolved);

    // Its own resolvconf is there in Debian wherever it is installed.
    fs::write(machine.resolv_conf(), "nameserver 192.0.2.53\n").unwrap();
    fs::remove_file(machine.path("bin/resolvconf")).unwrap();
    machine.program("resolvectl", "#!/bin/sh\n");
    symlink("resolvectl", machine.path("bin/resolvconf")).unwrap();
    assert_eq!(choose(), Method::File);
    fs::write(machine.resolv_conf(), "nameserver 127.0.0.53\n").unwrap();
    assert_eq!(choose(), Method::Resolved);
    drop(resolved);
    assert_eq!(choose(), Method::File, "it does not run, so its resolvconf would fail");
}

#[test]
fn one_that_cannot_be_started_is_not_chosen() {
    let machine = machine();
    let Some(_bus) = start_bus(&machine) else { return };
    let service = "[D-BUS Service]\nName=org.freedesktop.resolve1\nExec=/bin/false\n";
    fs::write(machine.path("run/services/org.freedesktop.resolve1.service"), service).unwrap();
    assert_eq!(machine.system().method(Choice::Auto).unwrap(), Method::File);
    let error = machine.system().method(Choice::Resolved).unwrap_err().to_string();
    assert!(error.contains("see that dbus and systemd-resolved run"), "{error}");
}

#[test]
fn without_a_bus_the_error_says_so() {
    let machine = machine();
    assert_eq!(machine.system().method(Choice::Auto).unwrap(), Method::File);
    let error = machine.system().method(Choice::Resolved).unwrap_err();
    assert!(error.to_string().contains("over the system bus"), "{error}");
    assert_eq!(error.exit_code(), exit::Code::Failure);
}

#[test]
fn one_that_serves_another_network_is_not_told_of_our_interfaces() {
    let machine = machine();
    if !here::namespaces_permitted() {
        return;
    }
    let Some(_bus) = start_bus(&machine) else { return };
    let resolved = Resolved::start(&machine);
    Namespace::new("dns").unwrap().run(|| {
        assert_eq!(machine.system().method(Choice::Auto).unwrap(), Method::File);
        let wanted = settings(&["10.0.0.1"], &[], &[]);
        let error = machine.system().apply(Method::Resolved, &link("wg0", 7), &wanted).unwrap_err();
        assert!(error.to_string().contains("another network namespace"), "{error}");
    });
    assert_eq!(resolved.calls(), [""; 0]);
}

const COUNTING: &str = "WEFT_TEST_DNS_THREADS";

/// Run by the next test as another process, with few and known threads.
#[test]
fn a_process_that_counts_its_threads() {
    let Some(root) = std::env::var_os(COUNTING) else { return };
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    let system = weft_host::dns::System::new(crate::support::places(root.as_ref()));
    let wanted = settings(&["10.0.0.1"], &[], &[]);
    let _applied = system.apply(Method::Resolved, &link("wg0", 7), &wanted).unwrap();
    println!("threads {}", threads() - before);
}

#[test]
fn talking_to_it_starts_no_thread() {
    let machine = machine();
    let Some(_bus) = start_bus(&machine) else { return };
    let _resolved = Resolved::start(&machine);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "resolved::a_process_that_counts_its_threads", "--nocapture"])
        .env(COUNTING, machine.root.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("threads 0\n"), "{text}");
}
