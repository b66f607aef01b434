//! Restores what another program has undone: `nft flush ruleset` removes all tables, systemd-networkd may
//! remove rules of other programs, `ip address flush` takes the routes of a family with it, and the kernel
//! removes the routes of a device that is set down. What may be meant stays undone, and is kept for reports.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::execute::{Outcome, System as _};
use super::programs;
use super::{FOLLOWS_ENDPOINTS, Host, Plan, Step, sysctl};
use crate::network::NetworkChange;
use crate::routes::{DeviceState, Family, MAIN_TABLE, RouteError, RuleKind, has_connected_route};

/// The least MTU with which a device has IPv6.
const MIN_MTU_IPV6: u16 = weft_config::MIN_MTU_IPV6;
/// The number of steps that are named in the log; the rest are counted.
const NAMED_STEPS: usize = 5;

/// What another program has undone, and what is not restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undone {
    /// The device is down, and has no routes.
    Down,
    /// The device is in another network namespace.
    Elsewhere,
    /// The device has this name instead of its own, which it cannot get back.
    Renamed(String),
    /// A step that may be undone on purpose, or with the reason why it cannot be done again.
    Step(Step, Option<String>),
    /// So many rules were added to those of the packet filter. They may be meant.
    Added(usize),
    /// A step that the system lacks something for, as a sentence.
    Lacking(String),
}

mod dns;

pub use dns::DnsPast;
pub(super) use dns::{DnsWatch, dns_past};

impl Host {
    /// Does again what another program has undone of the device, its addresses and routes, and the rules,
    /// according to a change of the network. What may be meant stays undone, such as a single route that was
    /// removed; see [`Self::undone`].
    pub fn restore_routing(&mut self, change: &NetworkChange) {
        // Elsewhere `follow` does it.
        if FOLLOWS_ENDPOINTS {
            return;
        }
        if change.device_left || change.device_gone {
            // Another device may have its index in this namespace from now on, and must not get its routes.
            self.device_has_left = true;
            self.undone = if change.device_left { vec![Undone::Elsewhere] } else { Vec::new() };
        }
        let concerns = change.rules_removed
            // The device that has its name may be gone.
            || (change.links && self.is_renamed())
            || change.device_up
            || change.device_undone
            || change.device_changed
            // Also what happened before the network was watched.
            || change.missed;
        if self.device_has_left || !concerns {
            return;
        }
        match self.restore_what_is_missing(change) {
            Ok(Some(undone)) => self.undone = undone,
            // It is not known whether the device is still the own one.
            Ok(None) => {}
            Err(error) => tracing::warn!("cannot see what another program has undone: {error}"),
        }
    }

    fn is_renamed(&self) -> bool {
        self.undone.iter().any(|undone| matches!(undone, Undone::Renamed(_)))
    }

    /// Returns what another program has undone and weft does not restore, and what was never done.
    pub fn undone(&self) -> impl Iterator<Item = Undone> {
        let lacks = self.lacks().map(|lack| Undone::Lacking(lack.to_owned()));
        self.undone.iter().chain(&self.undone_firewall).cloned().chain(lacks)
    }

    /// Returns a sentence for each step that is not done since the system lacks something.
    pub fn lacks(&self) -> impl Iterator<Item = &str> {
        self.kernel.lacks.iter().map(|(_, lack)| lack.as_str())
    }

    /// Takes the steps that another program has undone on purpose for not done: a reload does them again.
    /// Returns those that were taken for done.
    pub(super) fn forget_undone(&mut self, again: &[Step]) -> Vec<Step> {
        let (undone, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.undone)
            .into_iter()
            .partition(|undone| matches!(undone, Undone::Step(..)));
        self.undone = others;
        let undone = undone.into_iter().filter_map(|undone| match undone {
            Undone::Step(step, _) => Some(step),
            _ => None,
        });
        let dns = again.iter().filter(|step| matches!(step, Step::Dns(_))).cloned();
        let mut undone: Vec<Step> = undone.chain(dns).collect();
        undone.retain(|step| self.applied.steps().contains(step));
        self.applied.forget(&undone);
        self.forget_dns_watch();
        undone
    }

    /// Returns the steps that another program has undone, maybe on purpose, and that a reload with this plan
    /// does again.
    pub fn to_do_again(&self, plan: &Plan) -> Vec<Step> {
        let connected: HashSet<Step> = plan.steps.iter().filter_map(connected_route).collect();
        let undone = self.undone.iter().filter_map(|undone| match undone {
            Undone::Step(step, _) => Some(step),
            _ => None,
        });
        let undone = undone.filter(|step| plan.steps.contains(step) || connected.contains(step));
        // Other name servers are set anyway.
        let is_same = |step: &&Step| matches!(step, Step::Dns(_)) && self.applied.steps().contains(step);
        let dns = plan.steps.iter().filter(is_same).filter(|_| self.is_dns_undone());
        undone.chain(dns).cloned().collect()
    }

