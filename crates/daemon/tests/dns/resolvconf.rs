//! A resolvconf that writes down how it is called.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use weft_config::exit;
use weft_host::dns::{Choice, Method, Seen};

use crate::support::{BEFORE, Machine, Resolvconf, link, settings};

/// One that is called as Debian's, or says that it is openresolv. It has no entries.
fn recording(machine: &Machine, version: &str) {
    let log = machine.path("log");
    let script = format!(
        "#!/bin/sh\ncase $1 in --version) echo '{version}'; exit;; -l) exit;; esac\n\
         {{ echo \"resolvconf $*\"; cat; }} >> '{}'\n",
        log.display()
    );
    machine.program("resolvconf", &script);
}

fn log(machine: &Machine) -> String {
    let log = fs::read_to_string(machine.path("log")).unwrap_or_default();
    let _ = fs::remove_file(machine.path("log"));
    log
}

#[test]
fn it_gets_the_lines_of_the_interface_as_wg_quick_gives_them() {
    let machine = Machine::with_file();
    recording(&machine, "openresolv 3.13.2");
    let system = machine.system();
    assert_eq!(system.method(Choice::Auto).unwrap(), Method::Resolvconf);
    let wanted = settings(&["10.0.0.1", "fd00::1"], &["a.example", "b.example"], &[]);
    let mut applied = system.apply(Method::Resolvconf, &link("wg0", 7), &wanted).unwrap();
    assert_eq!(
        log(&machine),
        "resolvconf -a wg0 -m 0 -x\nnameserver 10.0.0.1\nnameserver fd00::1\nsearch a.example b.example\n"
    );
    applied.undo().unwrap();
    assert_eq!(log(&machine), "resolvconf -d wg0 -f\n");
    applied.undo().unwrap();
    assert_eq!(log(&machine), "");
}

#[test]
fn debians_sorts_the_interface_among_the_tunnels() {
    let machine = Machine::with_file();
    recording(&machine, "");
    fs::write(machine.path("etc/interface-order"), "lo.inet\nlo.*\ntun*\ntap*\n").unwrap();
    let system = machine.system();
    let wanted = settings(&["10.0.0.1"], &[], &[]);
    let applied = system.apply(Method::Resolvconf, &link("wg0", 7), &wanted).unwrap();
    assert_eq!(log(&machine), "resolvconf -a tun.wg0 -m 0 -x\nnameserver 10.0.0.1\n");
    // By another process, from what was recorded.
    system.undo_recorded(&"wg0".parse().unwrap(), applied.record().unwrap()).unwrap();
    assert_eq!(log(&machine), "resolvconf -d tun.wg0 -f\n");
}

#[test]
fn debians_is_used_only_where_it_writes_what_programs_read() {
    let link_to = |target: &str| Some(target.to_owned());
    for (debian, version, target, enabled, method) in [
        (true, "", link_to("../run/resolvconf/resolv.conf"), true, Method::Resolvconf),
        // By way of /etc/resolvconf/run, as older ones.
        (true, "", link_to("resolvconf/run/resolv.conf"), true, Method::Resolvconf),
        // A plain file, as dhclient without a hook, cloud-init and people leave.
        (true, "", None, true, Method::File),
        (true, "", link_to("../run/NetworkManager/resolv.conf"), true, Method::File),
        (true, "", link_to("../run/resolvconf/resolv.conf"), false, Method::File),
        // What Debian's has left, and openresolv in its place.
        (true, "openresolv 3.12.0", None, false, Method::Resolvconf),
        (false, "openresolv 3.12.0", None, false, Method::Resolvconf),
    ] {
        let machine = Machine::new();
        recording(&machine, version);
        let places = machine.places();
        fs::create_dir_all(&places.resolvconf).unwrap();
        fs::create_dir(machine.path("etc/resolvconf")).unwrap();
        symlink(&places.resolvconf, machine.path("etc/resolvconf/run")).unwrap();
        if debian {
            fs::write(&places.interface_order, "tun*\n").unwrap();
        }
        if enabled {
            fs::write(places.resolvconf.join("enable-updates"), "").unwrap();
        }
        match &target {
            Some(target) => symlink(target, machine.resolv_conf()).unwrap(),
            None => fs::write(machine.resolv_conf(), BEFORE).unwrap(),
        }
        let system = machine.system();
        assert_eq!(system.method(Choice::Auto).unwrap(), method, "{version} {target:?} {enabled}");
        assert_eq!(system.present_method(), method);
    }
}

#[test]
fn search_domains_alone_take_no_servers_away() {
    let machine = Machine::with_file();
    recording(&machine, "openresolv 3.13.2");
    let wanted = settings(&[], &["a.example"], &[]);
    machine.system().apply(Method::Resolvconf, &link("wg0", 7), &wanted).unwrap();
    assert_eq!(log(&machine), "resolvconf -a wg0 -m 0\nsearch a.example\n");
}

