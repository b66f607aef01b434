//! The file /etc/resolv.conf, in the shapes that it has on machines and in containers.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::time::{Duration, Instant};

use weft_config::exit;
use weft_host::dns::{Choice, Method, Seen};

use crate::crash::killed;
use crate::support::{BEFORE, Machine, bind, link, read_only, settings, with_own_mounts};

#[test]
fn settings_stand_in_the_file_and_go_without_a_trace() {
    let machine = Machine::with_file();
    fs::set_permissions(machine.resolv_conf(), fs::Permissions::from_mode(0o640)).unwrap();
    // Without effect for another user than root, who cannot give files away.
    let _ = std::os::unix::fs::chown(machine.resolv_conf(), Some(65_534), Some(65_533));
    let before = fs::metadata(machine.resolv_conf()).unwrap();
    let same = || {
        let now = fs::metadata(machine.resolv_conf()).unwrap();
        (now.mode(), now.uid(), now.gid()) == (before.mode(), before.uid(), before.gid())
    };

    let system = machine.system();
    assert_eq!(system.method(Choice::Auto).unwrap(), Method::File);
    let wanted = settings(&["10.0.0.1", "fd00::1"], &["corp.example"], &[]);
    let mut applied = system.apply(Method::File, &link("wg0", 7), &wanted).unwrap();
    let text = machine.text();
    assert!(text.starts_with("# Written by weft for wg0."), "{text}");
    assert!(
        text.ends_with("\nnameserver 10.0.0.1\nnameserver fd00::1\nsearch corp.example\noptions timeout:1\n"),
        "{text}"
    );
    assert!(same());
    // The comment says where to find what was there.
    assert!(machine.backup().starts_with(machine.path("state")), "{text}");
    assert_eq!(fs::read_to_string(machine.backup()).unwrap(), BEFORE);

    applied.undo().unwrap();
    assert_eq!(machine.text(), BEFORE);
    assert!(same());
    assert_eq!(machine.leftovers(), [""; 0]);
    applied.undo().unwrap();
    assert_eq!(machine.text(), BEFORE);
}

#[test]
fn two_interfaces_stack_and_either_may_go_first() {
    for first_goes_first in [true, false] {
        let machine = Machine::with_file();
        let apply = |name: &str, index, server: &str| {
            let settings = settings(&[server], &[], &[]);
            machine.system().apply(Method::File, &link(name, index), &settings).unwrap()
        };
        let mut wg0 = apply("wg0", 7, "10.0.0.1");
        let mut wg1 = apply("wg1", 8, "10.1.0.1");
        assert_eq!(machine.servers(), ["10.1.0.1"]);
        assert!(machine.text().contains("for wg1, wg0."));
        if first_goes_first {
            wg0.undo().unwrap();
            assert_eq!(machine.servers(), ["10.1.0.1"]);
            wg1.undo().unwrap();
        } else {
            wg1.undo().unwrap();
            assert_eq!(machine.servers(), ["10.0.0.1"]);
            wg0.undo().unwrap();
        }
        assert_eq!(machine.text(), BEFORE);
        assert_eq!(machine.leftovers(), [""; 0]);
    }
}

#[test]
fn a_reload_changes_the_settings_in_place() {
    let machine = Machine::with_file();
    let system = machine.system();
    let wg0 = link("wg0", 7);
    let mut applied = system.apply(Method::File, &wg0, &settings(&["10.0.0.1"], &[], &[])).unwrap();
    let _wg1 = system.apply(Method::File, &link("wg1", 8), &settings(&[], &["one.example"], &[])).unwrap();
    applied.change(Method::File, &wg0, &settings(&["10.0.0.2"], &[], &[])).unwrap();
    assert_eq!(machine.servers(), ["10.0.0.2"]);
    assert!(machine.text().contains("for wg1, wg0."), "the order stays");
    // What cannot be done leaves what there was.
    applied.change(Method::File, &wg0, &settings(&["10.0.0.3"], &[], &["corp.example"])).unwrap_err();
    assert_eq!(machine.servers(), ["10.0.0.2"]);
    assert_eq!(applied.record().unwrap().settings, settings(&["10.0.0.2"], &[], &[]));
    applied.change(Method::File, &wg0, &settings(&[], &[], &[])).unwrap();
    assert!(applied.record().is_none());
    assert_eq!(machine.servers(), ["192.0.2.53"]);
}

