//! Hands a host from one daemon to the next: the old daemon leaves everything in force, and the new daemon
//! applies only differences.
//!
//! The record says which steps the old daemon did; the system says which of them are still in force. The
//! others are done again: users restart a service in order to repair it.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use weft_config::{Config, Hook, HookPhase};

use super::execute::System as _;
use super::kernel::Kernel;
use super::record::{Owner, Record};
use super::restore::DnsWatch;
use super::step::Step;
use super::{Applied, Host, HostError, Plan, Recording, clean_up, hooks, left_behind, owner, system_state};
use crate::routes::Netlink;

/// How to continue with a device that existed before this daemon.
#[derive(Debug)]
pub(super) struct Continued {
    /// Whether the commands of PreUp and PostUp have to run: they differ from the commands that have run.
    runs_commands: bool,
    /// The commands of PreDown and PostDown, which undo those that have run.
    down: Vec<Hook>,
}

impl Host {
    /// Prepares like [`Host::prepare`], for a device that exists and is ours. Steps on record for the device
    /// stay in force.
    ///
    /// # Errors
    /// Those of [`Host::prepare`]; also if there is no such device.
    pub fn adopt(
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
        let left = left_behind(owner.as_deref(), interface, Some(&link))?;
        match left {
            Some(left) if left.index == Some(link.index) => {
                kernel.link = Some(link);
                Self::continue_from(kernel, owner, left, config, source, endpoints)
            }
            left => {
                let mut host = Self::begin(kernel, owner, left, config, source, endpoints)?;
                host.kernel.link = Some(link);
                // It is unknown what added these to the device; they disappear with it.
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
        owner: Option<Arc<Owner>>,
        left: Record,
        config: &Config,
        source: Option<&Path>,
        endpoints: &[SocketAddr],
    ) -> Result<Self, HostError> {
        kernel.dns.clone_from(&left.dns);
        // The kill switch stays in force whatever fails from here on.
        kernel.kept = left.steps.iter().find(|step| clean_up::has_kill_switch(step)).cloned();
        let recorded: Vec<Step> =
            left.steps.iter().filter(|step| Some(*step) != kernel.kept.as_ref()).cloned().collect();
        let in_force = kernel.in_force(&recorded)?;

        let directory = owner.as_deref().map(Owner::directory);
        let facts =
            system_state::gather(&kernel.netlink, &kernel.netlink, config, endpoints, directory, left.mark)?;
        let plan = Plan::new(config, endpoints, &facts.without(&in_force)).keeping_places_of(&in_force);
        let continued =
            Continued { runs_commands: !are_the_same(&plan.up_hooks(), &left.ran), down: left.down.clone() };
        let mark_in_force = left.mark;
        let record = Record { file: source.map(Path::to_owned), handed_over: None, ..left };
        let mut host = Self {
            found_kill_switch: kernel.kept.is_some(),
            kernel,
            plan: plan.clone(),
            applied: Applied::recorded(in_force),
            owner,
            record,
            continued: Some(continued),
            mtu_by_hand: None,
            dns_watch: DnsWatch::default(),
            undone: Vec::new(),
            undone_firewall: Vec::new(),
            device_has_left: false,
            event: Instant::now(),
            is_told: false,
        };
        host.reserve((config, endpoints), mark_in_force, Some(plan))?;
        Ok(host)
    }

    /// Reports whether PreUp has to run. If other commands of its kind have run before, runs those that undo
    /// them first.
    pub(super) fn is_to_run_pre_up(&self) -> bool {
        let Some(continued) = &self.continued else { return true };
        if continued.runs_commands {
            for phase in [HookPhase::PreDown, HookPhase::PostDown] {
                let _logged = hooks::run_all(&continued.down, phase, &self.plan.interface);
            }
        }
        continued.runs_commands
    }

    /// Does the steps that differ from those in force. After a failure, the steps in force still have to be
    /// undone.
    pub(super) fn go_on(&mut self, continued: &Continued) -> Result<(), HostError> {
        // Until the change is complete, steps of either plan may be in force.
        let mut steps: Vec<Step> = self.kernel.kept.iter().cloned().chain(self.applied.all()).collect();
        let is_in_force: HashSet<Step> = self.applied.steps().iter().cloned().collect();
        steps.extend(self.plan.steps.iter().filter(|step| !is_in_force.contains(step)).cloned());
        self.record.steps = steps;
        self.record.dns = match self.plan.dns() {
            Some(wanted) => Some(self.kernel.dns_record(wanted)?),
            None => self.kernel.dns.clone(),
        };
        self.write()?;
        let done = self.bring_in_force(&is_in_force, continued.runs_commands);
        if done.is_ok() {
            self.record.down.clone_from(&self.plan.down);
            self.record.ran = self.plan.up_hooks();
        }
        self.conclude(done)
    }

    fn bring_in_force(&mut self, was_in_force: &HashSet<Step>, runs_commands: bool) -> Result<(), HostError> {
        self.applied.change_to(&self.plan.steps, &mut self.kernel)?;
        // Whether these are still in force cannot be checked, so they are done again.
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

    /// Reports whether the steps in force can be left to the next daemon: they have to be on record.
    pub fn can_be_handed_over(&self) -> bool {
        self.owner.is_some() && self.record.index.is_some()
    }

    /// Leaves everything in force for the daemon of the service's next run. `invocation` is the present run
    /// (`INVOCATION_ID`).
    ///
    /// # Errors
    /// The record cannot be written. Nothing is handed over then.
    pub fn hand_over(&mut self, invocation: &str) -> Result<(), HostError> {
        self.record.handed_over = Some(invocation.to_owned());
        let written = self.write_what_is_in_force();
        if written.is_err() {
            self.record.handed_over = None;
            return written;
        }
        self.applied = Applied::default();
        self.kernel.kept = None;
        // Without an owner, which would remove it, the record stays.
        self.owner = None;
        Ok(())
    }
}

/// Reports whether both are the same commands, regardless of their places in the file.
fn are_the_same(some: &[Hook], others: &[Hook]) -> bool {
    let command = |hook: &Hook| (hook.phase, hook.command.clone());
    some.iter().map(command).eq(others.iter().map(command))
}
