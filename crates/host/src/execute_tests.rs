//! Tests that steps are done all or nothing, are undone in reverse order, and can be repeated, with a system
//! in memory.

use std::collections::BTreeMap;

use proptest::prelude::*;
use weft_config::{Dns, Hook, HookPhase};

use super::*;
use crate::routes::{Family, Rule, RuleKind};

/// A system that remembers what is in force, by the key of what a later step replaces. It is as strict with
/// addresses as a kernel can be: the addresses of one network are removed together, removing the last address
/// removes all routes, and an IPv6 address exists only once.
#[derive(Clone, Debug, Default, PartialEq)]
struct Memory {
    state: BTreeMap<String, Step>,
    log: Vec<String>,
    /// The call that fails.
    fails_at: Option<usize>,
    calls: usize,
    /// Prefixes of routes that another program added.
    theirs: Vec<String>,
}

fn place(step: &Step) -> String {
    match step {
        // The kernel identifies a rule by its priority too.
        Step::Rule(rule) => format!("{:?}", rule),
        other => format!("{:?}", other.key()),
    }
}

impl Memory {
    fn call(&mut self, what: String) -> Result<(), HostError> {
        self.calls += 1;
        if self.fails_at == Some(self.calls) {
            return Err(HostError::Hook { place: what, command: String::new(), outcome: "fails".into() });
        }
        self.log.push(what);
        Ok(())
    }
}

impl System for Memory {
    fn apply(&mut self, step: &Step) -> Result<Outcome, HostError> {
        self.call(format!("do {}", place(step)))?;
        if let Step::Route { prefix, .. } = step
            && self.theirs.contains(&prefix.to_string())
        {
            return Ok(Outcome::Left);
        }
        let is_in_its_way = |other: &&Step| *other != step && step.excludes(other);
        if let Some(other) = self.state.values().find(is_in_its_way) {
            let place = place(other);
            return Err(HostError::Hook {
                place,
                command: String::new(),
                outcome: "is there already".into(),
            });
        }
        if !matches!(step, Step::Hook(_)) {
            self.state.insert(place(step), step.clone());
        }
        Ok(Outcome::Done)
    }

    fn undo(&mut self, step: &Step) -> Result<(), HostError> {
        self.call(format!("undo {}", place(step)))?;
        self.state.remove(&place(step));
        if let Step::Address(address) = step {
            let is_beside =
                |other: &Step| matches!(other, Step::Address(net) if net.trunc() == address.trunc());
            self.state.retain(|_, other| !is_beside(other));
            let has_address = self.state.values().any(|other| matches!(other, Step::Address(_)));
            self.state.retain(|_, other| has_address || !matches!(other, Step::Route { .. }));
        }
        Ok(())
    }

    fn lost(&self, steps: &[Step]) -> Result<Vec<Step>, HostError> {
        let is_of_device = |step: &&Step| matches!(step, Step::Address(_) | Step::Route { .. });
        let is_lost = |step: &&Step| is_of_device(step) && !self.state.contains_key(&place(step));
        Ok(steps.iter().filter(is_lost).cloned().collect())
    }
}

fn route(prefix: &str) -> Step {
    Step::Route { prefix: prefix.parse().unwrap(), table: 254 }
}

fn address(net: &str) -> Step {
    Step::Address(net.parse().unwrap())
}

fn hook(command: &str) -> Step {
    Step::Hook(Hook { phase: HookPhase::PostUp, command: command.into(), file: "a".into(), line: 1 })
}

fn dns(server: &str) -> Step {
    Step::Dns(Dns { servers: vec![server.parse().unwrap()], ..Dns::default() })
}

