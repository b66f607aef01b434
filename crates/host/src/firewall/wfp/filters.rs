//! Decides which filters a kill switch consists of.
//!
//! The layers that authorize connections (ALE) see the first packet of each flow, of any protocol, and of
//! known flows the next packet after a change of the filters. Of the filters of a sublayer that match, the
//! one with the highest weight decides. Answers belong to the flow of what they answer, so that what comes in
//! is held back too: the answers would leave.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use weft_config::InterfaceName;
use weft_tun::guid_of;

use super::super::local::{dhcp_servers, local_networks, v6};
use super::super::{KillSwitch, Local};

/// A filter. Conditions on the same field are alternatives; of each field one has to match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    /// What it is for, which the system shows.
    pub(super) what: &'static str,
    pub(super) layer: Layer,
    /// From 0 to 15.
    pub(super) weight: u8,
    pub(super) is_permit: bool,
    pub(super) conditions: Vec<Condition>,
}

/// Where filters look at packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    /// Flows that this machine begins.
    ConnectV4,
    ConnectV6,
    /// Flows that others begin.
    AcceptV4,
    AcceptV6,
    /// Packets from one interface to another.
    ForwardV4,
    ForwardV6,
}

impl Layer {
    pub(super) const ALL: [Self; 6] =
        [Self::ConnectV4, Self::ConnectV6, Self::AcceptV4, Self::AcceptV6, Self::ForwardV4, Self::ForwardV6];
    const ALE: [Self; 4] = [Self::ConnectV4, Self::ConnectV6, Self::AcceptV4, Self::AcceptV6];

    fn is_ipv6(self) -> bool {
        matches!(self, Self::ConnectV6 | Self::AcceptV6 | Self::ForwardV6)
    }
}

/// What a packet is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// It stays on this machine.
    Loopback,
    /// The id of the program that sends or receives it.
    Program(Vec<u8>),
    /// The LUID of the interface that has its local address; of a forwarded packet, by which it came.
    Interface(u64),
    /// The LUID of the interface by which a forwarded packet leaves.
    ForwardedTo(u64),
    Protocol(u8),
    LocalPort(u16),
    RemotePort(u16),
    IcmpType(u8),
    IcmpCode(u8),
    Local(IpNet),
    Remote(IpNet),
    /// Where a forwarded packet goes.
    Destination(IpNet),
}

/// What filters need to know of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    /// The id of this program.
    pub(super) program: Vec<u8>,
    /// The LUID of the tunnel's adapter, if there is one.
    pub(super) tunnel: Option<u64>,
}

pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMPV6: u8 = 58;

/// What passes in any case, what local networks may not be asked, what they may be sent, and the rest.
const PASSES: u8 = 12;
const NO_DNS: u8 = 8;
const LOCAL: u8 = 4;
const REST: u8 = 0;

impl Filter {
    /// Returns the key by which the system knows it. A filter that differs in anything has another key.
    pub(super) fn key(&self, interface: &InterfaceName) -> u128 {
        guid_of("filter", &format!("{interface} {self:?}"))
    }

    /// Returns the filters that hold back everything that no other filter lets pass.
    pub(super) fn of_the_rest() -> impl Iterator<Item = Self> {
        Layer::ALL.into_iter().map(|layer| Self {
            what: "blocked",
            layer,
            weight: REST,
            is_permit: false,
            conditions: Vec::new(),
        })
    }
}

/// Returns the filters of a kill switch. While there is no adapter, nothing passes into the tunnel.
pub(super) fn of_kill_switch(switch: &KillSwitch, machine: &Machine) -> Vec<Filter> {
    let mut list = List::default();
    list.permit("loopback", &Layer::ALE, &[Condition::Loopback]);
    if let Some(luid) = machine.tunnel {
        list.permit("tunnel", &Layer::ALE, &[Condition::Interface(luid)]);
        list.permit(
            "into the tunnel",
            &[Layer::ForwardV4, Layer::ForwardV6],
            &[Condition::ForwardedTo(luid)],
        );
    }
    // The program takes the place of a mark: a peer may roam.
    let own = [Condition::Program(machine.program.clone()), Condition::Protocol(UDP)];
    list.permit("the tunnel's own packets", &Layer::ALE, &own);
    list.add_address_configuration();
    list.add_icmp();
    if let Local::Allowed { dns } = &switch.local {
        list.add_local(dns, machine.tunnel);
    }
    list.0.extend(Filter::of_the_rest());
    list.0
}

#[derive(Default)]
struct List(Vec<Filter>);

impl List {
    fn permit(&mut self, what: &'static str, layers: &[Layer], conditions: &[Condition]) {
        self.add(PASSES, true, what, layers, conditions);
    }

