//! What a proxy gives no access to when it reaches destinations by the host's own network: this machine, by
//! any of its addresses, and what it alone is next to. A client would pass the machine's firewall.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tokio::time::Instant;

/// The network namespace of the calling thread (proc_pid_net(5)).
const DIRECTORY: &str = "/proc/thread-self/net";
/// Datagrams are checked by what was read this long ago. Connections and names are checked by what is true.
const AGE: Duration = Duration::from_secs(1);
/// Flags of a route in /proc/net/ipv6_route: to an error, and to this machine.
const REJECT: u32 = 0x0200;
const TO_THIS_MACHINE: u32 = 0x8010_0000;
/// The flag of a route in /proc/net/route that leads through a router.
const BY_GATEWAY: u32 = 0x0002;

/// Why an address is not reached by the host's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Near {
    /// It is one of this machine.
    Machine,
    /// It is link-local: of a neighbour, or of the metadata service of a cloud.
    LinkLocal,
    /// It is for several machines.
    Several,
    /// It is in the network of an address of a device that does not lead to the Internet.
    Network(IpNet, String),
    /// The addresses of this machine cannot be read.
    Unknown(String),
}

impl fmt::Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("is an address of this machine itself"),
            Self::LinkLocal => f.write_str("is link-local"),
            Self::Several => f.write_str("is a multicast or broadcast address"),
            Self::Network(net, device) => write!(f, "is in {net}, the network of {device} on this machine"),
            Self::Unknown(error) => {
                write!(f, "may be of this machine: its addresses cannot be read in {DIRECTORY}: {error}")
            }
        }
    }
}

/// The addresses of this machine, read as they are needed.
#[derive(Debug)]
pub(crate) struct Machine {
    directory: PathBuf,
    /// What clients may reach all the same.
    allowed: Vec<IpNet>,
    read: Mutex<Option<(Instant, Result<Addresses, String>)>>,
}

/// The addresses of this machine, and the networks that they are in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Addresses {
    own: Vec<IpNet>,
    networks: Vec<(IpNet, String)>,
}

impl Machine {
    pub(crate) fn new(allowed: Vec<IpNet>) -> Self {
        Self { directory: DIRECTORY.into(), allowed, read: Mutex::default() }
    }

    #[cfg(test)]
    pub(crate) fn read_from(directory: PathBuf, allowed: Vec<IpNet>) -> Self {
        Self { directory, ..Self::new(allowed) }
    }

    /// Forgets what was read.
    pub(crate) fn look_again(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, Result<Addresses, String>)>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why an address is not to be reached, if it is not.
    pub(crate) fn is_near(&self, address: IpAddr) -> Option<Near> {
        let address = address.to_canonical();
        let meant: Vec<IpAddr> = [address].into_iter().chain(embedded(address)).collect();
        if meant.iter().any(|it| it.is_loopback() || is_unspecified(*it)) {
            return Some(Near::Machine);
        }
        if self.allowed.iter().any(|net| net.contains(&address)) {
            return None;
        }
        let now = Instant::now();
        let mut read = self.lock();
        if read.as_ref().is_none_or(|(since, _)| now.duration_since(*since) >= AGE) {
            *read = Some((now, self.addresses().map_err(|error| error.to_string())));
        }
        let (_, addresses) = read.as_ref()?;
        meant.iter().find_map(|address| match addresses {
            _ if is_link_local(*address) => Some(Near::LinkLocal),
            _ if is_for_several(*address) => Some(Near::Several),
            Ok(addresses) => addresses.is_near(*address),
            Err(error) => Some(Near::Unknown(error.clone())),
        })
    }

    fn addresses(&self) -> io::Result<Addresses> {
        let read = |name: &str| std::fs::read_to_string(self.directory.join(name));
        // Without IPv6 there are no such files.
        let read_v6 = |name: &str| match read(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            read => read,
        };
        // The routes last: an address that is added meanwhile has its route by then.
        let (trie, inet6) = (read("fib_trie")?, read_v6("if_inet6")?);
        Ok(Addresses::of(&trie, &read("route")?, &inet6, &read_v6("ipv6_route")?))
    }
}

impl Addresses {
    fn is_near(&self, address: IpAddr) -> Option<Near> {
        if self.own.iter().any(|own| own.contains(&address)) {
            return Some(Near::Machine);
        }
        let (net, device) = self.networks.iter().find(|(net, _)| net.contains(&address))?;
        Some(Near::Network(*net, device.clone()))
    }