#[test]
fn steps_are_undone_backwards_and_only_once() {
    let mut system = Memory { theirs: vec!["10.1.0.0/16".into()], ..Memory::default() };
    let mut applied = Applied::default();
    let steps =
        [address("10.0.0.1/24"), Step::Mtu(1420), route("10.1.0.0/16"), route("10.2.0.0/16"), hook("x")];
    applied.apply(&steps, &mut system).unwrap();
    assert_eq!(applied.steps().len(), 4, "the route of another program is not ours");
    system.log.clear();
    assert!(applied.undo(&mut system).is_empty());
    let undone = [format!("undo {}", place(&steps[3])), format!("undo {}", place(&steps[0]))];
    assert_eq!(system.log, undone);
    assert!(applied.undo(&mut system).is_empty());
    assert_eq!(system.log.len(), 2);
}

#[test]
fn what_cannot_be_undone_keeps_nothing_else_from_it() {
    let mut system = Memory::default();
    let mut applied = Applied::default();
    applied.apply(&[address("10.0.0.1/24"), route("10.1.0.0/16")], &mut system).unwrap();
    system.fails_at = Some(system.calls + 1);
    assert_eq!(applied.undo(&mut system).len(), 1);
    assert!(!system.state.contains_key(&place(&address("10.0.0.1/24"))));
    assert_eq!((applied.steps(), applied.stuck()), (&[][..], &[route("10.1.0.0/16")][..]));
    assert!(applied.undo(&mut system).is_empty(), "it is tried again");
    assert_eq!((applied.stuck(), system.state.len()), (&[][..], 0));
}

#[test]
fn a_difference_adds_before_it_removes_and_replaces_in_place() {
    let old = [address("10.0.0.1/24"), Step::Mtu(1420), dns("192.0.2.1"), route("10.1.0.0/16"), hook("x")];
    let new = [address("10.0.0.1/24"), Step::Mtu(1400), dns("192.0.2.2"), route("10.2.0.0/16"), hook("y")];
    let expected = vec![
        StepChange::Replace { from: &old[1], to: &new[1] },
        StepChange::Replace { from: &old[2], to: &new[2] },
        StepChange::Add(&new[3]),
        StepChange::Remove(&old[3]),
    ];
    assert_eq!(Difference::between(&old, &new).changes, expected);
    assert!(Difference::between(&old, &old).changes.is_empty());
}

#[test]
fn an_ipv6_address_goes_before_it_comes_with_another_prefix_length() {
    let old = [address("10.0.0.1/24"), address("fd00::1/64"), address("fd00::3/64"), route("10.1.0.0/16")];
    let new = [address("10.0.0.1/32"), address("fd00::2/64"), address("fd00::1/128"), route("10.1.0.0/16")];
    let expected = vec![
        StepChange::Add(&new[0]),
        StepChange::Add(&new[1]),
        StepChange::Remove(&old[1]),
        StepChange::Add(&new[2]),
        StepChange::Remove(&old[2]),
        StepChange::Remove(&old[0]),
    ];
    assert_eq!(Difference::between(&old, &new).changes, expected);
}

#[test]
fn what_an_address_took_along_comes_back_and_is_ours_from_then_on() {
    let mut system = Memory { theirs: vec!["10.0.0.0/24".into()], ..Memory::default() };
    let mut applied = Applied::default();
    applied.apply(&[address("10.0.0.1/24"), route("10.1.0.0/16")], &mut system).unwrap();
    // The route of the address is no longer there when the address was removed.
    let wanted = [address("10.0.0.1/32"), route("10.0.0.0/24"), route("10.1.0.0/16")];
    let change = Difference::between(applied.steps(), &wanted);
    assert_eq!(change.changes.len(), 3);
    struct Connected(Memory);
    impl System for Connected {
        fn apply(&mut self, step: &Step) -> Result<Outcome, HostError> {
            self.0.apply(step)
        }
        fn undo(&mut self, step: &Step) -> Result<(), HostError> {
            self.0.theirs.clear();
            self.0.undo(step)
        }
        fn lost(&self, steps: &[Step]) -> Result<Vec<Step>, HostError> {
            self.0.lost(steps)
        }
    }
    let mut system = Connected(system);
    applied.change_to(&wanted, &mut system).unwrap();
    assert_eq!(applied.steps(), wanted);
    assert_eq!(system.0.state.len(), wanted.len());
}

