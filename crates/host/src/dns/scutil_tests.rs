//! Tests with a program in the place of scutil that writes down its input.

use std::os::unix::fs::PermissionsExt as _;

use weft_config::exit;

use super::*;

struct Machine {
    directory: tempfile::TempDir,
    places: Places,
}

/// A machine with a scutil that writes down its input and then runs `complaint`.
fn machine(complaint: &str) -> Machine {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("bin")).unwrap();
    fs::create_dir(at("resolver")).unwrap();
    let script = format!("#!/bin/sh\ncat >>'{}'\n{complaint}\n", at("told").display());
    fs::write(at("bin/scutil"), script).unwrap();
    fs::set_permissions(at("bin/scutil"), fs::Permissions::from_mode(0o755)).unwrap();
    let places = Places { programs: vec![at("bin")], resolvers: at("resolver"), ..Places::default() };
    Machine { directory, places }
}

impl Machine {
    fn told(&self) -> String {
        let file = self.directory.path().join("told");
        let told = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(file);
        told
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.places.resolvers).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

fn settings(search: &[&str], routing: &[&str]) -> Dns {
    let domains = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect();
    let servers = ["10.9.0.1", "fd00::1"].map(|server| server.parse().unwrap()).to_vec();
    Dns { servers, search: domains(search), routing: domains(routing) }
}

const GONE: &str = "remove State:/Network/Service/weft-utun7/DNS\nquit\n";

#[test]
fn servers_without_a_routing_domain_answer_every_name() {
    let machine = machine("");
    add(&machine.places, "utun7", &settings(&["corp.example"], &[])).unwrap();
    let expected = "d.init\n\
                    d.add ServerAddresses * 10.9.0.1 fd00::1\n\
                    d.add SearchDomains * corp.example\n\
                    d.add SupplementalMatchDomains * \"\"\n\
                    set State:/Network/Service/weft-utun7/DNS\n\
                    quit\n";
    assert_eq!((machine.told().as_str(), machine.files().len()), (expected, 0));
    remove(&machine.places, "utun7").unwrap();
    assert_eq!(machine.told(), GONE);
}

#[test]
fn a_routing_domain_has_its_own_file() {
    let machine = machine("");
    add(&machine.places, "utun7", &settings(&[], &["corp.example"])).unwrap();
    let expected = "d.init\n\
                    d.add ServerAddresses * 10.9.0.1 fd00::1\n\
                    d.add SupplementalMatchDomains * corp.example\n\
                    d.add SupplementalMatchDomainsNoSearch # 1\n\
                    set State:/Network/Service/weft-utun7/DNS\n\
                    quit\n";
    assert_eq!(machine.told(), expected);
    let text = fs::read_to_string(machine.places.resolvers.join("corp.example")).unwrap();
    assert_eq!(text, "# made by weft for utun7\nnameserver 10.9.0.1\nnameserver fd00::1\n");
    // Other settings replace it.
    add(&machine.places, "utun7", &settings(&[], &["lab.example"])).unwrap();
    assert_eq!(machine.files(), ["lab.example"]);
    remove(&machine.places, "utun7").unwrap();
    assert_eq!(machine.files(), [""; 0]);
}

#[test]
fn a_file_of_someone_else_stops_it_before_anything_is_changed() {
    let machine = machine("");
    let theirs = machine.places.resolvers.join("corp.example");
    fs::write(&theirs, "nameserver 192.0.2.53\n").unwrap();
    let error = add(&machine.places, "utun7", &settings(&[], &["corp.example"])).unwrap_err();
    assert_eq!(error.exit_code(), exit::Code::Configuration);
    assert!(error.to_string().contains("corp.example exists and is not weft's"), "{error}");
    assert_eq!(machine.told(), "");
    remove(&machine.places, "utun7").unwrap();
    assert_eq!(fs::read_to_string(theirs).unwrap(), "nameserver 192.0.2.53\n");
}

#[test]
fn a_failure_half_way_takes_everything_back_and_is_told_in_one_line() {
    for complaint in ["echo '  Permission denied'", "exit 3"] {
        let machine = machine(complaint);
        let error = add(&machine.places, "utun7", &settings(&[], &["corp.example"])).unwrap_err();
        assert_eq!(error.exit_code(), exit::Code::Failure);
        let error = error.to_string();
        assert!(error.contains("scutil` ended with") && !error.contains('\n'), "{error}");
        assert!(error.ends_with("leave DNS out of the configuration"), "{error}");
        assert!(machine.told().ends_with(GONE));
        assert_eq!(machine.files(), [""; 0]);
    }
    // The store has it already when the directory turns out to be a file.
    let machine = machine("");
    fs::remove_dir(&machine.places.resolvers).unwrap();
    fs::write(&machine.places.resolvers, "").unwrap();
    let error = add(&machine.places, "utun7", &settings(&[], &["corp.example"])).unwrap_err().to_string();
    assert!(error.starts_with("cannot write "), "{error}");
    assert!(machine.told().ends_with(GONE));
}

#[test]
fn settings_that_are_gone_already_are_no_error() {
    let machine = machine("echo '  No such key'");
    remove(&machine.places, "utun7").unwrap();
}
