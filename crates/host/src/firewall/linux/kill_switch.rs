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
use std::net::{IpAddr, SocketAddr};

use nftables::expr::{Expression, MetaKey, NamedExpression};
use nftables::schema::SetType;
use nftables::stmt::{Reject, RejectType, Statement};
use nftables::types::{NfChainPolicy, NfHook, RejectCode};
use weft_config::InterfaceName;

use super::super::local::{local_networks, v6};
use super::super::{KillSwitch, Local, OwnPackets, Table};
use super::batch::{Batch, ChainHook};
use super::vocabulary::{
    accept, address, any_number, any_of, any_text, count, ct, drop, field, header_of, in_through, is, jump,
    l4proto_is, meta, out_through, prefix, text,
};

/// The base chain for packets of this machine.
pub(super) const OUTPUT: &str = "output";
/// The base chain for forwarded packets.
const FORWARD: &str = "forward";
/// The base chain for both, where packets are no longer rerouted.
const POSTROUTING: &str = "postrouting";
/// The chain that accepts what this machine may send.
const SENT: &str = "sent";
/// The chain that accepts what other machines may send through this machine.
const FORWARDED: &str = "forwarded";
/// The chain that accepts what may go to local networks.
const LOCAL: &str = "local";

/// The comment of the rules that block packets.
pub(super) const COMMENT_OF_BLOCKED: &str = "blocked";

const ENDPOINTS: [&str; 2] = ["endpoints4", "endpoints6"];
const ENDPOINT_FIELDS: [&[SetType]; 2] =
    [&[SetType::Ipv4Addr, SetType::InetService], &[SetType::Ipv6Addr, SetType::InetService]];

/// The priority of every base chain, the usual priority of filter rules (nft(8): `filter`).
const FILTER: i32 = 0;

/// Adds sets, chains and rules to the table.
pub(super) fn add(batch: &mut Batch, table: &Table, interface: &InterfaceName, switch: &KillSwitch) {
    for chain in [SENT, FORWARDED] {
        batch.chain(table, chain);
    }
    if let Local::Allowed { dns } = &switch.local {
        batch.chain(table, LOCAL);
        add_local(batch, table, dns);
    }
    let bases = [(OUTPUT, NfHook::Output), (FORWARD, NfHook::Forward), (POSTROUTING, NfHook::Postrouting)];
    for (name, hook) in bases {
        batch.base_chain(table, name, ChainHook { hook, priority: FILTER, policy: NfChainPolicy::Drop });
    }
    add_sent(batch, table, interface, switch);
    add_forwarded(batch, table, interface, switch);
    for (chain, allowed, last) in [
        (OUTPUT, &[SENT][..], refuse()),
        (FORWARD, &[FORWARDED], drop()),
        (POSTROUTING, &[SENT, FORWARDED], drop()),
    ] {
        for allowed in allowed {
            let whose = if *allowed == SENT { "of this machine" } else { "of others" };
            batch.rule(table, chain, whose, [jump(allowed)]);
        }
        // A rule does this, not only the policy: when a table is replaced, the policy takes effect after the
        // rules.
        batch.rule(table, chain, COMMENT_OF_BLOCKED, [count(), last]);
    }
}

