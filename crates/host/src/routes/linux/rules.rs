//! Rules of policy routing.

use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{RouteHeader, RouteProtocol};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use rtnetlink::{Handle, IpVersion};

use super::{Netlink, RouteError, gone_is_fine, has_no_such_family};
use crate::routes::{Family, FoundRule, MAIN_TABLE, Rule, RuleKind};

impl Netlink {
    /// Adds a rule. It is no error if the same rule exists at the same priority already.
    pub fn add_rule(&self, rule: &Rule) -> Result<(), RouteError> {
        let mut request = self.handle().rule().add();
        *request.message_mut() = message_of(rule);
        match self.wait(request.execute()) {
            Err(failure) if failure.is(libc::EEXIST) => Ok(()),
            other => other.map_err(|failure| failure.because(|| format!("add {}", name_of(rule)))),
        }
    }

    /// Removes a rule. It is no error if the rule is gone already.
    pub fn remove_rule(&self, rule: &Rule) -> Result<(), RouteError> {
        let request = self.handle().rule().del(message_of(rule));
        gone_is_fine(self.wait(request.execute()), &[libc::ENOENT, libc::EAFNOSUPPORT])
            .map_err(|failure| failure.because(|| format!("remove {}", name_of(rule))))
    }

    /// Returns all rules of both families, in the order in which they are evaluated.
    pub fn rules(&self) -> Result<Vec<FoundRule>, RouteError> {
        let mut found = Vec::new();
        for (family, version) in [(Family::V4, IpVersion::V4), (Family::V6, IpVersion::V6)] {
            let request = |handle: Handle| handle.rule().get(version.clone()).execute();
            let add = |rules: &mut Vec<_>, message| rules.push(found_rule(family, &message));
            match self.read(request, add) {
                Ok(rules) => found.extend(rules),
                Err(failure) if has_no_such_family(&failure) => {}
                Err(failure) => return Err(failure.because(|| format!("list the rules of {family}"))),
            }
        }
        found.sort_by_key(|rule| (rule.family, rule.priority));
        Ok(found)
    }
}

fn name_of(rule: &Rule) -> String {
    format!("{} rule {} priority {}", rule.family, rule.kind, rule.priority)
}

fn message_of(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = match rule.family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    message.header.action = RuleAction::ToTable;
    message.attributes.push(RuleAttribute::Priority(rule.priority));
    let table = match rule.kind {
        RuleKind::Unmarked { mark, table } => {
            message.header.flags = RuleFlags::Invert;
            message.attributes.push(RuleAttribute::FwMark(mark));
            message.attributes.push(RuleAttribute::FwMask(u32::MAX));
            table
        }
        RuleKind::MainWithoutDefault => {
            message.attributes.push(RuleAttribute::SuppressPrefixLen(0));
            MAIN_TABLE
        }
    };
    message.header.table = u8::try_from(table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC);
    message.attributes.push(RuleAttribute::Table(table));
    message
}

fn found_rule(family: Family, message: &RuleMessage) -> FoundRule {
    let mut rule = FoundRule {
        family,
        // A rule without a priority attribute has priority 0.
        priority: 0,
        mark: None,
        is_inverted: message.header.flags.contains(RuleFlags::Invert),
        table: message.header.table.into(),
        is_unsigned: true,
        suppressed: None,
    };
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(priority) => rule.priority = *priority,
            RuleAttribute::FwMark(mark) => rule.mark = Some(*mark),
            RuleAttribute::Table(table) => rule.table = *table,
            RuleAttribute::SuppressPrefixLen(length) => rule.suppressed = suppressed(*length),
            RuleAttribute::Protocol(by) => rule.is_unsigned = *by == RouteProtocol::Unspec,
            _ => {}
        }
    }
    rule
}

/// Returns the prefix length that a rule suppresses; the kernel writes -1 for none.
pub(super) fn suppressed(length: u32) -> Option<u32> {
    Some(length).filter(|length| *length <= 128)
}
