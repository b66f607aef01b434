//! A pf in memory, and a pfctl that fails or is the last thing that a process does.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use super::super::error::FirewallError;
use super::super::program::Ended;
use super::{Flavor, Pf, Pfctl};
use crate::fault::{Fault, Process};

/// What the kernel knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct World {
    /// Whether the administrator enabled pf.
    pub(super) is_on: bool,
    pub(super) tokens: BTreeSet<u64>,
    /// The main ruleset as `pfctl -s rules` shows it.
    pub(super) main: String,
    pub(super) interfaces: String,
    pub(super) anchors: BTreeMap<String, String>,
    pub(super) states: u64,
    /// Whether this is a FreeBSD without `match`.
    pub(super) is_old: bool,
}

impl World {
    pub(super) fn is_enabled(&self) -> bool {
        self.is_on || !self.tokens.is_empty()
    }

    /// Reports whether the kill switch of an anchor is in force.
    pub(super) fn enforces(&self, flavor: Flavor, anchor: &str) -> bool {
        let line = format!("anchor \"{}/*\" all", flavor.parent());
        let has_rules =
            self.anchors.get(anchor).is_some_and(|rules| rules.contains("label \"weft-blocked\""));
        self.is_enabled() && self.main.lines().any(|found| found == line) && has_rules
    }
}

#[derive(Debug)]
pub(super) struct Simulated {
    pub(super) flavor: Flavor,
    pub(super) world: RefCell<World>,
    process: Process<String>,
    /// Whether the kill switch of this anchor was in force after each call.
    watched: RefCell<Option<(String, bool)>>,
    next_token: Cell<u64>,
}

impl Simulated {
    pub(super) fn new(flavor: Flavor, world: World) -> Self {
        Self {
            flavor,
            world: RefCell::new(world),
            process: Process::default(),
            watched: RefCell::default(),
            next_token: Cell::new(1_000),
        }
    }

    /// A new process, of which this call goes wrong.
    pub(super) fn process(&self, fault: Option<(usize, Fault)>) -> Pf<&Self> {
        self.process.start(fault);
        Pf { flavor: self.flavor, pfctl: self }
    }

    /// The calls of the process.
    pub(super) fn calls(&self) -> Vec<String> {
        self.process.calls()
    }

    pub(super) fn world(&self) -> World {
        self.world.borrow().clone()
    }

    pub(super) fn watch(&self, anchor: &str) {
        self.watched.replace(Some((anchor.to_owned(), true)));
    }

    /// Reports whether the kill switch was in force all the time since [`Self::watch`].
    pub(super) fn was_closed(&self) -> bool {
        self.watched.borrow().as_ref().is_some_and(|(_, was_closed)| *was_closed)
    }

    fn act(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut world = self.world.borrow_mut();
        let is_macos = self.flavor == Flavor::MacOs;
        match *arguments {
            ["-s", "rules"] => Ok(world.main.clone()),
            ["-v", "-s", "Interfaces"] => Ok(world.interfaces.clone()),
            ["-s", "info"] => {
                let status = if world.is_enabled() { "Enabled" } else { "Disabled" };
                Ok(format!(
                    "Status: {status} for 0 days 00:00:09  Debug: Urgent\n\n  current entries   {}\n",
                    world.states
                ))
            }
            ["-a", parent, "-s", "Anchors"] => {
                let below = format!("{parent}/");
                let names: String = world
                    .anchors
                    .keys()
                    .filter(|name| name.starts_with(&below))
                    .map(|name| format!("  {name}\n"))
                    .collect();
                if names.is_empty() { Err("pfctl: Anchor does not exist.".to_owned()) } else { Ok(names) }
            }
            ["-a", anchor, "-s", "labels"] => {
                let rules = world.anchors.get(anchor).ok_or("pfctl: Anchor does not exist.")?;
                let labels =
                    rules.lines().filter_map(|rule| rule.split_once("label \"")?.1.strip_suffix('"'));
                Ok(labels.map(|label| format!("{label} 9 2 120 0 0 2 120\n")).collect())
            }
            ["-a", anchor, "-f", "-"] => {
                checked(self.flavor, world.is_old, input)?;
                world.anchors.insert(anchor.to_owned(), input.to_owned());
                Ok(String::new())
            }
            ["-n", "-a", _, "-f", "-"] => checked(self.flavor, world.is_old, input).map(|()| String::new()),
            ["-a", anchor, "-F", "rules"] => {
                world.anchors.remove(anchor);
                Ok("rules cleared\n".to_owned())
            }
            ["-E"] if is_macos => {
                let token = self.next_token.get();
                self.next_token.set(token + 1);
                world.tokens.insert(token);
                Ok(format!("pf enabled\nToken : {token}\n"))
            }
            ["-X", token] if is_macos => match world.tokens.remove(&token.parse().unwrap()) {
                true => Ok("disable request successful\n".to_owned()),
                false => Err("pfctl: the token is not valid".to_owned()),
            },
            ["-s", "References"] if is_macos => {
                let rows = world.tokens.iter().map(|token| format!("77  pfctl  {token}  0 days 00:00:05\n"));
                Ok(format!("TOKENS:\nPID  Process Name  TOKEN  TIMESTAMP\n{}", rows.collect::<String>()))
            }
            _ => panic!("pfctl {arguments:?}: no such call"),
        }
    }
}

/// Refuses what pfctl would refuse: rules that are no rules, or in another order.
fn checked(flavor: Flavor, is_old: bool, rules: &str) -> Result<(), String> {
    let mut is_filter = false;
    for (place, rule) in rules.lines().enumerate() {
        match rule.split(' ').next() {
            Some("#") => {}
            Some("pass" | "block") => is_filter = true,
            Some("scrub") if flavor == Flavor::MacOs && !is_filter => {}
            Some("match") if flavor == Flavor::FreeBsd && !is_old => {}
            _ => return Err(format!("stdin:{}: syntax error", place + 1)),
        }
    }
    Ok(())
}

impl Pfctl for &Simulated {
    fn run(&self, arguments: &[&str], input: &str, action: &str) -> Result<Ended, FirewallError> {
        let failed = |fault| match fault {
            Fault::Refuses => Ok("pfctl: DIOCXBEGIN: Device busy".to_owned()),
            // The caller gives up waiting, or is killed, and pfctl goes on.
            _ => Err(FirewallError::Timeout { action: action.to_owned(), program: "pfctl" }),
        };
        let was_killed = self.process.is_killed();
        let result =
            self.process.call(arguments.join(" "), failed, || self.act(arguments, input).map_err(Ok));
        if let Some((anchor, was_closed)) = self.watched.borrow_mut().as_mut().filter(|_| !was_killed) {
            *was_closed &= self.world.borrow().enforces(self.flavor, anchor);
        }
        let altq = "No ALTQ support in kernel\nALTQ related functions disabled\n";
        match result {
            Ok(answer) => Ok(Ended { is_success: true, answer: answer.into(), complaint: altq.into() }),
            Err(message) => Ok(Ended {
                is_success: false,
                answer: Vec::new(),
                complaint: format!("{altq}{}\n", message?).into(),
            }),
        }
    }
}
