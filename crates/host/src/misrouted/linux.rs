//! Asks the kernel's routing table, or finds out what it will answer when a plan is carried out.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use weft_config::exit::Code;
use weft_config::{Config, Endpoint, InterfaceName};
use weft_ipc::runtime_dir::runtime_dir;

use super::{Blocking, Hop, LoopCause, Misrouted, Routes, find, public, servers};
use crate::HostError;
use crate::clean_up::has_kill_switch;
use crate::dns::System;
use crate::firewall;
use crate::plan::Plan;
use crate::record::Record;
use crate::restore::DnsPast;
use crate::routes::{
    DeviceState, Exception, Family, FoundRule, Link, MAIN_TABLE, MainRoute, Netlink, RouteAnswer, RouteError,
};
use crate::step::Step;

/// The kernel's number of the table that comes before all others (rt_tables: RT_TABLE_LOCAL).
const LOCAL_TABLE: u32 = 255;
/// The largest number of tunnels within each other.
const NESTED: u8 = 4;
/// The largest number of rules of a family that are told.
const EXCEPTIONS: usize = 8;

/// Returns what does not go where the configuration of a tunnel that is up means it to go. `mark` is that of
/// the tunnel's own packets, `of_rules` the one for which the rules are; `endpoints` are the addresses of the
/// peers; `index` is that of the device, if it is known: another program may give it another name.
pub fn in_force(
    netlink: &Netlink,
    index: Option<u32>,
    config: &Config,
    endpoints: &[SocketAddr],
    mark: u32,
    of_rules: u32,
) -> Vec<Misrouted> {
    let name = &config.interface.name;
    let link = match index {
        Some(index) => Ok(Link { name: name.to_string(), index, mtu: 0 }),
        None => netlink.link(name),
    };
    let Ok(link) = link else { return Vec::new() };
    // A device that is down has no routes: that is told, and is not the fault of the configuration.
    let Ok(Some(device @ DeviceState { is_up: true, .. })) = netlink.device_state(&link) else {
        return Vec::new();
    };
    let routes = InForce { netlink, own: link.index, mark, rules: OnceCell::new() };
    let mut found = find(config, &device.name, endpoints, servers::of_the_system, &routes);
    // Renamed meanwhile, it is taken for another one. The network has changed, so there is another look.
    if netlink.device_state(&link).ok().flatten().is_none_or(|now| now.name != device.name) {
        return Vec::new();
    }
    for misrouted in found.iter_mut().filter(|_| mark != of_rules) {
        if let Misrouted::Loop { cause, .. } = misrouted {
            *cause = LoopCause::Mark { now: mark, of_rules, interface: name.clone() };
        }
    }
    found
}

/// Reports whether packets with a mark to an endpoint leave through the device of the tunnel itself.
pub fn leads_back(netlink: &Netlink, device: &str, endpoint: SocketAddr, mark: u32) -> bool {
    netlink.goes_through(device, endpoint, mark)
}

/// Returns what will not go where the configuration of a tunnel means it to go, when it is brought up with
/// the present routes. What leads into a tunnel of this name already is left out of account. Nothing is found
/// if the routes cannot be read.
pub fn predicted(config: &Config, endpoints: &[SocketAddr]) -> Vec<Misrouted> {
    let find_in = || -> Result<_, HostError> {
        let netlink = Netlink::open()?;
        let plan = crate::plan(config, endpoints)?;
        let rules = netlink.rules()?;
        let routes = Predicted { netlink: &netlink, plan: &plan, rules, main: OnceCell::new() };
        Ok(find(config, config.interface.name.as_str(), endpoints, servers::of_the_system, &routes))
    };
    find_in().unwrap_or_default()
}

/// Returns why the name servers of a tunnel cannot be set on this machine, or what will come before them.
pub fn dns_predicted(config: &Config) -> Option<Misrouted> {
    let dns = &config.interface.host.dns;
    if dns.is_empty() {
        return None;
    }
    match System::default().foresee(&config.interface.name, dns) {
        Ok(overruled) => Some(Misrouted::Dns(DnsPast::Overruled(overruled?))),
        Err(error) => Some(Misrouted::NoDns {
            is_wrong: error.exit_code() == Code::Configuration,
            says: error.to_string(),
        }),
    }
}

/// Reports whether this machine forwards packets; `None` if that cannot be read.
pub(super) fn forwards(family: Family) -> Option<bool> {
    let setting = match family {
        Family::V4 => "net.ipv4.ip_forward",
        Family::V6 => "net.ipv6.conf.all.forwarding",
    };
    crate::sysctl::read(setting).map(|value| value != "0")
}

