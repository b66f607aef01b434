//! Finds what the routing table does not lead where the configuration means it to go: name servers beside the
//! tunnel, traffic that another route captures, endpoints that are reached through the tunnel itself.
//!
//! [`in_force`] asks for the tunnel that is up, [`predicted`] for one that is not. A user who makes the
//! routes (`Table = off` or a table other than the main one) means what they are: only what cannot work is
//! found then.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use ipnet::IpNet;
use weft_config::{Config, Endpoint, InterfaceName, KillSwitch, Table};

use crate::dns::System;
use crate::firewall;
use crate::record::Record;
use crate::restore::{DnsPast, dns_past};
use crate::routes::{Exception, Family, MAIN_TABLE, link_of};

mod describe;
mod families;
#[cfg(target_os = "linux")]
mod linux;
mod servers;
#[cfg(not(target_os = "linux"))]
mod unsupported;

#[cfg(target_os = "linux")]
use linux as platform;
#[cfg(not(target_os = "linux"))]
use unsupported as platform;

pub(crate) use platform::in_the_way;
pub use platform::{dns_predicted, in_force, leads_back, local_resolver, predicted};

/// Public addresses all over the address space. A family whose AllowedIPs have all of them is meant to be in
/// the tunnel as a whole, also if private networks are left out.
const PUBLIC_V4: [Ipv4Addr; 8] = [
    Ipv4Addr::new(1, 1, 1, 1),
    Ipv4Addr::new(8, 8, 8, 8),
    Ipv4Addr::new(23, 192, 0, 1),
    Ipv4Addr::new(93, 184, 215, 14),
    Ipv4Addr::new(140, 82, 112, 3),
    Ipv4Addr::new(151, 101, 1, 1),
    Ipv4Addr::new(185, 199, 108, 1),
    Ipv4Addr::new(208, 67, 222, 222),
];
const PUBLIC_V6: [Ipv6Addr; 4] = [
    Ipv6Addr::new(0x2001, 0x4860, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2400, 0xcb00, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2606, 0x4700, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2a00, 0x1450, 0, 0, 0, 0, 0, 1),
];
/// The largest numbers of prefixes and of endpoints that are looked at: a gateway has thousands.
const PREFIXES: usize = 32;
const ENDPOINTS: usize = 64;

/// Where packets to an address go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// To this machine.
    Here,
    /// Through this interface.
    Through(String),
    /// Nowhere: there is no route.
    Nowhere,
}

/// The routing table.
pub(crate) trait Routes {
    /// Returns where packets to an address go. `is_own`: the tunnel's own packets, which have its mark.
    fn hop(&self, destination: IpAddr, is_own: bool) -> Hop;

    /// Returns where another tunnel sends the packets that it makes of these, if it takes these over: a rule
    /// leads all packets into it but those with its mark.
    fn hop_of_outer(&self, destination: IpAddr, is_own: bool) -> Option<Hop>;

    /// Returns the networks of the devices that are up, by their addresses.
    fn networks(&self) -> Vec<(IpNet, String)> {
        Vec::new()
    }

    /// Returns the full tunnel that packets to an address go through now, if the rules of this tunnel will
    /// come before its own.
    fn taken_from(&self, _: IpAddr) -> Option<String> {
        None
    }

    /// Reports whether weft runs an interface of this name.
    fn is_of_weft(&self, _: &str) -> bool {
        false
    }

    /// Returns the rules of others that come before the tunnel's, and lead packets past it or block them.
    fn exceptions(&self, _: Family) -> Vec<Exception> {
        Vec::new()
    }

    /// Returns the route of the main table that drops packets to an address, if it is the best one there.
    fn blocked_by(&self, _: IpAddr) -> Option<Blocking> {
        None
    }

    /// Returns the networks of a family that routes with a gateway lead through other devices than a tunnel,
    /// each with the device, and whether DHCP or a router advertisement has set the route.
    fn by_gateway(&self, _: Family) -> Vec<(IpNet, String, bool)> {
        Vec::new()
    }

    /// Reports whether no rule leads to the main table, and the tunnel's own packets have no way.
    fn lacks_main(&self, _: Family) -> bool {
        false
    }
}

