//! Plans the steps for a configuration, without changing the system.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use ipnet::IpNet;
use weft_config::{Config, Dns, Hook, HookPhase, InterfaceName, KillSwitch, MIN_MTU_IPV6, Table};

use super::step::{Firewall, FullTunnel, Step};
use crate::routes::{
    Family, FoundRoute, FoundRule, MAIN_TABLE, Routing, Rule, RuleKind, endpoint_routes, halves,
    planned_routes, routed_prefixes,
};

/// The first number that is tried for the table and the mark of a default route.
pub const FIRST_TABLE: u32 = 51_820;
/// Lets the reverse-path filter of IPv4 take the mark of a packet into account.
pub const SRC_VALID_MARK: &str = "net.ipv4.conf.all.src_valid_mark";

/// The state of the system before the plan is carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemState {
    /// Tables that have routes, of either family; empty if no table is to be chosen.
    pub tables: BTreeSet<u32>,
    /// Marks that other interfaces use.
    pub marks: BTreeSet<u32>,
    /// The rules of policy routing, in the order in which they are evaluated; also those that other
    /// interfaces are about to add.
    pub rules: Vec<FoundRule>,
    /// How a default route is made, and what that depends on.
    pub routing: Routing,
    /// The value that [`SRC_VALID_MARK`] has without weft, if it can be read.
    pub src_valid_mark: Option<String>,
    /// The mark that the device has already; 0: none.
    pub mark_in_force: u32,
    /// The MTU that the routes to the peers allow, in bytes; used only if the configuration has no MTU.
    pub default_mtu: u16,
}

impl SystemState {
    /// Returns the state of the system as it would be without these steps, which are in force.
    #[must_use]
    pub fn without(mut self, steps: &[Step]) -> Self {
        for step in steps {
            match step {
                Step::Rule(own) => self.rules.retain(|rule| {
                    (rule.family, rule.priority) != (own.family, own.priority)
                        || rule.is_inverted != matches!(own.kind, RuleKind::Unmarked { .. })
                }),
                Step::Sysctl { name, before, .. } if name == SRC_VALID_MARK => {
                    self.src_valid_mark = Some(before.clone());
                }
                Step::EndpointRoute { address, via } => {
                    if let Routing::Halves(found) = &mut self.routing {
                        found.retain(|route| !route.is_host_route(*address, via));
                    }
                }
                _ => {}
            }
        }
        self
    }
}

/// The steps for an interface, in order. They are undone in reverse order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The name of the interface.
    pub interface: InterfaceName,
    /// The mark of the tunnel's own packets; 0: none.
    pub mark: u32,
    /// The device's MTU, in bytes.
    pub mtu: u16,
    /// The steps before the device is configured: the commands of PreUp.
    pub before: Vec<Step>,
    /// The steps after the device is configured.
    pub steps: Vec<Step>,
    /// The commands of PreDown and PostDown.
    pub down: Vec<Hook>,
}

impl Plan {
    /// Plans the steps for a configuration. `endpoints` are the known addresses of the peers.
    pub fn new(config: &Config, endpoints: &[SocketAddr], facts: &SystemState) -> Self {
        let interface = &config.interface;
        let hooks = |phase| interface.host.hooks_of(phase).cloned();
        let default_routes = default_routes(config, &facts.routing);
        let mark = choose_mark(config, facts);
        let mtu = interface.mtu.unwrap_or(facts.default_mtu);

        let mut steps: Vec<Step> = interface.addresses.iter().copied().map(Step::Address).collect();
        steps.extend([Step::Mtu(mtu), Step::LinkUp]);
        if !interface.host.dns.is_empty() {
            steps.push(Step::Dns(interface.host.dns.clone()));
        }
        steps.extend(match &facts.routing {
            Routing::Rules => routes(config, &default_routes, mark, facts),
            Routing::Halves(found) => with_halves(config, endpoints, found),
        });
        let firewall = firewall(config, &default_routes, mark, endpoints).map(|firewall| Firewall {
            // Where routes have no MTU, the packet filter cannot ask them for one. Elsewhere it believes no
            // route that says less than what every device can be expected to carry.
            mtu: (firewall.mss_clamp && (matches!(facts.routing, Routing::Halves(_)) || mtu < MIN_MTU_IPV6))
                .then_some(mtu),
            ..firewall
        });
        steps.extend(firewall.map(Step::Firewall));
        steps.extend(hooks(HookPhase::PostUp).map(Step::Hook));
        Self {
            interface: interface.name.clone(),
            mark,
            mtu,
            before: hooks(HookPhase::PreUp).map(Step::Hook).collect(),
            steps,
            down: hooks(HookPhase::PreDown).chain(hooks(HookPhase::PostDown)).collect(),
        }
    }

    /// Adapts the plan to endpoints and routes of the system, of which those in force by weft are not part:
    /// the host routes of the endpoints, and the endpoints that a kill switch lets through.
    #[must_use]
    pub(super) fn following(&self, endpoints: &[SocketAddr], found: &[FoundRoute]) -> Self {
        let others = self.steps.iter().filter(|step| !matches!(step, Step::EndpointRoute { .. })).cloned();
        let mut steps = past_the_tunnel(&self.interface, others.collect(), endpoints, found);
        for step in &mut steps {
            if let Step::Firewall(firewall) = step
                && firewall.kill_switch != KillSwitch::Off
            {
                firewall.endpoints = endpoints.iter().copied().collect();
            }
        }
        Self { steps, ..self.clone() }
    }

