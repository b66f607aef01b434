//! Messages of a routing socket and of the table that sysctl(3) returns: route(4). Parses bytes only, so that
//! the layouts of both systems are tested on any.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

const RTM_VERSION: u8 = 5;
const RTM_ADD: u8 = 1;
const RTM_DELETE: u8 = 2;
const RTM_CHANGE: u8 = 3;
const RTM_GET: u8 = 4;
const RTM_NEWADDR: u8 = 12;
const RTM_DELADDR: u8 = 13;
const RTM_IFINFO: u8 = 14;
/// FreeBSD alone: an interface came or went. macOS uses the number for multicast addresses.
const RTM_IFANNOUNCE: u8 = 17;
const IFAN_DEPARTURE: u16 = 1;

const RTF_UP: u32 = 1;
const RTF_GATEWAY: u32 = 2;
const RTF_HOST: u32 = 4;
const RTF_REJECT: u32 = 8;
const RTF_BLACKHOLE: u32 = 0x1000;

const RTAX_DST: usize = 0;
const RTAX_GATEWAY: usize = 1;
const RTAX_NETMASK: usize = 2;
const RTAX_MAX: usize = 8;

const AF_INET: u8 = 2;

/// What differs between the systems.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// The size of `struct rt_msghdr`.
    pub(crate) header: usize,
    /// What the addresses behind it are aligned to.
    pub(crate) alignment: usize,
    pub(crate) af_inet6: u8,
    /// Flags of routes that no packet is looked up by: neighbours, clones, and those of one interface only.
    pub(crate) hidden: u32,
    pub(crate) announces: bool,
}

/// `bsd/net/route.h` of XNU: RTF_LLINFO, RTF_WASCLONED, RTF_IFSCOPE.
#[cfg(any(test, target_os = "macos"))]
pub(crate) const MACOS: Layout = Layout {
    header: 92,
    alignment: 4,
    af_inet6: 30,
    hidden: 0x400 | 0x2_0000 | 0x100_0000,
    announces: false,
};
/// `sys/net/route.h` of FreeBSD on processors of 64 bits: RTF_LLDATA.
#[cfg(any(test, target_os = "freebsd"))]
pub(crate) const FREEBSD: Layout =
    Layout { header: 152, alignment: 8, af_inet6: 28, hidden: 0x400, announces: true };

#[cfg(target_os = "macos")]
const _: () = assert!(size_of::<libc::rt_msghdr>() == MACOS.header);
#[cfg(all(target_os = "freebsd", target_pointer_width = "64"))]
const _: () = assert!(size_of::<libc::rt_msghdr>() == FREEBSD.header);

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A route that is there, or was added or changed.
    Route(Route),
    /// A route that was removed.
    Removed(Route),
    /// An address of the interface was added or removed.
    Address(u32),
    /// The interface changed, and has this MTU now.
    Link { index: u32, mtu: u32 },
    /// The interface was removed.
    Gone(u32),
}

/// A route, with the index of its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) prefix: IpNet,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) index: u32,
    pub(crate) is_blackhole: bool,
}

/// Returns what the messages say. Messages of other kinds and versions are skipped, and so are routes that no
/// packet is looked up by; a message that is cut off ends the list.
pub(crate) fn messages(mut bytes: &[u8], layout: Layout) -> Vec<Message> {
    let mut found = Vec::new();
    while let Some(length) = short(bytes, 0).map(usize::from) {
        if length < 4 || length > bytes.len() {
            break;
        }
        let (message, rest) = bytes.split_at(length);
        bytes = rest;
        if message.get(2) == Some(&RTM_VERSION) {
            found.extend(parse(message, layout));
        }
    }
    found
}

fn parse(message: &[u8], layout: Layout) -> Option<Message> {
    match *message.get(3)? {
        RTM_ADD | RTM_CHANGE | RTM_GET => route(message, layout).map(Message::Route),
        RTM_DELETE => route(message, layout).map(Message::Removed),
        RTM_NEWADDR | RTM_DELADDR => Some(Message::Address(short(message, 12)?.into())),
        RTM_IFINFO => Some(Message::Link { index: short(message, 12)?.into(), mtu: long(message, 24)? }),
        RTM_IFANNOUNCE if layout.announces && short(message, 22)? == IFAN_DEPARTURE => {
            Some(Message::Gone(short(message, 4)?.into()))
        }
        _ => None,
    }
}

fn route(message: &[u8], layout: Layout) -> Option<Route> {
    let index = short(message, 4)?.into();
    let flags = long(message, 8)?;
    let present = long(message, 12)?;
    let is_removed = message[3] == RTM_DELETE;
    if flags & layout.hidden != 0 || (flags & RTF_UP == 0 && !is_removed) {
        return None;
    }
    let mut addresses: [Option<&[u8]>; RTAX_MAX] = [None; RTAX_MAX];
    let mut rest = message.get(layout.header..)?;
    for (place, address) in addresses.iter_mut().enumerate() {
        if present & (1 << place) == 0 {
            continue;
        }
        let length = usize::from(*rest.first()?);
        *address = Some(rest.get(..length)?);
        // An address of length 0 takes room nevertheless; the last one may lack its padding.
        let room = length.max(1).next_multiple_of(layout.alignment);
        rest = rest.get(room..).unwrap_or_default();
    }
    let destination = address(addresses[RTAX_DST]?, layout)?;
    let length = if flags & RTF_HOST != 0 {
        if destination.is_ipv4() { 32 } else { 128 }
    } else {
        mask_length(addresses[RTAX_NETMASK].unwrap_or_default(), destination)
    };
    let gateway = addresses[RTAX_GATEWAY].filter(|_| flags & RTF_GATEWAY != 0);
    Some(Route {
        prefix: IpNet::new(destination, length).ok()?.trunc(),
        gateway: gateway.and_then(|gateway| address(gateway, layout)),
        index,
        is_blackhole: flags & (RTF_BLACKHOLE | RTF_REJECT) != 0,
    })
}

/// Returns the address of a `struct sockaddr`. The kernel may put the scope of a link-local address into its
/// second 16 bits, which are 0 in the address itself (RFC 4291, section 2.5.6).
fn address(sockaddr: &[u8], layout: Layout) -> Option<IpAddr> {
    let family = *sockaddr.get(1)?;
    if family == AF_INET {
        let octets: [u8; 4] = sockaddr.get(4..8)?.try_into().ok()?;
        return Some(Ipv4Addr::from(octets).into());
    }
    if family != layout.af_inet6 {
        return None;
    }
    let mut octets: [u8; 16] = sockaddr.get(8..24)?.try_into().ok()?;
    if Ipv6Addr::from(octets).is_unicast_link_local() {
        octets[2..4].fill(0);
    }
    Some(Ipv6Addr::from(octets).into())
}

/// Returns the length of a mask. Masks are cut after their last byte that is not 0, and their family is not
/// set.
fn mask_length(sockaddr: &[u8], destination: IpAddr) -> u8 {
    let (offset, size) = if destination.is_ipv4() { (4, 4) } else { (8, 16) };
    let mask = sockaddr.get(offset..).unwrap_or_default();
    let ones = mask.iter().take(size).take_while(|byte| **byte == 0xff).count();
    let next = mask.get(ones).filter(|_| ones < size).map_or(0, |byte| byte.leading_ones());
    u8::try_from(ones * 8).unwrap_or_default() + u8::try_from(next).unwrap_or_default()
}

fn short(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

fn long(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