#[test]
fn servers_for_some_domains_only_are_private_to_openresolv_and_too_much_for_debians() {
    let machine = Machine::with_file();
    recording(&machine, "openresolv 3.13.2");
    let wanted = settings(&["10.0.0.1"], &["a.example"], &["corp.example"]);
    machine.system().apply(Method::Resolvconf, &link("wg0", 7), &wanted).unwrap();
    assert_eq!(
        log(&machine),
        "resolvconf -a wg0 -m 0 -p\nnameserver 10.0.0.1\nsearch a.example corp.example\n"
    );
    recording(&machine, "resolvconf 1.91");
    let error = machine.system().apply(Method::Resolvconf, &link("wg0", 7), &wanted).unwrap_err();
    assert!(error.to_string().contains("corp.example only"), "{error}");
    assert_eq!(error.exit_code(), exit::Code::Configuration);
    assert_eq!(log(&machine), "");
}

#[test]
fn what_it_says_when_it_fails_is_told() {
    let machine = Machine::with_file();
    machine.program("resolvconf", "#!/bin/sh\necho 'No such interface order' >&2\nexit 3\n");
    let wanted = settings(&["10.0.0.1"], &[], &[]);
    let error = machine.system().apply(Method::Resolvconf, &link("wg0", 7), &wanted).unwrap_err();
    assert_eq!(error.exit_code(), exit::Code::Failure);
    let text = error.to_string();
    for part in ["resolvconf -a wg0 -m 0 -x", "exit status: 3", "No such interface order", "leave DNS out"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn what_it_stored_before_it_failed_is_taken_away() {
    let machine = Machine::with_file();
    let stored = machine.path("stored");
    let script = format!(
        "#!/bin/sh\ncase $1 in\n-a) cat > '{0}'; echo 'a subscriber failed' >&2; exit 1;;\n-d) rm -f '{0}';;\nesac\n",
        stored.display()
    );
    machine.program("resolvconf", &script);
    let wanted = settings(&["10.0.0.1"], &[], &[]);
    let error = machine.system().apply(Method::Resolvconf, &link("wg0", 7), &wanted).unwrap_err();
    assert!(error.to_string().contains("a subscriber failed"), "{error}");
    assert!(!stored.exists(), "no later process would remove it");
}

#[test]
fn daemons_that_it_starts_are_not_waited_for() {
    let machine = Machine::with_file();
    let pid = machine.path("pid");
    machine.program("resolvconf", &format!("#!/bin/sh\nsleep 600 &\necho $! > '{}'\n", pid.display()));
    let wanted = settings(&["10.0.0.1"], &[], &[]);
    let begun = Instant::now();
    let applied = machine.system().apply(Method::Resolvconf, &link("wg0", 7), &wanted);
    let lasted = begun.elapsed();
    let pid: i32 = fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    applied.unwrap();
    assert!(lasted < Duration::from_secs(300), "{lasted:?}");
}

#[test]
fn a_missing_program_is_named_with_where_it_was_searched() {
    let machine = Machine::with_file();
    let system = machine.system();
    assert_eq!(system.method(Choice::Auto).unwrap(), Method::File);
    // Not a program.
    fs::write(machine.path("bin/resolvconf"), "").unwrap();
    assert_eq!(system.method(Choice::Auto).unwrap(), Method::File);
    let error = system.method(Choice::Resolvconf).unwrap_err().to_string();
    assert!(error.contains(machine.path("bin").to_str().unwrap()), "{error}");
    assert!(error.contains("install openresolv"), "{error}");
}

/// What another program does to an interface that has name servers.
enum Deed {
    /// It runs resolvconf, with this input.
    Runs(&'static str, &'static str),
    /// It writes the file.
    Writes(&'static str),
    /// It removes the state of resolvconf.
    Wipes,
}

#[test]
fn what_others_do_to_the_entry_or_the_file_is_seen_and_undone_or_told() {
    const THEIRS: &str = "nameserver 192.0.2.1\n";
    use Deed::{Runs, Wipes, Writes};
    for kind in [Resolvconf::Openresolv, Resolvconf::Debian] {
        let (is_open, by_file, beside) = match kind {
            Resolvconf::Openresolv => (true, "a0, which is exclusive", None),
            Resolvconf::Debian => (false, "192.0.2.1 of a0 first", Some("lists 192.0.2.1 too")),
        };
        // `None`: it makes no difference.
        for (deed, replaced, overruled) in [
            (Runs("-a zz -m 0", THEIRS), None, beside),
            (Runs("-d tun.wg0 -f", ""), Some("no entry tun.wg0"), None),
            (Runs("-a tun.wg0 -m 0 -x", THEIRS), Some("no entry tun.wg0"), None),
            (Wipes, Some("no entry tun.wg0"), None),
            (
                Writes("# Generated by NetworkManager\nnameserver 192.0.2.1\n"),
                Some("by NetworkManager"),
                None,
            ),
            (Writes(""), Some("a file that begins with ``"), None),
            // A local resolver that it feeds.
            (Writes("nameserver 127.0.0.1\n"), None, None),
            (Runs("-a a0 -m 0 -x", THEIRS), None, Some(by_file)),
        ] {
            let machine = Machine::with_file();
            let places = machine.places();
            kind.install(&machine, &places.resolvconf, &places.resolv_conf);
            fs::write(&places.interface_order, "tun*\n").unwrap();
            let system = machine.system();
            let wanted = settings(&["10.0.0.1"], &[], &[]);
            let interface = "wg0".parse().unwrap();
            let apply = || system.apply(Method::Resolvconf, &link("wg0", 7), &wanted).unwrap();
            let applied = apply();
            let look = || system.look(&interface, applied.record().unwrap()).unwrap();
            assert_eq!(look(), Seen::InForce, "{kind:?}");
            match deed {
                Runs(words, input) => {
                    let mut child = Command::new(machine.path("bin/resolvconf"))
                        .args(words.split(' '))
                        .stdin(Stdio::piped())
                        .spawn()
                        .unwrap();
                    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
                    assert!(child.wait().unwrap().success());
                }
                Writes(text) => fs::write(&places.resolv_conf, text).unwrap(),
                Wipes => fs::remove_dir_all(&places.resolvconf).unwrap(),
            }
            match (look(), replaced, overruled) {
                (Seen::InForce, None, None) => {}
                (Seen::Replaced(by), Some(part), None) => {
                    assert!(by.contains(part), "{by}");
                    apply();
                    assert_eq!(look(), Seen::InForce, "{kind:?}: {by}");
                }
                (Seen::Overruled(overruled), None, Some(part)) => {
                    assert!(overruled.by.contains(part), "{overruled:?}");
                    apply();
                    assert_eq!(look() == Seen::InForce, is_open, "{overruled:?}");
                }
                (seen, ..) => panic!("{kind:?}: {seen:?}, not {replaced:?} {overruled:?}"),
            }
        }
    }
}

#[test]
fn servers_of_other_interfaces_are_asked_past_the_tunnel() {
    let machine = Machine::new();
    fs::write(machine.resolv_conf(), "nameserver 10.0.0.1\n").unwrap();
    // Both kinds list in this way.
    machine.program(
        "resolvconf",
        "#!/bin/sh\n[ \"$1\" = -l ] && printf '# resolv.conf from %s\\nnameserver %s\\nsearch %s\\n' \
         tun.wg0 10.0.0.1 corp.example eth0.dhclient 192.0.2.1 home.example\n",
    );
    fs::write(machine.path("etc/interface-order"), "lo.*\ntun*\n").unwrap();
    let upstream = machine.system().upstream("wg0", None, "vpn.example");
    assert_eq!(upstream.servers, ["192.0.2.1:53".parse().unwrap()]);
    assert_eq!(upstream.search, ["home.example"]);
    // One that has nothing of others: the file is all there is.
    machine.program("resolvconf", "#!/bin/sh\nexit 1\n");
    let upstream = machine.system().upstream("wg0", None, "vpn.example");
    assert_eq!(upstream.servers, ["10.0.0.1:53".parse().unwrap()]);
}

#[test]
fn what_a_resolvconf_wrote_that_was_removed_itself_is_taken_back_or_told() {
    for kind in [Resolvconf::Openresolv, Resolvconf::Debian] {
        for others in ["nameserver 192.0.2.1\nsearch home.example\n", ""] {
            let machine = Machine::with_file();
            let places = machine.places();
            kind.install(&machine, &places.resolvconf, &places.resolv_conf);
            fs::write(&places.interface_order, "lo.*\ntun*\n").unwrap();
            if !others.is_empty() {
                fs::create_dir_all(places.resolvconf.join("interface")).unwrap();
                fs::write(places.resolvconf.join("interface/zz"), others).unwrap();
            }
            let system = machine.system();
            let wanted = settings(&["10.0.0.1"], &[], &[]);
            let applied = system.apply(Method::Resolvconf, &link("wg0", 7), &wanted).unwrap();
            assert!(machine.servers().contains(&"10.0.0.1".to_owned()), "{kind:?}");
            fs::remove_file(machine.path("bin/resolvconf")).unwrap();
            // By the next start, or `weft down`.
            let undo = || system.undo_recorded(&"wg0".parse().unwrap(), applied.record().unwrap());
            let undone = undo().map_err(|error| error.to_string());
            assert!(!places.resolvconf.join("interface/tun.wg0").exists());
            if others.is_empty() {
                let error = undone.unwrap_err();
                let file = places.resolv_conf.display().to_string();
                for part in [&*file, "resolvconf, which was removed", "10.0.0.1"] {
                    assert!(error.contains(part), "{part} in {error}");
                }
            } else {
                undone.unwrap();
                assert_eq!(machine.text(), others, "{kind:?}");
            }
            // Another program has written the file.
            fs::write(machine.resolv_conf(), BEFORE).unwrap();
            undo().unwrap();
            assert_eq!(machine.text(), BEFORE);
        }
    }
}
