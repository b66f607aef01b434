//! Clamps the MSS of TCP connections that are forwarded through the tunnel, for paths on which the ICMP
//! messages about the MTU are lost.

use nftables::expr::{BinaryOperation, Expression, NamedExpression, RT, RTKey, TcpOption};
use nftables::stmt::{Mangle, Statement};
use nftables::types::{NfChainPolicy, NfHook};
use weft_config::InterfaceName;

use super::super::Table;
use super::batch::{Batch, ChainHook};
use super::vocabulary::{field, in_through, is, out_through, text};

const CHAIN: &str = "mss";
/// Before packets are filtered (nft(8): `mangle`).
const PRIORITY: i32 = -150;

/// Adds the chain to the table.
pub(super) fn add(batch: &mut Batch, table: &Table, interface: &InterfaceName) {
    let place = ChainHook { hook: NfHook::Forward, priority: PRIORITY, policy: NfChainPolicy::Accept };
    batch.base_chain(table, CHAIN, place);
    let name = interface.as_str();
    batch.rule(table, CHAIN, "into the tunnel", [out_through(name), is_syn(), clamp()]);
    batch.rule(table, CHAIN, "out of the tunnel", [in_through(name), is_syn(), clamp()]);
}

/// Matches the first segment of either side, which carries the MSS option.
fn is_syn() -> Statement<'static> {
    let looked_at = Expression::List(vec![text("syn"), text("rst")]);
    let flags = BinaryOperation::AND(field("tcp", "flags"), looked_at);
    is(Expression::BinaryOperation(Box::new(flags)), text("syn"))
}

/// Sets the MSS to fit the MTU of the route. The kernel uses the smaller MTU of the routes in both
/// directions, and never raises the value in the packet.
fn clamp() -> Statement<'static> {
    let option = TcpOption { name: "maxseg".into(), field: Some("size".into()) };
    let mtu = RT { key: RTKey::MTU, family: None };
    Statement::Mangle(Mangle {
        key: Expression::Named(NamedExpression::TcpOption(option)),
        value: Expression::Named(NamedExpression::RT(mtu)),
    })
}
