//! What filters do with a packet, as the filter engine decides it.

use std::mem::discriminant;
use std::net::IpAddr;

use super::filters::{Condition, Filter, ICMP, ICMPV6, Layer, TCP, UDP};

pub(super) const TUNNEL: u64 = 0x35_0000_0100_0000;
pub(super) const ETHERNET: u64 = 0x06_0000_0200_0000;
pub(super) const WEFT: &[u8] = b"weft.exe";

/// The first packet of a flow, or one that is forwarded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) is_inbound: bool,
    pub(super) is_loopback: bool,
    /// The interface of the local address.
    pub(super) on: u64,
    pub(super) program: &'static [u8],
    pub(super) protocol: u8,
    pub(super) local: (&'static str, u16),
    pub(super) remote: (&'static str, u16),
    pub(super) icmp: (u8, u8),
    /// The interfaces by which it comes and goes, if it is forwarded to `remote`.
    pub(super) forwarded: Option<(u64, u64)>,
}

pub(super) const SYN: Packet = Packet {
    is_inbound: false,
    is_loopback: false,
    on: ETHERNET,
    program: b"browser.exe",
    protocol: TCP,
    local: ("192.168.1.9", 50_000),
    remote: ("1.1.1.1", 443),
    icmp: (0, 0),
    forwarded: None,
};
pub(super) const DATAGRAM: Packet = Packet { protocol: UDP, ..SYN };
pub(super) const V6: Packet =
    Packet { local: ("2001:db8::9", 50_000), remote: ("2001:db8:1::9", 443), ..DATAGRAM };

impl Packet {
    pub(super) fn inbound(self) -> Self {
        Self { is_inbound: true, ..self }
    }

    fn is_ipv6(&self) -> bool {
        self.remote.0.contains(':')
    }

    fn layer(&self) -> Layer {
        match (self.forwarded.is_some(), self.is_inbound, self.is_ipv6()) {
            (true, _, false) => Layer::ForwardV4,
            (true, _, true) => Layer::ForwardV6,
            (false, false, false) => Layer::ConnectV4,
            (false, false, true) => Layer::ConnectV6,
            (false, true, false) => Layer::AcceptV4,
            (false, true, true) => Layer::AcceptV6,
        }
    }

    /// Whether the packet has a value that the condition asks for. A condition on a field that the layer does
    /// not have would not be accepted by the engine.
    fn meets(&self, condition: &Condition) -> bool {
        let has_ports = [TCP, UDP].contains(&self.protocol);
        let is_icmp = [ICMP, ICMPV6].contains(&self.protocol);
        let is_in = |net: &ipnet::IpNet, address: &str| net.contains(&address.parse::<IpAddr>().unwrap());
        let is_forward = matches!(self.layer(), Layer::ForwardV4 | Layer::ForwardV6);
        let is_of_forward = match condition {
            Condition::ForwardedTo(_) | Condition::Destination(_) => Some(true),
            Condition::Interface(_) => None,
            _ => Some(false),
        };
        assert!(is_of_forward.is_none_or(|expected| expected == is_forward), "{condition:?} in {self:?}");
        match condition {
            Condition::Loopback => self.is_loopback,
            Condition::Program(program) => program == self.program,
            Condition::Interface(luid) => *luid == self.forwarded.map_or(self.on, |(from, _)| from),
            Condition::ForwardedTo(luid) => self.forwarded.is_some_and(|(_, to)| *luid == to),
            Condition::Protocol(protocol) => *protocol == self.protocol,
            Condition::LocalPort(port) => has_ports && *port == self.local.1,
            Condition::RemotePort(port) => has_ports && *port == self.remote.1,
            Condition::IcmpType(kind) => is_icmp && *kind == self.icmp.0,
            Condition::IcmpCode(code) => is_icmp && *code == self.icmp.1,
            Condition::Local(net) => is_in(net, self.local.0),
            Condition::Remote(net) | Condition::Destination(net) => is_in(net, self.remote.0),
        }
    }
}

/// Reports whether the filters of a sublayer let a packet pass.
pub(super) fn passes<'a>(filters: impl IntoIterator<Item = &'a Filter>, packet: Packet) -> bool {
    let matching = filters.into_iter().filter(|filter| {
        filter.layer == packet.layer()
            && filter.conditions.iter().all(|field| {
                let same =
                    filter.conditions.iter().filter(|other| discriminant(*other) == discriminant(field));
                same.clone().any(|condition| packet.meets(condition))
            })
    });
    let mut matching: Vec<&Filter> = matching.collect();
    matching.sort_by_key(|filter| std::cmp::Reverse(filter.weight));
    // Among filters of one weight the engine chooses.
    let first = matching.first().map(|filter| (filter.weight, filter.is_permit));
    assert!(
        matching.iter().all(|filter| first
            .is_none_or(|(weight, is_permit)| filter.weight != weight || filter.is_permit == is_permit)),
        "{matching:?}"
    );
    first.is_none_or(|(_, is_permit)| is_permit)
}
