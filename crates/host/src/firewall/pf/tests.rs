//! The calls of pfctl against a pf in memory, of which each goes wrong once.

use std::collections::BTreeSet;

use weft_config::{InterfaceName, exit};

use super::super::{KillSwitch, Local, OwnPackets, Rules};
use super::simulation::{Simulated, World};
use super::*;
use crate::fault::Fault;

const FLAVORS: [Flavor; 2] = [Flavor::MacOs, Flavor::FreeBsd];
const FAULTS: [Fault; 3] = [Fault::Refuses, Fault::IsUnheard, Fault::IsKilledAfter];

fn tunnel() -> InterfaceName {
    "utun7".parse().unwrap()
}

/// The kill switch, with this port of the only endpoint.
fn closed(port: u16) -> Rules {
    let own = OwnPackets::new(0, [format!("192.0.2.1:{port}").parse().unwrap()]);
    let kill_switch = Some(KillSwitch { own, local: Local::Blocked });
    Rules { kill_switch, ..Rules::none(tunnel()) }
}

fn clamp() -> Rules {
    Rules { mss_clamp: true, mtu: Some(1420), ..Rules::none(tunnel()) }
}

/// A machine as it is found: macOS with pf off, FreeBSD with pf on, both with the anchor of another program.
fn found(flavor: Flavor) -> World {
    let (scrub, other) = match flavor {
        Flavor::MacOs => ("scrub-anchor \"com.apple/*\" all fragment reassemble\n", "com.apple/200.other"),
        Flavor::FreeBsd => ("", "other/rules"),
    };
    World {
        is_on: flavor == Flavor::FreeBsd,
        main: format!("{scrub}anchor \"{}/*\" all\n", flavor.parent()),
        interfaces: "all\nen0\nlo0 (skip)\n".to_owned(),
        anchors: [(other.to_owned(), "block in all".to_owned())].into(),
        ..World::default()
    }
}

fn machine(flavor: Flavor) -> Simulated {
    Simulated::new(flavor, found(flavor))
}

/// How many calls an action makes when nothing goes wrong.
fn calls_of(
    machine: &Simulated,
    action: impl Fn(&Pf<&Simulated>) -> Result<(), FirewallError>,
) -> Vec<String> {
    let before = machine.world();
    action(&machine.process(None)).unwrap();
    machine.world.replace(before);
    machine.calls()
}

fn is_in_force(machine: &Simulated) -> bool {
    machine.world().enforces(machine.flavor, &machine.flavor.anchor(&tunnel()))
}

/// The tokens that a process left behind which was killed, or gave up waiting, while `pfctl -E` ran.
fn without_lost_token(mut world: World, call: &str) -> World {
    if call == "-E" {
        assert_eq!(world.tokens.len(), 1, "the token of this moment, and no other");
        world.tokens.clear();
    }
    world
}

#[test]
fn a_kill_switch_is_in_force_and_undoing_it_leaves_pf_as_it_was_found() {
    for flavor in FLAVORS {
        let machine = machine(flavor);
        machine.process(None).apply(&closed(1)).unwrap();
        assert!(is_in_force(&machine));
        let present = machine.process(None).present(&tunnel()).unwrap();
        assert_eq!((present.tables.len(), present.blocked), (1, Some(2)));
        machine.process(None).remove(&tunnel()).unwrap();
        assert_eq!(machine.world(), found(flavor));
        assert!(machine.process(None).present(&tunnel()).unwrap().is_empty());
        machine.process(None).remove(&tunnel()).unwrap();
        assert_eq!(machine.world(), found(flavor));
    }
}

#[test]
fn the_anchor_is_a_child_that_the_main_ruleset_evaluates() {
    assert_eq!(Flavor::MacOs.anchor(&tunnel()), "com.apple/100.weft-utun7");
    assert_eq!(Flavor::FreeBsd.anchor(&"tun7".parse().unwrap()), "weft/tun7");
    assert_eq!(place(Flavor::FreeBsd, &tunnel()), "pf anchor weft/utun7");
    assert_eq!(flushing_command(Flavor::FreeBsd, &tunnel()), "pfctl -a weft/utun7 -F rules");
}