    /// Adds the routes that the kernel makes with addresses which are there, of these steps. Returns their
    /// number.
    pub(super) fn restore_connected(&mut self, steps: Vec<Step>) -> usize {
        let connected: Vec<Step> =
            steps.into_iter().filter(|step| !self.applied.steps().contains(step)).collect();
        let failed = self.restore(&connected);
        let done = connected.len() - failed.len();
        self.undone.extend(failed.into_iter().map(|(step, why)| Undone::Step(step, Some(why))));
        done
    }

    fn restore_what_is_missing(&mut self, change: &NetworkChange) -> Result<Option<Vec<Undone>>, RouteError> {
        let Some(own) = self.link().cloned() else { return Ok(None) };
        let Some(device) = self.kernel.netlink.device_state(&own)? else { return Ok(None) };
        let mut undone = Vec::new();
        if device.name != own.name {
            // Another device may have its index by now.
            if !(change.device_undone || change.missed || self.is_renamed()) || !device.is_tun {
                return Ok(None);
            }
            match self.kernel.netlink.rename(&own) {
                Ok(()) => tracing::warn!(
                    interface = own.name,
                    "another program had renamed the interface to {}: it has its name again",
                    device.name
                ),
                Err(error) => {
                    tracing::debug!("{error}");
                    undone.push(Undone::Renamed(device.name.clone()));
                }
            }
        }
        let was_down = change.device_up || self.undone.contains(&Undone::Down);
        let (to_restore, meant) = self.missing(&device, was_down)?;
        if !device.is_up {
            undone.push(Undone::Down);
        }
        if device.is_up && has_lost_ipv6(&device, &to_restore) {
            self.bring_ipv6_back(&device);
        }
        undone.extend(meant.into_iter().map(|step| Undone::Step(step, None)));
        undone.extend(self.restore(&to_restore).into_iter().map(|(step, why)| Undone::Step(step, Some(why))));
        Ok(Some(undone))
    }

    /// Returns the steps that are not in force: those to be done again, and those that may be undone on
    /// purpose. A device that is down has no routes to be done.
    fn missing(&self, device: &DeviceState, was_down: bool) -> Result<(Vec<Step>, Vec<Step>), RouteError> {
        let steps = self.applied.steps();
        let counts = |step: &&Step| match step {
            Step::Rule(_) | Step::Sysctl { .. } => true,
            Step::Address(_) | Step::Route { .. } => device.is_up,
            _ => false,
        };
        let connected = steps.iter().filter(counts).filter_map(connected_route);
        let watched = steps.iter().filter(counts).cloned().chain(connected).collect();
        let missing = self.kernel.not_in_force(watched)?;
        if missing.is_empty() {
            return Ok(Default::default());
        }
        let led_to = self.led_to();
        let present = match self.link() {
            Some(own) => self.kernel.netlink.addresses(own)?,
            None => Vec::new(),
        };
        // Not one address of the family is left: the kernel has removed its routes too. Another address in
        // their place is meant.
        let has_lost = |family| {
            let of_family = |step: &Step| matches!(step, Step::Address(net) if Family::of(*net) == family);
            let is_present = |net: &IpNet| Family::of(*net) == family && !is_of_link(net);
            missing.iter().any(of_family) && !present.iter().any(is_present)
        };
        // Also without an address: with such an MTU the kernel has removed all routes of IPv6.
        let is_off = |family| family == Family::V6 && is_without_ipv6(device);
        let lost: Vec<Family> =
            Family::ALL.into_iter().filter(|family| has_lost(*family) || is_off(*family)).collect();
        let is_restored = |step: &Step| match step {
            Step::Address(net) => was_down || lost.contains(&Family::of(*net)),
            Step::Route { prefix, table } => {
                was_down || led_to.contains(table) || lost.contains(&Family::of(*prefix))
            }
            _ => true,
        };
        // With its address the kernel makes a connected route.
        let comes_with: HashSet<Step> = missing.iter().filter_map(connected_route).collect();
        let is_own = |step: &Step| !comes_with.contains(step) || steps.contains(step);
        Ok(missing.into_iter().filter(is_own).partition(is_restored))
    }

    /// Returns the tables that the rules lead to. They are weft's: others have no routes there when weft
    /// chooses them.
    fn led_to(&self) -> HashSet<u32> {
        let steps = self.applied.steps().iter();
        let table = |step: &Step| match step.as_rule()?.kind {
            RuleKind::Unmarked { table, .. } => Some(table),
            RuleKind::MainWithoutDefault => None,
        };
        steps.filter_map(table).collect()
    }