fn add_sent(batch: &mut Batch, table: &Table, interface: &InterfaceName, switch: &KillSwitch) {
    let mut allow = |comment, mut conditions: Vec<Statement<'static>>| {
        conditions.push(accept());
        batch.rule(table, SENT, comment, conditions);
    };
    let through = [text("lo"), text(interface.as_str())];
    allow("loopback and tunnel", vec![is(meta(MetaKey::Oifname), any_of(through))]);
    if let OwnPackets::Marked(mark) = &switch.own {
        let is_own = is(meta(MetaKey::Mark), Expression::Number(mark.get()));
        allow("the tunnel's own packets", vec![l4proto_is("udp"), is_own]);
    }
    allow("DHCP", vec![udp_port("sport", 68), udp_port("dport", 67)]);
    // RFC 8415, section 7.1: all relay agents and servers; section 13: from a link-local address.
    let servers = is(field("ip6", "daddr"), any_text(&["ff02::1:2", "ff05::1:3"]));
    let from_link = is(field("ip6", "saddr"), prefix(v6(0xfe80, 10)));
    allow("DHCPv6", vec![from_link, servers, udp_port("sport", 546), udp_port("dport", 547)]);
    // Without neighbour discovery no IPv6 packet finds the next hop. It is valid only with a hop limit of
    // 255, which no forwarded packet has (RFC 4861, section 7.1).
    let discovery = ["nd-router-solicit", "nd-router-advert", "nd-neighbor-solicit", "nd-neighbor-advert"];
    let on_link = is(field("ip6", "hoplimit"), Expression::Number(255));
    allow("neighbour discovery", vec![is(field("icmpv6", "type"), any_text(&discovery)), on_link]);
    // Switches with MLD snooping forward neighbour solicitations only to known listeners (RFC 4541, section
    // 3).
    let listeners =
        ["mld-listener-query", "mld-listener-report", "mld-listener-done", "mld2-listener-report"];
    let to_link = is(field("ip6", "daddr"), prefix(v6(0xff02, 16)));
    allow("multicast listeners", vec![is(field("icmpv6", "type"), any_text(&listeners)), to_link]);
    // A gateway reports the MTU of the tunnel to its clients.
    let unreachable = is(field("icmp", "type"), text("destination-unreachable"));
    allow("path MTU", vec![unreachable, is(field("icmp", "code"), text("frag-needed"))]);
    allow("path MTU", vec![is(field("icmpv6", "type"), text("packet-too-big"))]);

    if let OwnPackets::To(endpoints) = &switch.own {
        for (place, header) in ["ip", "ip6"].into_iter().enumerate() {
            batch.set(table, ENDPOINTS[place], ENDPOINT_FIELDS[place]);
            let fields = vec![field(header, "daddr"), field("udp", "dport")];
            let destination = Expression::Named(NamedExpression::Concat(fields));
            let known = is(destination, text(format!("@{}", ENDPOINTS[place])));
            batch.rule(table, SENT, "the tunnel's own packets", [known, accept()]);
        }
        add_endpoints(batch, table, endpoints);
    }
    if switch.local != Local::Blocked {
        batch.rule(table, SENT, "local networks", [jump(LOCAL)]);
    }
}

/// Fills the sets of endpoints.
fn add_endpoints(batch: &mut Batch, table: &Table, endpoints: &BTreeSet<SocketAddr>) {
    for (place, is_ipv6) in [false, true].into_iter().enumerate() {
        let elements = endpoints.iter().filter(|endpoint| endpoint.is_ipv6() == is_ipv6).map(|endpoint| {
            let fields = vec![address(endpoint.ip()), Expression::Number(endpoint.port().into())];
            Expression::Named(NamedExpression::Concat(fields))
        });
        batch.elements(table, ENDPOINTS[place], elements.collect());
    }
}

fn add_forwarded(batch: &mut Batch, table: &Table, interface: &InterfaceName, switch: &KillSwitch) {
    let name = interface.as_str();
    batch.rule(table, FORWARDED, "into the tunnel", [out_through(name), accept()]);
    // Only replies: a peer must not reach networks outside the tunnel through this machine.
    let is_answer = is(ct("direction"), text("reply"));
    batch.rule(table, FORWARDED, "answers out of the tunnel", [in_through(name), is_answer, accept()]);
    if switch.local != Local::Blocked {
        batch.rule(table, FORWARDED, "local networks", [jump(LOCAL)]);
    }
}

fn add_local(batch: &mut Batch, table: &Table, dns: &BTreeSet<IpAddr>) {
    let networks = local_networks();
    for is_ipv6 in [false, true] {
        let is_named_here = |server: &&IpAddr| {
            server.is_ipv6() == is_ipv6 && networks.iter().any(|net| net.contains(*server))
        };
        let servers: Vec<_> = dns.iter().filter(is_named_here).map(|server| address(*server)).collect();
        if !servers.is_empty() {
            let to_server = is(field(header_of(is_ipv6), "daddr"), any_of(servers));
            batch.rule(table, LOCAL, "own name servers", [to_server, accept()]);
        }
    }
    batch.rule(table, LOCAL, "no other name servers", [is_port(), is_dns(), Statement::Return(None)]);
    for is_ipv6 in [false, true] {
        let nets = networks.iter().filter(|net| net.addr().is_ipv6() == is_ipv6).map(|net| prefix(*net));
        let to_local = is(field(header_of(is_ipv6), "daddr"), any_of(nets));
        batch.rule(table, LOCAL, "local networks", [to_local, accept()]);
    }
}

fn udp_port(name: &'static str, port: u32) -> Statement<'static> {
    is(field("udp", name), Expression::Number(port))
}

fn is_port() -> Statement<'static> {
    is(meta(MetaKey::L4proto), any_text(&["tcp", "udp"]))
}

/// Matches DNS, and DNS over TLS and QUIC.
fn is_dns() -> Statement<'static> {
    is(field("th", "dport"), any_number(&[53, 853]))
}

/// Rejects a packet with an ICMP error: programs learn at once that there is no route, and existing
/// connections wait for the tunnel to come back.
fn refuse() -> Statement<'static> {
    Statement::Reject(Some(Reject::new(Some(RejectType::ICMPX), Some(RejectCode::AdminProhibited))))
}