/// A route of the main table that drops packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocking {
    /// The word of ip-route(8) for its kind.
    pub word: &'static str,
    pub prefix: IpNet,
    pub metric: u32,
}

/// Something that does not go where the configuration means it to go. Prints as one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misrouted {
    /// A name server is not reached through the tunnel.
    NameServer {
        server: IpAddr,
        /// The interface that leads there; `None`: no route does.
        via: Option<String>,
        /// Whether the kill switch blocks the way.
        is_blocked: bool,
        /// Whether the configuration means this way: the server is public and the tunnel carries some
        /// networks only, or the server is one that the system had before, or another one is reached.
        is_minor: bool,
        /// Whether the configuration names the server.
        is_configured: bool,
        advice: ServerAdvice,
    },
    /// The kill switch blocks the way to every name server.
    NoNames {
        servers: Vec<IpAddr>,
        /// The interface that leads to the first of them.
        via: Option<String>,
        is_configured: bool,
        advice: ServerAdvice,
    },
    /// Public addresses of a family go through another interface, although the whole family is meant to be in
    /// the tunnel.
    Captured {
        family: Family,
        example: IpAddr,
        via: String,
        /// Whether that is another tunnel that sends its own packets through this one.
        is_within: bool,
        /// Whether that is another tunnel of weft, which is meant to carry the family too.
        is_of_weft: bool,
        /// The rule of another program that leads them there, if it is for all packets.
        rule: Option<Exception>,
    },
    /// Another full tunnel carries this family now, and carries none of it once this one is up.
    TakenOver { family: Family, other: String, is_of_weft: bool },
    /// A rule of another program comes before those of the tunnel, and leads a part of a family past it, or
    /// blocks it.
    Exception { family: Family, rule: Exception },
    /// Routes with a gateway lead public networks past a tunnel that is meant to carry the whole family.
    Networks {
        networks: Vec<IpNet>,
        via: String,
        /// Whether DHCP or a router advertisement has set them.
        is_of_network: bool,
        /// Whether the kill switch blocks the way.
        is_blocked: bool,
    },
    /// A route of the main table drops packets of a family that is meant to be in the tunnel as a whole. The
    /// tunnel's rule leaves a default route out of account, and not one that drops.
    Blocked { family: Family, example: IpAddr, route: Blocking },
    /// No rule leads to the main table, which has the way to this endpoint.
    NoMain { endpoint: SocketAddr },
    /// This family goes past a tunnel that carries all of the other one.
    FamilyPast { family: Family, via: String },
    /// Prefixes of AllowedIPs that other routes lead elsewhere as a whole.
    Prefixes { prefixes: Vec<IpNet>, via: String },
    /// The tunnel's network is also that of another interface.
    SameNetwork {
        network: IpNet,
        other: String,
        /// Whether it is the network of Address, and not one of AllowedIPs alone.
        is_of_address: bool,
        /// An address in it that is not this machine's.
        example: IpAddr,
        /// Whether packets to it go through the tunnel, and not through the other interface.
        is_in_tunnel: bool,
    },
    /// The tunnel's packets to an endpoint go into the tunnel.
    Loop { endpoint: SocketAddr, cause: LoopCause },
    /// Names are not looked up at the name servers of the tunnel.
    Dns(DnsPast),
    /// DNS cannot be set on this machine.
    NoDns {
        /// The error of the start.
        says: String,
        /// Whether the configuration cannot be right here.
        is_wrong: bool,
    },
    /// Peers are told to send all of these families here, and this machine does not forward them.
    NotForwarded { families: Vec<Family> },
    /// This machine forwards what peers send to others, with the addresses that they have in the tunnel.
    NotTranslated {
        interface: InterfaceName,
        /// The networks of the peers; at least one.
        networks: Vec<IpNet>,
    },
    /// The only name server outside the tunnel is a program of this machine, which asks through the tunnel.
    LocalResolver {
        server: IpAddr,
        /// The mark that leads past the tunnel.
        mark: u32,
    },
}

