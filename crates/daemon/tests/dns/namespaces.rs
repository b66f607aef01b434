//! The same path is another file in another mount namespace, as `ip netns exec` has it: each file has its
//! own state below one directory, whatever becomes of the others.
//!
//! ```text
//!   the host             etc/resolv.conf          BEFORE
//!   a mount namespace    etc/resolv.conf  ──mount── run/inside      INSIDE
//! ```

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::mpsc;

use nix::mount::{MntFlags, umount2};
use weft_config::exit;
use weft_host::dns::{Applied, Choice, Method, Seen};
use weft_lab::{Namespace, here};

use crate::crash::killed;
use crate::support::{BEFORE, Machine, bind, link, settings, with_own_mounts};

const INSIDE: &str = "nameserver 192.0.2.54\n";

/// A machine with both files.
fn machine() -> Machine {
    let machine = Machine::with_file();
    fs::write(machine.path("run/inside"), INSIDE).unwrap();
    machine
}

fn inside(machine: &Machine) -> String {
    fs::read_to_string(machine.path("run/inside")).unwrap()
}

fn apply(machine: &Machine, name: &str, index: u32, server: &str) -> Applied {
    machine.system().apply(Method::File, &link(name, index), &settings(&[server], &[], &[])).unwrap()
}

/// Does `work` in a mount namespace with its own file; `None` if that is not permitted.
fn in_namespace<T: Send>(machine: &Machine, work: impl FnOnce() -> T + Send) -> Option<T> {
    let mut done = None;
    with_own_mounts(|| {
        bind(&machine.path("run/inside"), &machine.resolv_conf());
        done = Some(work());
    });
    done
}

#[test]
fn each_file_has_its_own_servers_and_gets_back_its_own_content_in_any_order() {
    for (host_first, host_ends_first) in [(true, true), (true, false), (false, true), (false, false)] {
        let machine = machine();
        let up_inside = || in_namespace(&machine, || apply(&machine, "wg1", 8, "10.8.0.53"));
        let (mut host, mut other) = if host_first {
            let host = apply(&machine, "wg0", 7, "10.9.0.53");
            let Some(other) = up_inside() else { return };
            (host, other)
        } else {
            let Some(other) = up_inside() else { return };
            (apply(&machine, "wg0", 7, "10.9.0.53"), other)
        };
        assert_eq!(machine.servers(), ["10.9.0.53"]);
        assert!(inside(&machine).ends_with("\nnameserver 10.8.0.53\n"), "{}", inside(&machine));
        // The mount namespace is gone by now, and the daemon that started there still has its file.
        if host_ends_first {
            host.undo().unwrap();
            assert!(inside(&machine).contains("10.8.0.53") && machine.text() == BEFORE);
            other.undo().unwrap();
        } else {
            other.undo().unwrap();
            assert!(inside(&machine) == INSIDE && machine.text().contains("10.9.0.53"));
            host.undo().unwrap();
        }
        assert_eq!((machine.text().as_str(), inside(&machine).as_str()), (BEFORE, INSIDE));
        assert_eq!(machine.leftovers(), [""; 0]);
    }
}

#[test]
fn a_crash_on_one_side_is_repaired_there_alone() {
    let machine = machine();
    let repair = || machine.system().repair().unwrap();
    let Some(()) = in_namespace(&machine, || drop(killed(&machine, "wg1"))) else { return };
    killed(&machine, "wg0");
    assert!(inside(&machine).contains("10.0.0.1") && machine.text().contains("10.0.0.1"));
    assert_eq!(repair(), ["wg0"]);
    assert_eq!(machine.text(), BEFORE);
    assert!(inside(&machine).contains("10.0.0.1"), "it is not the host's");
    assert_eq!(in_namespace(&machine, repair), Some(vec!["wg1".to_owned()]));
    assert_eq!((machine.text().as_str(), inside(&machine).as_str()), (BEFORE, INSIDE));
    assert_eq!(machine.leftovers(), [""; 0]);
}

