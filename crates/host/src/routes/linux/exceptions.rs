//! Rules of other programs that lead a part of the packets past a tunnel.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;
use rtnetlink::packet_route::route::{RouteMessage, RouteType};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use rtnetlink::{Handle, IpVersion};

use super::mtu::devices_of;
use super::{Netlink, RouteError, net_of, table_of};
use crate::routes::{Family, MAIN_TABLE};

/// The kernel's table for what no other has, and usually empty (rt_tables: RT_TABLE_DEFAULT).
const DEFAULT_TABLE: u32 = 253;
/// The name of the loopback in a rule: packets of programs on this machine.
const FROM_HERE: &str = "lo";
/// Protocols by the names that ip-rule(8) takes for them.
const PROTOCOLS: [(u8, &str); 3] = [(1, "icmp"), (6, "tcp"), (17, "udp")];

/// A rule that comes before the one of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exception {
    pub(crate) priority: u32,
    /// As ip-rule(8) writes it.
    pub(crate) text: String,
    /// Whether it is for some addresses.
    pub(crate) names_addresses: bool,
}

/// What a rule says.
#[derive(Default)]
struct Said {
    priority: u32,
    mark: Option<u32>,
    source: Option<IpNet>,
    destination: Option<IpNet>,
    table: u32,
    goto: Option<u32>,
    suppressed: Option<u32>,
    /// Whether it names the packets of programs on this machine.
    is_from_here: bool,
    /// Whether it is for the packets of a device, or for what programs have marked.
    is_for_others: bool,
    /// What it selects beside addresses.
    selectors: String,
}

impl Netlink {
    /// Returns the rules of a family that come before the one for packets without a mark, whose table leads
    /// through the device `own`, and that lead a part of the packets of programs elsewhere. A rule for a
    /// device or a mark is for what another program has chosen; one that selects nothing shows in where all
    /// packets go. `addresses` stand for all that the tunnel carries.
    pub(crate) fn exceptions(
        &self,
        own: u32,
        family: Family,
        addresses: &[IpAddr],
    ) -> Result<Vec<Exception>, RouteError> {
        let (version, of) = match family {
            Family::V4 => (IpVersion::V4, rtnetlink::packet_route::AddressFamily::Inet),
            Family::V6 => (IpVersion::V6, rtnetlink::packet_route::AddressFamily::Inet6),
        };
        let request = |handle: Handle| handle.rule().get(version.clone()).execute();
        let rules: Vec<RuleMessage> = self
            .read(request, Vec::push)
            .map_err(|failure| failure.because(|| format!("list the rules of {family}")))?;
        let rules: Vec<(&RuleMessage, Said)> = rules.iter().map(|rule| (rule, Said::of(rule))).collect();
        let is_inverted = |rule: &RuleMessage| rule.header.flags.contains(RuleFlags::Invert);
        let by_mark = |(rule, said): &&(&RuleMessage, Said)| is_inverted(rule) && said.mark.is_some();
        let of_tunnels: Vec<(u32, u32)> =
            rules.iter().filter(by_mark).map(|(_, said)| (said.table, said.priority)).collect();
        let last = of_tunnels.iter().map(|(_, priority)| *priority).max();
        let is_before = |(_, said): &(&RuleMessage, Said)| Some(said.priority) < last && said.is_selective();
        let mut rules: Vec<_> = rules.into_iter().filter(is_before).collect();
        if rules.is_empty() {
            return Ok(Vec::new());
        }
        let mut own_tables = HashSet::new();
        let add = |past: &mut Vec<(u32, IpNet)>, route: RouteMessage| {
            let (table, net) = (table_of(&route), net_of(&route));
            let devices = devices_of(&route);
            if net.prefix_len() == 0 && devices.contains(&own) {
                own_tables.insert(table);
            }
            let is_used = rules.iter().any(|(_, said)| said.table == table);
            let leaves = devices.iter().any(|device| *device != own);
            if is_used && leaves && route.header.kind == RouteType::Unicast {
                past.push((table, net));
            }
        };
        let past = self.routes(of, None, add);
        let past = past.map_err(|failure| failure.because(|| "list the routes".to_owned()))?;
        // Not by the mark that the tunnel's packets have now: wg(8) changes that alone.
        let of_tunnel = of_tunnels.into_iter().find(|(table, _)| own_tables.contains(table));
        let Some((_, tunnel)) = of_tunnel else { return Ok(Vec::new()) };
        rules.retain(|(_, said)| said.priority < tunnel);
        let leads_past = |(rule, said): &(&RuleMessage, Said)| match rule.header.action {
            RuleAction::ToTable => past.iter().any(|(table, net)| {
                *table == said.table
                    && said.suppressed.is_none_or(|length| u32::from(net.prefix_len()) > length)
                    && match said.destination {
                        Some(to) => net.contains(&to) || to.contains(net),
                        None => addresses.iter().any(|address| net.contains(address)),
                    }
            }),
            RuleAction::Goto => said.goto.is_some_and(|target| target > tunnel),
            _ => false,
        };
        let exception = |(rule, said): (&RuleMessage, Said)| Exception {
            priority: said.priority,
            text: said.text(is_inverted(rule)),
            names_addresses: said.source.is_some() || said.destination.is_some(),
        };
        Ok(rules.into_iter().filter(leads_past).map(exception).collect())
    }
}

