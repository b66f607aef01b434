//! The calls of the system, for an interface that no one has.

use super::super::{adapter, add, remove, repair, rules};
use super::*;
use crate::platform::Process;

const INTERFACE: &str = "weft-test-dns";

fn values(key: &str, names: &[&str]) -> Vec<Option<Value>> {
    names.iter().map(|name| System.value(key, name).unwrap()).collect()
}

#[test]
#[ignore = "changes the registry of this machine; scripts/test-wine runs it"]
fn settings_are_in_the_registry_and_are_removed_from_it() {
    let [local, policy] = rules::TABLES;
    let has_policy = System.keys(policy).unwrap().is_some();
    let adapter = format!(r"{}\{}", adapter::PARENTS[0], adapter::guid_of_adapter(INTERFACE));
    // Windows has it, and Wine does not.
    HKLM.create_subkey(local.rsplit_once('\\').unwrap().0).unwrap();
    let had = System.keys(local).unwrap().unwrap_or_default();
    HKLM.create_subkey(&adapter).unwrap();
    System
        .make(&ValueChange::Set {
            key: adapter.clone(),
            name: "NameServer",
            value: Value::Text("192.0.2.99".to_owned()),
        })
        .unwrap();
    let settings = weft_config::Dns {
        servers: vec!["10.9.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        search: vec!["corp.example".parse().unwrap()],
        routing: Vec::new(),
    };
    let expect = |rules: usize, server: &str, search: Option<&str>| {
        let found = values(&adapter, &["NameServer", "SearchList"]);
        let wanted = [Some(server), search].map(|text| text.map(|text| Value::Text(text.to_owned())));
        assert_eq!(found, wanted);
        assert_eq!(System.keys(local).unwrap().unwrap_or_default().len(), had.len() + rules);
        assert_eq!(System.keys(policy).unwrap().is_some(), has_policy);
    };
    for _ in 0..2 {
        add(&System, INTERFACE, Process::this(), &settings).unwrap();
        expect(1, "10.9.0.1", Some("corp.example"));
    }
    let rule = System.keys(local).unwrap().unwrap().into_iter().find(|rule| !had.contains(rule)).unwrap();
    assert_eq!(
        values(&format!(r"{local}\{rule}"), &["Name", "GenericDNSServers", "ConfigOptions", "none"]),
        [
            Some(Value::List(vec![".".to_owned()])),
            Some(Value::Text("10.9.0.1; fd00::1".to_owned())),
            Some(Value::Number(8)),
            None
        ]
    );
    assert!(repair(&System, |process| process.is_alive()).unwrap().is_empty(), "this process runs");
    expect(1, "10.9.0.1", Some("corp.example"));
    for _ in 0..2 {
        remove(&System, INTERFACE).unwrap();
        expect(0, "192.0.2.99", None);
    }
    assert_eq!(values(&adapter, &["WeftFormerNameServer", "WeftOwner"]), [None, None]);
    add(&System, INTERFACE, Process { started: 1, ..Process::this() }, &settings).unwrap();
    assert_eq!(repair(&System, |process| process.is_alive()).unwrap(), [INTERFACE]);
    expect(0, "192.0.2.99", None);
    HKLM.delete_subkey(&adapter).unwrap();
}

#[test]
fn a_key_whose_parent_is_missing_is_not_made() {
    let change = ValueChange::Create { key: r"SOFTWARE\weft-test-none\below".to_owned(), lasts: false };
    assert_eq!(System.make(&change).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(System.keys(r"SOFTWARE\weft-test-none").unwrap(), None);
}