    fn add(
        &mut self,
        weight: u8,
        is_permit: bool,
        what: &'static str,
        layers: &[Layer],
        conditions: &[Condition],
    ) {
        self.0.extend(layers.iter().map(|layer| Filter {
            what,
            layer: *layer,
            weight,
            is_permit,
            conditions: conditions.to_vec(),
        }));
    }

    /// DHCP and DHCPv6, of a client. Every program may use these ports, so that requests go to near servers
    /// only.
    fn add_address_configuration(&mut self) {
        let ports = |local, remote| {
            vec![Condition::Protocol(UDP), Condition::LocalPort(local), Condition::RemotePort(remote)]
        };
        let servers = dhcp_servers().map(|net| Condition::Remote(IpNet::V4(net)));
        let request = [ports(68, 67), servers.collect()].concat();
        self.permit("DHCP", &[Layer::ConnectV4], &request);
        self.permit("DHCP", &[Layer::AcceptV4], &ports(68, 67));
        let servers =
            [Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2), Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, 3)];
        let request = [
            ports(546, 547),
            vec![Condition::Local(v6(0xfe80, 10))],
            servers.map(|server| Condition::Remote(IpAddr::V6(server).into())).to_vec(),
        ];
        self.permit("DHCPv6", &[Layer::ConnectV6], &request.concat());
        let answer = [ports(546, 547), vec![Condition::Remote(v6(0xfe80, 10))]];
        self.permit("DHCPv6", &[Layer::AcceptV6], &answer.concat());
    }

    fn add_icmp(&mut self) {
        let types = |types: &[u8]| -> Vec<Condition> {
            let types = types.iter().map(|kind| Condition::IcmpType(*kind));
            std::iter::once(Condition::Protocol(ICMPV6)).chain(types).collect()
        };
        // RFC 4861: solicitations and advertisements of routers and neighbours, and redirects of routers.
        self.permit("neighbour discovery", &[Layer::ConnectV6], &types(&[133, 134, 135, 136]));
        self.permit("neighbour discovery", &[Layer::AcceptV6], &types(&[133, 134, 135, 136, 137]));
        // RFC 2710 and RFC 3810: queries, reports and ends of multicast listeners.
        let listeners = types(&[130, 131, 132, 143]);
        for (layer, net) in [(Layer::ConnectV6, v6(0xff02, 16)), (Layer::AcceptV6, v6(0xfe80, 10))] {
            let conditions = [listeners.clone(), vec![Condition::Remote(net)]].concat();
            self.permit("multicast listeners", &[layer], &conditions);
        }
        let needs_fragments = [Condition::Protocol(ICMP), Condition::IcmpType(3), Condition::IcmpCode(4)];
        self.permit("path MTU", &[Layer::ConnectV4, Layer::AcceptV4], &needs_fragments);
        self.permit("path MTU", &[Layer::ConnectV6, Layer::AcceptV6], &types(&[2]));
    }

    fn add_local(&mut self, dns: &BTreeSet<IpAddr>, tunnel: Option<u64>) {
        let networks = local_networks();
        let named: Vec<IpNet> = dns
            .iter()
            .filter(|server| networks.iter().any(|net| net.contains(*server)))
            .map(|server| (*server).into())
            .collect();
        let of_family = |nets: &[IpNet], layer: Layer, make: fn(IpNet) -> Condition| -> Vec<Condition> {
            let nets = nets.iter().filter(|net| net.addr().is_ipv6() == layer.is_ipv6());
            nets.copied().map(make).collect()
        };
        for layer in [Layer::ConnectV4, Layer::ConnectV6] {
            let servers = of_family(&named, layer, Condition::Remote);
            if !servers.is_empty() {
                self.permit("own name servers", &[layer], &servers);
            }
        }
        let questions = [
            Condition::Protocol(TCP),
            Condition::Protocol(UDP),
            Condition::RemotePort(53),
            Condition::RemotePort(853),
        ];
        self.add(NO_DNS, false, "no other name servers", &Layer::ALE, &questions);
        for layer in Layer::ALE {
            let nets = of_family(&networks, layer, Condition::Remote);
            self.add(LOCAL, true, "local networks", &[layer], &nets);
        }
        // Where packets are forwarded, no ports are seen: only what comes out of the tunnel may go on.
        if let Some(luid) = tunnel {
            for layer in [Layer::ForwardV4, Layer::ForwardV6] {
                let mut conditions = of_family(&networks, layer, Condition::Destination);
                conditions.push(Condition::Interface(luid));
                self.add(LOCAL, true, "out of the tunnel", &[layer], &conditions);
            }
        }
    }
}

#[cfg(test)]
#[path = "filters_tests.rs"]
mod tests;
