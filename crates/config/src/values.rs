//! Parsers for the values of single keys. Commands that take values one by one use them, too.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use weft_tunnel::{PresharedKey, PrivateKey, PublicKey, Rate};

use super::problem::{Notice, Problem, Shown};
use super::{Dns, Endpoint, Expiry, InvalidDomain, KillSwitch, MAX_MTU, MIN_MTU, Table, mapped};
use crate::device::AllowedIpChange;
use crate::metrics::{Address, HostName};

/// 32 zero bytes in base64, which mean "no key" in wg(8).
const ZERO_KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

fn value(text: &str, expected: &'static str) -> Problem {
    if text.is_empty() {
        Problem::Empty { expected }
    } else {
        Problem::Value { text: Shown::new(text), expected }
    }
}

/// Parses the value of PrivateKey.
pub fn private_key(text: &str) -> Result<PrivateKey, Problem> {
    if text == ZERO_KEY { Err(Problem::ZeroKey) } else { Ok(text.parse()?) }
}

/// Parses the value of PublicKey.
pub fn public_key(text: &str) -> Result<PublicKey, Problem> {
    if text == ZERO_KEY { Err(Problem::ZeroKey) } else { Ok(text.parse()?) }
}

/// Parses the value of PresharedKey; `None` if all of the key is zero.
pub fn preshared_key(text: &str) -> Result<Option<PresharedKey>, Problem> {
    if text == ZERO_KEY { Ok(None) } else { Ok(Some(text.parse()?)) }
}

/// Parses a number: decimal, or hexadecimal after `0x`, without a sign.
fn number(text: &str) -> Option<u32> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // `from_str_radix` accepts a sign.
    digits.starts_with(|c: char| c.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, radix).ok())?
}

fn decimal_u16(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Parses the value of ListenPort; 0: the system chooses it.
pub fn listen_port(text: &str) -> Result<u16, Problem> {
    decimal_u16(text).ok_or_else(|| value(text, "write a UDP port from 1 to 65535, or 0 for a random one"))
}

/// Parses the value of FwMark; 0: none.
pub fn fw_mark(text: &str) -> Result<u32, Problem> {
    if text.eq_ignore_ascii_case("off") {
        return Ok(0);
    }
    number(text).ok_or_else(|| value(text, "write a number up to 4294967295, also as 0xffffffff, or `off`"))
}

/// Parses MTU; `None` for an empty value, which wg-quick treats as a missing line.
pub(super) fn mtu(text: &str) -> Result<Option<u16>, Problem> {
    const EXPECTED: &str = "write a number from 576 (what every IPv4 host takes) to 65455 (65535 less the \
                            tunnel's own 80 bytes), or remove the line to have it derived";
    const { assert!(MIN_MTU == 576 && MAX_MTU == 65_455, "as the message says") };
    if text.is_empty() {
        return Ok(None);
    }
    let mtu = decimal_u16(text).filter(|mtu| (MIN_MTU..=MAX_MTU).contains(mtu));
    mtu.map(Some).ok_or_else(|| value(text, EXPECTED))
}

pub(super) fn table(text: &str) -> Result<Table, Problem> {
    table_on(cfg!(target_os = "macos"), text)
}

/// The number of the main table (rt_tables: RT_TABLE_MAIN), on every system.
const MAIN_TABLE: u32 = 254;

fn table_on(is_macos: bool, text: &str) -> Result<Table, Problem> {
    // wg-quick treats an empty value as a missing line.
    if text.is_empty() || text.eq_ignore_ascii_case("auto") {
        return Ok(Table::Auto);
    }
    if text.eq_ignore_ascii_case("off") {
        return Ok(Table::Off);
    }
    if text.eq_ignore_ascii_case("main") {
        return Ok(Table::Number(MAIN_TABLE));
    }
    if is_macos {
        return Err(value(text, "macOS has one routing table: write `auto`, `main` or `off`"));
    }
    let expected = "write `auto`, `off`, `main` or the number of a table from 1 to 4294967295 (other names of \
                    /etc/iproute2/rt_tables are not looked up; on FreeBSD it is the number of a FIB)";
    number(text).filter(|&number| number > 0).map(Table::Number).ok_or_else(|| value(text, expected))
}

/// Parses the value of PersistentKeepalive, in seconds; `None`: off.
pub fn persistent_keepalive(text: &str) -> Result<Option<NonZeroU16>, Problem> {
    if text.eq_ignore_ascii_case("off") {
        return Ok(None);
    }
    decimal_u16(text)
        .map(NonZeroU16::new)
        .ok_or_else(|| value(text, "write seconds from 1 to 65535, or `off`"))
}

/// Parses a rate with its unit; `None` for `off`.
pub(super) fn rate(text: &str) -> Result<Option<Rate>, Problem> {
    const EXPECTED: &str = "write a rate with its unit, kbit, Mbit or Gbit, like 50Mbit (1 Mbit is 1,000,000 bits a \
                            second), from 1kbit to 1000Gbit, or `off`";
    if text.eq_ignore_ascii_case("off") {
        return Ok(None);
    }
    parse_rate(text).map(Some).ok_or_else(|| value(text, EXPECTED))
}

/// Parses a rate with its unit, such as `50Mbit`; at most 1000Gbit.
pub fn parse_rate(text: &str) -> Option<Rate> {
    const UNITS: [(&str, u64); 3] = [("kbit", 1000), ("mbit", 1_000_000), ("gbit", 1_000_000_000)];
    const MAX: u64 = 1000 * 1_000_000_000;
    let written = text.to_ascii_lowercase();
    let (number, unit) =
        UNITS.into_iter().find_map(|(unit, bits)| Some((written.strip_suffix(unit)?.trim_end(), bits)))?;
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let bits = number.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(unit)?;
    Rate::from_bits_per_second(bits).filter(|_| bits <= MAX)
}

/// Parses an address with an optional prefix length; host bits are kept.
fn net(text: &str) -> Option<IpNet> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address.trim_end(), Some(decimal_u16(prefix.trim_start())?)),
        None => (text, None),
    };
    let prefix = prefix.map(u8::try_from).transpose().ok()?;
    match address.parse().ok()? {
        IpAddr::V4(address) => Ipv4Net::new(address, prefix.unwrap_or(32)).ok().map(IpNet::V4),
        IpAddr::V6(address) => Ipv6Net::new(address, prefix.unwrap_or(128)).ok().map(IpNet::V6),
    }
}