#[test]
fn a_start_in_which_any_call_goes_wrong_changes_nothing() {
    for (flavor, fault) in FLAVORS.into_iter().flat_map(|flavor| FAULTS.map(|fault| (flavor, fault))) {
        let rules = Rules { mss_clamp: true, mtu: Some(1420), ..closed(1) };
        let calls = calls_of(&machine(flavor), |pf| pf.apply(&rules));
        assert!(calls.iter().any(|call| call.ends_with("-f -")), "{calls:?}");
        for (number, call) in calls.iter().enumerate() {
            let machine = machine(flavor);
            let applied = machine.process(Some((number, fault))).apply(&rules);
            if applied.is_ok() {
                // The count of states is for a warning only.
                assert_eq!(number + 1, calls.len(), "{call}");
                assert!(is_in_force(&machine));
                continue;
            }
            let after = machine.world();
            match fault {
                Fault::Refuses => assert_eq!(after, found(flavor), "{call}"),
                Fault::IsUnheard => assert_eq!(without_lost_token(after, call), found(flavor), "{call}"),
                // The next process takes it back, or goes on.
                Fault::IsKilledBefore | Fault::IsKilledAfter => {
                    machine.process(None).remove(&tunnel()).unwrap();
                    assert_eq!(without_lost_token(machine.world(), call), found(flavor), "{call}");
                    machine.world.replace(after);
                    machine.process(None).apply(&rules).unwrap();
                    assert!(is_in_force(&machine), "{call}");
                    machine.process(None).remove(&tunnel()).unwrap();
                    assert_eq!(without_lost_token(machine.world(), call), found(flavor), "{call}");
                }
            }
        }
    }
}

#[test]
fn a_change_in_which_any_call_goes_wrong_leaves_no_gap() {
    for (flavor, fault) in FLAVORS.into_iter().flat_map(|flavor| FAULTS.map(|fault| (flavor, fault))) {
        let closed_already = || {
            let machine = machine(flavor);
            machine.process(None).apply(&closed(1)).unwrap();
            machine.watch(&flavor.anchor(&tunnel()));
            machine
        };
        let calls = calls_of(&closed_already(), |pf| pf.apply(&closed(2)));
        for number in 0..=calls.len() {
            let machine = closed_already();
            let before = machine.world();
            let applied = machine.process(Some((number, fault))).apply(&closed(2));
            assert!(machine.was_closed(), "{flavor:?} {fault:?} {number}");
            if applied.is_err() && fault == Fault::Refuses {
                assert_eq!(machine.world(), before);
            }
            machine.process(None).apply(&closed(3)).unwrap();
            assert!(machine.was_closed());
            machine.process(None).remove(&tunnel()).unwrap();
            assert_eq!(machine.world(), found(flavor));
        }
    }
}

#[test]
fn a_removal_in_which_any_call_goes_wrong_is_completed_by_the_next() {
    for (flavor, fault) in FLAVORS.into_iter().flat_map(|flavor| FAULTS.map(|fault| (flavor, fault))) {
        let applied = || {
            let machine = machine(flavor);
            machine.process(None).apply(&closed(1)).unwrap();
            machine
        };
        let calls = calls_of(&applied(), |pf| pf.remove(&tunnel()));
        for (number, call) in calls.iter().enumerate() {
            let machine = applied();
            machine.process(Some((number, fault))).remove(&tunnel()).unwrap_err();
            machine.process(None).remove(&tunnel()).unwrap();
            assert_eq!(machine.world(), found(flavor), "{flavor:?} {fault:?} {call}");
        }
    }
}

#[test]
fn what_others_do_with_pf_stays() {
    let machine = machine(Flavor::MacOs);
    machine.world.borrow_mut().tokens.insert(7);
    machine.process(None).apply(&closed(1)).unwrap();
    machine.world.borrow_mut().tokens.insert(8);
    machine.process(None).remove(&tunnel()).unwrap();
    let expected = World { tokens: [7, 8].into(), ..found(Flavor::MacOs) };
    assert_eq!(machine.world(), expected);
}