#[test]
fn a_rule_that_moves_is_never_missing() {
    let rule =
        |priority| Step::Rule(Rule { family: Family::V4, priority, kind: RuleKind::MainWithoutDefault });
    let mut system = Memory::default();
    let mut applied = Applied::default();
    applied.apply(&[rule(10)], &mut system).unwrap();
    applied.change_to(&[rule(9)], &mut system).unwrap();
    let calls = [
        format!("do {}", place(&rule(10))),
        format!("do {}", place(&rule(9))),
        format!("undo {}", place(&rule(10))),
    ];
    assert_eq!(system.log, calls);
    assert_eq!(system.state.len(), 1);
}

fn step() -> impl Strategy<Value = Step> {
    let net = |third: u8| format!("10.0.{third}.1/24").parse().unwrap();
    prop_oneof![
        (0u8..4).prop_map(move |n| Step::Address(net(n))),
        (2u8..4).prop_map(|host| address(&format!("10.0.0.{host}/24"))),
        prop::sample::select(vec![48, 64, 128]).prop_map(|length| address(&format!("fd00::1/{length}"))),
        (0u8..4, 7u32..9).prop_map(move |(n, table)| Step::Route { prefix: net(n), table }),
        (1300u16..1304).prop_map(Step::Mtu),
        (0u8..3).prop_map(|n| dns(&format!("192.0.2.{n}"))),
        (1u32..4).prop_map(|priority| {
            Step::Rule(Rule { family: Family::V6, priority, kind: RuleKind::MainWithoutDefault })
        }),
        Just(hook("x")),
        Just(Step::LinkUp),
    ]
}

/// Steps as a plan has them: each key once, and none that excludes another one.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 0..12).prop_map(|mut steps| {
        let mut seen = HashSet::new();
        steps.retain(|step| seen.insert(step.key()));
        let mut fitting: Vec<Step> = Vec::new();
        for step in steps {
            if !fitting.iter().any(|other| step.excludes(other)) {
                fitting.push(step);
            }
        }
        fitting
    })
}

/// Returns the state without the settings of the device, which stay in force when everything was undone.
fn but_settings(mut state: BTreeMap<String, Step>) -> BTreeMap<String, Step> {
    state.retain(|_, step| step.has_undo());
    state
}

proptest! {
    #[test]
    fn a_failure_at_any_step_leaves_what_was_there(steps in steps(), at in 1usize..14) {
        let mut system = Memory { fails_at: Some(at), ..Memory::default() };
        let mut applied = Applied::default();
        if applied.apply(&steps, &mut system).is_err() {
            prop_assert!(applied.steps().is_empty());
            prop_assert!(but_settings(system.state).is_empty());
        } else {
            prop_assert_eq!(applied.steps(), &steps);
        }
    }

    #[test]
    fn a_change_leads_to_what_was_asked_for_or_back(old in steps(), new in steps(), at in prop::option::of(1usize..20)) {
        let mut system = Memory::default();
        let mut applied = Applied::default();
        applied.apply(&old, &mut system).unwrap();
        let before = system.clone();
        system.fails_at = at.map(|at| system.calls + at);
        match applied.change_to(&new, &mut system) {
            Ok(_) => {
                let mut direct = Memory::default();
                Applied::default().apply(&new, &mut direct).unwrap();
                prop_assert_eq!(but_settings(system.state.clone()), but_settings(direct.state));
                prop_assert_eq!(applied.steps(), &new);
                let calls = system.calls;
                applied.change_to(&new, &mut system).unwrap();
                prop_assert_eq!(system.calls, calls, "nothing is left to do");
            }
            Err(_) => {
                prop_assert_eq!(but_settings(system.state), but_settings(before.state));
                prop_assert_eq!(applied.steps(), &old);
            }
        }
    }
}