/// Why the tunnel's packets go into the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoopCause {
    /// By routes or rules.
    Routes,
    /// Another tunnel takes them over, and its packets go into this one.
    Circle { other: String },
    /// They have another mark than that of the rules: wg(8) changes the former alone.
    Mark { now: u32, of_rules: u32, interface: InterfaceName },
    /// A packet came from there, and the configuration has another endpoint.
    Roamed { interface: InterfaceName },
}

/// What helps a name server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerAdvice {
    /// A route to this prefix in AllowedIPs.
    Route(IpNet),
    /// A server elsewhere: this address is that of an endpoint, which cannot be in the tunnel.
    AnotherServer,
    /// To look at routes and rules: AllowedIPs has the address, and something comes before them.
    LookAt(IpAddr),
    /// Servers in the configuration.
    Configure,
}

/// Returns what does not go where the configuration means it to go. `endpoints` are the known addresses of
/// the peers; `system` returns the name servers that are asked if the configuration has none.
/// `own`: the name that the device has.
pub(crate) fn find(
    config: &Config,
    own: &str,
    endpoints: &[SocketAddr],
    system: impl FnOnce() -> Vec<IpAddr>,
    routes: &impl Routes,
) -> Vec<Misrouted> {
    let meant = Meant { config, own, endpoints, routes };
    let mut found = meant.name_servers(system);
    if meant.is_routed_by_weft() {
        found.extend(meant.families());
        let same = meant.same_networks();
        found.extend(meant.prefixes(&same));
        found.extend(same);
    }
    let has_endpoint = |family: &Family| endpoints.iter().find(|to| Family::of(to.ip().into()) == *family);
    let lacking = Family::ALL.into_iter().filter(|family| routes.lacks_main(*family));
    let endpoint = |family| has_endpoint(&family).map(|endpoint| Misrouted::NoMain { endpoint: *endpoint });
    found.extend(lacking.filter_map(endpoint));
    found.extend(meant.loops());
    found
}

/// Returns the finding that peers which send everything here reach nothing behind this machine, if the file
/// says what new peers are told.
pub fn not_forwarded(config: &Config) -> Option<Misrouted> {
    let clients = &config.interface.host.clients;
    let is_gateway = clients.endpoint.is_some() || !clients.allowed_ips.is_empty();
    let told = Family::ALL.into_iter().zip(config.interface.takes_everything_of_peers());
    let families: Vec<Family> = told
        .filter(|(family, is_told)| is_gateway && *is_told && platform::forwards(*family) == Some(false))
        .map(|(family, _)| family)
        .collect();
    (!families.is_empty()).then_some(Misrouted::NotForwarded { families })
}

/// Returns the finding that nothing outside has a way back to peers which this machine forwards, unless a
/// router has a route that is not seen here. `is_hub`: the peers look like clients. Nothing is found
/// where a command of the file may see to it.
pub fn not_translated(config: &Config, is_hub: bool) -> Option<Misrouted> {
    let Config { interface, .. } = config;
    let clients = &interface.host.clients;
    let is_for_clients = is_hub || clients.endpoint.is_some() || !clients.allowed_ips.is_empty();
    let mut hooks = interface.host.hooks.iter().map(|hook| hook.command.to_lowercase());
    if !is_for_clients
        || hooks.any(|command| ["masquerade", "snat"].iter().any(|word| command.contains(word)))
    {
        return None;
    }
    let told = Family::ALL.into_iter().zip(interface.takes_everything_of_peers());
    let forwarded = told.filter(|(family, is_told)| *is_told && platform::forwards(*family) == Some(true));
    let mut families: Vec<Family> = forwarded.map(|(family, _)| family).collect();
    if families.is_empty() {
        return None;
    }
    let translated = platform::translated()?;
    families.retain(|family| !translated.contains(family));
    let is_private = |net: &IpNet| !is_public(net.addr()) && !is_link_local(net.addr());
    let networks = interface.addresses.iter().filter(|net| families.contains(&Family::of(**net)));
    let networks: Vec<IpNet> = networks.filter(|net| is_private(net)).map(IpNet::trunc).collect();
    let interface = interface.name.clone();
    (!networks.is_empty()).then_some(Misrouted::NotTranslated { interface, networks })
}