/// Parses one item of AllowedIPs; host bits are kept, so that the caller can warn about them.
pub fn allowed_ip(text: &str) -> Result<IpNet, Problem> {
    net(text)
        .ok_or_else(|| value(text, "write a list like 10.0.0.0/8, fd00::/64, 192.0.2.1, separated by commas"))
}

/// An item of AllowedIPs. In the files and commands of wg(8) it may have a sign, which makes the list a list
/// of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedIpItem {
    given: IpNet,
    removes: bool,
    /// Whether there is a sign.
    pub has_sign: bool,
}

impl AllowedIpItem {
    pub(super) fn unsigned(given: IpNet) -> Self {
        Self { given, removes: false, has_sign: false }
    }

    /// Returns the change to the allowed-ips of the peer. Host bits are cleared.
    pub fn change(self) -> AllowedIpChange {
        let prefix = self.given.trunc();
        if self.removes { AllowedIpChange::Remove(prefix) } else { AllowedIpChange::Add(prefix) }
    }

    /// Returns a warning if there are host bits.
    pub fn host_bits(self) -> Option<Notice> {
        let Self { given, .. } = self;
        (given.addr() != given.network()).then_some(Notice::HostBits { given })
    }
}

/// Parses one item of AllowedIPs that may have a sign.
pub fn allowed_ip_item(text: &str) -> Result<AllowedIpItem, Problem> {
    let sign = text.chars().next().filter(|c| matches!(c, '+' | '-'));
    let net = if sign.is_some() { text[1..].trim_start() } else { text };
    Ok(AllowedIpItem { given: allowed_ip(net)?, removes: sign == Some('-'), has_sign: sign.is_some() })
}

/// Parses one item of Address.
pub(super) fn address(text: &str) -> Result<IpNet, Problem> {
    let net = net(text).ok_or_else(|| {
        value(text, "write addresses like 10.0.0.1/24, fd00::1/64, 192.0.2.1, separated by commas")
    })?;
    let address = net.addr();
    // The kernel gives ::1 to the loopback interface alone, but 127.0.0.1 to any.
    let is_loopback = address == Ipv6Addr::LOCALHOST;
    if address.is_unspecified() || address.is_multicast() || is_loopback || net.prefix_len() == 0 {
        let expected = "write one address of this host in the tunnel and the prefix length of its network, which is \
                        not 0";
        return Err(value(text, expected));
    }
    Ok(net)
}

