//! A kill switch that a previous daemon left behind: it is in force until the plan's firewall rules have
//! replaced it, or a start has succeeded without one.

use std::path::Path;

use weft_config::InterfaceName;

use super::clean_up::has_kill_switch;
use super::execute::System as _;
use super::record::Record;
use super::step::Step;
use super::{Host, firewall, wait_for_predecessor};

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
        }
    }

    pub(super) fn tell_of_kill_switch(&self) {
        let interface = &self.plan.interface;
        let command = match self.owner {
            Some(_) => format!("weft down {interface}"),
            // There is no record, without which `weft down` does not find it.
            None => firewall::removing_command(interface),
        };
        warn_of_kill_switch(interface, &command);
    }
}

/// Logs what is in force of an interface that no daemon runs, after a start that failed.
pub fn tell_what_is_left(directory: &Path, interface: &InterfaceName) {
    let Some(left) = Record::read(directory, interface).ok().flatten() else { return };
    if left.steps.is_empty() || left.handed_over.is_some() {
        return;
    }
    if wait_for_predecessor(directory, interface).is_err() {
        return;
    }
    let command = format!("weft down {interface}");
    if left.steps.iter().all(has_kill_switch) {
        warn_of_kill_switch(interface, &command);
    } else {
        tracing::warn!(
            %interface,
            "what an earlier daemon had set up is still in force, such as routes, name servers or a kill switch; \
             `{command}` takes it back"
        );
    }
}

fn warn_of_kill_switch(interface: &InterfaceName, command: &str) {
    tracing::warn!(%interface, "the kill switch stays in force; `{command}` takes it away");
}