/// Does `work` while a mount namespace has its own file; gives what is read there before and afterwards.
fn beside_namespace(machine: &Machine, work: impl FnOnce()) -> Option<[String; 2]> {
    let ((is_ready, ready), (go, went)) = (mpsc::channel(), mpsc::channel());
    std::thread::scope(move |scope| {
        let seen = scope.spawn(move || {
            in_namespace(machine, move || {
                let before = machine.text();
                is_ready.send(()).unwrap();
                went.recv().unwrap();
                [before, machine.text()]
            })
        });
        // Dropped if `work` fails: else the other thread would wait for ever.
        let go = go;
        if ready.recv().is_ok() {
            work();
            go.send(()).unwrap();
        }
        seen.join().unwrap()
    })
}

#[test]
fn what_the_host_does_leaves_the_mounts_over_its_file_alone() {
    let machine = machine();
    let seen = beside_namespace(&machine, || {
        let mut host = apply(&machine, "wg0", 7, "10.9.0.53");
        assert_eq!(machine.servers(), ["10.9.0.53"]);
        host.undo().unwrap();
        assert_eq!(machine.text(), BEFORE);
    });
    assert!(seen.is_none_or(|seen| seen == [INSIDE, INSIDE]));
}

/// A file is mounted over /etc/resolv.conf beside a tunnel, and unmounted before or after its end.
#[test]
fn a_mount_that_comes_or_goes_beside_a_tunnel_is_followed_and_both_files_come_back() {
    for (is_mounted_first, ends_first) in [(false, false), (false, true), (true, false), (true, true)] {
        let machine = machine();
        let mount = || bind(&machine.path("run/inside"), &machine.resolv_conf());
        // The daemon has the file open, and that is not in the way.
        let unmount = || umount2(&machine.resolv_conf(), MntFlags::empty()).unwrap();
        let (system, interface) = (machine.system(), "wg1".parse().unwrap());
        with_own_mounts(|| {
            let wanted = settings(&["10.8.0.53"], &[], &[]);
            if is_mounted_first {
                mount();
            }
            let mut applied = system.apply(Method::File, &link("wg1", 8), &wanted).unwrap();
            // As the daemon does once a second.
            let set_again = || {
                let look = || system.look(&interface, applied.record().unwrap()).unwrap();
                if look() != Seen::InForce {
                    system.apply(Method::File, &link("wg1", 8), &wanted).unwrap();
                }
                assert_eq!((look(), machine.servers()), (Seen::InForce, vec!["10.8.0.53".to_owned()]));
            };
            if is_mounted_first {
                unmount();
            } else {
                mount();
            }
            set_again();
            match (is_mounted_first, ends_first) {
                (true, true) => applied.undo().unwrap(),
                (true, false) => {
                    mount();
                    set_again();
                    let error = applied.undo().unwrap_err().to_string();
                    assert!(error.contains("mounted over it"), "{error}");
                    assert_eq!(machine.text(), INSIDE);
                    unmount();
                    applied.undo().unwrap();
                }
                (false, true) => {
                    let error = applied.undo().unwrap_err().to_string();
                    assert!(error.contains("mounted over it"), "{error}");
                    assert_eq!(machine.text(), INSIDE);
                    unmount();
                    // By another process, as `weft down`.
                    machine.system().undo_recorded(&interface, applied.record().unwrap()).unwrap();
                }
                (false, false) => {
                    unmount();
                    set_again();
                    applied.undo().unwrap();
                }
            }
        });
        assert_eq!((machine.text().as_str(), inside(&machine).as_str()), (BEFORE, INSIDE));
        assert_eq!(machine.leftovers(), [""; 0]);
    }
}

