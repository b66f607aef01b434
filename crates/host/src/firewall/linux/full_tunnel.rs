//! The rules that go with a default route through the tunnel, chain for chain as in wg-quick(8).

use nftables::expr::{Expression, Fib, FibFlag, FibResult, MetaKey, NamedExpression};
use nftables::stmt::{Mangle, Statement};
use nftables::types::{NfChainPolicy, NfHook};
use weft_config::InterfaceName;

use super::super::{FullTunnel, full_tunnel_table};
use super::batch::{Batch, ChainHook};
use super::vocabulary::{address, ct, drop, field, header_of, is, is_not, l4proto_is, meta, text};

/// Before connection tracking (nft(8): `raw`).
const RAW: i32 = -300;
/// After connection tracking, before routing (nft(8): `mangle`).
const MANGLE: i32 = -150;

const PRERAW: &str = "preraw";
const PREMANGLE: &str = "premangle";
const POSTMANGLE: &str = "postmangle";

/// Adds the table of each family that has a default route.
pub(super) fn add(batch: &mut Batch, interface: &InterfaceName, full: &FullTunnel) {
    for (is_ipv6, is_wanted) in [(false, full.ipv4), (true, full.ipv6)] {
        if is_wanted {
            add_family(batch, interface, full, is_ipv6);
        }
    }
}

fn add_family(batch: &mut Batch, interface: &InterfaceName, full: &FullTunnel, is_ipv6: bool) {
    let table = full_tunnel_table(interface, is_ipv6);
    batch.table(&table);
    let place = |hook, priority| ChainHook { hook, priority, policy: NfChainPolicy::Accept };
    batch.base_chain(&table, PRERAW, place(NfHook::Prerouting, RAW));
    batch.base_chain(&table, PREMANGLE, place(NfHook::Prerouting, MANGLE));
    batch.base_chain(&table, POSTMANGLE, place(NfHook::Postrouting, MANGLE));

    for own in full.addresses.iter().filter(|address| address.is_ipv6() == is_ipv6) {
        let outside = is_not(meta(MetaKey::Iifname), text(interface.as_str()));
        let to_tunnel = is(field(header_of(is_ipv6), "daddr"), address(*own));
        let not_from_here = is_not(source_type(), text("local"));
        batch.rule(&table, PRERAW, "only from the tunnel", [outside, to_tunnel, not_from_here, drop()]);
    }
    let mark = Expression::Number(full.mark.get());
    let is_own = is(meta(MetaKey::Mark), mark);
    let save = set(ct("mark"), meta(MetaKey::Mark));
    batch.rule(&table, POSTMANGLE, "the tunnel's own packets", [l4proto_is("udp"), is_own, save]);
    // Routing, and with it a strict reverse-path filter, then treats an answer like the packet that it
    // answers.
    let restore = set(meta(MetaKey::Mark), ct("mark"));
    batch.rule(&table, PREMANGLE, "answers to the tunnel", [l4proto_is("udp"), restore]);
}

fn source_type() -> Expression<'static> {
    let flags = [FibFlag::Saddr].into();
    Expression::Named(NamedExpression::Fib(Fib { result: FibResult::Type, flags }))
}

fn set(key: Expression<'static>, value: Expression<'static>) -> Statement<'static> {
    Statement::Mangle(Mangle { key, value })
}
