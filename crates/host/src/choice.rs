//! What an interface chooses for itself and no other may have: its mark, and the places of its rules.
//!
//! No lock guards a choice: what every user can open, every user can lock, and a service's user can open no
//! file of root. Instead a process writes down what it has chosen, and looks at the records of the others
//! after that. Of two that choose the same at the same time, the one that writes last sees the other's
//! record, and chooses again. A service's user cannot read records of root: it sees their rules once these
//! are added.
//!
//! A daemon of an older weft locks the runtime directory, writes its choice, and does not look again. What it
//! has written is seen here, and what is written here is seen by it; both can have the same only if it has
//! looked before this process wrote, and writes after this process has looked.

use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use weft_config::{Config, InterfaceName};

use super::record::Record;
use super::{Host, HostError, Plan, Step, system_state};
use crate::routes::Rule;

/// How often to choose. A service's user could change a record without end.
const CHOICES: usize = 32;
/// The longest pause before the next choice, in milliseconds. Two that pause for the same time choose the
/// same again.
const MAX_PAUSE: u64 = 32;

/// What a plan has that is not in force yet, and that no configuration says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    /// The mark; 0: it was given.
    mark: u32,
    rules: Vec<Rule>,
}

impl Choice {
    fn of(plan: &Plan, given_mark: u32, in_force: &[Step]) -> Self {
        // A plan may have many thousands of routes.
        let own: Vec<&Rule> = in_force.iter().filter_map(Step::as_rule).collect();
        let rules = plan.steps.iter().filter_map(Step::as_rule).filter(|rule| !own.contains(rule));
        Self { mark: if plan.mark == given_mark { 0 } else { plan.mark }, rules: rules.copied().collect() }
    }

    /// Reports whether another interface has some of it on record.
    fn is_taken(&self, directory: &Path, interface: &InterfaceName) -> bool {
        if self.mark == 0 && self.rules.is_empty() {
            return false;
        }
        let is_at = |one: &Rule, other: &Rule| (one.family, one.priority) == (other.family, other.priority);
        Record::of_others(directory, interface).any(|other| {
            let mut rules = other.steps.iter().filter_map(Step::as_rule);
            (self.mark != 0 && other.mark == self.mark)
                || rules.any(|rule| self.rules.iter().any(|own| is_at(own, rule)))
        })
    }
}

impl Host {
    /// Plans for a configuration, until no other interface has chosen the same. `write_down` records what a
    /// plan has chosen. `given` is a plan that was just made; `mark_in_force` is the mark that the device has
    /// already (0: none).
    pub(super) fn choose(
        &mut self,
        (config, endpoints): (&Config, &[SocketAddr]),
        mark_in_force: u32,
        mut given: Option<Plan>,
        write_down: impl Fn(&mut Self, &Plan) -> Result<(), HostError>,
    ) -> Result<Plan, HostError> {
        let configured = config.interface.settings.fw_mark;
        let given_mark = if configured == 0 { mark_in_force } else { configured };
        let (mut before, mut choices) = (None, 0);
        loop {
            choices += 1;
            let plan = match given.take() {
                Some(plan) => plan,
                None => self.decide(config, endpoints, mark_in_force)?,
            };
            write_down(self, &plan)?;
            let choice = Choice::of(&plan, given_mark, self.applied.steps());
            let Some(owner) = &self.owner else { return Ok(plan) };
            if !choice.is_taken(owner.directory(), &plan.interface) {
                return Ok(plan);
            }
            // There may be no other place.
            if before.as_ref() == Some(&choice) || choices == CHOICES {
                tracing::warn!(
                    interface = %plan.interface,
                    "another interface has the same mark ({:#x}) or the same priority of its rules",
                    plan.mark
                );
                return Ok(plan);
            }
            before = Some(choice);
            let random = RandomState::new().hash_one(());
            thread::sleep(Duration::from_millis(random % MAX_PAUSE));
        }
    }