pub(super) fn true_false(text: &str) -> Result<bool, Problem> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(value(text, "write `true` or `false`")),
    }
}

pub(super) fn on_off(text: &str) -> Result<bool, Problem> {
    match text.to_ascii_lowercase().as_str() {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(value(text, "write `on` or `off`")),
    }
}

/// Parses the moment at which a peer ends.
pub(super) fn expiry(text: &str) -> Result<Option<Expiry>, Problem> {
    const EXPECTED: &str = "write a day like 2030-12-31, which counts to its end, or a time like \
                            2030-12-31T18:00:00Z (both UTC), or `never`";
    if text.eq_ignore_ascii_case("never") {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| value(text, EXPECTED))
}

pub(super) fn kill_switch(text: &str) -> Result<KillSwitch, Problem> {
    match text.to_ascii_lowercase().as_str() {
        "off" => Ok(KillSwitch::Off),
        "on" => Ok(KillSwitch::On),
        "allow-local" => Ok(KillSwitch::AllowLocal),
        _ => Err(value(text, "write `on`, `off` or `allow-local`")),
    }
}

/// Parses the address at which metrics are served; `None` for `off`.
pub(super) fn metrics(text: &str) -> Result<Option<Address>, Problem> {
    const EXPECTED: &str = "write an address and port like 127.0.0.1:9586 or [::1]:9586, a path like \
                            unix:/run/weft/wg0/metrics.sock, or `off`";
    if text.eq_ignore_ascii_case("off") {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| value(text, EXPECTED))
}

pub(super) fn metrics_host(text: &str) -> Result<HostName, Problem> {
    text.parse()
        .map_err(|_| value(text, "write names of this machine like gateway.example, separated by commas"))
}

