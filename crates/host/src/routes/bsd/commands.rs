//! Calls of ifconfig(8) and route(8), and what they answer. Makes and reads text only.

use std::fmt;
use std::io;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::routes::tables::{Edit, Refusal};
use crate::routes::{MAIN_TABLE, Via};

/// A program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub program: &'static str,
    pub arguments: Vec<String>,
}

impl Call {
    fn new(program: &'static str, words: &str) -> Self {
        Self { program, arguments: words.split_whitespace().map(str::to_owned).collect() }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.program, self.arguments.join(" "))
    }
}

/// Returns the call that makes a change.
pub(super) fn call(edit: &Edit<'_>) -> Call {
    match edit {
        Edit::SetMtu(link, mtu) => set_mtu(&link.name, *mtu),
        Edit::SetUp(link) => set_up(&link.name),
        Edit::RemoveLink(link) => destroy(&link.name),
        Edit::AddAddress(link, address) => add_address(&link.name, *address),
        Edit::RemoveAddress(link, address) => remove_address(&link.name, *address),
        Edit::AddRoute(link, prefix, table) => add_route(&link.name, *prefix, *table),
        Edit::RemoveRoute(link, prefix, table) => remove_route(&link.name, *prefix, *table),
        Edit::AddEndpointRoute(address, via) => add_endpoint_route(*address, via),
        Edit::RemoveEndpointRoute(address, via) => remove_endpoint_route(*address, via),
    }
}

pub(super) fn show(device: &str) -> Call {
    Call::new("ifconfig", device)
}

fn set_mtu(device: &str, mtu: u16) -> Call {
    Call::new("ifconfig", &format!("{device} mtu {mtu}"))
}

fn set_up(device: &str) -> Call {
    Call::new("ifconfig", &format!("{device} up"))
}

fn destroy(device: &str) -> Call {
    Call::new("ifconfig", &format!("{device} destroy"))
}

/// A tunnel is a point-to-point interface, which needs the address of its other end for IPv4: it is the same.
fn add_address(device: &str, address: IpNet) -> Call {
    let words = match address {
        IpNet::V4(net) => format!("{device} inet {net} {} alias", net.addr()),
        IpNet::V6(net) => format!("{device} inet6 {net} alias"),
    };
    Call::new("ifconfig", &words)
}

fn remove_address(device: &str, address: IpNet) -> Call {
    Call::new("ifconfig", &format!("{device} {} {} -alias", family(address.addr()), address.addr()))
}

fn add_route(device: &str, prefix: IpNet, table: u32) -> Call {
    Call::new("route", &format!("-n add {}{} -interface {device}", fib(table), net(prefix)))
}

fn remove_route(device: &str, prefix: IpNet, table: u32) -> Call {
    Call::new("route", &format!("-n delete {}{} -interface {device}", fib(table), net(prefix)))
}

fn add_endpoint_route(address: IpAddr, via: &Via) -> Call {
    Call::new("route", &format!("-n add {} {}", host(address), way(address, via)))
}

fn remove_endpoint_route(address: IpAddr, via: &Via) -> Call {
    Call::new("route", &format!("-n delete {} {}", host(address), way(address, via)))
}

fn way(destination: IpAddr, via: &Via) -> String {
    match via {
        // A link-local address means nothing without its interface.
        Via::Gateway { address: IpAddr::V6(address), interface } if address.is_unicast_link_local() => {
            format!("{address}%{interface}")
        }
        Via::Gateway { address, .. } => address.to_string(),
        Via::Interface(interface) => format!("-interface {interface}"),
        // The loopback interface is what drops the packets of such a route.
        Via::Blackhole if destination.is_ipv4() => "127.0.0.1 -blackhole".to_owned(),
        Via::Blackhole => "::1 -blackhole".to_owned(),
    }
}

fn fib(table: u32) -> String {
    if table == MAIN_TABLE { String::new() } else { format!("-fib {table} ") }
}

fn net(prefix: IpNet) -> String {
    format!("-{} -net {prefix}", family(prefix.addr()))
}

fn host(address: IpAddr) -> String {
    format!("-{} -host {address}", family(address))
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "inet" } else { "inet6" }
}

/// How a program ended, and what it wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub is_success: bool,
    pub output: String,
    pub errors: String,
}

/// Returns what a call achieved. The status of route(8) alone does not tell: on macOS it is 0 after some
/// failures.
pub(super) fn outcome(answer: Answer) -> Result<String, Refusal> {
    let said = format!("{}\n{}", answer.errors, answer.output);
    let says = |texts: &[&str]| texts.iter().any(|text| said.contains(text));
    if answer.is_success && !says(&["writing to routing socket", "not in table", "bad address"]) {
        return Ok(answer.output);
    }
    if says(&["File exists", "already in table"]) {
        return Err(Refusal::Exists);
    }
    if says(&["not in table", "No such process", "does not exist", "Can't assign requested address"]) {
        return Err(Refusal::Gone);
    }
    let kind = if says(&["Operation not permitted", "ermission denied", "must be root"]) {
        io::ErrorKind::PermissionDenied
    } else {
        io::ErrorKind::Other
    };
    let line = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it says nothing");
    Err(Refusal::Failed(io::Error::new(kind, line.to_owned())))
}

/// What `ifconfig DEVICE` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) mtu: Option<u32>,
    pub(super) addresses: Vec<IpNet>,
}

