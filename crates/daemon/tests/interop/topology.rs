//! Two namespaces and a cable, with an end of the tunnel in each.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use weft_lab::Namespace;
use weft_lab::link::{self, LinkOptions};

use crate::conversation::Place;
use crate::end::{End, inner_v4, inner_v6};
use crate::wireguard_go::can_run;

pub(crate) const WEFT: u8 = 1;
pub(crate) const GO: u8 = 2;
pub(crate) const WEFT_PORT: u16 = 51820;
pub(crate) const GO_PORT: u16 = 51821;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// Both namespaces, and a description of the two ends that know nothing of each other yet.
pub(crate) struct Cable {
    pub(crate) weft_side: Namespace,
    pub(crate) go_side: Namespace,
    pub(crate) weft: End,
    pub(crate) go: End,
}

impl Cable {
    /// `None` where wireguard-go cannot be run, which is said.
    fn new() -> Option<Self> {
        if !can_run() {
            return None;
        }
        let (weft_side, go_side) = (Namespace::new("weft").unwrap(), Namespace::new("go").unwrap());
        let networks = |number| {
            vec![
                IpNet::new(outer(Family::V4, number), 24).unwrap(),
                IpNet::new(outer(Family::V6, number), 64).unwrap(),
            ]
        };
        let options =
            LinkOptions { addresses_a: networks(WEFT), addresses_b: networks(GO), ..LinkOptions::default() };
        link::join_in_order(&weft_side, &go_side, &options).unwrap();
        Some(Self { weft_side, go_side, weft: End::new(WEFT, WEFT_PORT), go: End::new(GO, GO_PORT) })
    }

    /// The same with the ends as peers. Only weft is told where the other is, so only weft can begin.
    pub(crate) fn weft_begins(outside: Family) -> Option<Self> {
        Self::with_peers(Some(go_endpoint(outside)), None)
    }

    /// Only wireguard-go is told where the other is, so only wireguard-go can begin.
    pub(crate) fn go_begins(outside: Family) -> Option<Self> {
        Self::with_peers(None, Some(weft_endpoint(outside)))
    }

    /// Each is told where the other is, so either can begin.
    pub(crate) fn both_begin(outside: Family) -> Option<Self> {
        Self::with_peers(Some(go_endpoint(outside)), Some(weft_endpoint(outside)))
    }

    /// With what weft is told of where wireguard-go is, and the other way round.
    fn with_peers(go_at: Option<SocketAddr>, weft_at: Option<SocketAddr>) -> Option<Self> {
        let mut cable = Self::new()?;
        cable.weft.peers.push(cable.go.as_peer(go_at));
        cable.go.peers.push(cable.weft.as_peer(weft_at));
        Some(cable)
    }

    /// weft's inner end.
    pub(crate) fn weft_place(&self, inside: Family) -> Place<'_> {
        (&self.weft_side, inner(inside, WEFT))
    }

    /// wireguard-go's inner end.
    pub(crate) fn go_place(&self, inside: Family) -> Place<'_> {
        (&self.go_side, inner(inside, GO))
    }
}

pub(crate) fn inner(family: Family, number: u8) -> IpAddr {
    match family {
        Family::V4 => inner_v4(number),
        Family::V6 => inner_v6(number),
    }
}

fn outer(family: Family, number: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(192, 0, 2, number).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()).into(),
    }
}

pub(crate) fn weft_endpoint(outside: Family) -> SocketAddr {
    SocketAddr::new(outer(outside, WEFT), WEFT_PORT)
}

pub(crate) fn go_endpoint(outside: Family) -> SocketAddr {
    SocketAddr::new(outer(outside, GO), GO_PORT)
}
