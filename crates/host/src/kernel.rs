//! Applies steps to the system: over netlink, below /proc/sys, and through the modules beside this one.

use std::collections::{BTreeSet, HashSet};
use std::io;

use ipnet::IpNet;
use weft_config::{Dns, InterfaceName};

use super::execute::{Outcome, System};
use super::plan::SRC_VALID_MARK;
use super::step::{Firewall, Key, Step};
use super::{HostError, hooks, outside, sysctl};
use crate::dns;
use crate::firewall::Contents;
use crate::routes::{Family, FoundRule, Link, Netlink, RouteError, Rule};

/// The system around one interface.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) netlink: Netlink,
    /// The network that leads to the peers, if the device is in a separate namespace.
    pub(super) outside: Option<Netlink>,
    /// Whether the device is a TCP/IP stack in this process: steps only say what it has.
    pub(super) is_detached: bool,
    pub(super) interface: InterfaceName,
    /// The device, as long as it exists.
    pub(super) link: Option<Link>,
    /// The resolver of this machine.
    pub(super) resolver: dns::System,
    /// The record that undoes the name servers.
    pub(super) dns: Option<dns::Record>,
    /// A kill switch that stays in force while other steps are undone: when other firewall rules are undone,
    /// it replaces them without a gap.
    pub(super) kept: Option<Step>,
    /// What the packet filter had when its rules were set.
    firewall: Contents,
    /// Rules that could not be removed, and still have to be.
    rules_left: Vec<Rule>,
    /// Steps that are not done since the system lacks something, each with a sentence about it.
    pub(super) lacks: Vec<(Key, String)>,
}

impl Kernel {
    pub(super) fn new(netlink: Netlink, interface: InterfaceName) -> Self {
        Self {
            netlink,
            outside: None,
            is_detached: false,
            interface,
            link: None,
            resolver: dns::System::default(),
            dns: None,
            kept: None,
            firewall: Contents::default(),
            rules_left: Vec::new(),
            lacks: Vec::new(),
        }
    }

    /// Returns the network that leads to the peers.
    pub(super) fn paths(&self) -> &Netlink {
        self.outside.as_ref().unwrap_or(&self.netlink)
    }

    fn link(&self) -> Result<&Link, RouteError> {
        self.link.as_ref().ok_or_else(|| RouteError::NoLink(self.interface.to_string()))
    }

    /// Returns the record that undoes the name servers that a step sets. It is written before the step is
    /// done.
    pub(super) fn dns_record(&self, wanted: &Dns) -> Result<dns::Record, HostError> {
        outside::dns_record(&self.resolver, self.link()?, wanted)
    }

    /// Sets the name servers. A failure leaves the previous name servers in force.
    fn set_dns(&mut self, wanted: &Dns) -> Result<(), HostError> {
        let record = self.dns_record(wanted)?;
        let set = outside::apply_dns(&self.resolver, self.link()?, &record, self.dns.as_ref());
        // A failed call leaves no name servers in force, not even the previous ones. The same ones would fail
        // again.
        if let (Err(_), Some(before)) = (&set, &self.dns)
            && *before != record
            && let Err(again) = outside::apply_dns(&self.resolver, self.link()?, before, None)
        {
            tracing::warn!("cannot put DNS back as it was: {again}");
        }
        set?;
        self.dns = Some(record);
        Ok(())
    }

    fn unset_dns(&mut self) -> Result<(), HostError> {
        let Some(record) = &self.dns else { return Ok(()) };
        outside::undo_dns(&self.resolver, &self.interface, record)?;
        self.dns = None;
        Ok(())
    }

    fn add_route(&self, prefix: IpNet, table: u32) -> Result<Outcome, RouteError> {
        let is_new = self.netlink.add_route(self.link()?, prefix, table)?;
        Ok(if is_new { Outcome::Done } else { Outcome::Left })
    }

    /// Adds a route, or puts it in the place of that of another program.
    pub(super) fn replace_route(&self, prefix: IpNet, table: u32) -> Result<Outcome, HostError> {
        self.netlink.replace_route(self.link()?, prefix, table)?;
        Ok(Outcome::Done)
    }