impl Said {
    fn of(rule: &RuleMessage) -> Self {
        let header = &rule.header;
        let mut said = Self { table: header.table.into(), ..Self::default() };
        let net = |address: &IpAddr, length| IpNet::new(*address, length).ok();
        if header.tos != 0 {
            let _ = write!(said.selectors, " tos {:#x}", header.tos);
        }
        for attribute in &rule.attributes {
            match attribute {
                RuleAttribute::Priority(priority) => said.priority = *priority,
                RuleAttribute::Table(table) => said.table = *table,
                RuleAttribute::Goto(target) => said.goto = Some(*target),
                // A rule that suppresses nothing has -1.
                RuleAttribute::SuppressPrefixLen(length) => {
                    said.suppressed = Some(*length).filter(|length| *length <= 128);
                }
                RuleAttribute::Source(address) => said.source = net(address, header.src_len),
                RuleAttribute::Destination(address) => said.destination = net(address, header.dst_len),
                RuleAttribute::FwMark(mark) => {
                    said.mark = Some(*mark);
                    said.is_for_others = true;
                }
                RuleAttribute::Iifname(name) if name == FROM_HERE => said.is_from_here = true,
                RuleAttribute::Iifname(_) => said.is_for_others = true,
                RuleAttribute::Oifname(_) | RuleAttribute::L3MDev(_) => said.is_for_others = true,
                attribute => {
                    let _ = match attribute {
                        RuleAttribute::UidRange(range) => {
                            write!(said.selectors, " uidrange {}-{}", range.start, range.end)
                        }
                        RuleAttribute::IpProtocol(protocol) => {
                            let number = u8::from(*protocol);
                            match PROTOCOLS.iter().find(|(known, _)| *known == number) {
                                Some((_, name)) => write!(said.selectors, " ipproto {name}"),
                                None => write!(said.selectors, " ipproto {number}"),
                            }
                        }
                        RuleAttribute::SourcePortRange(ports) => {
                            write!(said.selectors, " sport {}", span(ports.start, ports.end))
                        }
                        RuleAttribute::DestinationPortRange(ports) => {
                            write!(said.selectors, " dport {}", span(ports.start, ports.end))
                        }
                        _ => Ok(()),
                    };
                }
            }
        }
        said
    }

    fn is_selective(&self) -> bool {
        let has_addresses = self.source.is_some() || self.destination.is_some();
        !self.is_for_others && (has_addresses || !self.selectors.is_empty())
    }

    fn text(&self, is_inverted: bool) -> String {
        let net = |net: Option<IpNet>| net.map_or("all".to_owned(), |net| net.to_string());
        let mut text = format!("{}from {}", if is_inverted { "not " } else { "" }, net(self.source));
        if self.destination.is_some() {
            text += &format!(" to {}", net(self.destination));
        }
        text += if self.is_from_here { " iif lo" } else { "" };
        text += &self.selectors;
        text += &match (self.goto, self.table) {
            (Some(target), _) => format!(" goto {target}"),
            (None, MAIN_TABLE) => " lookup main".to_owned(),
            (None, DEFAULT_TABLE) => " lookup default".to_owned(),
            (None, table) => format!(" lookup {table}"),
        };
        text + &self.suppressed.map_or(String::new(), |length| format!(" suppress_prefixlength {length}"))
    }
}

fn span(start: u16, end: u16) -> String {
    if start == end { start.to_string() } else { format!("{start}-{end}") }
}
