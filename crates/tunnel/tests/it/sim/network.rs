//! The network between nodes: its faults, its datagrams, and what was sent.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use weft_tunnel::{Ecn, Transmit};

use super::{DELAY, World, ms};

/// Delay, loss and other faults of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    pub(crate) delay: Duration,
    /// Maximum random addition to the delay of each datagram.
    pub(crate) jitter: Duration,
    pub(crate) loss_percent: u64,
    pub(crate) duplication_percent: u64,
    /// Whether datagrams between two addresses arrive in the order they were sent.
    pub(crate) keeps_order: bool,
}

impl Network {
    pub(crate) const PERFECT: Self =
        Self { delay: DELAY, jitter: ms(0), loss_percent: 0, duplication_percent: 0, keeps_order: true };
}

/// The types of a WireGuard message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Initiation,
    Response,
    Cookie,
    Keepalive,
    Data,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) ecn: Ecn,
    pub(crate) bytes: Vec<u8>,
}

impl Datagram {
    pub(crate) fn kind(&self) -> Kind {
        match (self.bytes[0], self.bytes.len()) {
            (1, 148) => Kind::Initiation,
            (2, 92) => Kind::Response,
            (3, 64) => Kind::Cookie,
            (4, 32) => Kind::Keepalive,
            (4, len) if len > 32 => Kind::Data,
            shape => panic!("a tunnel sent no WireGuard message: {shape:?}"),
        }
    }
}

/// A datagram that a node sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// Time since the world began.
    pub(crate) at: Duration,
    pub(crate) from: usize,
    /// The source address that the tunnel asked for.
    pub(crate) source: Option<IpAddr>,
    pub(crate) datagram: Datagram,
}

/// What became of data messages on the network and at their receivers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DataCounts {
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    /// Dropped by the receiver's tunnel, under a reason that it counted.
    pub(crate) refused: u64,
}

impl World {
    pub(super) fn put_on_the_wire(&mut self, node: usize, transmit: &Transmit<'_>) {
        let port = self.nodes[node].address.port();
        let source =
            transmit.source.map_or(self.nodes[node].address, |address| SocketAddr::new(address, port));
        for bytes in transmit.contents.chunks(transmit.segment_size) {
            let datagram = Datagram {
                source,
                destination: transmit.destination,
                ecn: transmit.ecn,
                bytes: bytes.to_vec(),
            };
            let sent =
                Sent { at: self.elapsed(), from: node, source: transmit.source, datagram: datagram.clone() };
            self.sent.push(sent);
            let is_data = u64::from(datagram.kind() == Kind::Data);
            let to = self.node_at(datagram.destination);
            let is_cut = to.is_none_or(|to| self.cut.contains(&(node, to)));
            if is_cut || self.happens(self.network.loss_percent) {
                self.data.lost += is_data;
                continue;
            }
            let is_twice = self.happens(self.network.duplication_percent);
            self.data.duplicated += is_data * u64::from(is_twice);
            let copies = 1 + usize::from(is_twice);
            for _ in 0..copies {
                let jitter = self.network.jitter.as_micros() as u64;
                let extra = if jitter == 0 { 0 } else { self.random() % jitter };
                let mut at = self.now + self.network.delay + Duration::from_micros(extra);
                let last = self.last_arrivals.entry((source, datagram.destination)).or_insert(at);
                if self.network.keeps_order {
                    at = at.max(*last);
                }
                *last = at.max(*last);
                self.serial += 1;
                self.in_flight.insert((at, self.serial), datagram.clone());
            }
        }
    }

    pub(super) fn node_at(&self, address: SocketAddr) -> Option<usize> {
        self.nodes.iter().position(|node| node.address == address || node.aliases.contains(&address))
    }
}