#[test]
fn a_pf_that_was_disabled_meanwhile_is_enabled_again() {
    let machine = machine(Flavor::MacOs);
    machine.process(None).apply(&closed(1)).unwrap();
    // What `pfctl -d` does.
    machine.world.borrow_mut().tokens.clear();
    assert!(machine.process(None).present(&tunnel()).unwrap().is_empty(), "it is not in force");
    machine.process(None).apply(&closed(1)).unwrap();
    assert!(is_in_force(&machine));
    machine.world.borrow_mut().tokens.clear();
    machine.process(None).remove(&tunnel()).unwrap();
    assert_eq!(machine.world(), found(Flavor::MacOs));
}

#[test]
fn a_changed_kill_switch_keeps_its_token() {
    let machine = machine(Flavor::MacOs);
    for rules in [closed(1), closed(2), clamp()] {
        machine.process(None).apply(&rules).unwrap();
        assert_eq!(machine.world().tokens, BTreeSet::from([1_000]));
    }
    let present = machine.process(None).present(&tunnel()).unwrap();
    assert_eq!(present.blocked, None, "there is no kill switch any more");
    machine.process(None).apply(&Rules::none(tunnel())).unwrap();
    assert_eq!(machine.world(), found(Flavor::MacOs));
}

#[test]
fn two_interfaces_do_not_touch_each_other() {
    for flavor in FLAVORS {
        let machine = machine(flavor);
        let other = Rules { interface: "utun70".parse().unwrap(), ..closed(2) };
        machine.process(None).apply(&other).unwrap();
        let alone = machine.world();
        machine.process(None).apply(&closed(1)).unwrap();
        for interface in [&tunnel(), &other.interface] {
            assert!(!machine.process(None).present(interface).unwrap().is_empty());
        }
        machine.process(None).remove(&tunnel()).unwrap();
        assert_eq!(machine.world(), alone);
    }
}

/// Applies rules to a machine that is not as it should be. Returns the error, and asserts that nothing was
/// changed.
fn refused(world: &World, flavor: Flavor, rules: &Rules) -> FirewallError {
    let machine = Simulated::new(flavor, world.clone());
    let checked = machine.process(None).check(rules).unwrap_err();
    let applied = machine.process(None).apply(rules).unwrap_err();
    assert_eq!(machine.world(), *world);
    let words = |error: &FirewallError| error.to_string().split_once(": ").unwrap().1.to_owned();
    assert_eq!(words(&checked), words(&applied));
    applied
}

#[test]
fn a_kill_switch_that_pf_would_not_evaluate_is_refused() {
    for flavor in FLAVORS {
        let parent = flavor.parent();
        let error = refused(&World { main: String::new(), ..found(flavor) }, flavor, &closed(1));
        assert_eq!(error.exit_code(), exit::Code::Failure);
        let error = error.to_string();
        assert!(error.contains(&format!("add the line `anchor \"{parent}/*\"` to /etc/pf.conf")), "{error}");
        let main = format!("pass out quick on en0 all no state\n{}", found(flavor).main);
        let error = refused(&World { main, ..found(flavor) }, flavor, &closed(1)).to_string();
        assert!(error.contains("`pass out quick on en0 all no state` of pf lets packets leave"), "{error}");
        let interfaces = "lo0 (skip)\nen0 (skip)\n".to_owned();
        let error = refused(&World { interfaces, ..found(flavor) }, flavor, &closed(1)).to_string();
        assert!(error.contains("pf does not filter on en0"), "{error}");
        // A clamp is in the way of nothing that passes it by.
        let main = format!("pass out quick on en0 all no state\n{}", found(flavor).main);
        Simulated::new(flavor, World { main, ..found(flavor) }).process(None).apply(&clamp()).unwrap();
    }
    let main = "anchor \"com.apple/*\" all\n".to_owned();
    let error = refused(&World { main, ..found(Flavor::MacOs) }, Flavor::MacOs, &clamp()).to_string();
    assert!(error.contains("add the line `scrub-anchor \"com.apple/*\"`"), "{error}");
    let off = World { is_on: false, ..found(Flavor::FreeBsd) };
    let error = refused(&off, Flavor::FreeBsd, &closed(1)).to_string();
    assert!(error.contains("`sysrc pf_enable=YES`"), "{error}");
}

