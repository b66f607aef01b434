//! The kill switch: blocks packets that do not go through the tunnel.
//!
//! ```text
//!   of this machine ──► output ──────┐                       accept: through the tunnel, the loopback, …
//!                                    ├──► postrouting ──► the wire
//!   of a client ──────► forward ─────┘                       the rest: refused or dropped, and counted
//! ```
//!
//! `postrouting` checks again because a packet may be rerouted after `output` checked its device: a rule of
//! another program that sets a mark is enough, and `output` sees only the device of the first route.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use weft_config::InterfaceName;

use super::super::local::{dhcp_servers, local_networks, v6};
use super::super::{KillSwitch, Local, OwnPackets, Table};
use super::script::{ChainHook, Script, any_of, header_of};
use crate::netns;

/// The base chain for packets of this machine.
pub(super) const OUTPUT: &str = "output";
/// The base chain for forwarded packets.
const FORWARD: &str = "forward";
/// The base chain for both, where packets are no longer rerouted.
const POSTROUTING: &str = "postrouting";
/// The chain that accepts what this machine may send.
pub(super) const SENT: &str = "sent";
/// The chain that accepts what other machines may send through this machine.
const FORWARDED: &str = "forwarded";
/// The chain that accepts what may go to local networks.
const LOCAL: &str = "local";

/// The comment of the rules that block packets.
pub(super) const COMMENT_OF_BLOCKED: &str = "blocked";

/// The priority of every base chain, the usual priority of filter rules (nft(8): `filter`).
const FILTER: i32 = 0;

/// Rejects a packet with an ICMP error: programs learn at once that there is no route, and existing
/// connections wait for the tunnel to come back. nft reads it without `type` only since 1.0.
const REFUSE: &str = "reject with icmpx type admin-prohibited";

/// Adds sets, chains and rules to the table.
pub(super) fn add(script: &mut Script, table: &Table, interface: &InterfaceName, switch: &KillSwitch) {
    for chain in [SENT, FORWARDED] {
        script.chain(table, chain);
    }
    if let Local::Allowed { dns } = &switch.local {
        script.chain(table, LOCAL);
        add_local(script, table, dns);
    }
    for (name, hook) in [(OUTPUT, "output"), (FORWARD, "forward"), (POSTROUTING, "postrouting")] {
        script.base_chain(table, name, ChainHook { hook, priority: FILTER, policy: "drop" });
    }
    add_sent(script, table, interface, switch);
    add_forwarded(script, table, interface, switch);
    for (chain, allowed, last) in [
        (OUTPUT, &[SENT][..], REFUSE),
        (FORWARD, &[FORWARDED], "drop"),
        (POSTROUTING, &[SENT, FORWARDED], "drop"),
    ] {
        for allowed in allowed {
            let whose = if *allowed == SENT { "of this machine" } else { "of others" };
            script.rule(table, chain, whose, format_args!("jump {allowed}"));
        }
        // A rule does this, not only the policy: when a table is replaced, the policy takes effect after the
        // rules.
        script.rule(table, chain, COMMENT_OF_BLOCKED, format_args!("counter {last}"));
    }
}