    /// Returns the name servers that it sets.
    pub(super) fn dns(&self) -> Option<&Dns> {
        self.steps.iter().find_map(|step| match step {
            Step::Dns(wanted) => Some(wanted),
            _ => None,
        })
    }

    /// Returns the commands of PreUp and PostUp.
    pub(super) fn up_hooks(&self) -> Vec<Hook> {
        let hooks = self.before.iter().chain(&self.steps).filter_map(|step| match step {
            Step::Hook(hook) => Some(hook.clone()),
            _ => None,
        });
        hooks.collect()
    }

    /// Reports whether packets of this family are routed by their mark.
    pub(super) fn routes_by_mark(&self, family: Family) -> bool {
        let by_mark = |rule: &Rule| rule.family == family && matches!(rule.kind, RuleKind::Unmarked { .. });
        self.steps.iter().any(|step| matches!(step, Step::Rule(rule) if by_mark(rule)))
    }

    /// Adapts the plan to an interface that is up by another plan: rules that are in both plans keep their
    /// priority.
    #[must_use]
    pub fn keeping_places_of(mut self, old: &[Step]) -> Self {
        let old: Vec<&Rule> = old.iter().filter_map(Step::as_rule).collect();
        for step in &mut self.steps {
            let Step::Rule(rule) = step else { continue };
            if let Some(same) = old.iter().find(|same| (same.family, same.kind) == (rule.family, rule.kind)) {
                rule.priority = same.priority;
            }
        }
        self
    }
}

impl fmt::Display for Plan {
    /// Writes a line for each step; the first line is the creation of the device.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.interface;
        writeln!(f, "create device {name}")?;
        for step in &self.before {
            writeln!(f, "{}", step.doing(name))?;
        }
        write!(f, "configure keys, port and peers of {name}")?;
        if self.mark != 0 {
            write!(f, " with mark {:#x}", self.mark)?;
        }
        writeln!(f)?;
        for step in &self.steps {
            writeln!(f, "{}", step.doing(name))?;
        }
        Ok(())
    }
}

/// Returns the lines that `weft down --dry-run` prints: the undoing of these steps, with the commands.
pub fn told_backwards(name: &InterfaceName, steps: &[Step], down: &[Hook]) -> String {
    let run = |phase: HookPhase| {
        let hooks = down.iter().filter(move |hook| hook.phase == phase);
        hooks.map(|hook| format!("{}\n", Step::Hook(hook.clone()).doing(name))).collect::<String>()
    };
    let undo = steps.iter().rev().filter(|step| step.has_undo());
    let undo: String = undo.map(|step| format!("{}\n", step.undoing(name))).collect();
    run(HookPhase::PreDown) + &undo + &format!("remove device {name}\n") + &run(HookPhase::PostDown)
}

/// Returns the families with a default route that needs a separate table.
fn default_routes(config: &Config, routing: &Routing) -> BTreeSet<Family> {
    if config.interface.table != Table::Auto || matches!(routing, Routing::Halves(_)) {
        return BTreeSet::new();
    }
    let prefixes = config.peers.iter().flat_map(|peer| &peer.allowed_ips);
    prefixes.filter(|prefix| prefix.prefix_len() == 0).map(|prefix| Family::of(*prefix)).collect()
}

/// Reports whether the tunnel's own packets need a mark: for a default route, or for a kill switch.
pub(super) fn needs_mark(config: &Config, routing: &Routing) -> bool {
    let has_kill_switch = config.interface.host.kill_switch != KillSwitch::Off;
    !default_routes(config, routing).is_empty() || (*routing == Routing::Rules && has_kill_switch)
}

/// Returns the configured mark. If there is none but a mark is needed, returns the mark in force, else the
/// first number that is free both as a mark and as a table.
fn choose_mark(config: &Config, facts: &SystemState) -> u32 {
    let configured = config.interface.settings.fw_mark;
    if configured != 0 || !needs_mark(config, &facts.routing) {
        return configured;
    }
    if facts.mark_in_force != 0 {
        return facts.mark_in_force;
    }
    let is_free = |number: &u32| {
        let is_in_rules = facts.rules.iter().any(|rule| rule.mark == Some(*number) || rule.table == *number);
        !facts.tables.contains(number) && !facts.marks.contains(number) && !is_in_rules
    };
    (FIRST_TABLE..=u32::MAX).find(is_free).unwrap_or(FIRST_TABLE)
}