/// Returns the families of which forwarded packets may get another source; `None` if that cannot be read.
pub(super) fn translated() -> Option<BTreeSet<Family>> {
    firewall::translated().inspect_err(|error| tracing::debug!("{error}")).ok()
}

/// Returns the name server of this machine that cannot find peers by their names, if it is the only one
/// outside a full tunnel.
pub fn local_resolver(config: &Config) -> Option<Misrouted> {
    let host = config.peers.iter().find_map(|peer| match &peer.endpoint {
        Some(Endpoint::Name { host, .. }) => Some(host),
        _ => None,
    })?;
    let name = &config.interface.name;
    let (mark, steps) = match Record::read(&runtime_dir(), name).ok().flatten() {
        Some(record) => (record.mark, record.steps),
        None => crate::plan(config, &[]).ok().map(|plan| (plan.mark, plan.steps))?,
    };
    let is_full = |step: &Step| match step {
        Step::Route { prefix, .. } => prefix.prefix_len() <= 1,
        step => has_kill_switch(step),
    };
    if !steps.iter().any(is_full) {
        return None;
    }
    let index = nix::net::if_::if_nametoindex(name.as_str()).ok();
    let servers = System::default().upstream(name.as_str(), index, host).servers;
    let first = servers.first().filter(|_| servers.iter().all(|server| server.ip().is_loopback()))?;
    Some(Misrouted::LocalResolver { server: first.ip(), mark })
}

/// Returns the errors that adding the routes of a configuration will give, because others have such routes.
/// None is found if the routes cannot be read.
pub(crate) fn in_the_way(config: &Config, endpoints: &[SocketAddr]) -> Vec<RouteError> {
    let find_in = || -> Result<_, HostError> {
        let plan = crate::plan(config, endpoints)?;
        let wanted = plan.steps.iter().filter_map(|step| match step {
            Step::Route { prefix, table } => Some((*prefix, *table)),
            _ => None,
        });
        Ok(Netlink::open()?.in_the_way(&config.interface.name, &wanted.collect())?)
    };
    find_in().unwrap_or_default()
}

/// Returns the routes of a family with a gateway that lead through other devices than a tunnel.
fn by_gateway(netlink: &Netlink, family: Family) -> Vec<(IpNet, String, bool)> {
    let found = netlink.gateway_routes().unwrap_or_default().into_iter();
    found
        .filter(|route| Family::of(route.prefix) == family)
        .map(|route| (route.prefix, route.device, route.is_of_network))
        .collect()
}

/// Returns the networks of the devices that are up, by their addresses.
fn networks() -> Vec<(IpNet, String)> {
    let ip = |address: &SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))
    };
    let network = |found: InterfaceAddress| {
        let net = IpNet::with_netmask(ip(found.address.as_ref()?)?, ip(found.netmask.as_ref()?)?).ok()?;
        let is_up = found.flags.contains(InterfaceFlags::IFF_UP);
        is_up.then(|| (net.trunc(), found.interface_name))
    };
    getifaddrs().map(|found| found.filter_map(network).collect()).unwrap_or_default()
}

/// Reports whether a daemon of weft wrote down that it set a device of this name up.
fn is_of_weft(device: &str) -> bool {
    device.parse().is_ok_and(|name: InterfaceName| Record::exists(&runtime_dir(), &name).unwrap_or(false))
}

fn blocking(route: Option<MainRoute>) -> Option<Blocking> {
    let MainRoute { prefix, metric, blocks, .. } = route?;
    Some(Blocking { word: blocks?, prefix, metric })
}

/// Returns to which address and with which mark another tunnel sends packets that have `mark`, if it takes
/// them over: a rule leads all packets into it but those with its mark, which is not `own`.
fn outer_of(
    netlink: &Netlink,
    rules: &[FoundRule],
    destination: IpAddr,
    mark: u32,
    own: u32,
) -> Option<(IpAddr, u32)> {
    let RouteAnswer { device, table, .. } = netlink.route_to(SocketAddr::new(destination, 0), mark).ok()?;
    let family = Family::of(destination.into());
    let is_its = |rule: &&FoundRule| rule.family == family && rule.is_inverted && rule.table == table;
    let mark = rules.iter().find(is_its)?.mark.filter(|mark| *mark != own)?;
    // Such a rule may also lead to the uplink.
    let device = device.filter(|device| netlink.is_tunnel(device))?;
    let record = |name: InterfaceName| Record::read(&runtime_dir(), &name).ok().flatten();
    let peer = match device.parse().ok().and_then(record) {
        Some(record) => record.outer.get(&family)?.ip(),
        // The peer of another program's tunnel is taken to be where all other addresses are.
        None => destination,
    };
    Some((peer, mark))
}

