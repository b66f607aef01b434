//! A host that one daemon leaves as it is, and the next one takes over: only what differs is done.
//!
//! The record of the one before says what it did, the system what of that is still so. Somebody who starts a service
//! again in order to repair what is broken must not be disappointed.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;

use weft_config::{Config, Hook, Stage};

use super::execute::System as _;
use super::kernel::Kernel;
use super::record::{Owner, Record};
use super::step::Step;
use super::{Applied, Host, HostError, Plan, Recording, clean_up, facts, owner, run_hooks};
use crate::routes::Netlink;

/// A device that was there before this daemon.
#[derive(Debug)]
pub(super) struct Continued {
    /// Whether the commands of PreUp and PostUp are to run: they are others than those that have.
    runs_commands: bool,
    /// What takes back the ones that have run.
    down: Vec<Hook>,
}

impl Host {
    /// As [`Host::prepare`], for a device that is there and is ours. What is on record for it stays in force.
    ///
    /// # Errors
    /// Those of [`Host::prepare`], and when there is no such device.
    pub fn take_over(
        config: &Config,
        source: Option<&Path>,
        endpoints: &[SocketAddr],
        recording: &Recording,
    ) -> Result<Self, HostError> {
        let interface = &config.interface.name;
        let netlink = Netlink::open()?;
        let link = netlink.link(interface)?;
        let mut kernel = Kernel::new(netlink, interface.clone());
        let owner = owner(recording, interface)?;
        let left = owner.as_ref().map(Owner::left_behind).transpose()?.flatten();
        match left {
            Some(left) if left.index == Some(link.index) => {
                kernel.link = Some(link);
                Self::continue_from(kernel, owner, left, config, source, endpoints)
            }
            left => {
                let mut host = Self::begin(kernel, owner, left, config, source, endpoints)?;
                host.kernel.link = Some(link);
                // Nobody knows who gave them to the device; they go with it.
                let its_own = |step: &Step| matches!(step, Step::Address(_) | Step::Route { .. });
                let own: Vec<Step> = host.plan.steps.iter().filter(|step| its_own(step)).cloned().collect();
                let in_force = Applied::recorded(host.kernel.in_force(&own)?);
                host.applied = in_force.with_stuck(host.applied.stuck().to_vec());
                host.continued = Some(Continued { runs_commands: true, down: Vec::new() });
                Ok(host)
            }
        }
    }

    fn continue_from(
        mut kernel: Kernel,
        owner: Option<Owner>,
        left: Record,
        config: &Config,
        source: Option<&Path>,
        endpoints: &[SocketAddr],
    ) -> Result<Self, HostError> {
        kernel.dns.clone_from(&left.dns);
        // It outlives whatever fails from here on.
        kernel.kept = left.steps.iter().find(|step| clean_up::has_kill_switch(step)).cloned();
        let recorded: Vec<Step> =
            left.steps.iter().filter(|step| Some(*step) != kernel.kept.as_ref()).cloned().collect();
        let in_force = kernel.in_force(&recorded)?;

        let alone = owner.as_ref().map(Owner::choose_alone).transpose()?;
        let directory = owner.as_ref().map(Owner::directory);
        let facts = facts::gather(&kernel.netlink, config, endpoints, directory, left.mark)?;
        let plan = Plan::new(config, endpoints, &facts.without(&in_force)).keeping_places_of(&in_force);
        let continued =
            Continued { runs_commands: !are_the_same(&plan.up_hooks(), &left.ran), down: left.down.clone() };
        let mut record =
            Record { file: source.map(Path::to_owned), mark: plan.mark, handed_over: None, ..left };
        record.reserve_rules_of(&plan);
        let host = Self {
            found_kill_switch: kernel.kept.is_some(),
            kernel,
            plan,
            applied: Applied::recorded(in_force),
            owner,
            record,
            continued: Some(continued),
            mtu_by_hand: None,
        };
        host.write()?;
        drop(alone);
        Ok(host)
    }

    /// Whether PreUp has to run, after the commands that take back what others of its kind did.
    pub(super) fn begins_anew(&self) -> bool {
        let Some(continued) = &self.continued else { return true };
        if continued.runs_commands {
            for stage in [Stage::PreDown, Stage::PostDown] {
                run_hooks(&continued.down, stage, &self.kernel);
            }
        }
        continued.runs_commands
    }

    /// Does what differs from what is in force. A failure leaves what is in force to be taken back.
    pub(super) fn go_on(&mut self, continued: &Continued) -> Result<(), HostError> {
        // Until it is through, what is in force may be either.
        let mut steps = self.applied.all();
        let is_in_force: HashSet<Step> = self.applied.steps().iter().cloned().collect();
        steps.extend(self.plan.steps.iter().filter(|step| !is_in_force.contains(step)).cloned());
        self.record.steps = steps;
        self.record.dns = match self.plan.dns() {
            Some(wanted) => Some(self.kernel.dns_record(wanted)?),
            None => self.kernel.dns.clone(),
        };
        self.write()?;
        let done = self.bring_in_force(&is_in_force, continued.runs_commands);
        if let Err(error) = done {
            self.restore_kill_switch();
            return Err(error);
        }
        self.release_kill_switch();
        self.record.down.clone_from(&self.plan.down);
        self.record.ran = self.plan.up_hooks();
        self.write_what_is_in_force()
    }

    fn bring_in_force(&mut self, was_in_force: &HashSet<Step>, runs_commands: bool) -> Result<(), HostError> {
        self.applied.change_to(&self.plan.steps, &mut self.kernel)?;
        // Whether these are still as they were set does not show.
        let is_hidden = |step: &&Step| matches!(step, Step::Dns(_) | Step::Firewall(_));
        for step in self.plan.steps.iter().filter(is_hidden).filter(|step| was_in_force.contains(step)) {
            self.kernel.apply(step)?;
        }
        if runs_commands {
            for step in self.plan.steps.iter().filter(|step| matches!(step, Step::Hook(_))) {
                self.kernel.apply(step)?;
            }
        }
        Ok(())
    }

    /// Whether what is in force can be left to the next daemon: it has to be on record.
    pub fn can_be_handed_over(&self) -> bool {
        self.owner.is_some() && self.record.index.is_some()
    }

    /// Leaves everything as it is, for the daemon of the run after this one (`INVOCATION_ID`).
    ///
    /// # Errors
    /// When that cannot be written down. Nothing is left to anybody then.
    pub fn hand_over(&mut self, invocation: &str) -> Result<(), HostError> {
        self.record.handed_over = Some(invocation.to_owned());
        let written = self.write_what_is_in_force();
        if written.is_err() {
            self.record.handed_over = None;
            return written;
        }
        self.applied = Applied::default();
        self.kernel.kept = None;
        // With nobody to forget it, the record stays.
        self.owner = None;
        Ok(())
    }
}

/// Whether these are the same commands, wherever they stand in the file.
fn are_the_same(some: &[Hook], others: &[Hook]) -> bool {
    let command = |hook: &Hook| (hook.stage, hook.command.clone());
    some.iter().map(command).eq(others.iter().map(command))
}