    /// Returns those of the steps that are not in force.
    pub(super) fn not_in_force(&self, mut steps: Vec<Step>) -> Result<Vec<Step>, RouteError> {
        if steps.is_empty() {
            return Ok(steps);
        }
        let in_force: HashSet<Step> = self.in_force(&steps)?.into_iter().collect();
        steps.retain(|step| !in_force.contains(step));
        Ok(steps)
    }

    /// Returns those of the steps that are in force. Name servers, packet filter and commands cannot be
    /// checked, and count as in force.
    pub(super) fn in_force(&self, steps: &[Step]) -> Result<Vec<Step>, RouteError> {
        if self.is_detached {
            return Ok(steps.to_vec());
        }
        let link = self.link()?;
        let addresses: HashSet<IpNet> = self.netlink.addresses(link)?.into_iter().collect();
        let routes = self.netlink.routes_through(link)?;
        let rules = self.netlink.rules()?;
        let is_in_force = |step: &&Step| match step {
            Step::Address(address) => addresses.contains(address),
            Step::Mtu(mtu) => link.mtu == u32::from(*mtu),
            // Done again, which changes nothing if the device is up.
            Step::LinkUp => false,
            Step::Route { prefix, table } => routes.contains(&(*prefix, *table)),
            Step::EndpointRoute { address, via } => {
                self.netlink.has_endpoint_route(*address, via).unwrap_or_default()
            }
            Step::Rule(rule) => rules.iter().any(|found| found.is(rule)),
            Step::Sysctl { name, value, .. } => sysctl::read(name).as_ref() == Some(value),
            Step::Dns(_) | Step::Firewall(_) | Step::Hook(_) => true,
        };
        Ok(steps.iter().filter(is_in_force).cloned().collect())
    }

    /// Returns how many rules another program has added to the tables of the packet filter; `None` if these
    /// are not there with the rules that were in them.
    pub(super) fn rules_added(&self, wanted: &Firewall) -> Option<usize> {
        outside::rules_added(&self.interface, wanted, &self.firewall).unwrap_or_else(|error| {
            tracing::debug!("{error}");
            // What cannot be read was not seen to be gone.
            Some(0)
        })
    }

    /// Reports whether the rules of another tunnel route packets by their mark, so that the reverse-path
    /// filter still has to take the mark into account. Other rules by mark did without that before weft.
    fn another_tunnel_routes_by_mark(&self) -> Result<bool, RouteError> {
        let is_own = |rule: &FoundRule| self.rules_left.iter().any(|left| rule.is(left));
        let routes_by_mark =
            |rule: &FoundRule| rule.family == Family::V4 && rule.is_inverted && rule.mark.is_some();
        let rules = self.netlink.rules()?;
        let mut others = rules.iter().filter(|rule| routes_by_mark(rule) && !is_own(rule)).peekable();
        let tables =
            if others.peek().is_some() { self.netlink.tables_into_tunnels()? } else { BTreeSet::new() };
        let Some(rule) = others.find(|rule| tables.contains(&rule.table)) else { return Ok(false) };
        tracing::debug!("{SRC_VALID_MARK} stays for the tunnel of table {}", rule.table);
        Ok(true)
    }

    /// Returns the outcome of a step that does what the system permits, and keeps what it lacks for it.
    fn outcome(&mut self, step: &Step, lack: Option<String>) -> Outcome {
        let _before = self.take_lack(step);
        let Some(lack) = lack else { return Outcome::Done };
        self.lacks.push((step.key(), lack));
        Outcome::Left
    }

    /// Returns what the system lacked for a step, and forgets it.
    pub(super) fn take_lack(&mut self, step: &Step) -> Option<String> {
        let place = self.lacks.iter().position(|(key, _)| *key == step.key())?;
        Some(self.lacks.swap_remove(place).1)
    }

    fn remove_rule(&mut self, rule: &Rule) -> Result<(), RouteError> {
        self.rules_left.retain(|left| left != rule);
        self.netlink.remove_rule(rule).inspect_err(|_| self.rules_left.push(*rule))
    }

    fn restore_sysctl(&self, name: &str, before: &str) -> Result<(), HostError> {
        if sysctl::read(name).is_some_and(|now| now == before)
            || (name == SRC_VALID_MARK && self.another_tunnel_routes_by_mark()?)
        {
            return Ok(());
        }
        let failed = |error| HostError::Sysctl { name: name.to_owned(), value: before.to_owned(), error };
        sysctl::write(name, before).map_err(failed)
    }
}