#[test]
fn a_link_is_replaced_and_comes_back_and_where_it_leads_is_left_alone() {
    for dangles in [false, true] {
        let machine = Machine::new();
        let target = machine.path("run/resolv.conf");
        if !dangles {
            fs::write(&target, BEFORE).unwrap();
        }
        symlink("../run/resolv.conf", machine.resolv_conf()).unwrap();
        let system = machine.system();
        let mut applied =
            system.apply(Method::File, &link("wg0", 7), &settings(&["10.0.0.1"], &[], &[])).unwrap();
        assert!(fs::symlink_metadata(machine.resolv_conf()).unwrap().is_file());
        assert_eq!(machine.servers(), ["10.0.0.1"]);
        assert_eq!(machine.text().contains("options timeout:1"), !dangles);
        applied.undo().unwrap();
        assert_eq!(fs::read_link(machine.resolv_conf()).unwrap().to_str(), Some("../run/resolv.conf"));
        assert_eq!(fs::read_to_string(&target).ok().as_deref(), (!dangles).then_some(BEFORE));
        assert_eq!(machine.leftovers(), [""; 0]);
    }
}

#[test]
fn where_there_was_no_file_there_is_none_afterwards() {
    let machine = Machine::new();
    let system = machine.system();
    let mut applied =
        system.apply(Method::File, &link("wg0", 7), &settings(&["10.0.0.1"], &[], &[])).unwrap();
    assert_eq!(machine.servers(), ["10.0.0.1"]);
    assert_eq!(fs::metadata(machine.resolv_conf()).unwrap().mode() & 0o777, 0o644);
    applied.undo().unwrap();
    assert!(!machine.resolv_conf().exists());
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn a_file_that_another_program_wrote_meanwhile_is_kept() {
    let machine = Machine::with_file();
    let system = machine.system();
    let mut wg0 = system.apply(Method::File, &link("wg0", 7), &settings(&["10.0.0.1"], &[], &[])).unwrap();
    let newer = "nameserver 198.51.100.53\n";
    fs::write(machine.resolv_conf(), newer).unwrap();
    // Another interface comes and goes.
    let mut wg1 = system.apply(Method::File, &link("wg1", 8), &settings(&["10.1.0.1"], &[], &[])).unwrap();
    assert_eq!(machine.servers(), ["10.1.0.1"]);
    wg1.undo().unwrap();
    assert_eq!(machine.servers(), ["10.0.0.1"]);
    wg0.undo().unwrap();
    assert_eq!(machine.text(), newer);

    let mut wg0 = system.apply(Method::File, &link("wg0", 7), &settings(&["10.0.0.1"], &[], &[])).unwrap();
    fs::write(machine.resolv_conf(), BEFORE).unwrap();
    wg0.undo().unwrap();
    assert_eq!(machine.text(), BEFORE);
    assert_eq!(machine.leftovers(), [""; 0]);
}

/// What another program or a person does to the text that weft wrote.
type Edit = fn(&str) -> Option<String>;
const EDITS: [(&str, Edit); 10] = [
    ("a server before it", |text| Some(format!("nameserver 192.0.2.4\n{text}"))),
    ("an option before it", |text| Some(format!("options edns0\n{text}"))),
    ("an empty line and a comment before it", |text| Some(format!("\n# by hand\n{text}"))),
    ("a server after it", |text| Some(format!("{text}nameserver 192.0.2.4\n"))),
    ("another server in place of weft's", |text| Some(text.replace("10.0.0.1", "192.0.2.4"))),
    ("no comments", |text| Some(without_comments(text))),
    ("no comments, and a server before it", |text| {
        Some(format!("nameserver 192.0.2.4\n{}", without_comments(text).replace(' ', "\t")))
    }),
    ("nothing in it", |_| Some(String::new())),
    ("an empty line only", |_| Some("\n".to_owned())),
    ("no file", |_| None),
];

fn without_comments(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with('#')).fold(String::new(), |all, line| all + line + "\n")
}