/// Returns why names are not looked up at the name servers of a tunnel that is up, by what its daemon wrote
/// down in the directory.
pub fn dns_in_force(directory: &Path, interface: &InterfaceName) -> Option<Misrouted> {
    let record = Record::read(directory, interface).ok().flatten()?.dns?;
    dns_past(&System::default(), interface, &record).map(Misrouted::Dns)
}

/// Returns the index of the device of a tunnel that is up, and the mark of its rules, as its daemon wrote
/// them down in the directory.
pub fn recorded(directory: &Path, interface: &InterfaceName) -> Option<(Option<u32>, u32)> {
    Record::read(directory, interface).ok().flatten().map(|record| (record.index, record.mark))
}

struct Meant<'a, R> {
    config: &'a Config,
    own: &'a str,
    endpoints: &'a [SocketAddr],
    routes: &'a R,
}

impl<R: Routes> Meant<'_, R> {
    fn is_routed_by_weft(&self) -> bool {
        matches!(self.config.interface.table, Table::Auto | Table::Number(MAIN_TABLE))
    }

    fn allowed_ips(&self) -> impl Iterator<Item = &IpNet> {
        self.config.peers.iter().flat_map(|peer| &peer.allowed_ips)
    }

    /// Reports whether all traffic of a family is meant to be in the tunnel.
    fn means_all(&self, family: Family) -> bool {
        let is_in = |address| self.allowed_ips().any(|net| net.contains(&address));
        self.is_routed_by_weft() && public(family).all(is_in)
    }

    /// Returns the other interface that packets to an address go through, if they do.
    fn elsewhere(&self, destination: IpAddr) -> Option<String> {
        match self.routes.hop(destination, false) {
            Hop::Through(device) if device != self.own => Some(device),
            _ => None,
        }
    }

    /// Reports whether packets to an address go through another tunnel which is within this one.
    fn goes_within(&self, destination: IpAddr, is_own: bool) -> bool {
        self.routes.hop_of_outer(destination, is_own).is_some_and(|hop| self.is_own_device(&hop))
    }

    /// Returns the other interface that packets to an address go through, past this tunnel.
    fn past(&self, destination: IpAddr) -> Option<String> {
        self.elsewhere(destination).filter(|_| !self.goes_within(destination, false))
    }

    fn is_own_device(&self, hop: &Hop) -> bool {
        matches!(hop, Hop::Through(device) if device == self.own)
    }

    fn name_servers(&self, system: impl FnOnce() -> Vec<IpAddr>) -> Vec<Misrouted> {
        let host = &self.config.interface.host;
        let has_kill_switch = host.kill_switch != KillSwitch::Off;
        let is_full = Family::ALL.into_iter().any(|family| self.means_all(family));
        let is_configured = !host.dns.servers.is_empty();
        let servers = match is_configured {
            true if self.is_routed_by_weft() || has_kill_switch => host.dns.servers.clone(),
            false if is_full || has_kill_switch => system(),
            _ => return Vec::new(),
        };
        // What answers on this machine asks others in its way, and a link-local address is that of some link.
        let is_known =
            |server: &IpAddr| !server.is_loopback() && !is_link_local(*server) && !server.is_unspecified();
        let hops: Vec<(IpAddr, Hop)> = servers
            .iter()
            .filter(|server| is_known(server))
            .filter(|server| !self.goes_within(**server, false))
            .map(|server| (*server, self.routes.hop(*server, false)))
            .collect();
        let is_fine = |hop: &Hop| match hop {
            Hop::Here => true,
            hop => self.is_own_device(hop),
        };
        let is_blocked = |server: IpAddr| match host.kill_switch {
            KillSwitch::Off => false,
            KillSwitch::On => true,
            KillSwitch::AllowLocal => !is_configured || !firewall::is_local(server),
        };
        let is_one_fine = hops.len() < servers.len() || hops.iter().any(|(_, hop)| is_fine(hop));
        let past = || hops.iter().filter(|(_, hop)| !is_fine(hop));
        let via = |hop: &Hop| match hop {
            Hop::Through(device) => Some(device.clone()),
            _ => None,
        };
        let advice = |server| if is_configured { self.advice(server) } else { ServerAdvice::Configure };
        let is_stuck = |(server, hop): &(IpAddr, Hop)| *hop == Hop::Nowhere || is_blocked(*server);
        if has_kill_switch
            && !is_one_fine
            && let Some((first, hop)) = hops.first()
            && hops.iter().all(is_stuck)
        {
            let servers = hops.iter().map(|(server, _)| *server).collect();
            return vec![Misrouted::NoNames {
                servers,
                via: via(hop),
                is_configured,
                advice: advice(*first),
            }];
        }
        if !self.is_routed_by_weft() {
            return Vec::new();
        }
        past()
            .map(|(server, hop)| {
                let is_beside = !self.means_all(Family::of((*server).into())) && is_public(*server);
                let is_spare = *hop == Hop::Nowhere && is_one_fine;
                let is_minor = (is_beside && *hop != Hop::Nowhere) || is_spare || !is_configured;
                Misrouted::NameServer {
                    server: *server,
                    via: via(hop),
                    is_blocked: is_blocked(*server),
                    is_minor: is_minor && (is_spare || !is_blocked(*server)),
                    is_configured,
                    advice: advice(*server),
                }
            })
            .collect()
    }

    fn advice(&self, server: IpAddr) -> ServerAdvice {
        let host = IpNet::from(server);
        if self.endpoints.iter().any(|endpoint| endpoint.ip() == server) {
            ServerAdvice::AnotherServer
        } else if self.allowed_ips().any(|net| *net == host) {
            ServerAdvice::LookAt(server)
        } else {
            ServerAdvice::Route(host)
        }
    }

    /// Returns the networks of the tunnel that another interface has too: the kernel has two routes there.
    fn same_networks(&self) -> Vec<Misrouted> {
        let networks = self.routes.networks();
        let own = self.config.interface.addresses.iter().chain(self.allowed_ips()).map(IpNet::trunc);
        let is_network = |net: &IpNet| net.prefix_len() > 0 && net.prefix_len() < net.max_prefix_len();
        let own: BTreeSet<IpNet> = own.filter(is_network).filter(|net| !is_link_local(net.addr())).collect();
        let find = |network: IpNet| {
            let is_other = |(net, device): &&(IpNet, String)| *net == network && device != self.own;
            let (_, other) = networks.iter().find(is_other)?;
            let hops = probes(network).map(|address| self.routes.hop(address, false));
            let is_in_tunnel = hops.iter().all(|hop| *hop == Hop::Here || self.is_own_device(hop));
            // AllowedIPs within the network have no route by weft: the kernel makes that of the network.
            let is_missed = |net: &IpNet| {
                net.contains(&network)
                    || network.contains(net)
                        && probes(*net).iter().any(|address| self.past(*address).is_some())
            };
            let addresses = &self.config.interface.addresses;
            let is_here = |address: &IpAddr| {
                addresses.iter().any(|own| own.addr() == *address)
                    || self.routes.hop(*address, false) == Hop::Here
            };
            let [first, middle, last] = probes(network);
            let found = Misrouted::SameNetwork {
                network,
                other: other.clone(),
                is_of_address: addresses.iter().any(|own| own.trunc() == network),
                example: [first, middle, last].into_iter().find(|address| !is_here(address)).unwrap_or(first),
                is_in_tunnel,
            };
            (is_in_tunnel || self.allowed_ips().any(is_missed)).then_some(found)
        };
        own.into_iter().filter_map(find).collect()
    }

    /// Returns the prefixes that go elsewhere, other than networks that are told already.
    fn prefixes(&self, same: &[Misrouted]) -> Option<Misrouted> {
        let mut captured: Vec<(IpNet, String)> = Vec::new();
        // The way of a name server is told by itself.
        let servers = &self.config.interface.host.dns.servers;
        let is_server = |net: &&IpNet| servers.iter().any(|server| IpNet::from(*server) == **net);
        let is_told = |net: &&IpNet| {
            same.iter()
                .any(|same| matches!(same, Misrouted::SameNetwork { network, .. } if network.contains(*net)))
        };
        let prefixes =
            self.allowed_ips().filter(|net| net.prefix_len() > 0 && !is_server(net) && !is_told(net));
        for prefix in prefixes.take(PREFIXES) {
            // The first address of a network is often the own one, which goes nowhere.
            let others =
                probes(*prefix).into_iter().filter(|address| self.routes.hop(*address, false) != Hop::Here);
            // A route to a part of a prefix is usual: that of the local network.
            let elsewhere: Option<Vec<String>> = others.map(|address| self.past(address)).collect();
            if let Some(via) = elsewhere.and_then(|devices| devices.into_iter().next()) {
                captured.push((*prefix, via));
            }
        }
        let (_, via) = captured.first().cloned()?;
        let prefixes = captured.into_iter().map(|(prefix, _)| prefix).collect();
        Some(Misrouted::Prefixes { prefixes, via })
    }

    fn loops(&self) -> impl Iterator<Item = Misrouted> {
        let own = self.config.interface.addresses.iter().map(IpNet::trunc);
        let inside: Vec<IpNet> = own.chain(self.allowed_ips().copied()).collect();
        let may_be_inside = move |endpoint: &&SocketAddr| {
            !self.is_routed_by_weft() || inside.iter().any(|net| net.contains(&endpoint.ip()))
        };
        let is_inside = |endpoint: &&SocketAddr| {
            // A link-local address goes through its link, whatever the routes.
            if link_of(**endpoint).is_some() {
                return false;
            }
            let address = endpoint.ip();
            self.is_own_device(&self.routes.hop(address, true)) || self.goes_within(address, true)
        };
        let endpoints = self.endpoints.iter().filter(may_be_inside).take(ENDPOINTS).filter(is_inside);
        let interface = &self.config.interface.name;
        let cause = |endpoint: &SocketAddr| match self.routes.hop(endpoint.ip(), true) {
            _ if !self.is_of_configuration(endpoint) => LoopCause::Roamed { interface: interface.clone() },
            Hop::Through(other) if other != self.own => LoopCause::Circle { other },
            _ => LoopCause::Routes,
        };
        endpoints.map(move |endpoint| Misrouted::Loop { endpoint: *endpoint, cause: cause(endpoint) })
    }

    /// Reports whether an endpoint may be from the configuration. What its names stand for is not known.
    fn is_of_configuration(&self, endpoint: &SocketAddr) -> bool {
        let mut configured = self.config.peers.iter().filter_map(|peer| peer.endpoint.as_ref()).peekable();
        configured.peek().is_none()
            || configured.any(|of_file| match of_file {
                Endpoint::Address(address) => address == endpoint,
                Endpoint::Name { .. } => true,
            })
    }
}

