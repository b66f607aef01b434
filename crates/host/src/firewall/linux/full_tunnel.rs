//! The rules that go with a default route through the tunnel, chain for chain as in wg-quick(8).

use weft_config::InterfaceName;

use super::super::{FullTunnel, full_tunnel_table};
use super::script::{ChainHook, Script, header_of};

/// Before connection tracking (nft(8): `raw`).
const RAW: i32 = -300;
/// After connection tracking, before routing (nft(8): `mangle`).
const MANGLE: i32 = -150;

const PRERAW: &str = "preraw";
const PREMANGLE: &str = "premangle";
const POSTMANGLE: &str = "postmangle";

/// Adds the table of each family that has a default route.
pub(super) fn add(script: &mut Script, interface: &InterfaceName, full: &FullTunnel) {
    for (is_ipv6, is_wanted) in [(false, full.ipv4), (true, full.ipv6)] {
        if is_wanted {
            add_family(script, interface, full, is_ipv6);
        }
    }
}

fn add_family(script: &mut Script, interface: &InterfaceName, full: &FullTunnel, is_ipv6: bool) {
    let table = full_tunnel_table(interface, is_ipv6);
    script.table(&table);
    let place = |hook, priority| ChainHook { hook, priority, policy: "accept" };
    script.base_chain(&table, PRERAW, place("prerouting", RAW));
    script.base_chain(&table, PREMANGLE, place("prerouting", MANGLE));
    script.base_chain(&table, POSTMANGLE, place("postrouting", MANGLE));

    for own in full.addresses.iter().filter(|address| address.is_ipv6() == is_ipv6) {
        let header = header_of(is_ipv6);
        let from_elsewhere =
            format_args!("iifname != \"{interface}\" {header} daddr {own} fib saddr type != local drop");
        script.rule(&table, PRERAW, "only from the tunnel", from_elsewhere);
    }
    let save = format_args!("meta l4proto udp meta mark {:#x} ct mark set meta mark", full.mark);
    script.rule(&table, POSTMANGLE, "the tunnel's own packets", save);
    // Routing, and with it a strict reverse-path filter, then treats an answer like the packet that it
    // answers.
    script.rule(&table, PREMANGLE, "answers to the tunnel", "meta l4proto udp meta mark set ct mark");
}
