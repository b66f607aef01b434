//! Does and undoes steps: in order, all or nothing; each call can be repeated.

use std::collections::{HashMap, HashSet};

use super::HostError;
use super::step::{Key, Step};

/// The system that steps change. It is no error to undo a step twice, or one that was never done.
pub trait System {
    /// Does a step. A step that replaces a setting (MTU, name servers, packet filter) may be done while
    /// another step of its kind is in force.
    fn apply(&mut self, step: &Step) -> Result<Outcome, HostError>;

    /// Undoes a step.
    fn undo(&mut self, step: &Step) -> Result<(), HostError>;

    /// Returns those of the steps that the removal of an address may have removed too, and that are not in
    /// force.
    fn lost(&self, steps: &[Step]) -> Result<Vec<Step>, HostError>;
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The step was done, and weft has to undo it.
    Done,
    /// The system was in this state already, or cannot be brought into it: nothing is undone later.
    Left,
}

/// The steps that are in force, in the order in which they were done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    steps: Vec<Step>,
    /// Steps that could not be undone, in the order in which they were done.
    stuck: Vec<Step>,
}

impl Applied {
    /// Makes a list of recorded steps, which may have been done.
    pub fn recorded(steps: Vec<Step>) -> Self {
        Self { steps, stuck: Vec::new() }
    }

    /// Sets the steps that could not be undone.
    #[must_use]
    pub fn with_stuck(self, stuck: Vec<Step>) -> Self {
        Self { stuck, ..self }
    }

    /// Returns the steps in force, in the order in which they were done.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the steps that could not be undone; the next [`Self::undo`] tries them again.
    pub fn stuck(&self) -> &[Step] {
        &self.stuck
    }

    /// Records that the device has this MTU now, without a step that set it.
    pub(super) fn note_mtu(&mut self, now: u16) {
        for step in &mut self.steps {
            if let Step::Mtu(mtu) = step {
                *mtu = now;
            }
        }
    }

    /// Takes steps out of those in force that the system has undone by itself.
    pub(super) fn forget(&mut self, lost: &[Step]) {
        let lost: HashSet<&Step> = lost.iter().collect();
        self.steps.retain(|step| !lost.contains(step));
    }

    /// Takes steps back to those in force.
    pub(super) fn remember(&mut self, forgotten: Vec<Step>) {
        let lost: Vec<Step> = forgotten.into_iter().filter(|step| !self.steps.contains(step)).collect();
        self.steps.extend(lost);
    }

    /// Returns all steps that are to be undone, in the order in which they were done.
    pub(super) fn all(&self) -> Vec<Step> {
        self.stuck.iter().chain(&self.steps).cloned().collect()
    }

    /// Does the steps in order. A failure undoes those that this call did, in reverse order; failures of that
    /// are logged as warnings.
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

    /// Undoes everything in reverse order, and continues after failures, which it returns. Steps that could
    /// not be undone before are tried again.
    pub fn undo(&mut self, system: &mut impl System) -> Vec<HostError> {
        self.steps = self.all();
        self.stuck.clear();
        self.undo_to(0, system)
    }

    fn undo_to(&mut self, length: usize, system: &mut impl System) -> Vec<HostError> {
        let (mut failures, mut stuck) = (Vec::new(), Vec::new());
        while self.steps.len() > length {
            let Some(step) = self.steps.pop() else { break };
            if step.has_undo()
                && let Err(error) = system.undo(&step)
            {
                failures.push(error);
                stuck.push(step);
            }
        }
        stuck.reverse();
        self.stuck.splice(..0, stuck);
        failures
    }

    /// Changes the steps in force to another list. New and different steps are done first, in order; then
    /// steps that are no longer wanted are undone, in reverse order; see [`Difference::between`]. A failure
    /// restores the previous steps. Commands do not run. Returns the number of changes.
    pub fn change_to(&mut self, wanted: &[Step], system: &mut impl System) -> Result<usize, HostError> {
        let mut under_way = UnderWay::default();
        if let Err(error) = under_way.make(&self.steps, wanted, system) {
            self.stuck.extend(under_way.unmake(&self.steps, system));
            return Err(error);
        }
        let UnderWay { done, left } = under_way;
        let changes = done.len() + left.len();
        let old: HashSet<Key> = self.steps.iter().map(Step::key).collect();
        // A step with the outcome `Left` is kept only if it was in the list before: else it is not ours to
        // undo.
        self.steps = wanted
            .iter()
            .filter(|step| !left.contains(&step.key()) || old.contains(&step.key()))
            .cloned()
            .collect();
        Ok(changes)
    }
}

/// The progress of a change from one list of steps to another.
#[derive(Debug, Default)]
struct UnderWay<'a> {
    done: Vec<StepChange<'a>>,
    left: HashSet<Key>,
}

