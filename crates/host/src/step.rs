//! A step: a single change to the system, and its text form.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weft_config::{Dns, Hook, InterfaceName, KillSwitch, without_keys};

use crate::routes::{Family, MAIN_TABLE, Rule, RuleKind, Via};

/// A single change to the system for an interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// An address of the device, with the prefix length of its network.
    Address(IpNet),
    /// The MTU of the device, in bytes.
    Mtu(u16),
    /// The device is set up.
    LinkUp,
    /// Name servers and domains.
    Dns(Dns),
    /// A route through the device.
    Route {
        prefix: IpNet,
        /// The number of the routing table.
        table: u32,
    },
    /// A host route past the tunnel, in the main table, where rules cannot keep the tunnel's own packets out.
    EndpointRoute {
        /// The address of an endpoint.
        address: IpAddr,
        /// Where its packets go.
        via: Via,
    },
    /// A rule of policy routing.
    Rule(Rule),
    /// A value below /proc/sys.
    Sysctl {
        /// Its name with dots.
        name: String,
        /// The value that is set.
        value: String,
        /// The value before the first interface set it, which undoing the step restores.
        before: String,
    },
    /// The rules of the packet filter.
    Firewall(Firewall),
    /// A command of PreUp or PostUp.
    Hook(Hook),
}

/// The settings of the packet filter for an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Firewall {
    /// What a default route needs.
    pub full_tunnel: Option<FullTunnel>,
    /// Which packets may leave the machine outside the tunnel.
    pub kill_switch: KillSwitch,
    /// The mark of the tunnel's own packets.
    pub mark: Option<NonZeroU32>,
    /// The addresses of the peers, by which the tunnel's own packets are recognised if they have no mark.
    pub endpoints: BTreeSet<SocketAddr>,
    /// Name servers in local networks that may be queried despite the kill switch.
    pub dns_servers: BTreeSet<IpAddr>,
    /// Whether the MSS of TCP connections that are forwarded through the tunnel is clamped to its MTU.
    pub mss_clamp: bool,
    /// That MTU, in bytes, where the packet filter cannot ask for the MTU of a route.
    #[serde(default)]
    pub mtu: Option<u16>,
}

/// The settings of the packet filter that a default route into the tunnel needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FullTunnel {
    /// The mark of the tunnel's own packets.
    pub mark: NonZeroU32,
    /// The addresses of the device, which are reached through the tunnel only.
    pub addresses: Vec<IpAddr>,
    /// The families that have a default route.
    pub families: BTreeSet<Family>,
}

/// The identity of a step. Two steps with the same key set the same thing, but perhaps to different values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Address(IpNet),
    Mtu,
    LinkUp,
    Dns,
    Route(IpNet, u32),
    EndpointRoute(IpAddr),
    Rule(Family, RuleKind),
    Sysctl(String),
    Firewall,
    Hook(Hook),
}

impl Step {
    /// Returns the identity of the step, by which it is found in another plan.
    pub(super) fn key(&self) -> Key {
        match self {
            Self::Address(address) => Key::Address(*address),
            Self::Mtu(_) => Key::Mtu,
            Self::LinkUp => Key::LinkUp,
            Self::Dns(_) => Key::Dns,
            Self::Route { prefix, table } => Key::Route(*prefix, *table),
            Self::EndpointRoute { address, .. } => Key::EndpointRoute(*address),
            Self::Rule(rule) => Key::Rule(rule.family, rule.kind),
            Self::Sysctl { name, .. } => Key::Sysctl(name.clone()),
            Self::Firewall(_) => Key::Firewall,
            Self::Hook(hook) => Key::Hook(hook.clone()),
        }
    }

    /// Returns the rule, if the step is one.
    pub(super) fn as_rule(&self) -> Option<&Rule> {
        match self {
            Self::Rule(rule) => Some(rule),
            _ => None,
        }
    }

    /// Reports whether the step cannot be done while the other step is in force: a device has an IPv6 address
    /// only once, whatever its prefix length. On Windows so it is with IPv4.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Address(one), Self::Address(other)) => {
                one.addr() == other.addr() && (cfg!(windows) || one.addr().is_ipv6())
            }
            _ => false,
        }
    }

    /// Reports whether the step can be undone. Settings of the device disappear with the device, a value that
    /// was there before stays, and a command cannot be undone.
    pub fn has_undo(&self) -> bool {
        match self {
            Self::Mtu(_) | Self::LinkUp | Self::Hook(_) => false,
            Self::Sysctl { value, before, .. } => value != before,
            _ => true,
        }
    }

    /// Formats the step as it is done for this interface.
    pub fn doing<'a>(&'a self, interface: &'a InterfaceName) -> impl fmt::Display + 'a {
        StepMessage { step: self, interface, is_undo: false }
    }

    /// Formats the undoing of the step.
    pub fn undoing<'a>(&'a self, interface: &'a InterfaceName) -> impl fmt::Display + 'a {
        StepMessage { step: self, interface, is_undo: true }
    }
}

struct StepMessage<'a> {
    step: &'a Step,
    interface: &'a InterfaceName,
    is_undo: bool,
}

