//! Restores what another program has undone: `nft flush ruleset` removes all tables, systemd-networkd may
//! remove rules of other programs, and the kernel removes the routes of a device that is set down.

use super::execute::{Outcome, System as _};
use super::{FOLLOWS_ENDPOINTS, Host, Step};
use crate::network::NetworkChange;

mod dns;

pub(super) use dns::DnsWatch;

impl Host {
    /// Does again what another program has undone of rules and routes, according to a change of the network.
    /// What may be meant stays undone, such as a single route that was removed.
    pub fn restore_routing(&mut self, change: &NetworkChange) {
        // Elsewhere `follow` does it.
        if FOLLOWS_ENDPOINTS || !(change.rules_removed || change.device_up) || !self.has_its_device() {
            return;
        }
        match self.kernel.undone(self.applied.steps(), change) {
            Ok(undone) => _ = self.restore(&undone),
            Err(error) => tracing::warn!("cannot see what another program has undone: {error}"),
        }
    }

    /// Reports whether the device is still in this network namespace. If it has left, another device may have
    /// its index, and must not get its routes.
    fn has_its_device(&self) -> bool {
        let found = self.kernel.netlink.link(&self.plan.interface).ok();
        found.is_some_and(|found| self.link().is_some_and(|own| own.index == found.index))
    }

    /// Reports whether there are firewall rules for [`Self::restore_firewall`] to look after.
    pub fn has_firewall(&self) -> bool {
        // They come last, but for commands.
        let last = self.applied.steps().iter().rev().find(|step| !matches!(step, Step::Hook(_)));
        !FOLLOWS_ENDPOINTS && matches!(last, Some(Step::Firewall(_)))
    }

    /// Sets the rules of the packet filter again if another program has removed their tables. Returns whether
    /// they are there.
    pub fn restore_firewall(&mut self) -> bool {
        let kernel = &self.kernel;
        let is_gone = |step: &&Step| matches!(step, Step::Firewall(wanted) if !kernel.has_firewall(wanted));
        let gone: Vec<Step> = self.applied.steps().iter().filter(is_gone).cloned().collect();
        self.restore(&gone)
    }

    /// Does steps again. Failures are logged. Returns whether all were done.
    fn restore(&mut self, undone: &[Step]) -> bool {
        let mut all_done = true;
        let interface = self.plan.interface.clone();
        for step in undone {
            match self.kernel.apply(step) {
                // It cannot be done any more, which a warning has said, or another program has done it.
                Ok(Outcome::Left) => all_done = false,
                Ok(Outcome::Done) => {
                    let step = step.doing(&interface);
                    tracing::warn!(%interface, "another program had undone this, which was done again: {step}");
                }
                Err(error) => {
                    all_done = false;
                    let step = step.doing(&interface);
                    tracing::warn!(%interface, "another program has undone this: {step}: {error}");
                }
            }
        }
        all_done
    }
}