impl<'a> UnderWay<'a> {
    fn make(
        &mut self,
        old: &'a [Step],
        wanted: &'a [Step],
        system: &mut impl System,
    ) -> Result<(), HostError> {
        for change in Difference::between(old, wanted).changes {
            match change.make(system)? {
                Outcome::Done => self.done.push(change),
                Outcome::Left => self.left.extend(change.to().map(Step::key)),
            }
        }
        if !self.has_taken_an_address() {
            return Ok(());
        }
        // A route that was there already, so that it was not added, may have been the route of an address,
        // and gone with it.
        let lost: HashSet<Step> = system.lost(wanted)?.into_iter().collect();
        let old: HashSet<&Step> = old.iter().collect();
        for step in wanted.iter().filter(|step| lost.contains(step)) {
            if system.apply(step)? == Outcome::Left {
                continue;
            }
            self.left.remove(&step.key());
            if !old.contains(step) {
                self.done.push(StepChange::Add(step));
            }
        }
        Ok(())
    }

    /// Restores the steps that were in force before. Failures are logged as warnings. Returns the steps that
    /// could not be undone.
    fn unmake(&self, old: &[Step], system: &mut impl System) -> Vec<Step> {
        let is_of_address = |change: &StepChange<'_>| matches!(change, StepChange::Add(Step::Address(_)));
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
        self.done.iter().any(|change| matches!(change, StepChange::Remove(Step::Address(_))))
    }
}

fn warn_of(failures: impl IntoIterator<Item = HostError>) {
    for failure in failures {
        tracing::warn!("while taking back a change that failed: {failure}");
    }
}

/// The changes from one list of steps to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference<'a> {
    /// The changes, in the order in which they are made.
    pub changes: Vec<StepChange<'a>>,
}

/// A single change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepChange<'a> {
    /// A step that was not in force.
    Add(&'a Step),
    /// A step that replaces another step with the same key.
    Replace {
        /// The step in force.
        from: &'a Step,
        /// The step that is wanted.
        to: &'a Step,
    },
    /// A step that is no longer wanted.
    Remove(&'a Step),
}

impl<'a> Difference<'a> {
    /// Returns the changes from `old` to `new`; none if both are equal. Additions come before removals, so
    /// that nothing is missing in between. The exception is an address that cannot exist beside a removed
    /// address: that removal comes first.
    pub fn between(old: &'a [Step], new: &'a [Step]) -> Self {
        let is_state = |step: &&Step| !matches!(step, Step::Hook(_));
        let in_force: HashMap<Key, &Step> =
            old.iter().filter(is_state).map(|step| (step.key(), step)).collect();
        let wanted: HashSet<Key> = new.iter().filter(is_state).map(Step::key).collect();
        let is_gone = |step: &&Step| step.has_undo() && !wanted.contains(&step.key());
        let gone: Vec<&Step> = old.iter().rev().filter(is_state).filter(is_gone).collect();
        // There may be many routes, but only addresses are in the way of others.
        let addresses: Vec<&Step> =
            gone.iter().filter(|step| matches!(step, Step::Address(_))).copied().collect();
        let mut removed = HashSet::new();
        let mut changes = Vec::new();
        for step in new.iter().filter(is_state) {
            match in_force.get(&step.key()) {
                None => {
                    for other in addresses.iter().filter(|other| step.excludes(other)) {
                        if removed.insert(*other) {
                            changes.push(StepChange::Remove(other));
                        }
                    }
                    changes.push(StepChange::Add(step));
                }
                Some(same) if *same == step => {}
                Some(from) => changes.push(StepChange::Replace { from, to: step }),
            }
        }
        let rest = gone.into_iter().filter(|step| !removed.contains(step));
        changes.extend(rest.map(StepChange::Remove));
        Self { changes }
    }
}

impl<'a> StepChange<'a> {
    fn to(self) -> Option<&'a Step> {
        match self {
            Self::Add(step) | Self::Replace { to: step, .. } => Some(step),
            Self::Remove(_) => None,
        }
    }

    fn make(self, system: &mut impl System) -> Result<Outcome, HostError> {
        match self {
            Self::Add(step) => system.apply(step),
            Self::Replace { from, to } => replace(from, to, system),
            Self::Remove(step) => system.undo(step).map(|()| Outcome::Done),
        }
    }

    fn unmake(self, system: &mut impl System) -> Option<HostError> {
        match self {
            Self::Add(step) if step.has_undo() => system.undo(step).err(),
            Self::Add(_) => None,
            Self::Replace { from, to } => replace(to, from, system).err(),
            Self::Remove(step) => system.apply(step).err(),
        }
    }
}

/// Replaces a step by another. A new rule is added before the old rule is removed; a host route can exist
/// once only, so that the old one goes first; a step of another kind replaces the old one by being done.
fn replace(from: &Step, to: &Step, system: &mut impl System) -> Result<Outcome, HostError> {
    if matches!(from, Step::EndpointRoute { .. }) {
        system.undo(from)?;
        return system.apply(to).inspect_err(|_| warn_of(system.apply(from).err()));
    }
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
