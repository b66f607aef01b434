use std::collections::BTreeSet;

use weft_config::exit;

use super::super::{FullTunnel, KillSwitch, Local, OwnPackets};
use super::evaluation::{DATAGRAM, ETHERNET, Packet, SYN, TUNNEL, WEFT};
use super::filters::{Condition, Layer};
use super::simulation::{Simulated, World};
use super::*;
use crate::fault::Fault;

const FAULTS: [Fault; 4] = [Fault::Refuses, Fault::IsUnheard, Fault::IsKilledBefore, Fault::IsKilledAfter];

fn wg0() -> InterfaceName {
    "wg0".parse().unwrap()
}

fn closed() -> Rules {
    let kill_switch = Some(KillSwitch { own: OwnPackets::Program, local: Local::Blocked });
    Rules { kill_switch, ..Rules::none(wg0()) }
}

fn but_local() -> Rules {
    let local = Local::Allowed { dns: BTreeSet::from(["192.168.1.1".parse().unwrap()]) };
    Rules { kill_switch: Some(KillSwitch { own: OwnPackets::Program, local }), ..closed() }
}

/// A machine as it is found: with the adapter, and a filter of another program.
fn found() -> World {
    let other = Filter {
        what: "of another program",
        layer: Layer::ConnectV4,
        weight: 15,
        is_permit: false,
        conditions: vec![Condition::Program(b"game.exe".to_vec())],
    };
    World {
        filters: [(7, (77, other))].into(),
        adapters: [(guid_of("adapter", "wg0"), TUNNEL)].into(),
        program: WEFT.to_vec(),
        ..World::default()
    }
}

fn machine() -> Simulated {
    Simulated::new(found())
}

fn closed_machine() -> Simulated {
    let machine = machine();
    apply(&machine.process(None), &closed()).unwrap();
    machine.watch();
    machine
}

/// How many calls an action makes when nothing goes wrong.
fn calls_of(
    machine: &Simulated,
    action: impl Fn(&&Simulated) -> Result<(), FirewallError>,
) -> Vec<&'static str> {
    action(&machine.process(None)).unwrap();
    machine.calls()
}

#[test]
fn a_kill_switch_is_in_force_and_undoing_it_leaves_the_engine_as_it_was_found() {
    let machine = machine();
    apply(&machine.process(None), &closed()).unwrap();
    assert!(machine.world().is_closed());
    assert!(machine.world().passes(Packet { on: TUNNEL, ..SYN }));
    let own = present(&machine.process(None), &wg0()).unwrap();
    assert_eq!((own.tables[0].to_string(), own.blocked), ("inet weft-wg0".to_owned(), Some(0)));
    for _ in 0..2 {
        remove(&machine.process(None), &wg0()).unwrap();
        assert_eq!(machine.world(), found());
        assert!(present(&machine.process(None), &wg0()).unwrap().is_empty());
    }
    assert!(!machine.has_transaction());
}

#[test]
fn a_start_in_which_any_call_goes_wrong_changes_nothing() {
    let calls = calls_of(&machine(), |engine| apply(engine, &closed()));
    assert_eq!((calls[0], *calls.last().unwrap()), ("begin", "commit"));
    for (number, fault) in (0..calls.len()).flat_map(|number| FAULTS.map(|fault| (number, fault))) {
        let machine = machine();
        apply(&machine.process(Some((number, fault))), &closed()).unwrap_err();
        let is_done = number + 1 == calls.len() && matches!(fault, Fault::IsUnheard | Fault::IsKilledAfter);
        assert_eq!(machine.world().is_closed(), is_done, "{} {fault:?}", calls[number]);
        if !is_done {
            assert_eq!(machine.world(), found(), "{} {fault:?}", calls[number]);
        }
        // The begin that was not heard is taken back too.
        assert!(!machine.has_transaction() || (number, fault) == (0, Fault::IsUnheard));
        remove(&machine.process(None), &wg0()).unwrap();
        assert_eq!(machine.world(), found());
    }
}