    /// Reads fib_trie, route, if_inet6 and ipv6_route of /proc/net.
    fn of(trie: &str, routes: &str, inet6: &str, routes6: &str) -> Self {
        let mut own: Vec<IpNet> = local_prefixes(trie).collect();
        let mut networks = Vec::new();
        let mut uplinks = HashSet::new();
        for route in routes.lines().skip(1).filter_map(Route::of_line) {
            let is_of_own = own.iter().any(|own| route.net.contains(own));
            match route.net.prefix_len() {
                0 => drop(uplinks.insert(route.device)),
                _ if !route.is_by_gateway && is_of_own => networks.push((route.net, route.device)),
                _ => {}
            }
        }
        for line in inet6.lines() {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let [address, _, length, .., device] = fields[..] else { continue };
            let (Some(address), Ok(length)) = (ipv6(address), u8::from_str_radix(length, 16)) else {
                continue;
            };
            own.push(IpAddr::from(address).into());
            if let Ok(net) = Ipv6Net::new(address, length) {
                networks.push((net.trunc().into(), device));
            }
        }
        for line in routes6.lines() {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let [to, length, .., flags, device] = fields[..] else { continue };
            let (Some(to), Ok(length)) = (ipv6(to), u8::from_str_radix(length, 16)) else { continue };
            let (Ok(net), Ok(flags)) = (Ipv6Net::new(to, length), u32::from_str_radix(flags, 16)) else {
                continue;
            };
            if flags & TO_THIS_MACHINE != 0 {
                own.push(net.into());
            } else if length == 0 && flags & REJECT == 0 {
                uplinks.insert(device);
            }
        }
        // Neighbours by the way to the Internet are reached as the Internet is.
        networks.retain(|(net, device)| !uplinks.contains(device) && net.prefix_len() < net.max_prefix_len());
        let networks = networks.into_iter().map(|(net, device)| (net, device.to_owned())).collect();
        Self { own, networks }
    }
}

/// Returns the prefixes that lead to this machine, of all tables.
fn local_prefixes(trie: &str) -> impl Iterator<Item = IpNet> {
    let mut prefix: Option<Ipv4Addr> = None;
    trie.lines().filter_map(move |line| {
        let line = line.trim();
        if let Some(address) = line.strip_prefix("|-- ") {
            prefix = address.parse().ok();
            return None;
        }
        let (length, kind) = line.strip_prefix('/')?.split_once(' ')?;
        let is_ours = kind.ends_with(" LOCAL") || kind.ends_with(" BROADCAST") || kind.ends_with(" ANYCAST");
        let net = Ipv4Net::new(prefix?, length.parse().ok()?).ok()?;
        is_ours.then_some(net.into())
    })
}

/// A line of /proc/net/route.
struct Route<'a> {
    device: &'a str,
    net: IpNet,
    is_by_gateway: bool,
}

impl<'a> Route<'a> {
    fn of_line(line: &'a str) -> Option<Self> {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [device, to, _, flags, _, _, _, mask, ..] = fields[..] else { return None };
        // Numbers in the order of this machine, of addresses in that of the network.
        let address = |text| Some(Ipv4Addr::from(u32::from_str_radix(text, 16).ok()?.to_ne_bytes()));
        let net = Ipv4Net::with_netmask(address(to)?, address(mask)?).ok()?;
        let flags = u32::from_str_radix(flags, 16).ok()?;
        Some(Self { device, net: net.into(), is_by_gateway: flags & BY_GATEWAY != 0 })
    }
}

fn ipv6(text: &str) -> Option<Ipv6Addr> {
    u128::from_str_radix(text, 16).ok().map(Ipv6Addr::from)
}

/// Returns the IPv4 addresses that an IPv6 address leads to, where something translates it: NAT64 (RFC 6052,
/// RFC 8215), SIIT (RFC 2765), 6to4 (RFC 3056), Teredo (RFC 4380), and IPv4-compatible addresses.
fn embedded(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(address) = address else { return None };
    let segments = address.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Some(Ipv4Addr::new(a, b, c, d).into())
    };
    match segments {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low]
        | [0x2002, high, low, ..] => v4(high, low),
        [0x2001, 0, .., high, low] => v4(!high, !low),
        _ => None,
    }
}

/// All of 0.0.0.0/8 is "this network" (RFC 1122, section 3.2.1.3).
fn is_unspecified(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[0] == 0,
        IpAddr::V6(address) => address.is_unspecified(),
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn is_for_several(address: IpAddr) -> bool {
    address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

#[cfg(test)]
#[path = "machine/tests.rs"]
mod tests;