fn add_sent(script: &mut Script, table: &Table, interface: &InterfaceName, switch: &KillSwitch) {
    let mut allow = |comment, condition: &str| {
        script.rule(table, SENT, comment, format_args!("{condition} accept"));
    };
    allow("loopback and tunnel", &format!("oifname {{ \"lo\", \"{interface}\" }}"));
    // The others are for systems without marks: elements of a set could be changed unseen.
    if let OwnPackets::Marked(mark) = &switch.own {
        // CAP_NET_RAW is enough to set the mark since Linux 5.17, and helpers such as that of mtr have it for
        // every user.
        let by_us = users().map_or_else(String::new, |users| format!(" meta skuid {}", any_or_one(users)));
        allow("the tunnel's own packets", &format!("meta l4proto udp meta mark {mark:#x}{by_us}"));
        // Of the names of its peers; over UDP the rule above lets them through.
        allow("its own look-ups", &format!("tcp dport 53 meta mark {mark:#x}{by_us}"));
    }
    allow(
        "DHCP",
        &format!("ip daddr {} udp sport 68 udp dport 67", networks_of(dhcp_servers().map(IpNet::V4))),
    );
    // RFC 8415, section 7.1: all relay agents and servers; section 13: from a link-local address.
    let from_link = format!("ip6 saddr {}", v6(0xfe80, 10));
    let to_servers = "ip6 daddr { ff02::1:2, ff05::1:3 } udp sport 546 udp dport 547";
    allow("DHCPv6", &format!("{from_link} {to_servers}"));
    // Without neighbour discovery no IPv6 packet finds the next hop. It is valid only with a hop limit of
    // 255, which no forwarded packet has (RFC 4861, section 7.1).
    let discovery = "{ nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert }";
    allow("neighbour discovery", &format!("icmpv6 type {discovery} ip6 hoplimit 255"));
    // Switches with MLD snooping forward neighbour solicitations only to known listeners (RFC 4541, section
    // 3). Newer versions of nft say `done` for `reduction`, and read both.
    let listeners =
        "{ mld-listener-query, mld-listener-report, mld-listener-reduction, mld2-listener-report }";
    allow("multicast listeners", &format!("icmpv6 type {listeners} ip6 daddr {}", v6(0xff02, 16)));
    // A gateway reports the MTU of the tunnel to its clients.
    allow("path MTU", "icmp type destination-unreachable icmp code frag-needed");
    allow("path MTU", "icmpv6 type packet-too-big");

    if switch.local != Local::Blocked {
        script.rule(table, SENT, "local networks", format_args!("jump {LOCAL}"));
    }
}

fn add_forwarded(script: &mut Script, table: &Table, interface: &InterfaceName, switch: &KillSwitch) {
    script.rule(table, FORWARDED, "into the tunnel", format_args!("oifname \"{interface}\" accept"));
    // Only replies: a peer must not reach networks outside the tunnel through this machine.
    let answers = format_args!("iifname \"{interface}\" ct direction reply accept");
    script.rule(table, FORWARDED, "answers out of the tunnel", answers);
    if switch.local != Local::Blocked {
        script.rule(table, FORWARDED, "local networks", format_args!("jump {LOCAL}"));
    }
}

fn add_local(script: &mut Script, table: &Table, dns: &BTreeSet<IpAddr>) {
    let networks = local_networks();
    for is_ipv6 in [false, true] {
        let is_named_here = |server: &&IpAddr| {
            server.is_ipv6() == is_ipv6 && networks.iter().any(|net| net.contains(*server))
        };
        let servers: Vec<_> = dns.iter().filter(is_named_here).collect();
        if !servers.is_empty() {
            let to_server = format_args!("{} daddr {} accept", header_of(is_ipv6), any_of(servers));
            script.rule(table, LOCAL, "own name servers", to_server);
        }
    }
    // DNS, and DNS over TLS and QUIC. Older versions of nft do not know `th dport`, which these bits are.
    let to_dns = "meta l4proto { tcp, udp } @th,16,16 { 53, 853 } return";
    script.rule(table, LOCAL, "no other name servers", to_dns);
    for is_ipv6 in [false, true] {
        let networks = networks.into_iter().filter(|net| net.addr().is_ipv6() == is_ipv6);
        let to_local = format_args!("{} daddr {} accept", header_of(is_ipv6), networks_of(networks));
        script.rule(table, LOCAL, "local networks", to_local);
    }
}

/// Returns a set of networks.
fn networks_of(networks: impl Iterator<Item = IpNet>) -> String {
    // A single address is written without its length.
    any_of(networks.map(|net| match net.prefix_len() == net.max_prefix_len() {
        true => net.addr().to_string(),
        false => net.to_string(),
    }))
}

/// Returns the users that sockets of the tunnel belong to: that of this process, and root, which runs
/// commands that look names up. `None` if the kernel would count them otherwise than this process does.
fn users() -> Option<BTreeSet<u32>> {
    netns::counts_users_as_we_do().then(|| [0, nix::unistd::geteuid().as_raw()].into())
}

/// Returns a set, or its only item, as nft(8) lists it.
fn any_or_one(users: BTreeSet<u32>) -> String {
    match users.len() {
        1 => users.into_iter().map(|user| user.to_string()).collect(),
        _ => any_of(users),
    }
}