#[test]
fn a_change_in_which_any_call_goes_wrong_leaves_no_gap() {
    let calls = calls_of(&closed_machine(), |engine| apply(engine, &but_local()));
    for (number, fault) in (0..=calls.len()).flat_map(|number| FAULTS.map(|fault| (number, fault))) {
        let machine = closed_machine();
        let before = machine.world();
        let applied = apply(&machine.process(Some((number, fault))), &but_local());
        assert_eq!(applied.is_ok(), number == calls.len());
        if fault == Fault::Refuses && applied.is_err() {
            assert_eq!(machine.world(), before);
        }
        apply(&machine.process(None), &but_local()).unwrap();
        assert!(machine.was_closed(), "{number} {fault:?}");
        assert!(machine.world().passes(Packet { remote: ("192.168.1.1", 53), ..DATAGRAM }));
        remove(&machine.process(None), &wg0()).unwrap();
        assert_eq!(machine.world(), found());
    }
}

#[test]
fn a_removal_in_which_any_call_goes_wrong_is_completed_by_the_next() {
    let calls = calls_of(&closed_machine(), |engine| remove(engine, &wg0()));
    for (number, fault) in (0..calls.len()).flat_map(|number| FAULTS.map(|fault| (number, fault))) {
        let machine = closed_machine();
        let before = machine.world();
        remove(&machine.process(Some((number, fault))), &wg0()).unwrap_err();
        let after = machine.world();
        assert!(after == before || after == found(), "all or nothing: {} {fault:?}", calls[number]);
        remove(&machine.process(None), &wg0()).unwrap();
        assert_eq!(machine.world(), found());
    }
}

#[test]
fn a_daemon_that_crashed_leaves_the_kill_switch_which_the_next_replaces_without_a_gap() {
    let machine = closed_machine();
    // The adapter ends with the process. What goes to its LUID is let pass, and leads nowhere.
    machine.world.borrow_mut().adapters.clear();
    assert!(machine.world().is_closed());
    // A start that fails restores it, without an adapter.
    apply(&machine.process(None), &closed()).unwrap();
    assert!(!machine.world().passes(Packet { on: TUNNEL, ..SYN }), "another adapter may get its LUID");
    // The next start has another LUID, and the program of an update another path.
    machine.world.borrow_mut().adapters.insert(guid_of("adapter", "wg0"), ETHERNET + 1);
    machine.process(None);
    machine.watch();
    apply(&machine.process(None), &closed()).unwrap();
    assert!(machine.was_closed());
    assert!(machine.world().passes(Packet { on: ETHERNET + 1, ..SYN }));
    remove(&machine.process(None), &wg0()).unwrap();
    assert!(machine.world().passes(SYN));
}

#[test]
fn what_stays_is_not_touched() {
    let machine = closed_machine();
    apply(&machine.process(None), &closed()).unwrap();
    let calls = machine.calls();
    assert!(!calls.iter().any(|call| call.starts_with("add") || call.starts_with("delete")), "{calls:?}");
    machine.world.borrow_mut().program = b"elsewhere\\weft.exe".to_vec();
    apply(&machine.process(None), &closed()).unwrap();
    let calls = machine.calls();
    let count = |call| calls.iter().filter(|other| **other == call).count();
    assert_eq!((count("add_filter"), count("delete_filter")), (4, 4), "the tunnel's own packets");
    assert!(!machine.world().passes(Packet { program: WEFT, ..DATAGRAM }), "the program of before");
}

#[test]
fn a_kill_switch_of_which_filters_are_gone_is_not_present_and_is_completed() {
    let machine = closed_machine();
    let block = Filter::of_the_rest().next().unwrap().key(&wg0());
    machine.world.borrow_mut().filters.remove(&block).unwrap();
    let own = present(&machine.process(None), &wg0()).unwrap();
    assert_eq!((own.tables.len(), own.blocked), (1, None));
    assert!(!machine.world().is_closed());
    apply(&machine.process(None), &closed()).unwrap();
    assert!(machine.world().is_closed());
}