fn edit(machine: &Machine, edit: Edit) {
    match edit(&machine.text()) {
        Some(text) => fs::write(machine.resolv_conf(), text).unwrap(),
        None => fs::remove_file(machine.resolv_conf()).unwrap(),
    }
}

#[test]
fn what_weft_wrote_is_not_kept_as_content_of_another_that_edited_it() {
    let wanted = settings(&["10.0.0.1"], &["corp.example"], &[]);
    for (what, deed) in EDITS {
        for is_set_again in [false, true] {
            let machine = Machine::with_file();
            let apply = || machine.system().apply(Method::File, &link("wg0", 7), &wanted).unwrap();
            let mut applied = apply();
            edit(&machine, deed);
            assert_eq!(beneath(&machine, "wg0")[..], ["192.0.2.53"], "{what}");
            if is_set_again {
                applied = apply();
                assert_eq!(machine.servers(), ["10.0.0.1"], "{what}");
            }
            let start = Instant::now();
            applied.undo().unwrap();
            // Another program may be about to write it.
            let is_waited_for = what == "nothing in it" && !is_set_again;
            assert!(!is_waited_for || start.elapsed() >= Duration::from_millis(500));
            assert_eq!(machine.text(), BEFORE, "{what}, set again: {is_set_again}");
            assert_eq!(machine.leftovers(), [""; 0], "{what}");
        }
        // After a crash.
        let machine = Machine::with_file();
        killed(&machine, "wg0");
        edit(&machine, deed);
        assert_eq!(machine.system().repair().unwrap(), ["wg0"]);
        assert_eq!((machine.text().as_str(), machine.leftovers()), (BEFORE, Vec::new()), "{what}, killed");
    }
}

#[test]
fn a_directory_in_place_of_the_file_is_told_and_the_file_comes_back_after_it() {
    let machine = Machine::with_file();
    let wanted = settings(&["10.0.0.1"], &[], &[]);
    let mut applied = machine.system().apply(Method::File, &link("wg0", 7), &wanted).unwrap();
    fs::remove_file(machine.resolv_conf()).unwrap();
    fs::create_dir(machine.resolv_conf()).unwrap();
    let error = applied.undo().unwrap_err().to_string();
    assert!(error.contains("a directory is in its place"), "{error}");
    fs::remove_dir(machine.resolv_conf()).unwrap();
    applied.undo().unwrap();
    assert_eq!((machine.text().as_str(), machine.leftovers()), (BEFORE, Vec::new()));
}

#[test]
fn what_others_do_to_the_file_is_seen() {
    type Deed = fn(&Machine);
    let cases: [(&str, Deed, Option<&str>); 6] = [
        ("nothing", |_| {}, None),
        (
            "replaces it",
            |machine| {
                fs::write(machine.path("run/new"), "\n# Generated by NetworkManager\nnameserver 192.0.2.1\n")
                    .unwrap();
                fs::rename(machine.path("run/new"), machine.resolv_conf()).unwrap();
            },
            Some("a file that begins with `# Generated by NetworkManager`"),
        ),
        (
            "puts a link in its place",
            |machine| {
                fs::remove_file(machine.resolv_conf()).unwrap();
                symlink("/run/NetworkManager/resolv.conf", machine.resolv_conf()).unwrap();
            },
            Some("a link to /run/NetworkManager/resolv.conf"),
        ),
        ("removes it", |machine| fs::remove_file(machine.resolv_conf()).unwrap(), Some("nothing")),
        (
            "edits it",
            |machine| fs::write(machine.resolv_conf(), machine.text() + "nameserver 192.0.2.1\n").unwrap(),
            Some("a file that begins with `# Written by weft for wg0. Changes made here are lost.`"),
        ),
        // A daemon of weft, which is no other program.
        (
            "adds servers",
            |machine| {
                let wanted = settings(&["10.1.0.1"], &[], &[]);
                machine.system().apply(Method::File, &link("wg1", 8), &wanted).unwrap();
            },
            None,
        ),
    ];
    for (deed, work, replaced) in cases {
        let machine = Machine::with_file();
        let (system, wg0) = (machine.system(), "wg0".parse().unwrap());
        let wanted = settings(&["10.0.0.1"], &[], &[]);
        let applied = system.apply(Method::File, &link("wg0", 7), &wanted).unwrap();
        work(&machine);
        let seen = system.look(&wg0, applied.record().unwrap()).unwrap();
        let expected = replaced.map_or(Seen::InForce, |by| Seen::Replaced(by.to_owned()));
        assert_eq!(seen, expected, "another program {deed}");
    }
}