    /// Returns the plan for a configuration as the system is now.
    pub(super) fn decide(
        &self,
        config: &Config,
        endpoints: &[SocketAddr],
        mark_in_force: u32,
    ) -> Result<Plan, HostError> {
        let (netlink, paths) = (&self.kernel.netlink, self.kernel.paths());
        let directory = self.owner.as_deref().map(super::Owner::directory);
        let mut facts = system_state::gather(netlink, paths, config, endpoints, directory, mark_in_force)?;
        if let Some(mtu) = self.mtu_by_hand {
            facts.default_mtu = mtu;
        }
        let facts = facts.without(self.applied.steps());
        Ok(Plan::new(config, endpoints, &facts).keeping_places_of(self.applied.steps()))
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::sync::Barrier;

    use weft_lab::{Namespace, here};

    use super::*;
    use crate::routes::Family;
    use crate::{Owner, Recording};

    const FILE: &str = "[Interface]\nPrivateKey = AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n\
                        [Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\nAllowedIPs = ::/0, 0.0.0.0/0\n";

    fn config(name: &str) -> Config {
        weft_config::parse(FILE, Path::new("wg0.conf"), name.parse().unwrap()).unwrap().config
    }

    fn prepared(name: &str, directory: &Path) -> Host {
        let recording = Recording::In(directory.to_owned());
        Host::prepare(&config(name), None, &[], &recording).unwrap()
    }

    #[test]
    fn what_another_interface_has_on_record_is_taken() {
        if !here::namespaces_permitted() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let (at, namespace) = (directory.path(), Namespace::new("taken").unwrap());
        let [name, other]: [InterfaceName; 2] = ["wg0", "wg1"].map(|name| name.parse().unwrap());
        namespace.run(|| {
            let host = prepared("wg0", at);
            let choice = Choice::of(host.plan(), 0, &[]);
            assert!(choice.mark != 0 && choice.rules.len() == 4, "{choice:?}");
            let other_mark = Choice { mark: choice.mark + 1, rules: Vec::new() };
            let other_place = choice.rules.iter().map(|rule| Rule { priority: rule.priority - 2, ..*rule });
            let cases = [
                (choice.clone(), true),
                (Choice { mark: 0, ..choice.clone() }, true),
                (Choice { rules: Vec::new(), ..choice.clone() }, true),
                (other_mark, false),
                (Choice { mark: 0, rules: other_place.collect() }, false),
                // What is in force, or in the file, is no choice.
                (Choice::of(host.plan(), choice.mark, &host.plan().steps), false),
            ];
            for (choice, is_taken) in cases {
                assert_eq!(choice.is_taken(at, &other), is_taken, "{choice:?}");
                assert!(!choice.is_taken(at, &name), "its own");
            }
        });
    }

    /// Another program holds the lock that a former weft waited for.
    #[test]
    fn interfaces_that_choose_at_the_same_time_have_marks_and_places_of_their_own() {
        const COUNT: usize = 5;
        if !here::namespaces_permitted() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let stranger = std::fs::File::open(directory.path()).unwrap();
        stranger.lock().unwrap();
        let namespace = Namespace::new("alone").unwrap();
        for round in 0..4 {
            let together = Barrier::new(COUNT);
            let hosts: Vec<Host> = thread::scope(|scope| {
                let choose = |number| {
                    let (together, namespace, at) = (&together, &namespace, directory.path());
                    scope.spawn(move || {
                        namespace.run(|| {
                            together.wait();
                            prepared(&format!("wg{number}"), at)
                        })
                    })
                };
                let threads: Vec<_> = (0..COUNT).map(choose).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let mut chosen: Vec<u32> = hosts.iter().map(Host::mark).collect();
            for host in &hosts {
                let rules = host.plan().steps.iter().filter_map(Step::as_rule);
                chosen.extend(rules.map(|rule| rule.priority << 8 | u32::from(rule.family == Family::V4)));
                let name = &host.plan().interface;
                let record = namespace.run(|| Record::read(directory.path(), name).unwrap().unwrap());
                let reserved = record.steps.iter().filter_map(Step::as_rule).count();
                assert_eq!((record.mark, reserved), (host.mark(), 4), "round {round}: more is on record");
            }
            let count = chosen.len();
            chosen.sort_unstable();
            chosen.dedup();
            assert_eq!((chosen.len(), count), (COUNT * 5, COUNT * 5), "round {round}: {chosen:?}");
            namespace.run(|| drop(hosts));
        }
        assert!(Owner::running(directory.path(), &"wg0".parse().unwrap()).unwrap().is_none());
    }
}