#[test]
fn a_check_changes_nothing() {
    for machine in [machine(), closed_machine()] {
        let before = machine.world();
        check(&machine.process(None), &but_local()).unwrap();
        assert_eq!(machine.world(), before);
        assert!(machine.calls().contains(&"add_filter") && !machine.has_transaction());
        let number = machine.calls().iter().position(|call| *call == "add_filter").unwrap();
        let error = check(&machine.process(Some((number, Fault::Refuses))), &but_local()).unwrap_err();
        assert!(error.to_string().starts_with("cannot check the firewall rules of wg0 ("), "{error}");
        assert_eq!(machine.world(), before);
    }
}

#[test]
fn two_interfaces_do_not_touch_each_other() {
    let machine = machine();
    let other = Rules { interface: "wg01".parse().unwrap(), ..but_local() };
    apply(&machine.process(None), &other).unwrap();
    let alone = machine.world();
    apply(&machine.process(None), &closed()).unwrap();
    for interface in [&wg0(), &other.interface] {
        assert!(!present(&machine.process(None), interface).unwrap().is_empty());
    }
    // Each holds back what the other lets pass.
    assert!(!machine.world().passes(Packet { on: TUNNEL, ..SYN }));
    assert!(!machine.world().passes(Packet { remote: ("192.168.1.2", 445), ..SYN }));
    remove(&machine.process(None), &wg0()).unwrap();
    assert_eq!(machine.world(), alone);
}

#[test]
fn rules_without_a_kill_switch_remove_it() {
    let machine = closed_machine();
    let full_tunnel = FullTunnel {
        mark: std::num::NonZeroU32::MIN,
        addresses: vec!["10.0.0.2".parse().unwrap()],
        ipv4: true,
        ipv6: false,
    };
    let rules = Rules { full_tunnel: Some(full_tunnel), ..Rules::none(wg0()) };
    check(&machine.process(None), &rules).unwrap();
    apply(&machine.process(None), &rules).unwrap();
    assert_eq!(machine.world(), found());
}

#[test]
fn an_mss_clamp_is_refused_and_the_kill_switch_stays() {
    for rules in [Rules { mss_clamp: true, ..Rules::none(wg0()) }, Rules { mss_clamp: true, ..closed() }] {
        let machine = closed_machine();
        let before = machine.world();
        for error in [
            check(&machine.process(None), &rules).unwrap_err(),
            apply(&machine.process(None), &rules).unwrap_err(),
        ] {
            assert!(error.to_string().ends_with("take `MssClamp` out of the configuration"), "{error}");
            assert_eq!(error.exit_code(), exit::Code::Usage);
        }
        assert_eq!(machine.world(), before);
    }
}

#[test]
fn errors_say_what_failed_and_what_to_do() {
    let told = |code| failed("set the firewall rules of wg0", CallError { call: "FwpmFilterAdd0", code });
    let error = told(5);
    assert_eq!(error.exit_code(), exit::Code::Permission);
    assert!(error.to_string().ends_with("run weft as an administrator"), "{error}");
    for code in NO_SERVICE {
        assert!(told(code).to_string().ends_with("start it with `sc.exe start BFE`"));
    }
    // A system without an engine has nothing to remove; a system with an engine that does not run may have
    // filters.
    assert!(if_any::<()>(Err(told(1764))).unwrap().is_none());
    assert!(if_any::<()>(Err(told(1062))).is_err());
    let error = told(0x8032_0012).to_string();
    assert!(error.starts_with("cannot set the firewall rules of wg0: FwpmFilterAdd0: "), "{error}");
    assert!(error.ends_with("(os error -2144206830)"), "{error}");
}
