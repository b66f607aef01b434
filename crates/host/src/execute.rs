//! Does steps and takes them back: in order, all or nothing, and as often as it is asked to.

use std::collections::{HashMap, HashSet};

use super::HostError;
use super::step::{Key, Step};

/// What steps are done to. A step that is undone twice, or was never done, is no failure.
pub trait System {
    /// Does a step. One that replaces what is in force (MTU, name servers, packet filter) may be done over another
    /// one of its kind.
    fn apply(&mut self, step: &Step) -> Result<Outcome, HostError>;

    /// Takes a step back.
    fn undo(&mut self, step: &Step) -> Result<(), HostError>;

    /// Those of the steps that the taking back of an address may have taken along, and that are not in force.
    fn lost(&self, steps: &[Step]) -> Result<Vec<Step>, HostError>;
}

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done, and is ours to take back.
    Done,
    /// It was so already, or cannot be here: nothing is taken back.
    Left,
}

/// The steps that are in force, in the order in which they were done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    steps: Vec<Step>,
    /// What could not be taken back, in the order in which it was done.
    stuck: Vec<Step>,
}

impl Applied {
    /// Steps that may have been done, as they were recorded.
    pub fn recorded(steps: Vec<Step>) -> Self {
        Self { steps, stuck: Vec::new() }
    }

    /// The same, and these could not be taken back.
    #[must_use]
    pub fn with_stuck(self, stuck: Vec<Step>) -> Self {
        Self { stuck, ..self }
    }

    /// What is in force, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// What could not be taken back; the next [`Self::undo`] tries it again.
    pub fn stuck(&self) -> &[Step] {
        &self.stuck
    }

    /// The device has this MTU by now, without a step that set it.
    pub(super) fn note_mtu(&mut self, now: u16) {
        for step in &mut self.steps {
            if let Step::Mtu(mtu) = step {
                *mtu = now;
            }
        }
    }

    /// All that is to be taken back, in order.
    pub(super) fn all(&self) -> Vec<Step> {
        self.stuck.iter().chain(&self.steps).cloned().collect()
    }