impl fmt::Display for StepMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dev = self.interface;
        let verb = if self.is_undo { "remove" } else { "add" };
        match self.step {
            Step::Address(address) => write!(f, "{verb} address {address} dev {dev}"),
            Step::Mtu(mtu) => write!(f, "set mtu {mtu} dev {dev}"),
            Step::LinkUp => write!(f, "set up dev {dev}"),
            Step::Dns(dns) => {
                write!(f, "{} {dns} dev {dev}", if self.is_undo { "unset dns" } else { "set dns" })
            }
            Step::Route { prefix, table } => {
                write!(f, "{verb} route {prefix} dev {dev} table {}", Table(*table))
            }
            Step::EndpointRoute { address, via } => write!(f, "{verb} endpoint route {address} {via}"),
            Step::Rule(rule) => {
                let family = if rule.family == Family::V4 { "ip" } else { "ip6" };
                write!(f, "{verb} {family} rule {} priority {}", rule.kind, rule.priority)
            }
            Step::Sysctl { name, value, before } if value == before => {
                write!(f, "keep sysctl {name}={value}")
            }
            Step::Sysctl { name, value, before } => {
                write!(f, "set sysctl {name}={}", if self.is_undo { before } else { value })
            }
            Step::Firewall(firewall) => write!(f, "{verb} firewall {firewall} dev {dev}"),
            Step::Hook(hook) => {
                write!(f, "run {}: {}", hook.phase.key(), without_keys(&hook.command_for(dev)))
            }
        }
    }
}

/// A routing table, which prints as `main` or as its number.
struct Table(u32);

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == MAIN_TABLE { f.write_str("main") } else { self.0.fmt(f) }
    }
}

impl fmt::Display for Firewall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(tunnel) = &self.full_tunnel {
            let families: Vec<String> = tunnel.families.iter().map(Family::to_string).collect();
            parts.push(format!("full tunnel of {} with mark {:#x}", families.join(" and "), tunnel.mark));
        }
        if self.kill_switch != KillSwitch::Off {
            parts.push(format!("kill switch {}", self.kill_switch));
        }
        if self.mss_clamp {
            parts.push("mss clamp".to_owned());
        }
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use weft_config::HookPhase;

    use super::*;

    #[test]
    fn steps_are_told_the_way_administrators_write_them() {
        let wg0: InterfaceName = "wg0".parse().unwrap();
        let hook = Hook {
            phase: HookPhase::PostUp,
            command: "echo %i yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=".into(),
            file: "a".into(),
            line: 1,
        };
        let rule = |kind| Step::Rule(Rule { family: Family::V6, priority: 32_765, kind });
        let dns = Dns { servers: vec!["192.0.2.53".parse().unwrap()], ..Dns::default() };
        #[rustfmt::skip]
        let cases = [
            (Step::Address("10.0.0.1/24".parse().unwrap()), "add address 10.0.0.1/24 dev wg0", "remove address 10.0.0.1/24 dev wg0"),
            (Step::Mtu(1420), "set mtu 1420 dev wg0", ""),
            (Step::LinkUp, "set up dev wg0", ""),
            (Step::Dns(dns), "set dns 192.0.2.53 dev wg0", "unset dns 192.0.2.53 dev wg0"),
            (Step::Route { prefix: "10.0.0.0/8".parse().unwrap(), table: 254 },
             "add route 10.0.0.0/8 dev wg0 table main", "remove route 10.0.0.0/8 dev wg0 table main"),
            (Step::Route { prefix: "::/0".parse().unwrap(), table: 51_820 },
             "add route ::/0 dev wg0 table 51820", "remove route ::/0 dev wg0 table 51820"),
            (Step::EndpointRoute { address: "192.0.2.1".parse().unwrap(), via: Via::Blackhole },
             "add endpoint route 192.0.2.1 to nowhere", "remove endpoint route 192.0.2.1 to nowhere"),
            (rule(RuleKind::Unmarked { mark: 51_820, table: 51_820 }),
             "add ip6 rule not fwmark 0xca6c table 51820 priority 32765", "remove ip6 rule not fwmark 0xca6c table 51820 priority 32765"),
            (rule(RuleKind::MainWithoutDefault),
             "add ip6 rule table main suppress_prefixlength 0 priority 32765", "remove ip6 rule table main suppress_prefixlength 0 priority 32765"),
            (Step::Sysctl { name: "a.b".into(), value: "1".into(), before: "0".into() }, "set sysctl a.b=1", "set sysctl a.b=0"),
            (Step::Sysctl { name: "a.b".into(), value: "1".into(), before: "1".into() }, "keep sysctl a.b=1", ""),
            (Step::Hook(hook), "run PostUp: echo wg0 …=", ""),
        ];
        for (step, doing, undoing) in cases {
            assert_eq!(step.doing(&wg0).to_string(), doing);
            assert_eq!(step.has_undo(), !undoing.is_empty(), "{doing}");
            if step.has_undo() {
                assert_eq!(step.undoing(&wg0).to_string(), undoing);
            }
        }
    }
}
