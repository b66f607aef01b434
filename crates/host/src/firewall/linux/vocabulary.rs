//! The expressions and statements that rules are made of.

use std::net::IpAddr;

use ipnet::IpNet;
use nftables::expr::{
    CT, Expression, Meta, MetaKey, NamedExpression, Payload, PayloadField, Prefix, SetItem,
};
use nftables::stmt::{Accept, Counter, Drop, JumpTarget, Match, Operator, Statement};

use super::super::Family;

pub(super) fn meta(key: MetaKey) -> Expression<'static> {
    Expression::Named(NamedExpression::Meta(Meta { key }))
}

/// A field of a packet's header.
pub(super) fn field(protocol: &'static str, field: &'static str) -> Expression<'static> {
    let field = PayloadField { protocol: protocol.into(), field: field.into() };
    Expression::Named(NamedExpression::Payload(Payload::PayloadField(field)))
}

/// A field of a packet's connection tracking entry.
pub(super) fn ct(key: &'static str) -> Expression<'static> {
    Expression::Named(NamedExpression::CT(CT { key: key.into(), family: None, dir: None }))
}

pub(super) fn text(text: impl Into<String>) -> Expression<'static> {
    Expression::String(text.into().into())
}

pub(super) fn address(address: IpAddr) -> Expression<'static> {
    text(address.to_string())
}

pub(super) fn prefix(net: IpNet) -> Expression<'static> {
    if net.prefix_len() == net.max_prefix_len() {
        return address(net.addr());
    }
    let addr = Box::new(address(net.addr()));
    Expression::Named(NamedExpression::Prefix(Prefix { addr, len: net.prefix_len().into() }))
}

/// A set, which any of these expressions matches.
pub(super) fn any_of(items: impl IntoIterator<Item = Expression<'static>>) -> Expression<'static> {
    Expression::Named(NamedExpression::Set(items.into_iter().map(SetItem::Element).collect()))
}

pub(super) fn any_text(items: &[&str]) -> Expression<'static> {
    any_of(items.iter().map(|item| text(*item)))
}

pub(super) fn any_number(items: &[u32]) -> Expression<'static> {
    any_of(items.iter().map(|item| Expression::Number(*item)))
}

pub(super) fn is(left: Expression<'static>, right: Expression<'static>) -> Statement<'static> {
    Statement::Match(Match { left, right, op: Operator::EQ })
}

pub(super) fn is_not(left: Expression<'static>, right: Expression<'static>) -> Statement<'static> {
    Statement::Match(Match { left, right, op: Operator::NEQ })
}

pub(super) fn l4proto_is(protocol: &'static str) -> Statement<'static> {
    is(meta(MetaKey::L4proto), text(protocol))
}

/// Matches packets that go out through this device.
pub(super) fn out_through(name: &str) -> Statement<'static> {
    is(meta(MetaKey::Oifname), text(name))
}

/// Matches packets that came in through this device.
pub(super) fn in_through(name: &str) -> Statement<'static> {
    is(meta(MetaKey::Iifname), text(name))
}

pub(super) fn accept() -> Statement<'static> {
    Statement::Accept(Some(Accept {}))
}

pub(super) fn drop() -> Statement<'static> {
    Statement::Drop(Some(Drop {}))
}

pub(super) fn count() -> Statement<'static> {
    Statement::Counter(Counter::Anonymous(None))
}

pub(super) fn jump(chain: &'static str) -> Statement<'static> {
    Statement::Jump(JumpTarget { target: chain.into() })
}

/// Returns the name of the header that contains an address of this family.
pub(super) fn header_of(is_ipv6: bool) -> &'static str {
    if is_ipv6 { Family::Ip6.as_str() } else { Family::Ip.as_str() }
}