impl System for Kernel {
    /// Removing the last IPv4 address of a device removes all its IPv4 routes too; removing any address
    /// removes the route to its network too.
    fn lost(&self, steps: &[Step]) -> Result<Vec<Step>, HostError> {
        let is_of_device = |step: &&Step| matches!(step, Step::Address(_) | Step::Route { .. });
        Ok(self.not_in_force(steps.iter().filter(is_of_device).cloned().collect())?)
    }

    fn apply(&mut self, step: &Step) -> Result<Outcome, HostError> {
        if self.is_detached {
            return Ok(Outcome::Done);
        }
        tracing::debug!("{}", step.doing(&self.interface));
        match step {
            Step::Address(address) => self.netlink.add_address(self.link()?, *address)?,
            Step::Mtu(mtu) => self.netlink.set_mtu(self.link()?, *mtu)?,
            Step::LinkUp => {
                self.netlink.set_up(self.link()?)?;
                self.netlink.settle_addresses(self.link()?);
            }
            Step::Dns(wanted) => self.set_dns(wanted)?,
            Step::Route { prefix, table } => return Ok(self.add_route(*prefix, *table)?),
            Step::EndpointRoute { address, via } => {
                let is_new = self.netlink.add_endpoint_route(*address, via)?;
                return Ok(if is_new { Outcome::Done } else { Outcome::Left });
            }
            Step::Rule(rule) => self.netlink.add_rule(rule)?,
            Step::Sysctl { name, value, .. } => {
                let lack = set_sysctl(name, value)?;
                return Ok(self.outcome(step, lack));
            }
            Step::Firewall(firewall) => {
                let lost = outside::rules_of_others(&self.firewall);
                let lack = outside::apply_firewall(&self.interface, firewall, &self.firewall)?;
                if let Some(lost) = lost {
                    let interface = &self.interface;
                    tracing::warn!(%interface, "rules of another program went with the firewall rules: {lost}");
                }
                self.firewall = outside::firewall_contents(&self.interface, firewall);
                return Ok(self.outcome(step, lack));
            }
            Step::Hook(hook) => hooks::run(hook, &self.interface)?,
        }
        Ok(Outcome::Done)
    }

    fn undo(&mut self, step: &Step) -> Result<(), HostError> {
        if self.is_detached {
            return Ok(());
        }
        tracing::debug!("{}", step.undoing(&self.interface));
        match (step, &self.link) {
            (Step::Address(address), Some(link)) => self.netlink.remove_address(link, *address)?,
            (Step::Route { prefix, table }, Some(link)) => {
                self.netlink.remove_route(link, *prefix, *table)?;
            }
            // They disappeared with the device.
            (Step::Address(_) | Step::Route { .. }, None) => {}
            (Step::EndpointRoute { address, via }, _) => {
                self.netlink.remove_endpoint_route(*address, via)?;
            }
            (Step::Rule(rule), _) => self.remove_rule(rule)?,
            (Step::Sysctl { name, before, .. }, _) => self.restore_sysctl(name, before)?,
            (Step::Dns(_), _) => self.unset_dns()?,
            (Step::Firewall(_), _) => match self.kept.clone() {
                Some(kept) if kept == *step => {}
                Some(kept) => drop(self.apply(&kept)?),
                None => outside::remove_firewall(&self.interface)?,
            },
            (Step::Mtu(_) | Step::LinkUp | Step::Hook(_), _) => {}
        }
        Ok(())
    }
}

/// Sets a value below /proc/sys. In a container /proc/sys is often read-only, and the host decides on its
/// values: a failure there is returned as a sentence, and no error.
fn set_sysctl(name: &str, value: &str) -> Result<Option<String>, HostError> {
    if sysctl::read(name).is_some_and(|now| now == value) {
        return Ok(None);
    }
    match sysctl::write(name, value) {
        Ok(()) => Ok(None),
        Err(error) if is_read_only(&error) => Ok(Some(format!(
            "cannot set the sysctl {name} to {value}: {error}; where the reverse-path filter is strict \
             (net.ipv4.conf.*.rp_filter=1) it drops what the peers send over IPv4: set it where the container is \
             started (`--sysctl {name}={value}`) or rp_filter to 2"
        ))),
        Err(error) => Err(HostError::Sysctl { name: name.to_owned(), value: value.to_owned(), error }),
    }
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound
    )
}
