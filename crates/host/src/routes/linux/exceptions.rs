//! Rules of other programs that lead packets past a tunnel, or block them.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;
use rtnetlink::packet_route::route::{RouteMessage, RouteType};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use rtnetlink::{Handle, IpVersion};

use super::mtu::devices_of;
use super::rules::suppressed;
use super::{Netlink, RouteError, net_of, table_of};
use crate::routes::{Exception, Family, MAIN_TABLE};

/// The kernel's table for what no other has, and usually empty (rt_tables: RT_TABLE_DEFAULT).
const DEFAULT_TABLE: u32 = 253;
/// The kernel's table of the addresses of this machine (rt_tables: RT_TABLE_LOCAL).
const LOCAL_TABLE: u32 = 255;
/// The name of the loopback in a rule: packets of programs on this machine.
const FROM_HERE: &str = "lo";
/// Protocols by the names that ip-rule(8) takes for them.
const PROTOCOLS: [(u8, &str); 3] = [(1, "icmp"), (6, "tcp"), (17, "udp")];

/// What a rule says.
#[derive(Default)]
struct Said {
    priority: u32,
    is_inverted: bool,
    mark: Option<u32>,
    mask: Option<u32>,
    source: Option<IpNet>,
    destination: Option<IpNet>,
    table: u32,
    goto: Option<u32>,
    suppressed: Option<u32>,
    /// What it does with packets, if it drops them.
    blocks: Option<&'static str>,
    from: Option<String>,
    out: Option<String>,
    is_of_vrf: bool,
    /// What it selects beside addresses.
    selectors: String,
}

impl Netlink {
    /// Returns the rules of a family that come before the tunnel's rule, and that block packets of programs
    /// or lead them elsewhere. The tunnel's rule is for packets without a mark, and its table leads through
    /// the device `own`. A rule for a device or a mark is for what another program has chosen.
    /// `addresses` stand for all that the tunnel carries.
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
        let by_mark = |(_, said): &&(&RuleMessage, Said)| said.is_inverted && said.mark.is_some();
        let of_tunnels: Vec<(u32, u32)> =
            rules.iter().filter(by_mark).map(|(_, said)| (said.table, said.priority)).collect();
        let last = of_tunnels.iter().map(|(_, priority)| *priority).max();
        let is_before = |(_, said): &(&RuleMessage, Said)| Some(said.priority) < last && said.counts();
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
            _ => said.blocks.is_some(),
        };
        let exception = |(_, said): (&RuleMessage, Said)| Exception {
            priority: said.priority,
            text: said.text(),
            blocks: said.blocks.is_some(),
            is_for_all: said.is_for_all(),
            names_addresses: said.has_addresses(),
        };
        Ok(rules.into_iter().filter(leads_past).map(exception).collect())
    }
}

impl Said {
    fn of(rule: &RuleMessage) -> Self {
        let header = &rule.header;
        let mut said = Self {
            table: header.table.into(),
            is_inverted: header.flags.contains(RuleFlags::Invert),
            blocks: match header.action {
                RuleAction::Blackhole => Some("blackhole"),
                RuleAction::Unreachable => Some("unreachable"),
                RuleAction::Prohibit => Some("prohibit"),
                _ => None,
            },
            ..Self::default()
        };
        let net = |address: &IpAddr, length| IpNet::new(*address, length).ok();
        if header.tos != 0 {
            let _ = write!(said.selectors, " tos {:#x}", header.tos);
        }
        for attribute in &rule.attributes {
            match attribute {
                RuleAttribute::Priority(priority) => said.priority = *priority,
                RuleAttribute::Table(table) => said.table = *table,
                RuleAttribute::Goto(target) => said.goto = Some(*target),
                RuleAttribute::SuppressPrefixLen(length) => said.suppressed = suppressed(*length),
                RuleAttribute::Source(address) => said.source = net(address, header.src_len),
                RuleAttribute::Destination(address) => said.destination = net(address, header.dst_len),
                RuleAttribute::FwMark(mark) => said.mark = Some(*mark),
                RuleAttribute::FwMask(mask) => said.mask = Some(*mask),
                RuleAttribute::Iifname(name) => said.from = Some(name.clone()),
                RuleAttribute::Oifname(name) => said.out = Some(name.clone()),
                RuleAttribute::L3MDev(_) => said.is_of_vrf = true,
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

    fn has_addresses(&self) -> bool {
        self.source.is_some() || self.destination.is_some()
    }

    /// Reports whether it selects the packets of a device, or what programs have marked.
    fn selects_others(&self) -> bool {
        let is_marked = self.mark.unwrap_or(0) & self.mask.unwrap_or(u32::MAX) != 0;
        let has_device = self.from.as_deref().is_some_and(|name| name != FROM_HERE) || self.out.is_some();
        is_marked || has_device || self.is_of_vrf
    }

    fn selects_a_part(&self) -> bool {
        self.has_addresses() || !self.selectors.is_empty()
    }

    /// Reports whether it is for all packets of programs that have no mark.
    fn is_for_all(&self) -> bool {
        if self.is_inverted {
            self.selects_others()
        } else {
            !self.selects_others() && !self.selects_a_part()
        }
    }

    /// Reports whether it may matter to packets of programs: not the rules that the kernel makes, and those
    /// of full tunnels for specific routes, which show in where the packets go.
    fn counts(&self) -> bool {
        let is_usual = self.table == LOCAL_TABLE || self.suppressed.is_some();
        let is_for_a_part = self.selects_a_part() && !self.selects_others();
        is_for_a_part || (self.is_for_all() && !is_usual)
    }

    fn text(&self) -> String {
        let net = |net: Option<IpNet>| net.map_or("all".to_owned(), |net| net.to_string());
        let mut text = format!("{}from {}", if self.is_inverted { "not " } else { "" }, net(self.source));
        if self.destination.is_some() {
            text += &format!(" to {}", net(self.destination));
        }
        let mark = self.mark.unwrap_or(0);
        match self.mask {
            Some(u32::MAX) if mark != 0 => text += &format!(" fwmark {mark:#x}"),
            Some(mask) => text += &format!(" fwmark {mark:#x}/{mask:#x}"),
            None => {}
        }
        for (word, device) in [("iif", &self.from), ("oif", &self.out)] {
            text += &device.as_ref().map_or(String::new(), |device| format!(" {word} {device}"));
        }
        text += &self.selectors;
        text += &match (self.blocks, self.goto, self.table) {
            (Some(word), ..) => format!(" {word}"),
            (_, Some(target), _) => format!(" goto {target}"),
            (.., MAIN_TABLE) => " lookup main".to_owned(),
            (.., DEFAULT_TABLE) => " lookup default".to_owned(),
            (.., table) => format!(" lookup {table}"),
        };
        text + &self.suppressed.map_or(String::new(), |length| format!(" suppress_prefixlength {length}"))
    }
}

fn span(start: u16, end: u16) -> String {
    if start == end { start.to_string() } else { format!("{start}-{end}") }
}
