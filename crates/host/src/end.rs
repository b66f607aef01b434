//! The end of an interface: what was done to the system is undone in reverse order, and what stays is on
//! record.

use std::sync::Arc;
use std::time::Instant;

use weft_config::HookPhase;

use crate::{Host, HostError, Keep, Owner, Step, clean_up, hooks, programs};

impl Host {
    /// Notes that the interface is being taken down, or left to the next daemon: a start waits from now on,
    /// until the returned claim is dropped too.
    pub fn note_end(&self) -> Option<Arc<Owner>> {
        let owner = self.owner.clone()?;
        owner.note_end();
        Some(owner)
    }

    /// Runs PreDown. Returns the failures; they are logged too.
    pub fn before_down(&self) -> Vec<HostError> {
        hooks::run_all(&self.plan.down, HookPhase::PreDown, &self.plan.interface)
    }

    /// Undoes all steps except those that `keep` names, in reverse order. Steps that are kept or could not be
    /// undone stay on record for `weft down`. Returns the failures; they are logged too.
    pub fn down(&mut self, keep: Keep) -> Vec<HostError> {
        let is_kept = |step: &&Step| keep == Keep::KillSwitch && clean_up::has_kill_switch(step);
        self.kernel.kept = self.applied.steps().iter().find(is_kept).cloned();
        self.event = Instant::now();
        let mut failures = self.undo();
        if !failures.is_empty() {
            // The kernel may have been out of memory for a moment, or another program busy.
            failures.retain(is_final);
            failures.extend(self.undo());
        }
        if self.kernel.kept.is_some() {
            self.tell_of_kill_switch();
        }
        self.warn_of(&failures);
        failures.extend(self.close_record().err());
        self.is_told = true;
        failures
    }

    /// Undoes all steps. A program that hangs is called once in an end.
    fn undo(&mut self) -> Vec<HostError> {
        programs::event(programs::OF_AN_EVENT, self.event, || self.applied.undo(&mut self.kernel))
    }

    /// Removes the device, even if other processes hold it. A failure is logged too.
    pub fn remove_device(&self) -> Result<(), HostError> {
        let Some(link) = &self.kernel.link else { return Ok(()) };
        self.kernel.netlink.remove_link(link).inspect_err(|error| tracing::warn!("{error}"))?;
        Ok(())
    }

    /// Runs PostDown, after the device was removed. Returns the failures; they are logged too.
    pub fn after(mut self) -> Vec<HostError> {
        self.kernel.link = None;
        hooks::run_all(&self.plan.down, HookPhase::PostDown, &self.plan.interface)
    }

    fn warn_of(&self, failures: &[HostError]) {
        for error in failures {
            if is_final(error) {
                tracing::warn!("{error}");
            } else {
                tracing::warn!("{error}; `weft down {}` tries it again", self.plan.interface);
            }
        }
    }

    /// Reduces the record to the steps that are kept and those that could not be undone, or removes it if
    /// there are none. A failure is logged too.
    fn close_record(&mut self) -> Result<(), HostError> {
        let stuck = self.applied.stuck();
        let closed = match self.kernel.kept.clone() {
            kept if !stuck.is_empty() => {
                self.record.steps = kept.iter().chain(stuck).cloned().collect();
                self.record.dns.clone_from(&self.kernel.dns);
                self.record.down.clear();
                self.write()
            }
            Some(step) => {
                self.record = self.record.of_kill_switch(step);
                self.write()
            }
            None => self.owner.as_deref().map_or(Ok(()), Owner::forget),
        };
        closed.inspect_err(|error| tracing::warn!("{error}"))
    }
}

/// Reports whether a second try has nothing left to do.
fn is_final(error: &HostError) -> bool {
    matches!(error, HostError::LostDns(_))
}

impl Drop for Host {
    fn drop(&mut self) {
        let _claim = self.note_end();
        let failures = self.undo();
        if !self.is_told {
            self.warn_of(&failures);
        }
        let _logged = self.close_record();
    }
}
