//! What a daemon that was killed left in /etc/resolv.conf is repaired by the next weft that starts.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use weft_config::InterfaceName;
use weft_host::dns::{Method, Record, System};

use crate::support::{BEFORE, Machine, link, places, settings};

const ROOT: &str = "WEFT_TEST_DNS_ROOT";
const INTERFACE: &str = "WEFT_TEST_DNS_INTERFACE";

/// Run by [`killed`] as another process.
#[test]
fn a_daemon_that_applies_and_waits() {
    let (Some(root), Ok(interface)) = (env::var_os(ROOT), env::var(INTERFACE)) else { return };
    let system = System::new(places(&PathBuf::from(root)));
    let wanted = settings(&["10.0.0.1"], &["corp.example"], &[]);
    let applied = system.apply(Method::File, &link(&interface, 7), &wanted).unwrap();
    println!("record {}", serde_json::to_string(applied.record().unwrap()).unwrap());
    // Until it is killed, or its parent is gone.
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Has another process apply settings for an interface, and kills it. Gives what it recorded.
pub(crate) fn killed(machine: &Machine, interface: &str) -> Record {
    let mut child = running(machine, interface);
    let output = BufReader::new(child.stdout.take().unwrap());
    let record = output.lines().map_while(Result::ok).find_map(|line| {
        let (_, record) = line.split_once("record ")?;
        Some(serde_json::from_str(record).unwrap())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    record.unwrap()
}

fn running(machine: &Machine, interface: &str) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "crash::a_daemon_that_applies_and_waits", "--nocapture"])
        .env(ROOT, machine.root.path())
        .env(INTERFACE, interface)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn name(text: &str) -> InterfaceName {
    text.parse().unwrap()
}

#[test]
fn any_later_start_repairs_the_file() {
    let machine = Machine::with_file();
    killed(&machine, "wg0");
    assert_eq!(machine.servers(), ["10.0.0.1"]);
    assert_eq!(machine.system().repair().unwrap(), ["wg0"]);
    assert_eq!(machine.text(), BEFORE);
    assert_eq!(machine.leftovers(), [""; 0]);
    assert_eq!(machine.system().repair().unwrap(), [""; 0]);
}

#[test]
fn what_was_to_become_the_file_is_removed_with_the_rest() {
    let machine = Machine::with_file();
    killed(&machine, "wg0");
    // As if it had been killed a moment before.
    std::fs::rename(machine.resolv_conf(), machine.path("etc/.resolv.conf.weft")).unwrap();
    std::fs::write(machine.resolv_conf(), BEFORE).unwrap();
    assert_eq!(machine.system().repair().unwrap(), ["wg0"]);
    assert_eq!((machine.text().as_str(), machine.leftovers()), (BEFORE, Vec::new()));
}

#[test]
fn what_was_recorded_can_be_undone_by_another_process() {
    let machine = Machine::with_file();
    let record = killed(&machine, "wg0");
    assert_eq!(record.settings, settings(&["10.0.0.1"], &["corp.example"], &[]));
    machine.system().undo_recorded(&name("wg0"), &record).unwrap();
    assert_eq!(machine.text(), BEFORE);
    machine.system().undo_recorded(&name("wg0"), &record).unwrap();
    assert_eq!(machine.text(), BEFORE);
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn a_restart_after_a_crash_knows_what_was_there_before_the_first_start() {
    let machine = Machine::with_file();
    killed(&machine, "wg0");
    let wanted = settings(&["10.0.0.2"], &[], &[]);
    let mut again = machine.system().apply(Method::File, &link("wg0", 8), &wanted).unwrap();
    assert_eq!(machine.servers(), ["10.0.0.2"]);
    again.undo().unwrap();
    assert_eq!(machine.text(), BEFORE);
}

#[test]
fn a_crash_leaves_the_settings_of_others_in_force() {
    let machine = Machine::with_file();
    let wanted = settings(&["10.1.0.1"], &[], &[]);
    let mut other = machine.system().apply(Method::File, &link("wg1", 8), &wanted).unwrap();
    killed(&machine, "wg0");
    assert_eq!(machine.servers(), ["10.0.0.1"]);
    assert_eq!(machine.system().repair().unwrap(), ["wg0"]);
    assert_eq!(machine.servers(), ["10.1.0.1"]);
    other.undo().unwrap();
    assert_eq!(machine.text(), BEFORE);
}

#[test]
fn a_start_repairs_nothing_that_a_living_daemon_applied() {
    let machine = Machine::with_file();
    let mut child = running(&machine, "wg0");
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(output.any(|line| line.contains("record ")));
    assert_eq!(machine.system().repair().unwrap(), [""; 0]);
    assert_eq!(machine.servers(), ["10.0.0.1"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_file_whose_backup_is_lost_keeps_its_servers_and_loses_its_mark_and_that_is_a_failure() {
    let lost = |machine: &Machine, undone: Result<(), String>| {
        let error = undone.unwrap_err();
        for part in ["etc/resolv.conf", "10.0.0.1"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        assert_eq!(machine.text(), "nameserver 10.0.0.1\nsearch corp.example\noptions timeout:1\n");
        assert_eq!(machine.leftovers(), [""; 0]);
    };
    let lose = |machine: &Machine| std::fs::remove_dir_all(machine.path("state")).unwrap();
    // After a crash, by any start and by the recorded undo.
    let machine = Machine::with_file();
    killed(&machine, "wg0");
    lose(&machine);
    lost(&machine, machine.system().repair().map(drop).map_err(|error| error.to_string()));
    assert_eq!(machine.system().repair().unwrap(), [""; 0], "told once");
    let machine = Machine::with_file();
    let record = killed(&machine, "wg0");
    lose(&machine);
    let undo = |machine: &Machine| machine.system().undo_recorded(&name("wg0"), &record);
    lost(&machine, undo(&machine).map_err(|error| error.to_string()));
    undo(&machine).unwrap();
}

#[test]
fn a_daemon_that_lives_makes_a_removed_backup_again() {
    let lose = |machine: &Machine| std::fs::remove_dir_all(machine.path("state")).unwrap();
    let wanted = settings(&["10.0.0.1"], &["corp.example"], &[]);
    let is_as_before = |machine: &Machine| {
        assert_eq!((machine.text().as_str(), machine.leftovers()), (BEFORE, Vec::new()));
    };
    // At its end, also if it has set its servers again meanwhile.
    for is_set_again in [false, true] {
        let machine = Machine::with_file();
        let apply = || machine.system().apply(Method::File, &link("wg0", 7), &wanted).unwrap();
        let mut applied = apply();
        lose(&machine);
        if is_set_again {
            applied = apply();
        }
        applied.undo().unwrap();
        is_as_before(&machine);
    }
    // Another program has written the file since.
    let machine = Machine::with_file();
    let apply = || machine.system().apply(Method::File, &link("wg0", 7), &wanted).unwrap();
    let mut applied = apply();
    lose(&machine);
    drop(apply());
    std::fs::write(machine.resolv_conf(), BEFORE).unwrap();
    drop(apply());
    applied.undo().unwrap();
    is_as_before(&machine);
}