pub(super) fn shown(text: &str) -> Shown {
    let mut shown = Shown::default();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |word: &str| {
            let place = words.iter().position(|found| *found == word)?;
            words.get(place + 1).copied()
        };
        if let Some(mtu) = after("mtu") {
            shown.mtu = mtu.parse().ok();
        }
        let address = match words.first() {
            Some(&"inet") => after("inet").zip(after("netmask").and_then(mask_length)),
            Some(&"inet6") => after("inet6").zip(after("prefixlen").and_then(|length| length.parse().ok())),
            _ => None,
        };
        shown.addresses.extend(address.and_then(|(address, length)| {
            let address = address.split('%').next()?.parse().ok()?;
            IpNet::new(address, length).ok()
        }));
    }
    shown
}

/// Returns the length of a mask in hexadecimal digits, such as `0xffffff00`.
fn mask_length(mask: &str) -> Option<u8> {
    let mask = u32::from_str_radix(mask.strip_prefix("0x")?, 16).ok()?;
    u8::try_from(mask.leading_ones()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_what_an_administrator_would_type() {
        let net = |text: &str| -> IpNet { text.parse().unwrap() };
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let gateway = |address: &str| Via::Gateway { address: ip(address), interface: "en0".to_owned() };
        let calls = [
            (set_mtu("utun7", 1380), "ifconfig utun7 mtu 1380"),
            (set_up("utun7"), "ifconfig utun7 up"),
            (add_address("utun7", net("10.9.0.2/24")), "ifconfig utun7 inet 10.9.0.2/24 10.9.0.2 alias"),
            (add_address("utun7", net("fd00::2/64")), "ifconfig utun7 inet6 fd00::2/64 alias"),
            (remove_address("utun7", net("10.9.0.2/24")), "ifconfig utun7 inet 10.9.0.2 -alias"),
            (remove_address("utun7", net("fd00::2/64")), "ifconfig utun7 inet6 fd00::2 -alias"),
            (add_route("utun7", net("0.0.0.0/1"), 254), "route -n add -inet -net 0.0.0.0/1 -interface utun7"),
            (add_route("tun0", net("::/0"), 7), "route -n add -fib 7 -inet6 -net ::/0 -interface tun0"),
            (
                remove_route("utun7", net("8000::/1"), 254),
                "route -n delete -inet6 -net 8000::/1 -interface utun7",
            ),
            (
                add_endpoint_route(ip("192.0.2.1"), &gateway("192.168.1.1")),
                "route -n add -inet -host 192.0.2.1 192.168.1.1",
            ),
            (
                add_endpoint_route(ip("2001:db8::1"), &gateway("fe80::1")),
                "route -n add -inet6 -host 2001:db8::1 fe80::1%en0",
            ),
            (
                add_endpoint_route(ip("192.0.2.1"), &Via::Interface("ppp0".to_owned())),
                "route -n add -inet -host 192.0.2.1 -interface ppp0",
            ),
            (
                remove_endpoint_route(ip("192.0.2.1"), &Via::Blackhole),
                "route -n delete -inet -host 192.0.2.1 127.0.0.1 -blackhole",
            ),
        ];
        for (call, expected) in calls {
            assert_eq!(call.to_string(), expected);
        }
    }

    #[test]
    fn what_ifconfig_shows_is_read() {
        let macos = "utun7: flags=8051<UP,POINTOPOINT,RUNNING,MULTICAST> mtu 1380\n\
                     \tinet 10.9.0.2 --> 10.9.0.2 netmask 0xffffff00\n\
                     \tinet6 fe80::1%utun7 prefixlen 64 scopeid 0x17\n\
                     \tinet6 fd00::2 prefixlen 64\n\tnd6 options=201<PERFORMNUD,DAD>\n";
        let shown = shown(macos);
        assert_eq!(shown.mtu, Some(1380));
        let addresses: Vec<String> = shown.addresses.iter().map(IpNet::to_string).collect();
        assert_eq!(addresses, ["10.9.0.2/24", "fe80::1/64", "fd00::2/64"]);
        assert_eq!(
            super::shown("tun0: flags=1008043<UP> metric 0 mtu 1420\n\toptions=80000<LINKSTATE>\n").mtu,
            Some(1420)
        );
    }

    #[test]
    fn a_failure_is_seen_whatever_the_status() {
        let told = |is_success, errors: &str| {
            let answer = Answer { is_success, output: String::new(), errors: errors.to_owned() };
            match outcome(answer) {
                Ok(_) => "done".to_owned(),
                Err(Refusal::Exists) => "exists".to_owned(),
                Err(Refusal::Gone) => "gone".to_owned(),
                Err(Refusal::Failed(error)) => format!("{:?}: {error}", error.kind()),
            }
        };
        assert_eq!(told(true, ""), "done");
        assert_eq!(told(true, "route: writing to routing socket: File exists"), "exists");
        assert_eq!(told(false, "route: writing to routing socket: not in table"), "gone");
        assert_eq!(told(true, "route: writing to routing socket: not in table"), "gone");
        assert_eq!(told(false, "ifconfig: interface utun7 does not exist"), "gone");
        assert_eq!(
            told(false, "ifconfig: ioctl (SIOCAIFADDR): Operation not permitted\n"),
            "PermissionDenied: ifconfig: ioctl (SIOCAIFADDR): Operation not permitted"
        );
        assert_eq!(told(false, ""), "Other: it says nothing");
    }
}