fn public(family: Family) -> impl Iterator<Item = IpAddr> {
    let (v4, v6) = match family {
        Family::V4 => (&PUBLIC_V4[..], &[][..]),
        Family::V6 => (&[][..], &PUBLIC_V6[..]),
    };
    v4.iter().copied().map(IpAddr::V4).chain(v6.iter().copied().map(IpAddr::V6))
}

/// Returns addresses at the begin, in the middle and at the end of a prefix.
fn probes(prefix: IpNet) -> [IpAddr; 3] {
    match prefix {
        IpNet::V4(net) => {
            let (first, last) = (u32::from(net.network()), u32::from(net.broadcast()));
            let span = last - first;
            [span.min(1), span / 2, span - span.min(1)].map(|by| Ipv4Addr::from(first + by).into())
        }
        IpNet::V6(net) => {
            let (first, last) = (u128::from(net.network()), u128::from(net.broadcast()));
            let span = last - first;
            [span.min(1), span / 2, span - span.min(1)].map(|by| Ipv6Addr::from(first + by).into())
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Reports whether an address is one of the Internet: not private (RFC 1918, RFC 4193), not of a provider
/// (RFC 6598), not link-local.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let is_of_provider = address.octets()[0] == 100 && address.octets()[1] & 0xc0 == 64;
            !address.is_private() && !address.is_link_local() && !is_of_provider
        }
        IpAddr::V6(address) => address.segments()[0] & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
#[path = "misrouted/tests.rs"]
mod tests;
