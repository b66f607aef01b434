//! A kill switch that a previous daemon left behind: it is in force until the plan's firewall rules have
//! replaced it, or a start has succeeded without one.

use super::execute::System as _;
use super::step::Step;
use super::{Host, firewall};

impl Host {
    /// Removes the kill switch that was left behind, unless the plan's firewall rules have replaced it.
    pub(super) fn release_kill_switch(&mut self) {
        let Some(step) = self.kernel.kept.take().filter(|kept| !self.has_replaced(kept)) else { return };
        if let Err(error) = self.kernel.undo(&step).and_then(|()| self.write_what_is_in_force()) {
            tracing::warn!("{error}");
        }
    }

    /// Reports whether firewall rules in force have replaced those of a step.
    pub(super) fn has_replaced(&self, step: &Step) -> bool {
        self.applied.steps().iter().any(|other| other.key() == step.key())
    }

    /// Restores the kill switch that was in force before a failed start: the start may be one after a crash.
    pub(super) fn restore_kill_switch(&mut self) {
        let Some(step) = self.kernel.kept.clone() else { return };
        if let Err(error) = self.kernel.apply(&step) {
            tracing::warn!("the kill switch could not be kept: {error}");
            self.kernel.kept = None;
            return;
        }
        self.tell_of_kill_switch();
    }

    pub(super) fn tell_of_kill_switch(&self) {
        let interface = &self.plan.interface;
        let command = match self.owner {
            Some(_) => format!("weft down {interface}"),
            // There is no record, without which `weft down` does not find it.
            None => firewall::removing_command(interface),
        };
        tracing::warn!(%interface, "the kill switch stays in force; `{command}` takes it away");
    }
}