/// The routing table while the tunnel is up.
struct InForce<'a> {
    netlink: &'a Netlink,
    /// The index of the device.
    own: u32,
    mark: u32,
    rules: OnceCell<Vec<FoundRule>>,
}

impl InForce<'_> {
    fn hop_with(&self, destination: IpAddr, mark: u32) -> Hop {
        match self.netlink.route_to(SocketAddr::new(destination, 0), mark) {
            Ok(answer) if answer.is_local => Hop::Here,
            Ok(RouteAnswer { device: Some(device), .. }) => Hop::Through(device),
            _ => Hop::Nowhere,
        }
    }

    /// Returns where the packets go which the tunnel that takes these over makes of them. `nested` is the
    /// number of tunnels that they are followed through.
    fn hop_after(&self, destination: IpAddr, mark: u32, nested: u8) -> Option<Hop> {
        let (peer, mark) = outer_of(self.netlink, self.rules(), destination, mark, self.mark)?;
        let after = (nested > 1).then(|| self.hop_after(peer, mark, nested - 1)).flatten();
        after.or_else(|| Some(self.hop_with(peer, mark)))
    }

    fn rules(&self) -> &[FoundRule] {
        self.rules.get_or_init(|| self.netlink.rules().unwrap_or_default())
    }

    fn mark(&self, is_own: bool) -> u32 {
        if is_own { self.mark } else { 0 }
    }
}

impl Routes for InForce<'_> {
    fn hop(&self, destination: IpAddr, is_own: bool) -> Hop {
        self.hop_with(destination, self.mark(is_own))
    }

    fn hop_of_outer(&self, destination: IpAddr, is_own: bool) -> Option<Hop> {
        self.hop_after(destination, self.mark(is_own), NESTED)
    }

    fn networks(&self) -> Vec<(IpNet, String)> {
        networks()
    }

    fn is_of_weft(&self, device: &str) -> bool {
        is_of_weft(device)
    }

    fn exceptions(&self, family: Family) -> Vec<Exception> {
        let public: Vec<IpAddr> = public(family).collect();
        let mut found = self.netlink.exceptions(self.own, family, &public).unwrap_or_default();
        found.truncate(EXCEPTIONS);
        found
    }

    fn blocked_by(&self, destination: IpAddr) -> Option<Blocking> {
        blocking(MainRoute::best(self.netlink.main_routes().ok()?.into_iter(), destination))
    }

    fn by_gateway(&self, family: Family) -> Vec<(IpNet, String, bool)> {
        by_gateway(self.netlink, family)
    }

    fn lacks_main(&self, family: Family) -> bool {
        let mut of_family = self.rules().iter().filter(|rule| rule.family == family).peekable();
        let leads_to_main = |rule: &FoundRule| {
            rule.table == MAIN_TABLE && rule.suppressed.is_none() && rule.mark.is_none() && !rule.is_inverted
        };
        // Without rules there is no such family.
        of_family.peek().is_some()
            && !of_family.any(leads_to_main)
            && public(family).next().is_some_and(|address| self.hop(address, true) == Hop::Nowhere)
    }
}

/// The routing table as it becomes by a plan.
struct Predicted<'a> {
    netlink: &'a Netlink,
    plan: &'a Plan,
    rules: Vec<FoundRule>,
    main: OnceCell<Vec<MainRoute>>,
}