#[test]
fn a_freebsd_that_cannot_clamp_is_named() {
    let old = World { is_old: true, ..found(Flavor::FreeBsd) };
    let error = refused(&old, Flavor::FreeBsd, &clamp()).to_string();
    assert!(
        error.contains("syntax error") && error.ends_with("MssClamp needs FreeBSD 14 or newer"),
        "{error}"
    );
    let machine = Simulated::new(Flavor::FreeBsd, old);
    machine.process(None).apply(&closed(1)).unwrap();
    assert!(is_in_force(&machine));
}

#[test]
fn a_name_that_may_be_a_group_of_interfaces_is_refused() {
    for name in ["tun", "wg-home", "_tun7", "7tun7", "tun=7"] {
        let rules = Rules { interface: name.parse().unwrap(), ..closed(1) };
        let error = refused(&found(Flavor::FreeBsd), Flavor::FreeBsd, &rules);
        assert!(matches!(error, FirewallError::Name { .. }), "{error:?}");
        assert_eq!(error.exit_code(), exit::Code::Usage);
    }
}

/// A pfctl that always says the same.
struct Says(&'static str);

impl Pfctl for Says {
    fn run(&self, _: &[&str], _: &str, _: &str) -> Result<Ended, FirewallError> {
        Ok(Ended { complaint: self.0.into(), ..Ended::default() })
    }
}

#[test]
fn a_system_without_pf_has_nothing_to_remove_and_says_what_is_missing() {
    let pf = Pf { flavor: Flavor::FreeBsd, pfctl: Says("pfctl: /dev/pf: No such file or directory\n") };
    pf.remove(&tunnel()).unwrap();
    assert!(pf.present(&tunnel()).unwrap().is_empty());
    let error = pf.apply(&closed(1)).unwrap_err();
    assert!(matches!(error, FirewallError::Off { .. }), "{error:?}");
    let pf = Pf { flavor: Flavor::MacOs, pfctl: Says("pfctl: /dev/pf: Permission denied\n") };
    assert_eq!(pf.apply(&closed(1)).unwrap_err().exit_code(), exit::Code::Permission);
    assert_eq!(pf.remove(&tunnel()).unwrap_err().exit_code(), exit::Code::Permission);
}

/// Writes a program in the place of pfctl that writes down its calls and its input in a file.
fn program(directory: &std::path::Path) -> Program {
    let (path, told) = (directory.join("pfctl"), directory.join("told"));
    let script = format!(
        "#!/bin/sh\n\
         echo \"$@\" >>'{0}'\n\
         cat >>'{0}'\n\
         echo 'No ALTQ support in kernel' >&2\n\
         case \"$*\" in\n\
         '-s rules') echo 'scrub-anchor \"com.apple/*\" all fragment reassemble'; echo 'anchor \"com.apple/*\" all';;\n\
         '-v -s Interfaces') echo 'lo0 (skip)';;\n\
         *Anchors) echo '  com.apple/200.AirDrop';;\n\
         -E) echo 'pf enabled' >&2; echo 'Token : 4711' >&2;;\n\
         '-s info') echo 'Status: Enabled'; echo '  current entries  3';;\n\
         *'-f -') ;;\n\
         *) echo 'no such call' >&2; exit 1;;\n\
         esac\n",
        told.display()
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    Program { name: Box::leak(path.display().to_string().into_boxed_str()), ..PFCTL }
}

#[test]
fn the_program_gets_these_calls_and_this_input() {
    let directory = tempfile::tempdir().unwrap();
    let pf = Pf { flavor: Flavor::MacOs, pfctl: program(directory.path()) };
    pf.apply(&clamp()).unwrap();
    let expected = "\
-s rules
-a com.apple -s Anchors
-E
-a com.apple/100.weft-utun7 -f -
# MSS
scrub on \"utun7\" inet proto tcp all max-mss 1380
scrub on \"utun7\" inet6 proto tcp all max-mss 1360
# keeps pf enabled
block drop out on \"utun7\" proto 255 all label \"weft-token-4711\"
";
    assert_eq!(std::fs::read_to_string(directory.path().join("told")).unwrap(), expected);
    let error = pf.present(&"utun8".parse().unwrap()).map(|present| present.is_empty());
    assert!(error.unwrap());
    pf.apply(&closed(1)).unwrap();
    let error = pf.release(4711, "do it").unwrap_err().to_string();
    assert_eq!(error, "cannot do it: pfctl says: no such call");
}
