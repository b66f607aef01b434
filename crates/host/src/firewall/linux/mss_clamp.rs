//! Clamps the MSS of TCP connections that are forwarded through the tunnel, for paths on which the ICMP
//! messages about the MTU are lost.

use weft_config::InterfaceName;

use super::super::Table;
use super::script::{ChainHook, Script};

pub(super) const CHAIN: &str = "mss";
/// Before packets are filtered (nft(8): `mangle`).
const PRIORITY: i32 = -150;

/// Matches the first segment of either side, which carries the MSS option.
const FIRST: &str = "tcp flags & (syn | rst) == syn";
/// What headers take of the MTU: those of IPv6 and TCP.
const HEADERS: u16 = 60;

/// Adds the chain to the table. It sets the MSS to fit the MTU of the route, of which the kernel uses that of
/// the route back if it is smaller, and never raises the value in the packet. What a route has learnt from
/// ICMP, which anyone may forge, is no reason for less than `least_mtu`.
pub(super) fn add(script: &mut Script, table: &Table, interface: &InterfaceName, least_mtu: u16) {
    let place = ChainHook { hook: "forward", priority: PRIORITY, policy: "accept" };
    script.base_chain(table, CHAIN, place);
    let least = least_mtu.saturating_sub(HEADERS);
    for (device, way) in [("oifname", "into the tunnel"), ("iifname", "out of the tunnel")] {
        let first = format!("{device} \"{interface}\" {FIRST}");
        let clamp = "tcp option maxseg size set";
        script.rule(table, CHAIN, way, format_args!("{first} rt mtu >= {least} {clamp} rt mtu"));
        script.rule(table, CHAIN, way, format_args!("{first} rt mtu < {least} {clamp} {least}"));
    }
}