/// Returns the command line for the shell; `None` if it is empty, so that nothing runs.
pub(super) fn command(text: &str) -> Result<Option<&str>, Problem> {
    if text.contains('\0') {
        return Err(value(text, "write a command for the shell, or remove the line"));
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Parses one item of DNS (a server, a search domain, or a routing domain with a tilde) and adds it to `dns`.
/// An item that is there already keeps its place.
pub(super) fn add_dns(text: &str, dns: &mut Dns) -> Result<(), Problem> {
    const EXPECTED: &str = "write addresses of name servers like 192.0.2.53 or 2001:db8::53, domains to search like \
                            corp.example, or domains to ask for there alone like ~corp.example, separated by commas";
    if let Ok(server) = text.parse::<IpAddr>() {
        add_once(&mut dns.servers, server.to_canonical());
        return Ok(());
    }
    // Text with a colon, or of digits and dots only, was meant as an address.
    let is_address = text.contains(':') || text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let (list, domain) = match text.strip_prefix('~') {
        Some(domain) => (&mut dns.routing, domain.parse()),
        None if is_address => (&mut dns.search, Err(InvalidDomain)),
        None => (&mut dns.search, text.parse()),
    };
    add_once(list, domain.map_err(|_| value(text, EXPECTED))?);
    Ok(())
}

fn add_once<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

/// Parses an endpoint. As in wg(8), an IPv6 address may be without brackets: the port follows the last colon.
pub fn endpoint(text: &str) -> Result<Endpoint, Problem> {
    const EXPECTED: &str = "write host:port, 192.0.2.1:51820 or [2001:db8::1]:51820";
    let wrong = |expected| Err(value(text, expected));

    if text.contains("://") {
        return wrong("leave out what stands before the name, such as https://, and write host:port");
    }
    let Some((host, port)) = text.rsplit_once(':') else { return wrong(EXPECTED) };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let (address, expected) = match bracketed {
        None if host.contains(':') => {
            (Some(host), "write an IPv6 endpoint with brackets and port: [2001:db8::1]:51820")
        }
        bracketed => (bracketed, "write an IPv6 address between the brackets"),
    };
    let Some(port) = decimal_u16(port).filter(|&port| port > 0) else {
        return wrong("write a port from 1 to 65535 behind the last colon");
    };
    if let Some(host) = address {
        if let Ok(address) = format!("[{host}]:{port}").parse::<SocketAddr>() {
            return unicast(address).ok_or_else(|| value(text, EXPECTED));
        }
        let scoped = host.split_once('%').is_some_and(|(address, scope)| {
            address.parse::<Ipv6Addr>().is_ok() && scope.parse::<super::InterfaceName>().is_ok()
        });
        if scoped {
            return Ok(Endpoint::Name { host: host.to_owned(), port });
        }
        return wrong(expected);
    }
    if let Ok(address) = host.parse::<IpAddr>() {
        return unicast(SocketAddr::new(address, port)).ok_or_else(|| value(text, EXPECTED));
    }
    // A resolver would read `1.2.3` as 1.2.0.3, which is never intended.
    if host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return wrong("write four numbers from 0 to 255 for an IPv4 address, or a host name");
    }
    let host_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if host.len() > 253 || !host.bytes().all(host_name) {
        return wrong("write a host name of ASCII letters, digits, dots and hyphens (others as xn--…)");
    }
    Ok(Endpoint::Name { host: host.to_owned(), port })
}

/// Returns a warning if an address is the one of its network itself, or of all hosts in it (RFC 3021 makes
/// hosts of both in a /31).
pub fn no_host(address: IpNet) -> Option<Notice> {
    let IpNet::V4(net) = address else { return None };
    let is_none = net.prefix_len() < 31 && (net.addr() == net.network() || net.addr() == net.broadcast());
    is_none.then_some(Notice::NoHost { address })
}

/// Returns a warning if the endpoint was written as an IPv6 address without brackets.
pub fn unbracketed(text: &str, endpoint: &Endpoint) -> Option<Notice> {
    let is_unbracketed = !text.starts_with('[') && endpoint.to_string().starts_with('[');
    is_unbracketed.then(|| Notice::Unbracketed { endpoint: endpoint.clone() })
}

fn unicast(address: SocketAddr) -> Option<Endpoint> {
    let address = mapped::endpoint(address);
    let ip = address.ip();
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    (!ip.is_unspecified() && !ip.is_multicast() && !broadcast).then_some(Endpoint::Address(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_addresses_or_names() {
        for text in ["192.0.2.1:51820", "[2001:db8::1]:51820", "[fe80::1%3]:51820"] {
            assert_eq!(endpoint(text).unwrap(), Endpoint::Address(text.parse().unwrap()), "{text}");
        }
        for (text, host) in [("vpn.example:1", "vpn.example"), ("[fe80::1%eth0]:1", "fe80::1%eth0")] {
            assert_eq!(endpoint(text).unwrap(), Endpoint::Name { host: host.to_owned(), port: 1 });
        }
        for (text, expected) in
            [("2001:db8::1:51820", "[2001:db8::1]:51820"), ("fe80::1%eth0:5", "[fe80::1%eth0]:5")]
        {
            let endpoint = endpoint(text).unwrap();
            assert_eq!(endpoint.to_string(), expected);
            assert!(unbracketed(text, &endpoint).is_some() && unbracketed(expected, &endpoint).is_none());
        }
        for text in [
            "",
            ":",
            ":1",
            "host",
            "host:",
            "host:0",
            "host:65536",
            "host:+1",
            "host:wireguard",
            "2001:db8::1",
            "2001:db8:0:0:0:0:0:1",
            "[2001:db8::1:51820",
            "ff02::1:1",
            "[2001:db8::1]",
            "[192.0.2.1]:1",
            "[]:1",
            "[fe80::1%]:1",
            "[fe80::1%a b]:1",
            "1.2.3:80",
            "1.2.3.256:80",
            "0.0.0.0:1",
            "224.0.0.1:1",
            "255.255.255.255:1",
            "[::]:1",
            "[ff02::1]:1",
            "ho st:1",
            "hö.example:1",
        ] {
            assert!(endpoint(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_have_no_sign_and_no_surprise() {
        assert_eq!(fw_mark("0xCA6C").unwrap(), 0xca6c);
        assert_eq!(fw_mark("OFF").unwrap(), 0);
        assert_eq!(fw_mark("4294967295").unwrap(), u32::MAX);
        assert_eq!((fw_mark("010").unwrap(), fw_mark("0").unwrap()), (10, 0));
        for text in ["", "+1", "-1", "0x", "0x+1", "4294967296", "1 2", "1.0"] {
            assert!(fw_mark(text).is_err(), "{text}");
        }
        assert_eq!(table("254").unwrap(), Table::Number(254));
        assert_eq!(table("Auto").unwrap(), Table::Auto);
        assert_eq!(table("main").unwrap(), Table::Number(254));
        assert!(table("default").is_err());
        assert_eq!(table_on(true, "main").unwrap(), Table::Number(254));
        assert_eq!(table_on(true, "off").unwrap(), Table::Off);
        let error = table_on(true, "7").unwrap_err().to_string();
        assert_eq!(error, "`7` is not valid; macOS has one routing table: write `auto`, `main` or `off`");
        assert!(table("0").is_err());
        assert_eq!(persistent_keepalive("0").unwrap(), None);
        assert_eq!(persistent_keepalive("25").unwrap(), NonZeroU16::new(25));
        assert!(persistent_keepalive("65536").is_err());
        assert!(listen_port("65536").is_err());
        assert_eq!(mtu("576").unwrap(), Some(576));
        assert_eq!(mtu("65455").unwrap(), Some(65_455));
        assert_eq!((mtu("").unwrap(), table("").unwrap()), (None, Table::Auto));
        assert!(mtu("575").is_err());
        assert!(mtu("65456").is_err());
    }

    #[test]
    fn a_rate_has_a_unit_and_is_something() {
        for (text, bits) in [
            ("1kbit", 1000),
            ("50Mbit", 50_000_000),
            ("50 mbit", 50_000_000),
            ("2GBIT", 2_000_000_000),
            ("1000Gbit", 1_000_000_000_000),
        ] {
            assert_eq!(rate(text).unwrap().map(Rate::bits_per_second), Some(bits), "{text}");
        }
        assert_eq!(rate("Off").unwrap(), None);
        for text in [
            "",
            "50",
            "Mbit",
            "0Mbit",
            "-1Mbit",
            "+1Mbit",
            "1.5Gbit",
            "50Mb",
            "50MB",
            "50Mbps",
            "50MiBit",
            "1001Gbit",
            "20000000000000Gbit",
            "5 0Mbit",
            "on",
        ] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn name_servers_and_domains_are_told_apart() {
        let mut dns = Dns::default();
        for item in ["1.1.1.1", "2001:db8::53", "corp.example", "~.", "~lab.example.", "1.1.1.1", "local"] {
            add_dns(item, &mut dns).unwrap();
        }
        assert_eq!(dns.servers, ["1.1.1.1", "2001:db8::53"].map(|ip| ip.parse::<IpAddr>().unwrap()));
        assert_eq!(dns.search, ["corp.example", "local"].map(|name| name.parse().unwrap()));
        assert_eq!(dns.routing, [".", "lab.example"].map(|name| name.parse().unwrap()));
        assert_eq!(dns.to_string(), "1.1.1.1, 2001:db8::53, corp.example, local, ~., ~lab.example");
        for item in ["1.1.1", "1.1.1.1.1", "::g", "a..b", "~", "ä.example", ".", "a b", "-$(reboot)"] {
            assert!(add_dns(item, &mut dns).is_err(), "{item}");
        }
    }

    #[test]
    fn nets_keep_their_host_bits_and_default_to_one_address() {
        assert_eq!(allowed_ip("10.1.2.3").unwrap().to_string(), "10.1.2.3/32");
        assert_eq!(allowed_ip("fd00::1").unwrap().to_string(), "fd00::1/128");
        assert_eq!(allowed_ip("10.1.2.3/8").unwrap().to_string(), "10.1.2.3/8");
        for text in
            ["10.1.2.3/33", "fd00::/129", "10.0.0.0/255.0.0.0", "10.0.0", "/8", "10.0.0.0/", "+10.0.0.0/8"]
        {
            assert!(allowed_ip(text).is_err(), "{text}");
        }
        // An endpoint or a server at an IPv4-mapped address is reached over IPv4; a prefix of them is one of
        // IPv6.
        assert_eq!(allowed_ip("::ffff:10.1.2.0/120").unwrap().to_string(), "::ffff:10.1.2.0/120");
        assert_eq!(endpoint("[::ffff:10.1.2.3]:5").unwrap().to_string(), "10.1.2.3:5");
        assert!(endpoint("[::ffff:255.255.255.255]:5").is_err());
        let mut dns = Dns::default();
        add_dns("::ffff:10.1.2.3", &mut dns).unwrap();
        assert_eq!(dns.to_string(), "10.1.2.3");
        for text in ["0.0.0.0", "224.0.0.1/24", "10.0.0.1/0", "::", "::1", "::1/64", "ff02::1/64"] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