fn routes(config: &Config, default_routes: &BTreeSet<Family>, mark: u32, facts: &SystemState) -> Vec<Step> {
    let Some((table, prefixes)) = planned_routes(&config.interface, &config.peers) else { return Vec::new() };
    let needs_policy =
        |prefix: &IpNet| prefix.prefix_len() == 0 && default_routes.contains(&Family::of(*prefix));
    let (defaults, others): (Vec<IpNet>, Vec<IpNet>) = prefixes.into_iter().partition(needs_policy);
    let mut steps: Vec<Step> = others.into_iter().map(|prefix| Step::Route { prefix, table }).collect();
    for prefix in defaults {
        steps.extend(default_route(prefix, mark, facts));
    }
    steps
}

/// Returns the routes where a default route is two halves. Another table than the main one is not the one
/// that the tunnel's own packets are looked up in, and gets every route as it is.
fn with_halves(config: &Config, endpoints: &[SocketAddr], found: &[FoundRoute]) -> Vec<Step> {
    let prefixes = routed_prefixes(&config.peers).into_iter();
    let steps = match config.interface.table {
        Table::Off => return Vec::new(),
        Table::Number(table) if table != MAIN_TABLE => {
            return prefixes.map(|prefix| Step::Route { prefix, table }).collect();
        }
        Table::Auto | Table::Number(_) => {
            let mut prefixes: Vec<IpNet> = prefixes.flat_map(halves).collect();
            // A configuration may have a half as well as the default route.
            let mut seen = BTreeSet::new();
            prefixes.retain(|prefix| seen.insert(*prefix));
            prefixes.into_iter().map(|prefix| Step::Route { prefix, table: MAIN_TABLE }).collect()
        }
    };
    past_the_tunnel(&config.interface.name, steps, endpoints, found)
}

/// Adds host routes to the endpoints before the first route into the tunnel: at no moment does a packet to an
/// endpoint have a way into the tunnel only.
fn past_the_tunnel(
    device: &InterfaceName,
    mut steps: Vec<Step>,
    endpoints: &[SocketAddr],
    found: &[FoundRoute],
) -> Vec<Step> {
    let tunnel = steps.iter().filter_map(|step| match step {
        Step::Route { prefix, table: MAIN_TABLE } => Some(*prefix),
        _ => None,
    });
    let routes = endpoint_routes(device.as_str(), tunnel, endpoints.iter().copied(), found);
    let first = steps.iter().position(|step| matches!(step, Step::Route { .. })).unwrap_or(steps.len());
    let routes = routes.into_iter().map(|(address, via)| Step::EndpointRoute { address, via });
    steps.splice(first..first, routes).for_each(drop);
    steps
}

/// Returns the steps for a default route: a separate table, which all packets use except the tunnel's own.
/// Destinations for which the main table has a more specific route still use that route.
fn default_route(prefix: IpNet, mark: u32, facts: &SystemState) -> Vec<Step> {
    let family = Family::of(prefix);
    let priority = next_priority(family, &facts.rules);
    let mut steps = Vec::new();
    if family == Family::V4
        && let Some(before) = facts.src_valid_mark.clone()
    {
        steps.push(Step::Sysctl { name: SRC_VALID_MARK.to_owned(), value: "1".to_owned(), before });
    }
    // The rule that keeps the main table's specific routes comes first: with the other rule alone, local
    // networks are unreachable.
    steps.extend([
        Step::Route { prefix, table: mark },
        Step::Rule(Rule { family, priority: priority - 1, kind: RuleKind::MainWithoutDefault }),
        Step::Rule(Rule { family, priority, kind: RuleKind::Unmarked { mark, table: mark } }),
    ]);
    steps
}

/// Returns the priority right before all rules except the first, which leads to the local table. The kernel
/// chooses the same for a rule without a priority. The result is at least 2, so that there is another
/// priority before it.
fn next_priority(family: Family, rules: &[FoundRule]) -> u32 {
    /// Right before the rule of the main table (fib_default_rules_init).
    const USUAL: u32 = 32_765;
    let second = rules.iter().filter(|rule| rule.family == family).nth(1);
    second.map_or(USUAL, |rule| rule.priority.saturating_sub(1)).max(2)
}

/// Returns the settings of the packet filter, if any are needed.
fn firewall(
    config: &Config,
    default_routes: &BTreeSet<Family>,
    mark: u32,
    endpoints: &[SocketAddr],
) -> Option<Firewall> {
    let interface = &config.interface;
    let mark = NonZeroU32::new(mark);
    let addresses: Vec<IpAddr> = interface.addresses.iter().map(IpNet::addr).collect();
    let full_tunnel = mark.filter(|_| !default_routes.is_empty()).map(|mark| FullTunnel {
        mark,
        addresses,
        families: default_routes.clone(),
    });
    let kill_switch = interface.host.kill_switch;
    let is_needed = full_tunnel.is_some() || kill_switch != KillSwitch::Off || interface.host.mss_clamp;
    let has_kill_switch = kill_switch != KillSwitch::Off;
    is_needed.then(|| Firewall {
        full_tunnel,
        kill_switch,
        mark,
        endpoints: if has_kill_switch { endpoints.iter().copied().collect() } else { BTreeSet::new() },
        dns_servers: if kill_switch == KillSwitch::AllowLocal {
            interface.host.dns.servers.iter().copied().collect()
        } else {
            BTreeSet::new()
        },
        mss_clamp: interface.host.mss_clamp,
        mtu: None,
    })
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
