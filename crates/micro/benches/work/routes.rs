//! Allowed IPs: the single peer of a client, and the many peers of a server.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use weft_tunnel::bench::Routes;

use super::Workload;

/// Look-ups in one run.
const LOOK_UPS: usize = 256;
const PEERS: u32 = 1000;

fn v4(peer: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0000 | (peer + 2)).into()
}

fn v6(peer: u32) -> IpAddr {
    Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(peer + 2)).into()
}

fn workload(name: &'static str, networks: Vec<IpNet>, address: impl Fn(u32) -> IpAddr) -> Workload {
    let mut routes = Routes::new(networks);
    // Strides over the peers, so that consecutive look-ups are unrelated.
    let addresses: Vec<_> = (0..LOOK_UPS as u32).map(|number| address(number * 379 % PEERS)).collect();
    Workload::new(name, LOOK_UPS as u64, move || {
        for address in &addresses {
            black_box(routes.peer_of(black_box(*address)));
        }
    })
}

pub(super) fn workloads() -> [Workload; 5] {
    let default = vec![IpNet::from(Ipv4Net::default()), IpNet::from(Ipv6Net::default())];
    let network = vec![IpNet::from(Ipv4Net::new_assert([10, 0, 0, 0].into(), 16))];
    let each = |address: fn(u32) -> IpAddr| (0..PEERS).map(|peer| IpNet::from(address(peer))).collect();
    [
        workload("allowed-ips-default-route-v4", default.clone(), v4),
        workload("allowed-ips-default-route-v6", default, v6),
        workload("allowed-ips-one-network-v4", network, v4),
        workload("allowed-ips-1000-peers-v4", each(v4), v4),
        workload("allowed-ips-1000-peers-v6", each(v6), v6),
    ]
}