    /// Does the steps one after the other. A failure takes back those that were done here, the last first; what
    /// fails thereby is warned of.
    pub fn apply(&mut self, steps: &[Step], system: &mut impl System) -> Result<(), HostError> {
        let before = self.steps.len();
        for step in steps {
            match system.apply(step) {
                Ok(Outcome::Done) => self.steps.push(step.clone()),
                Ok(Outcome::Left) => {}
                Err(error) => {
                    warn_of(self.undo_to(before, system));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Takes everything back, the last first, and goes on where a part of it fails. What could not be taken back before
    /// is tried again.
    pub fn undo(&mut self, system: &mut impl System) -> Vec<HostError> {
        self.steps = self.all();
        self.stuck.clear();
        self.undo_to(0, system)
    }

    fn undo_to(&mut self, length: usize, system: &mut impl System) -> Vec<HostError> {
        let mut failures = Vec::new();
        while self.steps.len() > length {
            let Some(step) = self.steps.pop() else { break };
            if step.has_undo()
                && let Err(error) = system.undo(&step)
            {
                failures.push(error);
                self.stuck.insert(0, step);
            }
        }
        failures
    }

    /// Brings what is in force to another list of steps: what is new or different is done first, in its order, then
    /// what is no longer wanted is taken back, the last first; see [`Difference::between`]. A failure brings back what
    /// was in force. Commands do not run again.
    pub fn change_to(&mut self, wanted: &[Step], system: &mut impl System) -> Result<(), HostError> {
        let mut under_way = UnderWay::default();
        if let Err(error) = under_way.make(&self.steps, wanted, system) {
            self.stuck.extend(under_way.unmake(&self.steps, system));
            return Err(error);
        }
        let left = under_way.left;
        let old: HashMap<Key, &Step> = self.steps.iter().map(|step| (step.key(), step)).collect();
        // What was left alone is ours only if it was before.
        self.steps = wanted
            .iter()
            .filter(|step| !left.contains(&step.key()) || old.contains_key(&step.key()))
            .cloned()
            .collect();
        Ok(())
    }
}

/// A change from one list of steps to another, as far as it has come.
#[derive(Debug, Default)]
struct UnderWay {
    done: Vec<Change>,
    left: HashSet<Key>,
}

impl UnderWay {
    fn make(&mut self, old: &[Step], wanted: &[Step], system: &mut impl System) -> Result<(), HostError> {
        for change in Difference::between(old, wanted).changes {
            match change.make(system)? {
                Outcome::Done => self.done.push(change),
                Outcome::Left => self.left.extend(change.to().map(Step::key)),
            }
        }
        if !self.has_taken_an_address() {
            return Ok(());
        }
        // A route that was there already, which nobody had to add, may have been that of an address, too.
        for step in system.lost(wanted)? {
            if system.apply(&step)? == Outcome::Left {
                continue;
            }
            self.left.remove(&step.key());
            if !old.contains(&step) {
                self.done.push(Change::Add(step));
            }
        }
        Ok(())
    }

    /// Brings back what was in force before. What fails is warned of; gives what could not be taken back.
    fn unmake(&self, old: &[Step], system: &mut impl System) -> Vec<Step> {
        let is_of_address = |change: &Change| matches!(change, Change::Add(Step::Address(_)));
        let takes_an_address = self.has_taken_an_address() || self.done.iter().any(is_of_address);
        let mut stuck = Vec::new();
        for change in self.done.iter().rev() {
            if let Some(error) = change.unmake(system) {
                warn_of([error]);
                stuck.extend(change.to().filter(|step| step.has_undo()).cloned());
            }
        }
        if !takes_an_address {
            return stuck;
        }
        match system.lost(old) {
            Ok(lost) => warn_of(lost.iter().filter_map(|step| system.apply(step).err())),
            Err(error) => warn_of([error]),
        }
        stuck
    }

    fn has_taken_an_address(&self) -> bool {
        self.done.iter().any(|change| matches!(change, Change::Remove(Step::Address(_))))
    }
}

fn warn_of(failures: impl IntoIterator<Item = HostError>) {
    for failure in failures {
        tracing::warn!("while taking back a change that failed: {failure}");
    }
}

/// What leads from one list of steps to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What to do, in order.
    pub changes: Vec<Change>,
}

/// A single difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A step that was not in force.
    Add(Step),
    /// A step that takes the place of one.
    Replace {
        /// The one in force.
        from: Step,
        /// The one that is wanted.
        to: Step,
    },
    /// A step that is wanted no longer.
    Remove(Step),
}

impl Difference {
    /// What leads from `old` to `new`; nothing, if both are the same. What is new comes first, so that nothing is missing
    /// meanwhile, but for an address that cannot be there beside the one that goes.
    pub fn between(old: &[Step], new: &[Step]) -> Self {
        let is_state = |step: &&Step| !matches!(step, Step::Hook(_));
        let in_force: HashMap<Key, &Step> =
            old.iter().filter(is_state).map(|step| (step.key(), step)).collect();
        let wanted: HashSet<Key> = new.iter().filter(is_state).map(Step::key).collect();
        let gone = || {
            let is_gone = |step: &&Step| step.has_undo() && !wanted.contains(&step.key());
            old.iter().rev().filter(is_state).filter(is_gone)
        };
        let mut changes = Vec::new();
        for step in new.iter().filter(is_state) {
            match in_force.get(&step.key()) {
                None => {
                    let in_its_way = gone().filter(|other| step.excludes(other));
                    changes.extend(in_its_way.cloned().map(Change::Remove));
                    changes.push(Change::Add(step.clone()));
                }
                Some(same) if *same == step => {}
                Some(from) => changes.push(Change::Replace { from: (*from).clone(), to: step.clone() }),
            }
        }
        let rest: Vec<Change> = gone().cloned().map(Change::Remove).collect();
        let rest: Vec<Change> = rest.into_iter().filter(|change| !changes.contains(change)).collect();
        changes.extend(rest);
        Self { changes }
    }
}

impl Change {
    fn to(&self) -> Option<&Step> {
        match self {
            Self::Add(step) | Self::Replace { to: step, .. } => Some(step),
            Self::Remove(_) => None,
        }
    }

    fn make(&self, system: &mut impl System) -> Result<Outcome, HostError> {
        match self {
            Self::Add(step) => system.apply(step),
            Self::Replace { from, to } => replace(from, to, system),
            Self::Remove(step) => system.undo(step).map(|()| Outcome::Done),
        }
    }

    fn unmake(&self, system: &mut impl System) -> Option<HostError> {
        match self {
            Self::Add(step) if step.has_undo() => system.undo(step).err(),
            Self::Add(_) => None,
            Self::Replace { from, to } => replace(to, from, system).err(),
            Self::Remove(step) => system.apply(step).err(),
        }
    }
}

/// One rule is added before the other one goes; the rest is replaced by being done over.
fn replace(from: &Step, to: &Step, system: &mut impl System) -> Result<Outcome, HostError> {
    let outcome = system.apply(to)?;
    if matches!(from, Step::Rule(_))
        && let Err(error) = system.undo(from)
    {
        warn_of(system.undo(to).err());
        return Err(error);
    }
    Ok(outcome)
}

#[cfg(test)]
#[path = "execute_tests.rs"]
mod tests;