#[test]
fn a_file_that_is_a_mount_is_written_in_place() {
    let machine = Machine::with_file();
    with_own_mounts(|| {
        let outside = machine.path("run/resolv.conf");
        let longer = format!("{BEFORE}# {}\n", "x".repeat(1000));
        fs::write(&outside, &longer).unwrap();
        bind(&outside, &machine.resolv_conf());
        let system = machine.system();
        let mut applied =
            system.apply(Method::File, &link("wg0", 7), &settings(&["10.0.0.1"], &[], &[])).unwrap();
        assert_eq!(machine.servers(), ["10.0.0.1"]);
        assert!(fs::read_to_string(&outside).unwrap().contains("nameserver 10.0.0.1"), "the same file");
        applied.undo().unwrap();
        assert_eq!(fs::read_to_string(&outside).unwrap(), longer);
        assert_eq!(machine.leftovers(), [""; 0]);
    });
}

#[test]
fn a_read_only_directory_is_named_and_nothing_is_left() {
    let machine = Machine::with_file();
    with_own_mounts(|| {
        bind(&machine.path("etc"), &machine.path("etc"));
        read_only(&machine.path("etc"));
        let system = machine.system();
        let wanted = settings(&["10.0.0.1"], &[], &[]);
        let error = system.apply(Method::File, &link("wg0", 7), &wanted).unwrap_err();
        let text = error.to_string();
        for part in ["etc/resolv.conf", "Read-only file system", "ReadWritePaths="] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(error.exit_code(), exit::Code::Failure);
        assert_eq!(machine.text(), BEFORE);
        assert_eq!(machine.leftovers(), [""; 0]);
    });
}

#[test]
fn only_the_file_may_be_writable() {
    let machine = Machine::with_file();
    with_own_mounts(|| {
        // As systemd's ProtectSystem=strict with ReadWritePaths=/etc/resolv.conf has it.
        bind(&machine.path("etc"), &machine.path("etc"));
        bind(&machine.resolv_conf(), &machine.resolv_conf());
        read_only(&machine.path("etc"));
        let system = machine.system();
        let mut applied =
            system.apply(Method::File, &link("wg0", 7), &settings(&["10.0.0.1"], &[], &[])).unwrap();
        assert_eq!(machine.servers(), ["10.0.0.1"]);
        applied.undo().unwrap();
        assert_eq!(machine.text(), BEFORE);
    });
}

#[test]
fn servers_for_some_domains_only_are_more_than_a_file_can_say() {
    let machine = Machine::with_file();
    let wanted = settings(&["10.0.0.1"], &[], &["corp.example"]);
    let error = machine.system().apply(Method::File, &link("wg0", 7), &wanted).unwrap_err();
    assert!(error.to_string().contains("corp.example only; use systemd-resolved"), "{error}");
    assert_eq!(error.exit_code(), exit::Code::Configuration);
    assert_eq!(machine.text(), BEFORE);
    // For every name it can.
    let wanted = settings(&["10.0.0.1"], &[], &["."]);
    machine.system().apply(Method::File, &link("wg0", 7), &wanted).unwrap();
    assert_eq!(machine.servers(), ["10.0.0.1"]);
}

#[test]
fn a_former_content_that_is_gone_is_told_at_the_end_and_not_taken_for_no_file() {
    for gone in [&["resolv.conf.before"][..], &["resolv.conf.before", "layers.json"]] {
        let machine = Machine::with_file();
        // A daemon that lives makes it again.
        let record = killed(&machine, "wg0");
        for file in gone {
            fs::remove_file(machine.backup().with_file_name(file)).unwrap();
        }
        let undone = machine.system().undo_recorded(&"wg0".parse().unwrap(), &record);
        let error = undone.unwrap_err().to_string();
        assert!(error.contains("10.0.0.1"), "without {gone:?}: {error}");
        assert_eq!((machine.servers(), machine.leftovers()), (vec!["10.0.0.1".to_owned()], Vec::new()));
    }
}