impl Predicted<'_> {
    fn own(&self) -> &InterfaceName {
        &self.plan.interface
    }

    /// Returns the best route of the main table once the plan is carried out.
    fn best_of_main(&self, destination: IpAddr) -> Option<MainRoute> {
        let existing = self.main.get_or_init(|| self.netlink.main_routes().unwrap_or_default()).iter();
        let existing = existing.filter(|route| route.device.as_deref() != Some(self.own().as_str())).cloned();
        let planned = self.plan.steps.iter().filter_map(|step| {
            let (prefix, metric) = match step {
                Step::Route { prefix, table: MAIN_TABLE } => {
                    (*prefix, if prefix.addr().is_ipv4() { 0 } else { 1024 })
                }
                // The kernel adds the route to the network of an address.
                Step::Address(address) => (address.trunc(), if address.addr().is_ipv4() { 0 } else { 256 }),
                _ => return None,
            };
            Some(MainRoute { prefix, metric, device: Some(self.own().to_string()), blocks: None })
        });
        MainRoute::best(existing.chain(planned), destination)
    }

    /// Reports whether a rule for this table comes before every rule for the main table.
    fn comes_before_main(&self, table: u32, family: Family) -> bool {
        let place = |wanted| {
            self.rules
                .iter()
                .position(|rule| rule.family == family && rule.table == wanted)
                .unwrap_or(usize::MAX)
        };
        place(table) < place(MAIN_TABLE)
    }

    /// Returns where packets with a mark go. `is_by_mark`: the rules of the tunnel are for them.
    fn hop_with(&self, destination: IpAddr, mark: u32, is_by_mark: bool) -> Hop {
        let own = || Hop::Through(self.own().to_string());
        let steps = &self.plan.steps;
        if steps.iter().any(|step| matches!(step, Step::Address(own) if own.addr() == destination)) {
            return Hop::Here;
        }
        let now = self.netlink.route_to(SocketAddr::new(destination, 0), mark).ok();
        let now = now.filter(|now| now.device.as_deref() != Some(self.own().as_str()));
        if now.as_ref().is_some_and(|now| now.is_local) {
            return Hop::Here;
        }
        let into_local = |step: &Step| matches!(step, Step::Route { prefix, table: LOCAL_TABLE } if prefix.contains(&destination));
        if steps.iter().any(into_local) {
            return own();
        }
        let family = Family::of(IpNet::from(destination));
        // The rules of a full tunnel come before all others, and send on what has no specific route.
        let by_another_rule = now.filter(|now| now.table != MAIN_TABLE);
        if !is_by_mark
            && let Some(RouteAnswer { table, device: Some(device), .. }) = &by_another_rule
            && self.comes_before_main(*table, family)
        {
            return Hop::Through(device.clone());
        }
        match self.best_of_main(destination) {
            // The rule that leaves the default route out of account does not leave out one that blocks.
            Some(MainRoute { prefix, device, blocks, .. }) if prefix.prefix_len() > 0 || blocks.is_some() => {
                device.map_or(Hop::Nowhere, Hop::Through)
            }
            _ if is_by_mark => own(),
            best => {
                let other = by_another_rule.and_then(|now| now.device);
                other.or_else(|| best?.device).map_or(Hop::Nowhere, Hop::Through)
            }
        }
    }
}

impl Routes for Predicted<'_> {
    fn hop_of_outer(&self, destination: IpAddr, is_own: bool) -> Option<Hop> {
        // The rules of the tunnel will come before those of others.
        if self.hop(destination, is_own) == Hop::Through(self.own().to_string()) {
            return None;
        }
        let mark = if is_own { self.plan.mark } else { 0 };
        let (peer, mark) = outer_of(self.netlink, &self.rules, destination, mark, self.plan.mark)?;
        Some(self.hop_with(peer, mark, self.plan.routes_by_mark(Family::of(peer.into()))))
    }

    fn taken_from(&self, destination: IpAddr) -> Option<String> {
        let now = self.netlink.route_to(SocketAddr::new(destination, 0), 0).ok()?;
        let own = self.own().as_str();
        let family = Family::of(destination.into());
        let is_its = |rule: &FoundRule| {
            rule.family == family && rule.is_inverted && rule.mark.is_some() && rule.table == now.table
        };
        let other = now.device.filter(|device| device != own && self.rules.iter().any(is_its))?;
        let is_taken = self.hop(destination, false) == Hop::Through(own.to_owned());
        (is_taken && self.netlink.is_tunnel(&other)).then_some(other)
    }

    fn is_of_weft(&self, device: &str) -> bool {
        is_of_weft(device)
    }

    fn networks(&self) -> Vec<(IpNet, String)> {
        networks()
    }

    fn blocked_by(&self, destination: IpAddr) -> Option<Blocking> {
        blocking(self.best_of_main(destination))
    }

    fn by_gateway(&self, family: Family) -> Vec<(IpNet, String, bool)> {
        by_gateway(self.netlink, family)
    }

    fn hop(&self, destination: IpAddr, is_own: bool) -> Hop {
        let (mark, is_by_mark) = match is_own {
            true => (self.plan.mark, false),
            false => (0, self.plan.routes_by_mark(Family::of(destination.into()))),
        };
        self.hop_with(destination, mark, is_by_mark)
    }
}
