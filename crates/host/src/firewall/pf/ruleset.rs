//! Writes the rules of an anchor, in the words of pf.conf(5).
//!
//! Only outbound packets are looked at, by the first rule that matches (`quick`). New connections get a state
//! that is bound to their interface: by it the answers come in where a ruleset lets nothing else in, and it
//! is of no use on another interface when the tunnel is gone.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use weft_config::{InterfaceName, MIN_MTU_IPV6};

use super::super::local::{dhcp_servers, local_networks};
use super::super::{KillSwitch, Local, OwnPackets, Rules};
use super::Flavor;

/// The label of the rules that block packets.
pub(super) const BLOCKED: &str = "weft-blocked";
/// What the label with the token begins with.
pub(super) const TOKEN: &str = "weft-token-";

/// Makes the state of a new connection.
const STATE: &str = "keep state (if-bound)";
/// TCP learns at once that there is no way out, and existing connections wait for the tunnel to come back.
const BLOCK: &str = "block return-icmp(filter-prohib, admin-unr) out quick";
/// The IPv4 and TCP headers, and those with IPv6, in bytes.
const HEADERS: [(&str, u16); 2] = [("inet", 40), ("inet6", 60)];

/// Reports whether there are rules for pf.
pub(super) fn has_any(rules: &Rules) -> bool {
    rules.kill_switch.is_some() || rules.mss_clamp
}

/// Reports whether pf takes the name for this interface alone: the name of a group never ends in a digit.
pub(super) fn is_exact(interface: &InterfaceName) -> bool {
    let name = interface.as_str();
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.ends_with(|last: char| last.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Returns the rules of the anchor. The token, which keeps pf enabled, is in the label of a rule for packets
/// that do not exist: IP protocol 255 is reserved.
pub(super) fn text(flavor: Flavor, rules: &Rules, token: Option<u64>) -> String {
    let mut text = String::new();
    let tunnel = &rules.interface;
    if rules.mss_clamp {
        // Rules of this kind come first.
        add_mss_clamp(&mut text, flavor, rules);
    }
    if let Some(token) = token {
        let _ = writeln!(
            text,
            "# keeps pf enabled\nblock drop out on \"{tunnel}\" proto 255 all label \"{TOKEN}{token}\""
        );
    }
    if let Some(switch) = &rules.kill_switch {
        add_kill_switch(&mut text, tunnel, switch);
    }
    text
}

fn add_mss_clamp(text: &mut String, flavor: Flavor, rules: &Rules) {
    let (tunnel, mtu) = (&rules.interface, rules.mtu.unwrap_or(MIN_MTU_IPV6));
    *text += "# MSS\n";
    for (family, headers) in HEADERS {
        let mss = mtu.saturating_sub(headers);
        let _ = match flavor {
            Flavor::MacOs => writeln!(text, "scrub on \"{tunnel}\" {family} proto tcp all max-mss {mss}"),
            Flavor::FreeBsd => {
                writeln!(text, "match on \"{tunnel}\" {family} proto tcp all scrub (max-mss {mss})")
            }
        };
    }
}

fn add_kill_switch(text: &mut String, tunnel: &InterfaceName, switch: &KillSwitch) {
    // Segments of connections that began before the rules have no state.
    let _ = writeln!(
        text,
        "# loopback and tunnel\n\
         pass out quick on \"lo0\" all no state\n\
         pass out quick on \"{tunnel}\" all flags S/SA {STATE}\n\
         pass out quick on \"{tunnel}\" all no state"
    );
    add_own(text, &switch.own);
    let servers: Vec<_> = dhcp_servers().map(|net| net.to_string()).collect();
    let servers = servers.join(", ");
    let _ = writeln!(
        text,
        "# DHCP\n\
         pass out quick inet proto udp from any port 68 to {{ {servers} }} port 67 {STATE}\n\
         # DHCPv6\n\
         pass out quick inet6 proto udp from fe80::/10 port 546 to {{ ff02::1:2, ff05::1:3 }} port 547 {STATE}\n\
         # neighbour discovery\n\
         pass out quick inet6 proto ipv6-icmp all icmp6-type {{ routersol, routeradv, neighbrsol, neighbradv }} no state\n\
         # multicast listeners; 143: version 2\n\
         pass out quick inet6 proto ipv6-icmp from any to ff02::/16 icmp6-type {{ listqry, listenrep, listendone, 143 }} \
         no state allow-opts\n\
         # path MTU\n\
         pass out quick inet proto icmp all icmp-type unreach code needfrag no state\n\
         pass out quick inet6 proto ipv6-icmp all icmp6-type toobig no state"
    );
    if let Local::Allowed { dns } = &switch.local {
        add_local(text, dns);
    }
    let _ = writeln!(text, "# blocked\n{BLOCK} all label \"{BLOCKED}\"");
}

fn add_own(text: &mut String, own: &OwnPackets) {
    // pf sees no marks, and is not asked for them.
    let OwnPackets::To(endpoints) = own else { return };
    if !endpoints.is_empty() {
        *text += "# the tunnel's own packets\n";
    }
    for endpoint in endpoints {
        let (family, address, port) = (family(endpoint.ip()), endpoint.ip(), endpoint.port());
        let _ = writeln!(text, "pass out quick {family} proto udp from any to {address} port {port} {STATE}");
    }
}

fn add_local(text: &mut String, dns: &BTreeSet<IpAddr>) {
    let networks = local_networks();
    let named: Vec<&IpAddr> =
        dns.iter().filter(|server| networks.iter().any(|net| net.contains(*server))).collect();
    if !named.is_empty() {
        *text += "# own name servers\n";
    }
    for server in named {
        let _ = writeln!(text, "pass out quick {} from any to {server} flags S/SA {STATE}", family(*server));
        let _ = writeln!(text, "pass out quick {} from any to {server} no state", family(*server));
    }
    let _ = writeln!(
        text,
        "# no other name servers\n{BLOCK} proto {{ tcp, udp }} from any to any port {{ 53, 853 }} label \"{BLOCKED}\"\n\
         # local networks"
    );
    for is_ipv6 in [false, true] {
        let nets = networks.iter().filter(|net| net.addr().is_ipv6() == is_ipv6).map(ToString::to_string);
        let (family, nets) = (if is_ipv6 { "inet6" } else { "inet" }, nets.collect::<Vec<_>>().join(", "));
        let _ =
            writeln!(text, "pass out quick {family} from any to {{ {nets} }} flags S/SA {STATE} allow-opts");
        let _ = writeln!(text, "pass out quick {family} from any to {{ {nets} }} no state allow-opts");
    }
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "inet" } else { "inet6" }
}

#[cfg(test)]
#[path = "ruleset_tests.rs"]
mod tests;
