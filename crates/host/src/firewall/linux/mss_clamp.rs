//! Clamps the MSS of TCP connections that are forwarded through the tunnel, for paths on which the ICMP
//! messages about the MTU are lost.

use weft_config::InterfaceName;

use super::super::Table;
use super::script::{ChainHook, Script};

const CHAIN: &str = "mss";
/// Before packets are filtered (nft(8): `mangle`).
const PRIORITY: i32 = -150;

/// Matches the first segment of either side, which carries the MSS option, and sets the MSS to fit the MTU of
/// the route. The kernel uses the smaller MTU of the routes in both directions, and never raises the value in
/// the packet.
const CLAMP: &str = "tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu";

/// Adds the chain to the table.
pub(super) fn add(script: &mut Script, table: &Table, interface: &InterfaceName) {
    let place = ChainHook { hook: "forward", priority: PRIORITY, policy: "accept" };
    script.base_chain(table, CHAIN, place);
    script.rule(table, CHAIN, "into the tunnel", format_args!("oifname \"{interface}\" {CLAMP}"));
    script.rule(table, CHAIN, "out of the tunnel", format_args!("iifname \"{interface}\" {CLAMP}"));
}