    /// Gives the device the MTU without which the kernel takes IPv6 from it, and routes it past the tunnel.
    fn bring_ipv6_back(&self, device: &DeviceState) {
        let Some(own) = self.link() else { return };
        if is_without_ipv6(device) {
            let mtu = self.plan.mtu.max(MIN_MTU_IPV6);
            match self.kernel.netlink.set_mtu(own, mtu) {
                Ok(()) => tracing::warn!(
                    interface = own.name,
                    "another program had set an MTU of {}, with which there is no IPv6: it is {mtu} again",
                    device.mtu
                ),
                Err(error) => tracing::warn!("{error}"),
            }
        }
        // The kernel has forgotten it, and has made an address.
        self.kernel.netlink.generate_no_address(own);
        let is_made = |net: &IpNet| is_of_link(net) && !self.applied.steps().contains(&Step::Address(*net));
        let addresses = self.kernel.netlink.addresses(own).unwrap_or_default();
        for address in addresses.into_iter().filter(is_made) {
            if let Err(error) = self.kernel.netlink.remove_address(own, address) {
                tracing::debug!("{error}");
            }
        }
    }

    /// Reports whether there are firewall rules or sysctls for [`Self::restore_firewall`] to look after: no
    /// program is told of their changes.
    pub fn has_firewall(&self) -> bool {
        !FOLLOWS_ENDPOINTS && self.applied.steps().iter().any(is_looked_after)
    }

    /// Sets the rules of the packet filter again if another program has removed them, and sysctls. Returns
    /// whether they are there.
    pub fn restore_firewall(&mut self) -> bool {
        let kernel = &self.kernel;
        let mut added = 0;
        let is_gone = |step: &&Step| match step {
            Step::Firewall(wanted) => match kernel.rules_added(wanted) {
                Some(rules) => {
                    added += rules;
                    false
                }
                None => true,
            },
            Step::Sysctl { name, value, .. } => sysctl::read(name).is_some_and(|now| now != *value),
            _ => false,
        };
        let gone: Vec<Step> = self.applied.steps().iter().filter(is_gone).cloned().collect();
        // A change of the configuration and the end wait for it.
        let failures = programs::restoration(|| self.restore(&gone));
        let are_there = failures.is_empty();
        self.undone_firewall =
            failures.into_iter().map(|(step, why)| Undone::Step(step, Some(why))).collect();
        self.undone_firewall.extend((added > 0).then_some(Undone::Added(added)));
        are_there
    }

    /// Does steps again, and logs it. Returns those that cannot be done, each with the reason.
    fn restore(&mut self, undone: &[Step]) -> Vec<(Step, String)> {
        let mut failed = Vec::new();
        let interface = self.plan.interface.clone();
        let led_to = self.led_to();
        let mut done = 0;
        for step in undone {
            let outcome = match step {
                Step::Route { prefix, table } if led_to.contains(table) => {
                    self.kernel.replace_route(*prefix, *table)
                }
                step => self.kernel.apply(step),
            };
            match outcome {
                // It cannot be done any more, or another program has done it.
                Ok(Outcome::Left) => {
                    if let Some(why) = self.kernel.take_lack(step) {
                        failed.push((step.clone(), why));
                    }
                }
                Ok(Outcome::Done) => {
                    done += 1;
                    if done <= NAMED_STEPS {
                        let step = step.doing(&interface);
                        tracing::warn!(%interface, "another program had undone this, and weft did it again: {step}");
                    }
                }
                Err(error) => failed.push((step.clone(), error.to_string())),
            }
        }
        if done > NAMED_STEPS {
            tracing::warn!(%interface, "and {} more steps were done again", done - NAMED_STEPS);
        }
        failed
    }
}

/// Returns the route that the kernel makes with an address, to its network.
fn connected_route(step: &Step) -> Option<Step> {
    match step {
        Step::Address(net) if has_connected_route(*net) => {
            Some(Step::Route { prefix: net.trunc(), table: MAIN_TABLE })
        }
        _ => None,
    }
}

/// Reports whether it is an IPv6 address as the kernel makes them.
fn is_of_link(net: &IpNet) -> bool {
    matches!(net.addr(), IpAddr::V6(address) if address.is_unicast_link_local())
}

fn is_looked_after(step: &Step) -> bool {
    matches!(step, Step::Firewall(_) | Step::Sysctl { .. })
}

/// Reports whether its MTU leaves it no IPv6.
fn is_without_ipv6(device: &DeviceState) -> bool {
    device.mtu < MIN_MTU_IPV6.into()
}

fn has_lost_ipv6(device: &DeviceState, to_restore: &[Step]) -> bool {
    to_restore.iter().any(|step| match step {
        Step::Address(net) => Family::of(*net) == Family::V6,
        Step::Route { prefix, .. } => Family::of(*prefix) == Family::V6 && is_without_ipv6(device),
        _ => false,
    })
}
