//! The networks that count as local.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Returns the local networks: private (RFC 1918, RFC 4193), link-local, multicast of local scope, and
/// broadcast. The addresses of RFC 6598 are not included: they belong to the provider.
pub(super) fn local_networks() -> [IpNet; 11] {
    [
        v4([10, 0, 0, 0], 8),
        v4([172, 16, 0, 0], 12),
        v4([192, 168, 0, 0], 16),
        v4([169, 254, 0, 0], 16),
        v4([224, 0, 0, 0], 24),
        v4([239, 0, 0, 0], 8),
        v4([255, 255, 255, 255], 32),
        v6(0xfc00, 7),
        v6(0xfe80, 10),
        v6(0xff02, 16),
        v6(0xff05, 16),
    ]
}

/// Returns where requests of a DHCP client go: to all, or to a server in a private or link-local network. A
/// client asks a server elsewhere by broadcast (RFC 2131, section 4.4.5, T2). Other programs use its port
/// too.
pub(super) fn dhcp_servers() -> impl Iterator<Item = Ipv4Net> {
    local_networks()
        .into_iter()
        .filter_map(|net| match net {
            IpNet::V4(net) => Some(net),
            IpNet::V6(_) => None,
        })
        .filter(|net| {
            let address = net.addr();
            address.is_private() || address.is_link_local() || address.is_broadcast()
        })
}

/// Reports whether an address is in a local network.
pub(crate) fn is_local(address: IpAddr) -> bool {
    local_networks().iter().any(|net| net.contains(&address))
}

fn v4(address: [u8; 4], length: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::from(address), length))
}

/// Returns the prefix with this first segment.
pub(super) fn v6(first: u16, length: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0), length))
}