#[test]
fn a_mount_over_the_target_of_the_hosts_link_is_written_and_the_link_stays() {
    let machine = machine();
    fs::rename(machine.resolv_conf(), machine.path("run/host")).unwrap();
    symlink("../run/host", machine.resolv_conf()).unwrap();
    in_namespace(&machine, || {
        let mut applied = apply(&machine, "wg1", 8, "10.8.0.53");
        assert_eq!(machine.servers(), ["10.8.0.53"]);
        assert!(fs::symlink_metadata(machine.resolv_conf()).unwrap().is_symlink());
        applied.undo().unwrap();
    });
    assert_eq!((machine.text().as_str(), inside(&machine).as_str()), (BEFORE, INSIDE));
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn a_copy_of_a_file_of_wefts_does_not_take_the_state_of_the_first() {
    let machine = machine();
    let mut host = apply(&machine, "wg0", 7, "10.9.0.53");
    fs::copy(machine.resolv_conf(), machine.path("run/inside")).unwrap();
    in_namespace(&machine, || {
        // What the copy replaced is not known.
        let error = machine.system().repair().unwrap_err().to_string();
        assert!(error.contains("10.9.0.53"), "{error}");
        apply(&machine, "wg1", 8, "10.8.0.53").undo().unwrap();
    });
    host.undo().unwrap();
    assert_eq!(machine.text(), BEFORE);
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn a_state_is_found_again_when_the_device_has_another_number() {
    let machine = Machine::with_file();
    killed(&machine, "wg0");
    // As after a restart of the machine.
    let (backup, text) = (machine.backup(), machine.text());
    let state = backup.parent().unwrap();
    let inode = state.to_str().unwrap().rsplit_once('-').unwrap().1;
    let old = machine.path("state").join(format!("in-0:99999-{inode}"));
    fs::rename(state, &old).unwrap();
    fs::write(machine.resolv_conf(), text.replace(state.to_str().unwrap(), old.to_str().unwrap())).unwrap();
    assert_eq!(machine.system().repair().unwrap(), ["wg0"]);
    assert_eq!(machine.text(), BEFORE);
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn a_network_namespace_without_its_own_file_leaves_that_of_the_host_alone() {
    if !here::namespaces_permitted() {
        return;
    }
    let machine = Machine::with_file();
    machine.program("resolvconf", "#!/bin/sh\ncat > \"${0%/*}/../called\"\n");
    killed(&machine, "wg0");
    let before = machine.text();
    let namespace = Namespace::new("without").unwrap();
    namespace.run(|| {
        let system = machine.system();
        // resolvconf has one state for all.
        assert_eq!(system.method(Choice::Auto).unwrap(), Method::File);
        let error = system.apply(Method::File, &link("wg1", 8), &settings(&["10.8.0.53"], &[], &[]));
        let error = error.unwrap_err();
        assert_eq!(error.exit_code(), exit::Code::Configuration);
        assert!(error.to_string().contains("/etc/netns/NAME/resolv.conf"), "{error}");
        assert_eq!(system.repair().unwrap(), [""; 0]);
    });
    assert_eq!(machine.text(), before);
    assert!(!machine.path("called").exists());
    assert_eq!(machine.system().repair().unwrap(), ["wg0"]);
    // With a separate file it has name servers.
    fs::write(machine.path("run/inside"), INSIDE).unwrap();
    namespace.run(|| {
        in_namespace(&machine, || {
            let system = machine.system();
            assert_eq!(system.method(Choice::Auto).unwrap(), Method::File);
            let wanted = settings(&["10.8.0.53"], &[], &[]);
            let mut applied = system.apply(Method::File, &link("wg1", 8), &wanted).unwrap();
            // As where another program replaces the host's file. The daemon has its file open.
            umount2(&machine.resolv_conf(), MntFlags::MNT_DETACH).unwrap();
            system.apply(Method::File, &link("wg1", 8), &wanted).unwrap();
            assert!(inside(&machine).contains("10.8.0.53") && machine.text() == BEFORE);
            applied.undo().unwrap();
        });
    });
    assert_eq!((machine.text().as_str(), inside(&machine).as_str()), (BEFORE, INSIDE));
}
