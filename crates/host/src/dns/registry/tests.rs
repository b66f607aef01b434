//! Settings in a registry in memory. Each of its calls fails once.

use weft_config::exit;

use super::simulation::{Key, Simulated, World, key};
use super::*;
use crate::fault::Fault;

const FAULTS: [Fault; 3] = [Fault::Refuses, Fault::IsUnheard, Fault::IsKilledAfter];
const US: Process = Process { id: 7, started: 70 };
const ADAPTER: &str = "{9B4C6BBE-CCB4-8647-80EE-1202F35A198A}";
const FOREIGN: &str = "{DA9B5C9B-5E6D-4B8C-9D5C-0F2B8C3A1E77}";
const LOCAL: &str = rules::TABLES[0];
const POLICY: &str = rules::TABLES[1];
const IPV4: &str = adapter::PARENTS[0];
const IPV6: &str = adapter::PARENTS[1];

fn settings(search: &[&str], routing: &[&str]) -> Dns {
    let domains = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect();
    let servers = ["10.9.0.1", "fd00::1", "10.9.0.2"].map(|server| server.parse().unwrap()).to_vec();
    Dns { servers, search: domains(search), routing: domains(routing) }
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn list(items: &[&str]) -> Value {
    Value::List(items.iter().map(|item| (*item).to_owned()).collect())
}

fn rule_for(name: &str) -> Key {
    key([
        ("Name", list(&[name])),
        ("GenericDNSServers", text("192.0.2.53")),
        ("ConfigOptions", Value::Number(8)),
    ])
}

/// A machine as it is found: with a rule of another program, and servers that someone gave to the adapter.
fn found() -> World {
    let adapter = key([("EnableDHCP", Value::Number(0)), ("NameServer", text("192.0.2.99"))]);
    [
        (LOCAL.to_owned(), key([])),
        (format!(r"{LOCAL}\{FOREIGN}"), rule_for(".theirs.example")),
        (format!(r"{IPV4}\{FOREIGN}"), key([("NameServer", text("192.0.2.1"))])),
        (format!(r"{IPV4}\{ADAPTER}"), adapter),
        (format!(r"{IPV6}\{ADAPTER}"), key([])),
        (IPV4.to_owned(), key([])),
        (IPV6.to_owned(), key([])),
    ]
    .into()
}

/// The same with a table of Group Policy, which Windows reads in the place of the other.
fn found_with_policy() -> World {
    let mut world = found();
    world.insert(POLICY.to_owned(), key([]));
    world.insert(format!(r"{POLICY}\{FOREIGN}"), rule_for(".office.example"));
    world
}

fn machines() -> [World; 2] {
    [found(), found_with_policy()]
}

fn add_to(machine: &Simulated, wanted: &Dns) -> Result<(), DnsError> {
    add(machine.process(None), "wg0", US, wanted)
}

/// The values of the adapter for a family, servers first.
fn adapter_of(world: &World, parent: &str) -> [Option<Value>; 2] {
    let key = &world[&format!(r"{parent}\{ADAPTER}")];
    ["NameServer", "SearchList"].map(|name| key.values.get(name).cloned())
}

/// The names and servers of weft's rules in a table, in their order.
fn rules_of(world: &World, table: &str) -> Vec<(Value, Value)> {
    let rules = world.iter().filter(|(path, key)| path.starts_with(table) && key.values.contains_key(OWNER));
    rules.map(|(_, rule)| (rule.values["Name"].clone(), rule.values["GenericDNSServers"].clone())).collect()
}

#[test]
fn servers_without_a_routing_domain_answer_every_name() {
    let machine = Simulated::new(found());
    add_to(&machine, &settings(&["corp.example", "lab.example"], &[])).unwrap();
    let world = machine.world();
    let search = Some(text("corp.example,lab.example"));
    assert_eq!(adapter_of(&world, IPV4), [Some(text("10.9.0.1,10.9.0.2")), search.clone()]);
    assert_eq!(adapter_of(&world, IPV6), [Some(text("fd00::1")), search]);
    assert_eq!(rules_of(&world, LOCAL), [(list(&["."]), text("10.9.0.1; fd00::1; 10.9.0.2"))]);
    assert!(!world.contains_key(POLICY), "it would take the other table out of force");
    assert_eq!(machine.announced(), Some((world, false)));
    remove(machine.process(None), "wg0").unwrap();
    assert_eq!(machine.world(), found());
    assert_eq!(machine.announced(), Some((found(), false)));
}

#[test]
fn servers_with_a_routing_domain_are_not_those_of_the_adapter() {
    let machine = Simulated::new(found());
    add_to(&machine, &settings(&["lab.example"], &["corp.example", "lab.example"])).unwrap();
    let world = machine.world();
    let search = Some(text("lab.example"));
    assert_eq!(adapter_of(&world, IPV4), [Some(text("192.0.2.99")), search.clone()]);
    assert_eq!(adapter_of(&world, IPV6), [None, search]);
    let names = list(&[".corp.example", ".lab.example"]);
    assert_eq!(rules_of(&world, LOCAL), [(names, text("10.9.0.1; fd00::1; 10.9.0.2"))]);
    // The root among the routing domains means every name.
    add_to(&machine, &settings(&[], &["corp.example", "."])).unwrap();
    assert_eq!(rules_of(&machine.world(), LOCAL)[0].0, list(&["."]));
}

#[test]
fn a_rule_is_as_windows_reads_it_and_says_whose_it_is() {
    let machine = Simulated::new(found());
    add_to(&machine, &settings(&[], &["corp.example"])).unwrap();
    let world = machine.world();
    let rule = world.values().find(|key| key.values.contains_key("DisplayName")).unwrap();
    for (name, value) in [
        ("Version", Value::Number(1)),
        ("ConfigOptions", Value::Number(8)),
        ("DisplayName", text("weft wg0")),
        (OWNER, text("wg0 7 70")),
    ] {
        assert_eq!(rule.values[name], value, "{name}");
    }
    // A half of a rule is not in force.
    let calls = machine.calls();
    let last = calls.iter().rposition(|call| call.starts_with("set ") && call.contains("DnsPolicyConfig"));
    assert!(calls[last.unwrap()].starts_with("set ConfigOptions"), "{calls:?}");
}

#[test]
fn settings_without_servers_are_a_search_list_only() {
    let machine = Simulated::new(found());
    let wanted = Dns { servers: Vec::new(), ..settings(&["corp.example"], &["lab.example"]) };
    add_to(&machine, &wanted).unwrap();
    let world = machine.world();
    assert_eq!(adapter_of(&world, IPV4), [Some(text("192.0.2.99")), Some(text("corp.example"))]);
    assert!(rules_of(&world, LOCAL).is_empty());
}

#[test]
fn other_settings_take_the_place_of_earlier_ones() {
    for before in machines() {
        let many: Vec<String> = (0..120).map(|number| format!("d{number}.example")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let machine = Simulated::new(before.clone());
        add_to(&machine, &settings(&["a.example"], &[])).unwrap();
        add_to(&machine, &settings(&["c.example"], &[])).unwrap();
        add_to(&machine, &settings(&[], &many)).unwrap();
        let world = machine.world();
        let lengths = rules_of(&world, LOCAL).into_iter().map(|(names, _)| match names {
            Value::List(names) => names.len(),
            _ => 0,
        });
        assert_eq!(lengths.collect::<Vec<_>>(), [50, 50, 20], "as many as Windows takes");
        assert_eq!(adapter_of(&world, IPV4), adapter_of(&before, IPV4));
        add_to(&machine, &settings(&["b.example"], &[])).unwrap();
        assert_eq!(rules_of(&machine.world(), LOCAL).len(), 1);
        assert_eq!(adapter_of(&machine.world(), IPV6), [Some(text("fd00::1")), Some(text("b.example"))]);
        remove(machine.process(None), "wg0").unwrap();
        assert_eq!(machine.world(), before);
    }
}

#[test]
fn where_group_policy_has_a_table_the_rules_are_in_it_too() {
    let machine = Simulated::new(found_with_policy());
    add_to(&machine, &settings(&[], &["corp.example"])).unwrap();
    let world = machine.world();
    assert_eq!(rules_of(&world, POLICY), rules_of(&world, LOCAL));
    assert_eq!(rules_of(&world, POLICY).len(), 1);
    assert_eq!(machine.announced(), Some((world, true)));
    remove(machine.process(None), "wg0").unwrap();
    assert_eq!(machine.world(), found_with_policy());
}

#[test]
fn a_table_that_is_missing_is_made_and_stays() {
    let mut before = found();
    before.retain(|path, _| !path.starts_with(LOCAL));
    before.insert(LOCAL.rsplit_once('\\').unwrap().0.to_owned(), key([]));
    let machine = Simulated::new(before.clone());
    add_to(&machine, &settings(&[], &["corp.example"])).unwrap();
    assert_eq!(rules_of(&machine.world(), LOCAL).len(), 1);
    remove(machine.process(None), "wg0").unwrap();
    before.insert(LOCAL.to_owned(), key([]));
    assert_eq!(machine.world(), before);
}

#[test]
fn a_rule_is_found_whichever_way_its_guid_is_written() {
    let machine = Simulated::new(found());
    add_to(&machine, &settings(&[], &["corp.example"])).unwrap();
    let in_lower_case = |path: String| match path.rsplit_once('\\') {
        Some((LOCAL, rule)) if rule != FOREIGN => format!(r"{LOCAL}\{}", rule.to_lowercase()),
        _ => path,
    };
    let world = machine.world().into_iter().map(|(path, key)| (in_lower_case(path), key)).collect();
    machine.world.replace(world);
    remove(machine.process(None), "wg0").unwrap();
    assert_eq!(machine.world(), found());
}

#[test]
fn no_rule_is_left_when_the_machine_restarts() {
    let machine = Simulated::new(found());
    add_to(&machine, &settings(&["a.example"], &[])).unwrap();
    machine.restart();
    assert!(rules_of(&machine.world(), LOCAL).is_empty());
    remove(machine.process(None), "wg0").unwrap();
    assert_eq!(machine.world(), found());
}

#[test]
fn a_call_that_goes_wrong_changes_nothing_or_is_undone_by_another_process() {
    for (before, fault) in machines().into_iter().flat_map(|world| FAULTS.map(|fault| (world.clone(), fault)))
    {
        for (first, wanted) in [
            (None, settings(&["a.example"], &[])),
            (None, settings(&["a.example"], &["b.example"])),
            (Some(settings(&["a.example"], &[])), settings(&[], &["b.example"])),
        ] {
            let start = || {
                let machine = Simulated::new(before.clone());
                if let Some(first) = &first {
                    add_to(&machine, first).unwrap();
                }
                machine
            };
            let machine = start();
            add_to(&machine, &wanted).unwrap();
            let (calls, done) = (machine.calls(), machine.world());
            assert!(calls.len() > 15, "{calls:?}");
            for (number, call) in calls.iter().enumerate() {
                let machine = start();
                let added = add(machine.process(Some((number, fault))), "wg0", US, &wanted);
                let after = machine.world();
                let is_about_others =
                    call.starts_with("read Name of") || call.starts_with("read SearchList of HKLM");
                match added {
                    // The DNS client looks by itself.
                    Ok(()) if call == "announce" => assert_eq!(after, done, "{call}"),
                    // Whether a rule is another's is not known.
                    Ok(()) => assert!(is_about_others || call.starts_with("read SearchList"), "{call}"),
                    Err(_) if fault == Fault::IsKilledAfter => {
                        remove(machine.process(None), "wg0").unwrap();
                        assert_eq!(machine.world(), before, "{call}");
                    }
                    // Reading failed, so that nothing is changed; otherwise, nothing is left.
                    Err(_) if call.starts_with("read") || call.starts_with("list") => {
                        assert_eq!(after, start().world(), "{call}");
                    }
                    Err(_) => assert_eq!(after, before, "{call}"),
                }
            }
        }
    }
}

#[test]
fn an_undo_of_which_a_call_goes_wrong_is_completed_by_the_next() {
    for (before, fault) in machines().into_iter().flat_map(|world| FAULTS.map(|fault| (world.clone(), fault)))
    {
        let start = || {
            let machine = Simulated::new(before.clone());
            add_to(&machine, &settings(&["a.example"], &[])).unwrap();
            machine
        };
        let machine = start();
        remove(machine.process(None), "wg0").unwrap();
        for (number, call) in machine.calls().iter().enumerate() {
            let machine = start();
            let removed = remove(machine.process(Some((number, fault))), "wg0");
            if removed.is_ok() {
                assert_eq!(call, "announce");
                assert_eq!(machine.world(), before);
            }
            remove(machine.process(None), "wg0").unwrap();
            assert_eq!(machine.world(), before, "{call}");
        }
    }
}

#[test]
fn an_undo_that_fails_at_one_place_goes_on_with_the_others() {
    let machine = Simulated::new(found());
    add_to(&machine, &settings(&["a.example"], &[])).unwrap();
    remove(machine.process(None), "wg0").unwrap();
    let first = machine.calls().iter().position(|call| call.starts_with("remove HKLM")).unwrap();
    add_to(&machine, &settings(&["a.example"], &[])).unwrap();
    let error = remove(machine.process(Some((first, Fault::Refuses))), "wg0").unwrap_err();
    assert_eq!(error.exit_code(), exit::Code::Permission);
    assert!(error.to_string().ends_with("run weft as an administrator"), "{error}");
    assert_eq!(adapter_of(&machine.world(), IPV4), adapter_of(&found(), IPV4));
    assert_eq!(rules_of(&machine.world(), LOCAL).len(), 1);
}

#[test]
fn what_was_never_done_is_not_undone() {
    let machine = Simulated::new(found());
    remove(machine.process(None), "wg0").unwrap();
    assert_eq!(machine.world(), found());
    assert_eq!(machine.announced(), None);
    // The adapter has gone with its process, and the rules are still there.
    add_to(&machine, &settings(&["a.example"], &[])).unwrap();
    machine.world.borrow_mut().retain(|path, _| !path.ends_with(ADAPTER));
    remove(machine.process(None), "wg0").unwrap();
    assert!(rules_of(&machine.world(), LOCAL).is_empty());
    assert!(machine.world().contains_key(&format!(r"{LOCAL}\{FOREIGN}")));
}

#[test]
fn a_rule_of_someone_else_for_a_domain_stops_it_before_anything_is_changed() {
    for (before, domain) in machines().into_iter().zip(["theirs.example", "office.example"]) {
        let machine = Simulated::new(before.clone());
        let error = add_to(&machine, &settings(&[], &["corp.example", domain])).unwrap_err();
        assert_eq!(error.exit_code(), exit::Code::Configuration);
        let expected = format!("the NRPT rule {FOREIGN} is for {domain} and not this interface's");
        assert!(error.to_string().starts_with(&expected), "{error}");
        assert_eq!(machine.world(), before);
        // The rules in the other table are not in force.
        let unread = if domain == "office.example" { "theirs.example" } else { "office.example" };
        add_to(&machine, &settings(&[], &[unread])).unwrap();
    }
}

#[test]
fn two_interfaces_may_both_answer_every_name_and_keep_their_rules() {
    let machine = Simulated::new(found());
    add_to(&machine, &settings(&[], &[])).unwrap();
    add(&machine, "wg1", US, &Dns { search: Vec::new(), ..settings(&[], &["corp.example"]) }).unwrap();
    assert_eq!(rules_of(&machine.world(), LOCAL).len(), 2);
    remove(machine.process(None), "wg1").unwrap();
    let world = machine.world();
    assert_eq!(rules_of(&world, LOCAL).len(), 1);
    assert_eq!(rules_of(&world, LOCAL)[0].0, list(&["."]));
}

#[test]
fn an_interface_without_an_adapter_is_an_error_that_names_it() {
    let mut before = found();
    before.retain(|path, _| !path.ends_with(ADAPTER));
    let machine = Simulated::new(before.clone());
    let error = add_to(&machine, &settings(&[], &[])).unwrap_err().to_string();
    assert!(error.contains("no settings of wg0") && error.contains(ADAPTER), "{error}");
    assert_eq!(machine.world(), before);
    // One family is enough.
    before.insert(format!(r"{IPV4}\{ADAPTER}"), key([]));
    let machine = Simulated::new(before);
    add_to(&machine, &settings(&[], &[])).unwrap();
    assert_eq!(adapter_of(&machine.world(), IPV4)[0], Some(text("10.9.0.1,10.9.0.2")));
}

#[test]
fn what_a_process_left_that_has_ended_is_repaired_and_what_runs_is_not() {
    let machine = Simulated::new(found());
    add_to(&machine, &settings(&["a.example"], &[])).unwrap();
    let done = machine.world();
    assert!(repair(machine.process(None), |process| process == US).unwrap().is_empty());
    assert_eq!(machine.world(), done);
    assert_eq!(repair(machine.process(None), |_| false).unwrap(), ["wg0"]);
    assert_eq!(machine.world(), found());
    // After a restart of the machine the adapter alone has something left.
    add_to(&machine, &settings(&["a.example"], &[])).unwrap();
    machine.restart();
    assert_eq!(repair(machine.process(None), |_| false).unwrap(), ["wg0"]);
    assert_eq!(machine.world(), found());
    assert!(repair(machine.process(None), |_| false).unwrap().is_empty());
}
