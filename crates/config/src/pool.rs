//! The addresses of an interface's networks as a pool for its peers.

use std::net::IpAddr;

use ipnet::IpNet;

/// Why there is no address for another peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The interface has no address, or only link-local ones.
    #[error(
        "[Interface] has no network from which a peer could get an address; add the line `Address = 10.9.0.1/24`, \
         with a network that is in no other use"
    )]
    NoNetwork,
    /// Every address of these networks is in use, or reserved.
    #[error("no address is free in {}; remove a peer, or write a larger network into Address", list(.0))]
    UsedUp(Vec<IpNet>),
}

fn list(nets: &[IpNet]) -> String {
    let nets: Vec<String> = nets.iter().map(|net| net.trunc().to_string()).collect();
    nets.join(" and ")
}

/// Returns the lowest free address of each family, from the first of these networks that has one. `addresses`
/// are those of the interface with their prefix lengths. An address is in use if it is the interface's or in
/// `taken`; the whole of a network does not count as taken.
///
/// # Errors
/// There is no network, or one family has no free address.
pub fn next_free(addresses: &[IpNet], taken: &[IpNet]) -> Result<Vec<IpNet>, PoolError> {
    let is_own = |net: &&IpNet| !matches!(net.addr(), IpAddr::V6(address) if address.is_unicast_link_local());
    let (v4, v6): (Vec<&IpNet>, Vec<&IpNet>) =
        addresses.iter().filter(is_own).partition(|net| net.addr().is_ipv4());
    let own = addresses.iter().map(|net| IpNet::from(net.addr()));
    let taken: Vec<IpNet> = taken.iter().copied().chain(own).collect();
    let families = [v4, v6].into_iter().filter(|family| !family.is_empty());
    let free: Vec<IpNet> = families
        .map(|family| {
            let free = family.iter().find_map(|net| free_in(net, &taken));
            free.ok_or_else(|| PoolError::UsedUp(family.into_iter().copied().collect()))
        })
        .collect::<Result<_, _>>()?;
    if free.is_empty() { Err(PoolError::NoNetwork) } else { Ok(free) }
}

fn free_in(net: &IpNet, taken: &[IpNet]) -> Option<IpNet> {
    let is_v4 = net.addr().is_ipv4();
    let (mut next, mut last) = range(net);
    // The network's own address and the broadcast address (RFC 919); in IPv6 the anycast address of its
    // routers (RFC 4291, section 2.6.1). Networks of two addresses have none of them (RFC 3021, RFC 6164).
    if net.max_prefix_len() - net.prefix_len() > 1 {
        next += 1;
        last -= u128::from(is_v4);
    }
    let within = |other: &&IpNet| {
        other.addr().is_ipv4() == is_v4
            && (other.prefix_len() > net.prefix_len() || other.prefix_len() == other.max_prefix_len())
            && net.contains(&other.network())
    };
    let mut used: Vec<(u128, u128)> = taken.iter().filter(within).map(range).collect();
    used.sort_unstable();
    for (first, end) in used {
        if next < first {
            break;
        }
        next = next.max(end.checked_add(1)?);
    }
    (next <= last).then(|| {
        let address =
            if is_v4 { IpAddr::from((next as u32).to_be_bytes()) } else { IpAddr::from(next.to_be_bytes()) };
        IpNet::from(address)
    })
}

/// Returns the first and the last address as numbers.
fn range(net: &IpNet) -> (u128, u128) {
    let number = |address: IpAddr| match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => u128::from(address),
    };
    (number(net.network()), number(net.broadcast()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(list: &str) -> Vec<IpNet> {
        list.split_whitespace().map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn the_lowest_free_address_of_each_family_is_next() {
        for (addresses, taken, free) in [
            ("10.9.0.1/24 fd09::1/64", "", "10.9.0.2/32 fd09::2/128"),
            ("10.9.0.1/24", "", "10.9.0.2/32"),
            ("fd09::1/64", "fd09::2/128 fd09::4/128", "fd09::3/128"),
            ("10.9.0.254/24", "", "10.9.0.1/32"),
            ("10.9.0.1/24", "10.9.0.2/31 10.9.0.4/32", "10.9.0.5/32"),
            ("10.9.0.1/24", "10.9.0.2/32 10.9.0.128/25", "10.9.0.3/32"),
            // A site behind a peer, and everything: no address of them is one peer's.
            ("10.9.0.1/24", "0.0.0.0/0 10.9.0.0/24 192.168.0.0/16 ::/0", "10.9.0.2/32"),
            ("10.9.0.0/31", "", "10.9.0.1/32"),
            ("fd09::1/127", "", "fd09::/128"),
            // The first network is used up, and the second has room.
            ("10.9.0.1/30 10.10.0.1/30", "10.9.0.2/32", "10.10.0.2/32"),
            ("10.9.0.1/32 10.10.0.1/30", "", "10.10.0.2/32"),
            ("10.9.0.1/24 fe80::1/64", "", "10.9.0.2/32"),
            ("255.255.255.1/24", "255.255.255.2/31", "255.255.255.4/32"),
            ("10.9.0.1/24 10.9.0.2/24", "", "10.9.0.3/32"),
        ] {
            assert_eq!(next_free(&nets(addresses), &nets(taken)), Ok(nets(free)), "{addresses}; {taken}");
        }
    }

    #[test]
    fn a_pool_without_room_is_named() {
        for (addresses, taken, error) in [
            ("", "", "[Interface] has no network"),
            ("fe80::1/64", "", "[Interface] has no network"),
            ("10.9.0.1/32", "", "no address is free in 10.9.0.1/32;"),
            ("10.9.0.1/30", "10.9.0.2/32", "no address is free in 10.9.0.0/30;"),
            ("10.9.0.1/24 fd09::1/128", "", "no address is free in fd09::1/128;"),
            ("255.255.255.253/30", "255.255.255.254/31", "no address is free in 255.255.255.252/30;"),
            (
                "ffff::1/126 ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffd/126",
                "ffff::2/127 ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127",
                "no address is free in ffff::/126 and ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc/126;",
            ),
        ] {
            let told = next_free(&nets(addresses), &nets(taken)).unwrap_err().to_string();
            assert!(told.starts_with(error), "{addresses}; {taken}: {told}");
        }
    }
}
