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
}

impl Applied {
    /// Steps that may have been done, as they were recorded.
    pub fn recorded(steps: Vec<Step>) -> Self {
        Self { steps }
    }

    /// What is in force, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
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

    /// Takes everything back, the last first, and goes on where a part of it fails.
    pub fn undo(&mut self, system: &mut impl System) -> Vec<HostError> {
        self.undo_to(0, system)
    }

    fn undo_to(&mut self, length: usize, system: &mut impl System) -> Vec<HostError> {
        let mut failures = Vec::new();
        while self.steps.len() > length {
            let Some(step) = self.steps.pop() else { break };
            if step.has_undo() {
                failures.extend(system.undo(&step).err());
            }
        }
        failures
    }

    /// Brings what is in force to another list of steps: what is new or different is done first, in its order, then
    /// what is no longer wanted is taken back, the last first. A failure brings back what was in force. Commands do
    /// not run again.
    pub fn change_to(&mut self, wanted: &[Step], system: &mut impl System) -> Result<(), HostError> {
        let difference = Difference::between(&self.steps, wanted);
        let mut undo = Vec::new();
        let mut left = HashSet::new();
        for change in &difference.changes {
            match change.make(system) {
                Ok(Outcome::Done) => undo.push(change),
                Ok(Outcome::Left) => {
                    left.extend(change.to().map(Step::key));
                }
                Err(error) => {
                    for done in undo.into_iter().rev() {
                        warn_of(done.unmake(system));
                    }
                    return Err(error);
                }
            }
        }
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
    /// What leads from `old` to `new`; nothing, if both are the same.
    pub fn between(old: &[Step], new: &[Step]) -> Self {
        let is_state = |step: &&Step| !matches!(step, Step::Hook(_));
        let in_force: HashMap<Key, &Step> =
            old.iter().filter(is_state).map(|step| (step.key(), step)).collect();
        let wanted: HashSet<Key> = new.iter().filter(is_state).map(Step::key).collect();
        let mut changes = Vec::new();
        for step in new.iter().filter(is_state) {
            match in_force.get(&step.key()) {
                None => changes.push(Change::Add(step.clone())),
                Some(same) if *same == step => {}
                Some(from) => changes.push(Change::Replace { from: (*from).clone(), to: step.clone() }),
            }
        }
        let gone = old.iter().rev().filter(is_state).filter(|step| !wanted.contains(&step.key()));
        changes.extend(gone.filter(|step| step.has_undo()).cloned().map(Change::Remove));
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