#[test]
fn a_damaged_state_is_named_and_nothing_is_touched() {
    let machine = Machine::with_file();
    let wanted = settings(&["10.0.0.1"], &[], &[]);
    machine.system().apply(Method::File, &link("wg0", 7), &wanted).unwrap();
    let (layers, before) = (machine.backup().with_file_name("layers.json"), machine.text());
    fs::write(&layers, "{").unwrap();
    let error = machine.system().apply(Method::File, &link("wg1", 8), &wanted).unwrap_err();
    assert!(error.to_string().contains(layers.to_str().unwrap()), "{error}");
    assert_eq!(machine.text(), before);
}

/// The servers without those of an interface.
fn beneath(machine: &Machine, interface: &str) -> Vec<String> {
    let upstream = machine.system().upstream(interface, None, "vpn.example");
    upstream.servers.iter().map(|server| server.ip().to_string()).collect()
}

#[test]
fn what_is_beneath_an_interface_is_what_was_there_before_it_or_what_others_wrote_since() {
    let machine = Machine::with_file();
    let set = |name: &str, server: &str| {
        machine.system().apply(Method::File, &link(name, 7), &settings(&[server], &[], &[])).unwrap()
    };
    assert_eq!(beneath(&machine, "wg0"), ["192.0.2.53"]);
    let mut lower = set("wg0", "10.0.0.1");
    let mut upper = set("wg1", "10.1.0.1");
    assert_eq!(machine.servers(), ["10.1.0.1"]);
    assert_eq!(beneath(&machine, "wg0"), ["192.0.2.53"]);
    assert_eq!(beneath(&machine, "wg1"), ["10.0.0.1", "192.0.2.53"]);
    assert_eq!(beneath(&machine, "wg2"), ["10.1.0.1", "10.0.0.1", "192.0.2.53"]);
    let upstream = machine.system().upstream("wg0", None, "vpn.example");
    assert_eq!((upstream.search, upstream.timeout.unwrap().as_secs()), (vec!["home.example".to_owned()], 1));
    // DHCP on another network.
    fs::write(machine.resolv_conf(), "nameserver 198.51.100.1\n").unwrap();
    assert_eq!(beneath(&machine, "wg0"), ["198.51.100.1"]);
    fs::remove_file(machine.resolv_conf()).unwrap();
    assert_eq!(beneath(&machine, "wg0"), ["192.0.2.53"], "what comes back");
    upper.undo().unwrap();
    lower.undo().unwrap();
}

#[test]
fn beneath_a_link_is_the_file_that_it_leads_to() {
    let machine = Machine::new();
    fs::write(machine.path("run/resolv.conf"), "nameserver 192.0.2.1\n").unwrap();
    std::os::unix::fs::symlink("../run/resolv.conf", machine.resolv_conf()).unwrap();
    let wanted = settings(&["10.0.0.1"], &[], &[]);
    let mut applied = machine.system().apply(Method::File, &link("wg0", 7), &wanted).unwrap();
    assert_eq!(machine.servers(), ["10.0.0.1"]);
    // Its owner has other servers by now.
    fs::write(machine.path("run/resolv.conf"), "nameserver 192.0.2.2\n").unwrap();
    assert_eq!(beneath(&machine, "wg0"), ["192.0.2.2"]);
    applied.undo().unwrap();
}

#[test]
fn behind_a_resolver_of_network_manager_are_its_servers() {
    let machine = Machine::new();
    fs::write(machine.resolv_conf(), "nameserver 127.0.1.1\n").unwrap();
    assert_eq!(beneath(&machine, "wg0"), ["127.0.1.1"]);
    fs::write(machine.path("run/no-stub-resolv.conf"), "nameserver 192.0.2.3\n").unwrap();
    assert_eq!(beneath(&machine, "wg0"), ["192.0.2.3"]);
}
